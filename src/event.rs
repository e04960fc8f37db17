//! Events: told to observers after they are durable, and read back from the audit trail.

use crate::core::Status;
use crate::core::word::words;

/// A line of an intent's audit trail. An event never holds a payload or a header's value, but for
/// the two that say which agent run and which version of a tool asked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Event {
    /// The place among all events of the file, rising with every commit and never given twice.
    pub position: i64,
    /// The intent's row id.
    pub outbox_id: i64,
    /// The place in the intent's own trail, from 1.
    pub seq: i64,
    /// The kind of action that the intent is.
    pub operation: String,
    /// When the event was committed, in UTC milliseconds; for an attempt, with its outcome.
    pub at: i64,
    /// Why the event was written.
    pub kind: EventKind,
    /// Where the intent stood.
    pub from_status: Status,
    /// Where the intent stands since.
    pub status: Status,
    /// Attempts used in the budget at that time.
    pub attempt: u32,
    /// When the attempt, or the lookup, was claimed, in UTC milliseconds.
    pub claimed_at: Option<i64>,
    /// The fencing token of that claim.
    pub token: Option<i64>,
    /// Which relay, person or application acted.
    pub actor: Option<String>,
    /// The failure's short word, where there was one.
    pub error_class: Option<String>,
    /// The cause, and why this followed, for people.
    pub reason: Option<String>,
    /// The provider's id, where the event brought one.
    pub downstream_id: Option<String>,
    /// Which run of an agent asked for the intent, as its header said.
    pub agent_run: Option<String>,
    /// Which version of a tool asked for it, as its header said.
    pub tool_version: Option<String>,
    /// The idempotency key as it is sent, where that is not the stored one: a hash, too.
    pub wire_key: Option<String>,
    /// SHA-256 of the stored idempotency key, in hex.
    pub key_hash: String,
    /// SHA-256 of the canonical arguments in hex, where it was stored.
    pub args_hash: Option<String>,
}

words! {
    /// Why a line of the audit trail was written.
    #[non_exhaustive]
    pub enum EventKind, "kind" {
        /// A handler reported an outcome.
        Attempt = "attempt",
        /// A lease ran out, or its process died, with no outcome recorded.
        LeaseLost = "lease_lost",
        /// The relay stopped before its handler reported, and gave the attempt up.
        Stopped = "stopped",
        /// The row came due, but may not be sent any more.
        Withheld = "withheld",
        /// The row cannot be read.
        Unreadable = "unreadable",
        /// An outcome came after the lease was lost; a success settled the row.
        Late = "late",
        /// The outcome is kept and not recorded: an object of the application made it fail.
        Unrecorded = "unrecorded",
        /// A lookup found whether the intent was applied, or could not tell.
        Reconciled = "reconciled",
        /// A person said whether the intent was applied.
        Resolved = "resolved",
        /// The provider's own record said that the intent was applied.
        Confirmed = "confirmed",
        /// The intent has two different ids at the provider: it was carried out twice.
        DuplicateEffect = "duplicate_effect",
        /// The provider's id was given before the intent was sent.
        Bound = "bound",
        /// A person, or the application, ordered another round.
        Replayed = "replayed",
        /// A person made the intent due at once.
        Retried = "retried",
        /// A person, or the application, withdrew the intent.
        Cancelled = "cancelled",
        /// The intent could not be withdrawn any more; it is not tried again.
        CancelRequested = "cancel_requested",
        /// A newer version took the intent's place.
        Revised = "revised",
        /// A person let later intents of its ordering key go on.
        Skipped = "skipped",
    }
}
