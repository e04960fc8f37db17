//! One operation inside a relay: its rules, its handler, and how much of it is on the way.

use std::sync::Arc;
use std::time::Duration;

use crate::core::contract::Downstream;
use crate::core::decide::Policy;
use crate::handler::Handler;
use crate::store::Rules;

/// One operation inside a relay.
pub(super) struct Lane {
    pub rules: Rules,
    pub policy: Arc<Policy>,
    pub handler: Arc<dyn Handler>,
    pub priority: i32,
    pub max_in_flight: Option<usize>,
    /// Deliveries claimed and not reported yet.
    pub held: usize,
    /// A moving average of how long one attempt takes.
    average: Duration,
}

/// How much work of one operation may wait in the queue. A slow operation then holds hardly more
/// rows than there are workers, and a fast one keeps them busy while a step commits.
const QUEUE_AHEAD: Duration = Duration::from_millis(50);

impl Lane {
    pub fn new(rules: Rules, handler: Arc<dyn Handler>, priority: i32, max: Option<usize>) -> Self {
        let policy = Arc::new(rules.policy.clone());
        // Nothing is known yet: as if one attempt filled the whole queue time.
        Self { rules, policy, handler, priority, max_in_flight: max, held: 0, average: QUEUE_AHEAD }
    }

    pub fn took(&mut self, took: Duration) {
        self.average = (self.average * 7 + took) / 8;
    }

    /// How many workers may be busy with this operation at once, of those `configured` and those
    /// `there`. Where a relay has several operations, one worker stays free for the others,
    /// however many rows of this one wait.
    pub fn workers_max(&self, configured: usize, there: usize, several: bool) -> usize {
        let share = if several { there.saturating_sub(1).max(1) } else { there };
        self.max_in_flight.unwrap_or(share).min(configured).min(there)
    }

    /// Whether a worker that becomes idle could be given a row of this operation, which is claimed
    /// for idle workers alone.
    pub fn waits_for_idle(&self) -> bool {
        self.rules.policy.promise.downstream == Downstream::Unprotected
            && self.max_in_flight.is_none_or(|max| self.held < max)
    }

    /// How many more rows to claim. `idle` is the number of workers with nothing to do.
    pub fn room(&self, workers: usize, idle: usize) -> usize {
        let room = self.max_in_flight.unwrap_or(usize::MAX).saturating_sub(self.held);
        match self.rules.policy.promise.downstream {
            // A claim means "about to be sent": a row that waited in the queue when its process
            // died would be in doubt for nothing.
            Downstream::Unprotected => room.min(idle),
            Downstream::DeduplicatesByKey { .. } => {
                let per_worker = QUEUE_AHEAD.as_nanos() / self.average.as_nanos().max(1);
                let ahead =
                    workers.saturating_mul(usize::try_from(per_worker).unwrap_or(usize::MAX));
                room.min(workers.saturating_add(ahead).saturating_sub(self.held))
            }
        }
    }
}
