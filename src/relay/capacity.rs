//! How many more rows a relay may claim, and of which operation.

use std::sync::Arc;
use std::time::Duration;

use super::lane::Lane;
use super::queue::Work;
use super::shared::Options;
use crate::core::reconcile::STALE_AFTER;
use crate::core::{Downstream, millis};
use crate::handler::Held;

/// The rows a relay holds of each lane, and how many more it may claim. Some room is kept for each
/// lane, so that none can fill it all.
pub(super) struct Capacity {
    /// Rows held of each lane, by the lane's place.
    held: Vec<usize>,
    held_max: usize,
    batch: usize,
    /// Rows for which room is kept in each lane.
    reserve: usize,
    /// Rows held, where a lane counts at least as its reserve.
    taken: usize,
    workers: usize,
    /// Workers that what is held will keep busy.
    busy: usize,
    /// The highest priority of a lane that holds more rows than it has workers for.
    waiting: Option<i32>,
    /// Bytes of payloads that still fit.
    pub bytes_left: usize,
    /// Lookups that may still begin: at most half of the workers look up, so that providers that
    /// do not answer cannot keep all of them from sending.
    lookups_left: usize,
    /// Rows held that would be in doubt for good, were this process to end.
    unprotected: usize,
    /// A suspect that could end this process is held: no more unprotected rows are claimed.
    has_suspect: bool,
    /// The place of the lane whose suspect waits until no unprotected row is held.
    pub suspect_waits: Option<usize>,
    /// Nothing more may be claimed.
    pub is_closed: bool,
}

impl Capacity {
    /// The capacity of a relay with so many `workers` that come back soon, which holds `held`.
    pub fn new<'a>(
        options: &Options,
        payload_max: usize,
        workers: usize,
        lanes: &[Arc<Lane>],
        held: impl Iterator<Item = &'a Work>,
    ) -> Self {
        // One batch is with the workers while the next is written.
        let held_max = options.batch.saturating_mul(2).max(options.workers);
        let reserve = options.workers.min(held_max / lanes.len().max(1));
        let mut capacity = Self {
            held: vec![0; lanes.len()],
            held_max,
            batch: options.batch,
            reserve,
            taken: reserve * lanes.len(),
            workers,
            busy: 0,
            waiting: None,
            // As if each worker had one of the largest payloads in hand and one waiting.
            bytes_left: payload_max.saturating_mul(options.workers).saturating_mul(2),
            lookups_left: (workers / 2).max(1),
            unprotected: 0,
            has_suspect: false,
            suspect_waits: None,
            is_closed: workers == 0,
        };
        held.for_each(|work| capacity.hold(work));
        capacity
    }

    /// Counts a row that is held.
    pub fn hold(&mut self, work: &Work) {
        let held = &mut self.held[work.lane.place];
        self.taken += usize::from(*held >= self.reserve);
        self.busy += usize::from(*held < work.lane.workers_max());
        if *held >= work.lane.workers_max() {
            self.waiting = self.waiting.max(Some(work.lane.priority));
        }
        *held += 1;
        let is_send = matches!(work.held, Held::Send(_));
        self.unprotected += usize::from(is_send && work.lane.is_unprotected());
        // Others wait for it no longer than its time limit.
        let worked = work.held.delivery().lease.began().map_or(Duration::ZERO, |b| b.elapsed());
        self.has_suspect |= work.lane.is_in_process
            && work.held.is_suspect()
            && worked <= work.lane.rules.policy.promise.time_limit;
        self.bytes_left = self.bytes_left.saturating_sub(work.held.delivery().intent.payload.len());
        if !is_send {
            self.lookups_left = self.lookups_left.saturating_sub(1);
        }
    }

    /// How many more rows of this lane may be claimed.
    pub fn room(&self, lane: &Lane) -> usize {
        if self.is_closed || self.bytes_left == 0 {
            return 0;
        }
        let held = self.held[lane.place];
        let others = self.taken - held.max(self.reserve);
        let left = self.held_max.saturating_sub(others).saturating_sub(held);
        let is_unprotected = lane.rules.policy.promise.downstream == Downstream::Unprotected;
        let ahead = if is_unprotected && self.keeps_back(lane) {
            0
        } else if lane.starts_at_once() {
            // A claim means "about to be sent": a row that waited in the queue when its process
            // died would be in doubt for nothing.
            self.starts(lane)
        } else {
            let ahead = self.workers.saturating_mul(lane.attempts_ahead());
            self.workers.saturating_add(ahead).saturating_sub(held)
        };
        // Rows that would wait behind more urgent ones are not claimed before them.
        let is_outranked = self.waiting > Some(lane.priority);
        let ahead = if is_outranked { ahead.min(self.idle()) } else { ahead };
        let own = lane.max_in_flight.unwrap_or(usize::MAX).saturating_sub(held);
        ahead.min(own).min(left).min(self.batch)
    }

    /// How many more rows of this lane would find a worker at once.
    pub fn starts(&self, lane: &Lane) -> usize {
        self.idle().min(lane.workers_max().saturating_sub(self.held[lane.place]))
    }

    /// How many more lookups of this lane may be claimed: no more than workers are idle.
    pub fn lookup_room(&self, lane: &Lane) -> usize {
        self.room(lane).min(self.idle()).min(self.lookups_left)
    }

    /// How overdue a lookup of this lane must be, in milliseconds, to be this relay's business: not
    /// at all where its handler can look up and there is room, and else so long that no relay does.
    pub fn lookups_after(&self, lane: &Lane) -> Option<i64> {
        if !lane.handler.reconciles() {
            return Some(millis(STALE_AFTER));
        }
        (self.lookup_room(lane) > 0).then_some(0)
    }

    /// Whether a row of this lane could be claimed if a worker were idle, and none is.
    pub fn waits_for_idle_worker(&self, lane: &Lane) -> bool {
        let held = self.held[lane.place];
        self.idle() == 0
            && lane.is_unprotected()
            && !self.keeps_back(lane)
            && lane.max_in_flight.is_none_or(|max| held < max)
    }

    /// Whether no row of this unprotected lane may be claimed for the sake of a suspect.
    fn keeps_back(&self, lane: &Lane) -> bool {
        let is_next = self.suspect_waits == Some(lane.place) && self.unprotected == 0;
        self.has_suspect || (self.suspect_waits.is_some() && !is_next)
    }

    /// Whether a suspect of this lane may be claimed: if it ends this process, no unprotected row
    /// is on its way.
    pub fn tries_suspects(&self, lane: &Lane) -> bool {
        !lane.is_in_process || self.unprotected == 0
    }

    /// Workers with nothing to do, now or soon.
    pub fn idle(&self) -> usize {
        self.workers.saturating_sub(self.busy)
    }
}
