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
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn exponential(base: Duration, cap: Duration, jitter: Jitter) -> Backoff {
        Backoff::Exponential { base, cap, jitter }
    }

    #[test]
    fn delays_double_up_to_the_cap() {
        let backoff = exponential(2 * S, 3600 * S, Jitter::None);
        for (tries, seconds) in
            [(0, 2), (1, 2), (2, 4), (3, 8), (11, 2048), (12, 3600), (33, 3600), (u32::MAX, 3600)]
        {
            assert_eq!(backoff.delay(tries, 0.5), seconds * S, "{tries}");
        }
        let slow = exponential(Duration::from_nanos(1), Duration::MAX, Jitter::None);
        assert_eq!(slow.delay(41, 0.0), Duration::from_nanos(1 << 40));
        assert_eq!(slow.delay(u32::MAX, 0.0), Duration::MAX);
    }

    #[test]
    fn jitter_places_the_delay() {
        for (jitter, roll, millis) in [
            (Jitter::Full, 0.0, 0),
            (Jitter::Full, 0.25, 2_000),
            (Jitter::Full, 1.0, 8_000),
            (Jitter::Full, -3.0, 0),
            (Jitter::Full, f64::INFINITY, 8_000),
            (Jitter::Full, f64::NAN, 8_000),
            (Jitter::Equal, 0.0, 4_000),
            (Jitter::Equal, 0.5, 6_000),
            (Jitter::Equal, 7.0, 8_000),
            (Jitter::None, 0.0, 8_000),
        ] {
            let delay = exponential(2 * S, 3600 * S, jitter).delay(3, roll);
            assert_eq!(delay, Duration::from_millis(millis), "{jitter:?} {roll}");
        }
    }

    #[test]
    fn schedule_is_followed_and_its_last_delay_repeats() {
        let backoff = Backoff::Schedule(vec![Duration::ZERO, 5 * S, 300 * S]);
        for (tries, seconds) in [(0, 0), (1, 0), (2, 5), (3, 300), (4, 300), (u32::MAX, 300)] {
            assert_eq!(backoff.delay(tries, 0.1), seconds * S, "{tries}");
        }
    }

    #[test]
    fn delays_out_of_range_are_refused() {
        Backoff::default().check().unwrap();
        exponential(S, S, Jitter::Full).check().unwrap();
        exponential(S, Duration::MAX, Jitter::Full).check().unwrap();
        Backoff::Schedule(vec![Duration::ZERO]).check().unwrap();
        for backoff in [
            Backoff::Schedule(Vec::new()),
            exponential(2 * S, S, Jitter::Full),
            exponential(Duration::ZERO, S, Jitter::Full),
        ] {
            let error = backoff.check().unwrap_err().to_string();
            assert!(error.starts_with("backoff: "), "{error}");
        }
    }

    fn any_duration() -> impl Strategy<Value = Duration> {
        prop_oneof![
            (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(s, n)| Duration::new(s, n)),
            (0..100_000_u64).prop_map(Duration::from_millis),
            Just(Duration::MAX),
            Just(Duration::ZERO),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn delay_never_exceeds_the_cap(
            base in any_duration(),
            cap in any_duration(),
            tries in prop_oneof![any::<u32>(), 0..70_u32],
            roll in prop_oneof![any::<f64>(), 0.0..=1.0],
            jitter in prop_oneof![Just(Jitter::Full), Just(Jitter::Equal), Just(Jitter::None)],
        ) {
            let delay = exponential(base, cap, jitter).delay(tries, roll);
            prop_assert!(delay <= cap);
            if jitter == Jitter::Equal && base <= cap {
                prop_assert!(delay >= base / 2);
            }
        }
    }
}
