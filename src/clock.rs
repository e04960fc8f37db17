//! The clocks. A step reads them once and hands `now` to everything below.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
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

    /// The time since the machine was started, which nobody sets, and which goes on while it
    /// sleeps. By it a relay notices that the time of [`now`](Self::now) was set, and that the
    /// machine was started anew. `None`, the default, where the platform has no such clock.
    fn boot(&self) -> Option<Boot> {
        None
    }
}

/// The time since the machine was started.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Boot {
    /// The name of this start of the machine: another one has another name.
    pub id: Arc<str>,
    /// Milliseconds since then, with those that the machine slept.
    pub ms: i64,
}

impl Boot {
    /// The time since the start of this name, in milliseconds.
    pub fn new(id: impl Into<Arc<str>>, ms: i64) -> Self {
        Self { id: id.into(), ms }
    }
}

/// The machine's wall clock; on Linux also its time since it was started.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> i64 {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        millis(since_epoch)
    }

    fn boot(&self) -> Option<Boot> {
        static ID: OnceLock<Option<Arc<str>>> = OnceLock::new();
        let read_id = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let id = ID.get_or_init(|| read_id().map(|id| id.trim().into())).clone()?;
        let text = std::fs::read_to_string("/proc/uptime").ok()?;
        let (seconds, hundredths) = text.split_whitespace().next()?.split_once('.')?;
        let (seconds, hundredths): (i64, i64) = (seconds.parse().ok()?, hundredths.parse().ok()?);
        Some(Boot { id, ms: seconds.checked_mul(1000)?.checked_add(hundredths * 10)? })
    }
}
