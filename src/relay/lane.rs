//! An operation inside a relay: its rules, its handler, and how long an attempt takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::operation::Operation;
use crate::core::Downstream;
use crate::handler::Handler;
use crate::store::Rules;

/// An operation inside a relay. The numbers that change are written by the relay's writer alone.
pub(super) struct Lane {
    /// Which of the relay's lanes this is, counted from 0.
    pub place: usize,
    pub rules: Rules,
    pub handler: Arc<dyn Handler>,
    pub priority: i32,
    pub max_in_flight: Option<usize>,
    /// Whether its handler could end this process.
    pub is_in_process: bool,
    /// Whether the operation has a rate or budgets, as the last claim found it.
    is_limited: AtomicBool,
    workers_max: AtomicUsize,
    stuck: AtomicIsize,
    /// A moving average of how long one attempt takes, in nanoseconds.
    average_ns: AtomicU64,
}

/// How much work of one operation may wait in the queue. A slow operation then holds few more
/// rows than there are workers, and a fast one keeps them busy while a step commits.
const QUEUE_AHEAD: Duration = Duration::from_millis(50);

impl Lane {
    pub fn new(place: usize, rules: Rules, operation: &Operation) -> Self {
        Self {
            place,
            rules,
            is_in_process: operation.handler.runs_in_process(),
            handler: Arc::clone(&operation.handler),
            priority: operation.priority,
            max_in_flight: operation.contract.limits.max_in_flight,
            is_limited: AtomicBool::new(false),
            workers_max: AtomicUsize::new(0),
            stuck: AtomicIsize::new(0),
            // Nothing is known yet: as if one attempt filled the whole queue time.
            average_ns: AtomicU64::new(nanos(QUEUE_AHEAD)),
        }
    }

    /// Whether a row that is lost with its process is in doubt for good.
    pub fn is_unprotected(&self) -> bool {
        self.rules.policy.promise.downstream == Downstream::Unprotected
    }

    /// Notes how long an attempt took.
    pub fn note_duration(&self, took: Duration) {
        let average = self.average_ns.load(Ordering::Relaxed);
        let average = (u128::from(average) * 7 + took.as_nanos()) / 8;
        self.average_ns.store(u64::try_from(average).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How many attempts one worker makes in the time that rows may wait in the queue.
    pub fn attempts_ahead(&self) -> usize {
        let average = self.average_ns.load(Ordering::Relaxed).max(1);
        usize::try_from(nanos(QUEUE_AHEAD) / average).unwrap_or(usize::MAX)
    }

    /// Whether only rows that can start at once may be claimed: what waits in the queue would be
    /// sent in one burst, long after it was counted.
    pub fn starts_at_once(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
            || self.rules.policy.promise.downstream == Downstream::Unprotected
    }

    pub fn set_limited(&self, is_limited: bool) {
        self.is_limited.store(is_limited, Ordering::Relaxed);
    }

    /// How many workers that come back may be busy with this lane at once.
    pub fn workers_max(&self) -> usize {
        self.workers_max.load(Ordering::Relaxed)
    }

    pub fn set_workers_max(&self, workers: usize) {
        self.workers_max.store(workers, Ordering::Relaxed);
    }

    /// Whether one more worker may be busy beside so many. A stuck worker counts as busy forever,
    /// and must not use up the lane's share.
    pub fn has_worker_left(&self, busy: usize) -> bool {
        busy < self.workers_max().saturating_add_signed(self.stuck.load(Ordering::Relaxed))
    }

    /// Counts workers that are stuck in this lane's handler, or come back from it.
    pub fn count_stuck(&self, more: isize) {
        self.stuck.fetch_add(more, Ordering::Relaxed);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
