//! How long to wait before the next try.

use std::time::Duration;

use super::word::words;
use crate::error::{Error, Result};

/// How the delays between tries grow.
///
/// ```
/// use std::time::Duration;
/// use sqlite_outbox::{Backoff, Jitter};
///
/// let gentle = Backoff::Exponential {
///     base: Duration::from_secs(5),
///     cap: Duration::from_secs(600),
///     jitter: Jitter::Equal,
/// };
/// let published = Backoff::Schedule([5, 60, 900].map(Duration::from_secs).into());
/// # assert_ne!(gentle, published);
/// ```
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

words! {
    /// How a delay is spread, so that rows which failed together do not come back together.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum Jitter, "jitter" {
        /// Anywhere between zero and the delay.
        #[default]
        Full = "full",
        /// Between half the delay and the delay.
        Equal = "equal",
        /// Exactly the delay.
        None = "none",
    }
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
    /// Whether equal rows get different delays.
    pub(crate) fn is_jittered(&self) -> bool {
        matches!(self, Self::Exponential { jitter: Jitter::Full | Jitter::Equal, .. })
    }

    /// Whether the delays make sense.
    pub(crate) fn check(&self) -> Result<()> {
        let reason = match self {
            Self::Exponential { base, .. } if base.is_zero() => "base must be longer than zero",
            Self::Exponential { base, cap, .. } if base > cap => "base must not exceed cap",
            Self::Schedule(delays) if delays.is_empty() => "a schedule needs at least one delay",
            _ => return Ok(()),
        };
        Err(Error::invalid("backoff", reason))
    }

    /// The longest delay of all.
    pub(crate) fn longest(&self) -> Duration {
        match self {
            Self::Exponential { cap, .. } => *cap,
            Self::Schedule(delays) => delays.iter().max().copied().unwrap_or_default(),
        }
    }

    /// The delay after the given number of tries, from 1; `roll` in `0.0..1.0` places it in the
    /// jitter. Never longer than the cap.
    pub(crate) fn delay(&self, tries: u32, roll: f64) -> Duration {
        match self {
            Self::Exponential { base, cap, jitter } => {
                let full = doubled(*base, *cap, tries.saturating_sub(1));
                // Clamped last, whatever rounding did before.
                jitter.spread(full, roll).min(*cap)
            }
            Self::Schedule(delays) => {
                let next = usize::try_from(tries.saturating_sub(1)).unwrap_or(usize::MAX);
                delays.get(next).or(delays.last()).copied().unwrap_or_default()
            }
        }
    }
}

impl Jitter {
    fn spread(self, full: Duration, roll: f64) -> Duration {
        match self {
            Self::Full => share(full, roll),
            Self::Equal => {
                let half = full / 2;
                half.saturating_add(share(full.saturating_sub(half), roll))
            }
            Self::None => full,
        }
    }
}

/// `base * 2^times`, or at least `cap` if that is less. Stops at the cap, so it takes at most
/// some hundred steps.
fn doubled(base: Duration, cap: Duration, times: u32) -> Duration {
    let mut delay = base;
    for _ in 0..times {
        if delay >= cap || delay.is_zero() {
            break;
        }
        delay = delay.saturating_mul(2);
    }
    delay
}

/// The share of a delay; all of it where the roll is not a number or the product would not fit.
fn share(full: Duration, roll: f64) -> Duration {
    let seconds = full.as_secs_f64() * roll.clamp(0.0, 1.0);
    Duration::try_from_secs_f64(seconds).map_or(full, |share| share.min(full))
}

#[cfg(test)]
mod tests;
