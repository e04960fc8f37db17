//! The clock. A step reads it once and hands `now` to everything below.

use std::fmt::Debug;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::core::millis;

/// A source of the current time, in UTC milliseconds since 1970.
///
/// [`SystemClock`] is the default; [`testing::ManualClock`](crate::testing::ManualClock) moves
/// when told.
pub trait Clock: Debug + Send + Sync {
    /// The current time in UTC milliseconds.
    fn now(&self) -> i64;

    /// The time since some moment in this process's life, on a clock that cannot be set. The age of
    /// an attempt in doubt is measured with it.
    fn monotonic(&self) -> Duration {
        static BEGAN: OnceLock<Instant> = OnceLock::new();
        BEGAN.get_or_init(Instant::now).elapsed()
    }
}

/// The machine's wall clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> i64 {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        millis(since_epoch)
    }
}
