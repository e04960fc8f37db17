//! The pure core: what an intent is, which key it has, what an outcome means and what follows.
//!
//! Nothing here reads a clock, draws a random number or does I/O: `now` and random rolls are
//! arguments, so every rule can be tested as a table.

// Where it says so, parts are used by the HTTP handler only.
pub(crate) mod actor;
pub(crate) mod backoff;
#[cfg_attr(not(feature = "http"), allow(dead_code))]
mod body;
pub(crate) mod budget;
pub(crate) mod canonical;
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) mod classify;
pub(crate) mod contract;
pub(crate) mod decide;
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) mod endpoint;
pub(crate) mod entry;
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) mod evidence;
pub(crate) mod failing;
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) mod flow;
pub(crate) mod header;
pub(crate) mod hold;
pub(crate) mod intent;
#[cfg(feature = "serde")]
pub(crate) mod json;
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) mod judge;
pub(crate) mod key;
pub(crate) mod limit;
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) mod lookup;
pub(crate) mod outcome;
pub(crate) mod pause;
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) mod predicate;
pub(crate) mod reconcile;
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) mod retry_after;
pub(crate) mod setters;
pub(crate) mod shard;
pub(crate) mod status;
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) mod template;
pub(crate) mod verbs;
pub(crate) mod why;
pub(crate) mod word;

pub(crate) use actor::Actor;
pub(crate) use backoff::Backoff;
#[cfg(feature = "http")]
pub(crate) use body::{Answer, BodyEnd};
pub(crate) use budget::{Budget, Fit, Kind, Left, Scope, UsedUp};
pub(crate) use contract::{Downstream, OnDead, Promise, StoredContract};
pub(crate) use decide::{Decision, Facts, Policy};
pub(crate) use entry::{Entry, Filter, OperationStats};
pub(crate) use failing::FailingAnswer;
pub(crate) use flow::{Closed, FlowControl, FlowMove, Gate, Gates, Limits, Rate, Stopped};
pub(crate) use hold::Heard;
pub(crate) use intent::{Intent, Prepared};
#[cfg(feature = "http")]
pub(crate) use judge::{Asked, Meaning, Rules};
#[cfg(feature = "http")]
pub(crate) use lookup::LookupRules;
pub(crate) use outcome::{Failure, Finding, Outcome, Receipt, Resolution};
pub(crate) use pause::{Pause, PauseKind};
#[cfg(feature = "http")]
pub(crate) use predicate::Predicate;
pub(crate) use reconcile::Observed;
pub(crate) use shard::Shard;
pub(crate) use status::Status;
pub(crate) use verbs::{Cancellation, Refusal};
pub(crate) use why::{Settled, Why};

/// How far a clock may be corrected backwards before the times it wrote are no longer trusted.
/// Times ahead by less come from processes that read theirs while this one waited for the lock.
pub(crate) const CLOCK_SLACK_MS: i64 = 60_000;

/// The time of a step, and where a delay drawn in it falls in its jitter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Draw {
    /// UTC milliseconds.
    pub now: i64,
    /// In `0.0..1.0`.
    pub roll: f64,
}

/// A duration in whole milliseconds, saturating.
pub(crate) fn millis(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A length of time as relay.toml takes it, in hours at most: `24h`, `1h 30m`, `100ms`.
pub(crate) fn length(duration: std::time::Duration) -> String {
    let mut rest = duration.as_millis();
    let mut parts = Vec::new();
    for (unit, size) in [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
        if rest >= size {
            parts.push(format!("{}{unit}", rest / size));
            rest %= size;
        }
    }
    if parts.is_empty() { "0s".into() } else { parts.join(" ") }
}

/// A time as people write it: UTC, to the second.
pub(crate) fn utc(at: i64) -> String {
    // Years of four digits; a file may hold anything.
    match u64::try_from(at) {
        Ok(ms) if ms < 253_402_300_800_000 => {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(ms);
            humantime::format_rfc3339_seconds(time).to_string()
        }
        _ => format!("{at} ms"),
    }
}
