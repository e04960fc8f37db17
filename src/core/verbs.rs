//! Decides on the verbs of persons, webhooks and the application: whether an intent's status
//! allows one, and what follows.
//!
//! Out of scope: whether a relay that lost its lease may still be sending (see `reconcile` and the
//! store), how a decision is stored, and what a provider's id that is taken leads to in the file.

use std::borrow::Cow;

use super::contract::Promise;
use super::decide::{Decision, Facts};
use super::outcome::Resolution;
use super::status::Status;
use crate::error::ErrorKind;

/// Why a verb may not act on an intent in its present status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub kind: ErrorKind,
    pub why: Cow<'static, str>,
}

fn refused(why: &'static str) -> Refusal {
    Refusal { kind: ErrorKind::Refused, why: why.into() }
}

fn too_late(why: &'static str) -> Refusal {
    Refusal { kind: ErrorKind::TooLate, why: why.into() }
}

/// Decides on what a person found out about an intent that may have been applied.
pub(crate) fn resolve(
    status: Status,
    facts: &Facts,
    resolution: &Resolution,
    now: i64,
) -> Result<Decision, Refusal> {
    let is_open = matches!(status, Status::Unknown | Status::NeedsReview);
    let is_given_up = status == Status::Dead
        && match resolution {
            Resolution::Applied { .. } => true,
            // An intent that was definitely not applied is replayed.
            Resolution::NotApplied => facts.in_doubt_since.is_some(),
            Resolution::Dead => false,
        };
    if !is_open && !is_given_up {
        return Err(refused(
            "only what is unknown, needs review, or was given up in doubt is resolved; what is \
             dead also as applied",
        ));
    }
    Ok(match resolution {
        Resolution::Applied { .. } => Decision::plain(Status::Succeeded, facts),
        // The doubt is gone, so that an earlier request to cancel can be fulfilled.
        Resolution::NotApplied if facts.cancel_requested => {
            Decision::plain(Status::Cancelled, facts)
        }
        Resolution::NotApplied => another_round(&Facts { in_doubt_since: None, ..*facts }, now),
        Resolution::Dead => Decision::plain(Status::Dead, facts),
    })
}

/// Decides on a provider's record that has the effect. A settled intent stays as it is.
pub(crate) fn confirm(status: Status, facts: &Facts) -> Decision {
    if status == Status::Cancelled {
        let message = "it was cancelled, but the provider says that it was carried out";
        return Decision { message: Some(message.into()), ..Decision::plain(status, facts) };
    }
    Decision::plain(Status::Succeeded, facts)
}

/// Decides on a success whose id names the effect of another intent: `taken` says of which.
pub(crate) fn id_taken(decision: &Decision, taken: String) -> Decision {
    let mut facts = decision.facts;
    facts.in_doubt_since.get_or_insert(facts.claimed_at);
    Decision {
        class: Some("duplicate_id".into()),
        message: Some(taken),
        ..Decision::plain(Status::NeedsReview, &facts)
    }
}

/// Withdraws an intent that was definitely not applied, for its owner or for the version that takes
/// its place.
pub(crate) fn withdraw(status: Status, facts: &Facts) -> Result<Decision, Refusal> {
    let in_doubt = facts.in_doubt_since.is_some();
    match status {
        Status::Dead | Status::Pending if !in_doubt => {
            Ok(Decision::plain(Status::Cancelled, facts))
        }
        Status::NeedsReview if !in_doubt => {
            Err(refused("a person must look: resolve it as dead, then cancel it"))
        }
        Status::Dead => Err(too_late(
            "it was given up while in doubt and may have been applied: resolve it first",
        )),
        Status::Pending | Status::NeedsReview | Status::Unknown => {
            Err(too_late("it may have been applied"))
        }
        Status::InFlight => Err(too_late("it is being sent")),
        Status::Succeeded | Status::Cancelled => Err(too_late("it is settled")),
    }
}

/// The effect of a request to cancel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cancellation {
    /// The intent is withdrawn at once.
    Withdrawn(Decision),
    /// The intent is not tried again. A lookup or a person may still find that it was not applied,
    /// and it is withdrawn then.
    Requested,
}

/// Withdraws an intent or, where it is too late for that, asks that it is not tried again.
pub(crate) fn request_cancel(status: Status, facts: &Facts) -> Result<Cancellation, Refusal> {
    match withdraw(status, facts) {
        Ok(decision) => Ok(Cancellation::Withdrawn(decision)),
        Err(refusal) if status.is_settled() || refusal.kind == ErrorKind::Refused => Err(refusal),
        Err(_) => Ok(Cancellation::Requested),
    }
}

/// Whether later intents of its ordering key may go on without this one.
pub(crate) fn skip(status: Status, is_keyed: bool) -> Result<(), Refusal> {
    if !matches!(status, Status::Dead | Status::Unknown | Status::NeedsReview) {
        return Err(refused("only what is dead, unknown or needs review blocks its ordering key"));
    }
    if is_keyed { Ok(()) } else { Err(refused("it has no ordering key, so it blocks nothing")) }
}

/// Why a skipped intent is not skipped again.
pub(crate) fn skipped_before() -> Refusal {
    refused("later intents of its ordering key go on without it already")
}

/// Gives an intent another round under the same key, where a second request is safe.
pub(crate) fn replay(
    status: Status,
    facts: &Facts,
    promise: Promise,
    now: i64,
) -> Result<Decision, Refusal> {
    let is_safe = match (status, facts.in_doubt_since) {
        (Status::Dead, None) => true,
        // A row that waits for review without being in doubt was never answered: still, only a
        // downstream that deduplicates may get it once more.
        (Status::NeedsReview, None) => promise.deduplicates(),
        (Status::Dead | Status::NeedsReview, Some(_)) => facts.may_repeat(promise, now),
        _ => false,
    };
    if is_safe {
        return Ok(another_round(facts, now));
    }
    Err(refused(match status {
        Status::NeedsReview => {
            "it may have been applied, and a second request is not safe: the downstream does not \
             deduplicate, or may have forgotten the key"
        }
        Status::Dead => {
            "it was given up while in doubt, and a second request is not safe: resolve it first"
        }
        Status::Unknown => "it may have been applied; resolve it, or wait for the lookup",
        _ => "only dead intents, and some that need review, are replayed",
    }))
}

/// Makes an intent due now that waits for a time alone, as `waits_for_time` says of a pending one.
pub(crate) fn retry(
    status: Status,
    waits_for_time: bool,
    facts: &Facts,
    now: i64,
) -> Result<Decision, Refusal> {
    match status {
        Status::Pending if waits_for_time => {
            Ok(Decision { due_at: Some(now), ..Decision::plain(Status::Pending, facts) })
        }
        Status::Pending => Err(refused("it waits for another of its ordering key, not for a time")),
        Status::Dead | Status::NeedsReview => Err(refused("it is replayed or resolved instead")),
        Status::InFlight => Err(refused("it is being sent")),
        Status::Unknown => Err(refused("it may have been applied; resolve it instead")),
        Status::Succeeded | Status::Cancelled => Err(refused("it is settled")),
    }
}

/// Gives an intent the id of its effect before it is sent. `known` is the id it has. Returns
/// whether the id is new.
pub(crate) fn bind(status: Status, known: Option<&str>, id: &str) -> Result<bool, Refusal> {
    if status.is_settled() {
        return Err(too_late("its receipt says which id it has"));
    }
    match known {
        Some(known) if known != id => {
            let why = format!("it has the id {known:?} already, not {id:?}");
            Err(Refusal { kind: ErrorKind::Conflict, why: why.into() })
        }
        known => Ok(known.is_none()),
    }
}

/// A fresh budget; a doubt stays as old as it is.
fn another_round(facts: &Facts, now: i64) -> Decision {
    let facts = Facts {
        in_doubt_since: facts.in_doubt_since,
        expires_at: facts.expires_at,
        claimed_at: facts.claimed_at,
        doubt_boot: facts.doubt_boot,
        ..Facts::default()
    };
    Decision { due_at: Some(now), ..Decision::plain(Status::Pending, &facts) }
}

#[cfg(test)]
mod tests;
