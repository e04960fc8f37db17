//! How long to wait before the next try.

use std::time::Duration;

/// How the delays between tries grow.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backoff {
    /// `min(cap, base * 2^(tries - 1))`, spread by `jitter`.
    Exponential {
        /// The delay after the first try.
        base: Duration,
        /// The longest delay.
        cap: Duration,
        /// How the delay is spread.
        jitter: Jitter,
    },
    /// A published list of delays; the last one repeats.
    Schedule(Vec<Duration>),
}

/// How a delay is spread, so that rows which failed together do not come back together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Jitter {
    /// Anywhere between zero and the delay.
    #[default]
    Full,
    /// Between half the delay and the delay.
    Equal,
    /// Exactly the delay.
    None,
}

impl Default for Backoff {
    /// Base 2 s, cap 1 h, full jitter.
    fn default() -> Self {
        Self::Exponential {
            base: Duration::from_secs(2),
            cap: Duration::from_secs(3600),
            jitter: Jitter::Full,
        }
    }
}

impl Backoff {
    /// The delay after the given number of tries; `roll` in `0.0..1.0` places it in the jitter.
    pub(crate) fn delay(&self, _tries: u32, _roll: f64) -> Duration {
        unimplemented!()
    }
}
