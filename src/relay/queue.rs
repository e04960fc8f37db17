//! Deliveries that wait for a worker. A channel would hand them out strictly in turn; here a
//! delivery whose operation has as many workers as it may have lets others pass.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::lane::Lane;
use crate::handler::Held;
use crate::store::Reported;

/// Deliveries on their way to the workers. Bounded by how many rows a relay may hold.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    /// Workers busy with a lane, by the lane's place.
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

    /// The next delivery that may run, once there is one; `None` when the worker should exit.
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

    /// The next delivery that may run now, if there is one.
    pub fn try_next(&self) -> Option<Work> {
        self.lock().take_next()
    }

    /// Sets how many workers there should be. Returns how many must be spawned, which count from
    /// now on; those too many exit when their delivery is done.
    pub fn resize(&self, wanted: usize) -> usize {
        let mut state = self.lock();
        let missing = wanted.saturating_sub(state.workers);
        state.workers += missing;
        // Lanes may have another share of the workers, too.
        if std::mem::replace(&mut state.wanted, wanted) != wanted {
            self.changed.notify_all();
        }
        missing
    }

    /// Undoes [`resize`](Self::resize) for one worker that could not be spawned.
    pub fn spawn_failed(&self) {
        let mut state = self.lock();
        state.workers = state.workers.saturating_sub(1);
    }

    /// Frees the worker that a delivery of this lane took.
    pub fn done(&self, lane: &Lane) {
        if let Some(busy) = self.lock().busy.get_mut(&lane.place) {
            *busy = busy.saturating_sub(1);
        }
        self.changed.notify_one();
    }

    /// Removes what no worker has started, as far as `goes_back` holds for it.
    pub fn reclaim_unstarted(&self, goes_back: impl Fn(&Work) -> bool) -> VecDeque<Work> {
        let mut state = self.lock();
        let waiting = std::mem::take(&mut state.waiting);
        let (back, stays) = waiting.into_iter().partition(goes_back);
        state.waiting = stays;
        back
    }

    /// Makes every worker exit.
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
        let busy = |lane: &Lane| self.busy.get(&lane.place).copied().unwrap_or_default();
        let may_run = |work: &Work| work.lane.has_worker_left(busy(&work.lane));
        let work = self.waiting.remove(self.waiting.iter().position(may_run)?)?;
        *self.busy.entry(work.lane.place).or_default() += 1;
        Some(work)
    }
}

/// A claimed row on its way to a worker.
#[derive(Clone)]
pub(super) struct Work {
    pub lane: Arc<Lane>,
    pub held: Held,
}

/// A row under one claim. All rows that one transaction claims have the same token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ClaimId {
    pub id: i64,
    token: i64,
}

impl Work {
    pub fn claim_id(&self) -> ClaimId {
        let delivery = self.held.delivery();
        ClaimId { id: delivery.id, token: delivery.token }
    }
}

/// A claimed row as it comes back from a worker.
pub(super) struct Returned {
    pub work: Work,
    /// The outcome or finding, or `None` where the attempt was not begun.
    pub reported: Option<Reported>,
    /// When the attempt was begun, on the monotonic clock.
    pub began: Duration,
    pub took: Duration,
}
