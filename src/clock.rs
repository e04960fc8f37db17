//! The clock, read once per step at the rim; everything below is handed `now`.

use std::fmt::Debug;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::core::millis;

/// A source of the current time, in UTC milliseconds since 1970.
///
/// [`SystemClock`] is the default; [`testing::ManualClock`](crate::testing::ManualClock) moves
/// when told.
pub trait Clock: Debug + Send + Sync {
    /// The current time in UTC milliseconds.
    fn now(&self) -> i64;
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
