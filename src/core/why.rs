//! Why an intent is not sent now: each rule with its short word, and what a person is told.
//!
//! Out of scope: looking at the file. The store asks the rules in their order, with the figures
//! and predicates of the claim.

use super::contract::Downstream;
use super::decide::{Withheld, why_no_repeat};
use super::flow::Closed;
use super::hold::Hold;
use super::status::Status;
use super::utc;
use super::word::words;

words! {
    /// A rule that keeps an intent from being sent now, in the order of checking.
    pub(crate) enum Rule, "rule" {
        Settled = "settled",
        Dead = "dead",
        Unknown = "unknown",
        NeedsReview = "needs_review",
        InFlight = "in_flight",
        /// Behind an earlier one of its ordering key.
        Queued = "queued",
        /// Its origin, its tenant or another domain of it stands still.
        Held = "held",
        /// Writing its outcome, or moving it, failed.
        Unrecorded = "unrecorded",
        NotRegistered = "not_registered",
        NotDue = "not_due",
        Unreadable = "unreadable",
        Expired = "expired",
        InDoubt = "in_doubt",
        /// A cancellation was requested.
        CancelRequested = "cancel_requested",
        /// Another relay has lowered their number since.
        Attempts = "attempts",
        Paused = "paused",
        Probing = "probing",
        Throttled = "throttled",
        /// The machine has no network.
        Offline = "offline",
        TooManyInFlight = "too_many_in_flight",
        Resuming = "resuming",
        Rate = "rate",
        /// The operation has sent or spent as much as it may in a time.
        Budget = "budget",
        /// Others are due before it, and not all may go.
        Turn = "turn",
        OtherShard = "other_shard",
        /// Nothing keeps it.
        Next = "next",
    }
}

/// The first rule that holds, and the sentence about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Why {
    pub rule: Rule,
    pub text: String,
}

impl Why {
    pub fn new(rule: Rule, text: impl Into<String>) -> Self {
        Self { rule, text: text.into() }
    }

    /// A row that waits for a person, a lookup or nothing; `None` where its status lets it act.
    pub fn of_status(
        status: Status,
        settled: Option<&Settled>,
        error: &str,
        lookup_at: Option<i64>,
    ) -> Option<Self> {
        let because = if error.is_empty() { String::new() } else { format!(" ({error})") };
        let (rule, text) = match status {
            Status::Succeeded | Status::Cancelled => {
                let at = settled.map_or_else(String::new, |s| format!(" at {}", utc(s.at)));
                let id = settled.and_then(|s| s.downstream_id.as_deref());
                let id = id.map_or_else(String::new, |id| format!(", with the receipt {id}"));
                (Rule::Settled, format!("it is settled: {status}{at}{id}"))
            }
            Status::Dead => {
                let text = format!(
                    "it is dead{because}: mend the cause and replay it, enqueue a new version, \
                     or cancel it"
                );
                (Rule::Dead, text)
            }
            Status::Unknown => {
                let from = lookup_at.map_or_else(String::new, |at| format!(" from {} on", utc(at)));
                let text = format!(
                    "it may have been applied, and sending it again is not safe{because}: a relay \
                     with a lookup asks what became of it{from}; what a person finds out is said \
                     with resolve"
                );
                (Rule::Unknown, text)
            }
            Status::NeedsReview => {
                let text = format!(
                    "a person must look{because}: find out what the downstream did with its key, \
                     and say it with resolve"
                );
                (Rule::NeedsReview, text)
            }
            Status::Pending | Status::InFlight => return None,
        };
        Some(Self::new(rule, text))
    }

    /// An object of the application makes a write about it fail: of its outcome, or of any move.
    pub fn unrecorded((has_outcome, error, retry_at): (bool, String, i64)) -> Self {
        let at = utc(retry_at);
        let text = if has_outcome {
            format!(
                "its outcome is known and kept, but recording it failed ({error}): that is tried \
                 again at {at}; mend the cause, and replay it to have it tried at once"
            )
        } else {
            format!("moving it failed ({error}): that is tried again at {at}")
        };
        Self::new(Rule::Unrecorded, text)
    }

    pub fn in_flight(owner: &str, since: i64, until: i64, now: i64) -> Self {
        let since = utc(since);
        let text = if until > now {
            format!("it is being sent: {owner} holds it since {since}, until {}", utc(until))
        } else {
            format!(
                "it was being sent: {owner} held it since {since}; that ended at {}, and the next \
                 relay takes it back",
                utc(until)
            )
        };
        Self::new(Rule::InFlight, text)
    }

    /// `before` is the intent that must leave first.
    pub fn queued(before: Option<(i64, Status)>) -> Self {
        let text = match before {
            Some((id, status)) if matches!(status, Status::Pending | Status::InFlight) => {
                format!("it is queued behind intent {id} of its ordering key, which is {status}")
            }
            Some((id, status)) => format!(
                "it is queued behind intent {id} of its ordering key, which is {status} and waits \
                 for a person"
            ),
            None => "nothing lets it act: the outbox's tables were changed by hand".into(),
        };
        Self::new(Rule::Queued, text)
    }

    /// `ahead` is when the intent says that it was made, where that is yet to come.
    pub fn not_due(until: i64, error: &str, ahead: Option<i64>) -> Self {
        let after = if error.is_empty() { String::new() } else { format!(", after: {error}") };
        let clock = ahead.map_or_else(String::new, |at| {
            let at = utc(at);
            format!("; the clock was ahead when it was made, at {at}, and retry makes it due")
        });
        Self::new(Rule::NotDue, format!("it is not due until {}{after}{clock}", utc(until)))
    }

    /// The row waits aside with others of its domain.
    pub fn held(hold: &Hold) -> Self {
        let ended = || "its domain goes on, and lets more through with time".into();
        let text = hold.stored().map_or_else(ended, |hold| hold.in_words());
        Self::new(Rule::Held, text)
    }

    pub fn withheld(withheld: Withheld, downstream: Downstream, at: i64) -> Self {
        let at = utc(at);
        match withheld {
            Withheld::Expired => {
                Self::new(Rule::Expired, format!("it is of no use since {at}, when it expired"))
            }
            Withheld::InDoubt => {
                let why = why_no_repeat(downstream);
                let text = format!("the attempt of {at} may have been applied{why}");
                Self::new(Rule::InDoubt, text)
            }
            Withheld::CancelRequested => Self::new(
                Rule::CancelRequested,
                "its cancellation was requested: it is not tried again, and the next claim says \
                 what is known of it",
            ),
        }
    }

    pub fn closed(operation: &str, closed: &Closed, until: Option<i64>) -> Self {
        let until = until.map(utc).unwrap_or_default();
        let (rule, text) = match closed {
            Closed::Paused(pause) => {
                (Rule::Paused, format!("{operation:?} is paused {}", pause.in_words()))
            }
            Closed::Probing => (
                Rule::Probing,
                format!("{operation:?} is paused, and another intent tries whether it can go on"),
            ),
            Closed::Throttled => (
                Rule::Throttled,
                format!("the downstream of {operation:?} asked to be left alone until {until}"),
            ),
            Closed::Offline => (
                Rule::Offline,
                format!(
                    "the machine has no network; an intent tries at {until} whether it is back"
                ),
            ),
            Closed::InFlight(most) => (
                Rule::TooManyInFlight,
                format!("as many of {operation:?} are in flight as may be at once: {most}"),
            ),
            Closed::Resuming => (
                Rule::Resuming,
                format!("{operation:?} has just begun again and lets more through after {until}"),
            ),
            Closed::Rate => (
                Rule::Rate,
                format!("the rate of {operation:?} is used up; its next may go at {until}"),
            ),
            Closed::Budget(used_up) => (Rule::Budget, format!("{operation:?}: {used_up}")),
        };
        Self::new(rule, text)
    }
}

/// When and with what a row was settled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    pub at: i64,
    pub downstream_id: Option<String>,
}

#[cfg(test)]
mod tests;
