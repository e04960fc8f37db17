//! How much a relay may hold, and of which operation.

use super::builder::Options;
use super::lane::Lane;
use crate::core::millis;
use crate::core::reconcile::STALE_AFTER;

/// How many rows a relay holds of each lane. Some space is kept for every lane, so that none can
/// fill it all.
pub(super) struct Space {
    lanes: Vec<LaneSpace>,
    held_max: usize,
    batch: usize,
    /// Space that is kept for each lane.
    reserve: usize,
    /// Rows held, where a lane counts at least as its reserve.
    taken: usize,
    workers: usize,
    /// Workers that what is held will keep busy.
    busy: usize,
    /// Bytes of payloads that still fit.
    bytes_left: usize,
    /// Look-ups that may still begin: at most half of the workers ask, so that providers that do
    /// not answer cannot keep all of them from sending.
    lookups_left: usize,
    is_closed: bool,
}

#[derive(Clone, Default)]
struct LaneSpace {
    held: usize,
    workers_max: usize,
}

impl Space {
    /// `lookups` are on the way; `lanes` says how many rows each lane holds and how many workers it
    /// may keep busy.
    pub fn new(
        options: &Options,
        workers: usize,
        (bytes_left, lookups): (usize, usize),
        lanes: impl ExactSizeIterator<Item = (usize, usize)>,
    ) -> Self {
        let (held_max, count) = (options.held_max(), lanes.len());
        let reserve = options.workers.min(held_max / count.max(1));
        let mut space = Self {
            lanes: vec![LaneSpace::default(); count],
            held_max,
            batch: options.batch,
            reserve,
            taken: reserve * count,
            workers,
            busy: 0,
            bytes_left,
            lookups_left: (workers / 2).max(1).saturating_sub(lookups),
            is_closed: workers == 0,
        };
        for (index, (held, workers_max)) in lanes.enumerate() {
            space.lanes[index].workers_max = workers_max;
            space.hold(index, held, 0);
        }
        space
    }

    /// Lets nothing more be claimed.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// How many more rows of this lane may be claimed.
    pub fn room(&self, index: usize, lane: &Lane) -> usize {
        if self.is_closed || self.bytes_left == 0 {
            return 0;
        }
        let held = self.lanes[index].held;
        let others = self.taken - held.max(self.reserve);
        let left = self.held_max.saturating_sub(others).saturating_sub(held);
        lane.room(self.workers, self.idle()).min(left).min(self.batch)
    }

    /// How many more look-ups of this lane may be claimed: only what a worker is idle for.
    pub fn lookup_room(&self, index: usize, lane: &Lane) -> usize {
        self.room(index, lane).min(self.idle()).min(self.lookups_left)
    }

    /// How long after their time look-ups of this lane are its relay's business, in milliseconds:
    /// at once where it can ask and has room, and else where nobody does.
    pub fn lookups_after(&self, index: usize, lane: &Lane) -> Option<i64> {
        if !lane.handler.reconciles() {
            return Some(millis(STALE_AFTER));
        }
        (self.lookup_room(index, lane) > 0).then_some(0)
    }

    /// Counts that many more of them.
    pub fn hold_lookups(&mut self, index: usize, count: usize, bytes: usize) {
        self.lookups_left = self.lookups_left.saturating_sub(count);
        self.hold(index, count, bytes);
    }

    /// Workers with nothing to do, now or soon.
    pub fn idle(&self) -> usize {
        self.workers.saturating_sub(self.busy)
    }

    /// Bytes of payloads that still fit.
    pub fn bytes_left(&self) -> usize {
        self.bytes_left
    }

    /// Counts that many more rows of this lane, with so many bytes of payloads.
    pub fn hold(&mut self, index: usize, count: usize, bytes: usize) {
        let lane = &mut self.lanes[index];
        let before = lane.clone();
        lane.held += count;
        self.taken += lane.held.max(self.reserve) - before.held.max(self.reserve);
        self.busy += lane.held.min(lane.workers_max) - before.held.min(lane.workers_max);
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
    }
}
