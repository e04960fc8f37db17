//! Decides on the finding of a lookup.
//!
//! Out of scope: asking. A lookup changes nothing downstream, so it may be repeated; but a row that
//! is sent again because of one must not be in flight already.

use std::time::Duration;

use super::backoff::{Backoff, Jitter};
use super::decide::{Decision, Facts, Policy, heed_cancel, parked, retry_or_give_up};
use super::outcome::{Failure, Finding};
use super::status::Status;
use super::{Draw, millis};

/// Evidence for and against a finding that nothing was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Observed {
    /// How long the asking relay had seen the row in doubt, by a clock that cannot be set.
    pub in_doubt_for: Duration,
    /// Whether a relay that lost its lease on the row is alive, and has not said how it went.
    pub may_be_on_its_way: bool,
}

/// The longest wait between two lookups of one row.
const CAP: Duration = Duration::from_secs(3600);

/// Decides on a finding. `facts.lookups` includes this one.
pub(crate) fn decide_finding(
    facts: &Facts,
    finding: &Finding,
    observed: Observed,
    policy: &Policy,
    draw: Draw,
) -> Decision {
    match finding {
        Finding::Applied(_) => Decision {
            message: Some("the lookup found it applied".into()),
            ..Decision::plain(Status::Succeeded, facts)
        },
        Finding::NotApplied if observed.may_be_on_its_way => {
            let why = "not found, but a relay that lost its lease may still be sending it";
            ask_again(*facts, &Failure::new("not_applied", why), policy, draw)
        }
        Finding::NotApplied => {
            // The wall clock, by which the lookup came due, has whole milliseconds, rounded down.
            let known_for = observed.in_doubt_for.saturating_add(Duration::from_micros(999));
            match policy.lookup_delay.saturating_sub(known_for) {
                Duration::ZERO => not_applied(*facts, policy, draw.now),
                left => ask_when_known_for_long(*facts, left, draw.now),
            }
        }
        Finding::Inconclusive(failure) => ask_again(*facts, failure, policy, draw),
        Finding::NotAsked(failure) => {
            // As with a send that never left: no lookup is used up, and the waits grow with the
            // tries.
            let facts = Facts {
                lookups: facts.lookups.saturating_sub(1),
                tries: facts.tries.saturating_add(1),
                ..*facts
            };
            let due_at = draw.now.saturating_add(delay(facts.tries, failure, policy, draw.roll));
            Decision { due_at: Some(due_at), ..parked(Status::Unknown, facts, failure, "") }
        }
    }
}

/// Decides, before a lookup, on a row whose lookups are used up, for instance because every one of
/// them ended with its process.
pub(crate) fn decide_lookups_used_up(facts: &Facts, policy: &Policy) -> Option<Decision> {
    let failure = Failure::new("lookups", "the lookups are used up without a finding");
    (facts.lookups >= policy.lookups_max).then(|| parked(Status::NeedsReview, *facts, &failure, ""))
}

/// How long an overdue lookup waits for a relay that can do it, before another relay leaves the row
/// to a person: the first may have been reconfigured, or never started again.
pub(crate) const STALE_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Decides on a row that no relay has looked up for [`STALE_AFTER`].
pub(crate) fn decide_stale(facts: &Facts) -> Decision {
    let failure = Failure::new("lookups", "no relay with a lookup has asked for a day");
    parked(Status::NeedsReview, *facts, &failure, "")
}

/// The finding says nothing yet, because the relay has learnt of the doubt only just: no lookup is
/// used up, and the next comes when this relay can believe what it finds.
fn ask_when_known_for_long(facts: Facts, left: Duration, now: i64) -> Decision {
    let why = "not found, but this relay has not known of the doubt for long enough";
    let facts = Facts { lookups: facts.lookups.saturating_sub(1), ..facts };
    let due_at = now.saturating_add(millis(left)).saturating_add(1);
    let failure = Failure::new("not_applied", why);
    Decision { due_at: Some(due_at), ..parked(Status::Unknown, facts, &failure, "") }
}

/// Treats a row as if it had not been sent, but for the attempts it has used.
fn not_applied(facts: Facts, policy: &Policy, now: i64) -> Decision {
    let facts = Facts { in_doubt_since: None, lookups: 0, ..facts };
    let failure = Failure::new("not_applied", "the lookup found that it was not applied");
    heed_cancel(retry_or_give_up(facts, &failure, policy, now, 0), policy, now)
}

fn ask_again(facts: Facts, failure: &Failure, policy: &Policy, draw: Draw) -> Decision {
    if facts.lookups >= policy.lookups_max {
        return parked(Status::NeedsReview, facts, failure, "; the lookups are used up");
    }
    let due_at = draw.now.saturating_add(delay(facts.lookups, failure, policy, draw.roll));
    Decision { due_at: Some(due_at), ..parked(Status::Unknown, facts, failure, "") }
}

/// The settle delay, doubling up to an hour, or what the downstream asked for if that is later.
fn delay(number: u32, failure: &Failure, policy: &Policy, roll: f64) -> i64 {
    let (base, jitter) = (policy.lookup_delay, Jitter::Equal);
    let backoff = Backoff::Exponential { base, cap: CAP.max(base), jitter };
    let asked = failure.retry_after.unwrap_or_default().min(policy.retry_after_max);
    millis(backoff.delay(number.max(1), roll).max(asked))
}

#[cfg(test)]
mod tests;
