//! A kit for tests: a clock that moves when told.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::core::millis;

/// A clock that stands still until it is moved. Clones move together. Advancing it is time that
/// passes; setting it is what a person or a time server does to the wall clock alone.
///
/// With one worker and [`Relay::drain`](crate::Relay::drain) it makes tests of retries and
/// leases exact, without a sleep.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Times>);

#[derive(Debug)]
struct Times {
    wall: AtomicI64,
    passed: AtomicU64,
}

impl ManualClock {
    /// A clock that stands at this time, in UTC milliseconds.
    pub fn at(now: i64) -> Self {
        Self(Arc::new(Times { wall: AtomicI64::new(now), passed: AtomicU64::new(0) }))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0.wall.fetch_add(millis(by), Ordering::SeqCst);
        self.0.passed.fetch_add(millis(by).unsigned_abs(), Ordering::SeqCst);
    }

    /// Sets the wall clock, also backward. No time passes by it.
    pub fn set(&self, now: i64) {
        self.0.wall.store(now, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> i64 {
        self.0.wall.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.passed.load(Ordering::SeqCst))
    }
}
