//! What waits for a worker. A channel would hand out strictly in turn; here a delivery whose
//! operation has as many workers as it may have lets others pass.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::worker::Work;

/// Deliveries on their way to the workers. Bounded by how many rows a relay may hold.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    /// Workers busy with a lane.
    busy: HashMap<usize, usize>,
    closed: bool,
    /// Workers there are, and workers there should be.
    workers: usize,
    wanted: usize,
}

impl Queue {
    pub fn push(&self, work: Work) {
        self.lock().waiting.push_back(work);
        self.changed.notify_one();
    }

    /// The next delivery that may run, once there is one; `None` when the queue is closed.
    pub fn next(&self) -> Option<Work> {
        let mut state = self.lock();
        loop {
            if state.closed || state.workers > state.wanted {
                state.workers = state.workers.saturating_sub(1);
                return None;
            }
            if let Some(work) = state.take_next() {
                return Some(work);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Says how many workers there should be. Returns how many are missing, who are counted from
    /// now on; those too many go home when they have nothing in hand.
    pub fn staff(&self, wanted: usize) -> usize {
        let mut state = self.lock();
        state.wanted = wanted;
        let missing = wanted.saturating_sub(state.workers);
        state.workers += missing;
        if state.workers > wanted {
            self.changed.notify_all();
        }
        missing
    }

    /// One who was counted could not be had.
    pub fn missed(&self) {
        let mut state = self.lock();
        state.workers = state.workers.saturating_sub(1);
    }

    /// Frees the place that a delivery of this lane took.
    pub fn done(&self, lane: usize) {
        if let Some(busy) = self.lock().busy.get_mut(&lane) {
            *busy = busy.saturating_sub(1);
        }
        self.changed.notify_one();
    }

    /// Takes back everything that no worker has started.
    pub fn take_back(&self) -> VecDeque<Work> {
        std::mem::take(&mut self.lock().waiting)
    }

    /// Takes back what no worker has started of one lane.
    pub fn take_back_of(&self, lane: usize) -> VecDeque<Work> {
        let mut state = self.lock();
        let (of_lane, others) =
            std::mem::take(&mut state.waiting).into_iter().partition(|work| work.lane == lane);
        state.waiting = others;
        of_lane
    }

    /// Sends the workers home.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take_next(&mut self) -> Option<Work> {
        let busy = |lane| self.busy.get(&lane).copied().unwrap_or_default();
        let place = self.waiting.iter().position(|work| busy(work.lane) < work.workers_max)?;
        let work = self.waiting.remove(place)?;
        *self.busy.entry(work.lane).or_default() += 1;
        Some(work)
    }
}
