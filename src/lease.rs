//! The end of a lease, as the relay's writer moves it and its workers read it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::core::millis;

/// The lease of one claimed row, shared by the writer and a worker.
#[derive(Debug)]
pub(crate) struct Lease {
    expires_at: AtomicI64,
    clock: Arc<dyn Clock>,
    /// When a worker began: monotonic, so that a machine that slept did not work meanwhile, and by
    /// the outbox's clock that nobody sets.
    began: OnceLock<(Instant, Duration)>,
}

impl Lease {
    pub fn new(expires_at: i64, clock: Arc<dyn Clock>) -> Self {
        Self { expires_at: AtomicI64::new(expires_at), clock, began: OnceLock::new() }
    }

    /// The time by the outbox's clock.
    pub fn now(&self) -> i64 {
        self.clock.now()
    }

    pub fn holds_for(&self, needed: Duration) -> bool {
        self.now().saturating_add(millis(needed)) <= self.expires_at.load(Ordering::Acquire)
    }

    pub fn extend_to(&self, expires_at: i64) {
        self.expires_at.store(expires_at, Ordering::Release);
    }

    /// Moves the end with the wall clock. A lease that is lost stays so.
    pub fn shift(&self, by: i64) {
        let moved = |at: i64| (at != i64::MIN && at != i64::MAX).then(|| at.saturating_add(by));
        let _ = self.expires_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, moved);
    }

    /// Notes when a worker began.
    pub fn begin(&self, at: Instant) {
        self.began.get_or_init(|| (at, self.clock.monotonic()));
    }

    /// When a worker began, or `None` while the delivery waits for one.
    pub fn began(&self) -> Option<Instant> {
        self.began.get().map(|(at, _)| *at)
    }

    /// When a worker began, by the wall clock as it is set now.
    pub fn sent_at(&self) -> Option<i64> {
        let (_, at) = self.began.get()?;
        Some(self.now().saturating_sub(millis(self.clock.monotonic().saturating_sub(*at))))
    }

    /// Marks the lease as lost: another claim of the row may exist.
    pub fn revoke(&self) {
        self.extend_to(i64::MIN);
    }
}
