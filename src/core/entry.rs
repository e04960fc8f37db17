//! Everything that can be read back about intents.

use super::endpoint::origin_of;
use super::failing::FailingAnswer;
use super::outcome::Receipt;
use super::setters::setters;
use super::status::Status;

/// An intent as `outbox_status` shows it. The payload and headers are not part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Entry {
    /// The row id in `outbox`.
    pub id: i64,
    /// Whose intent it is; empty where there are no tenants.
    pub tenant_id: String,
    /// The kind of action.
    pub operation: String,
    /// The business object acted on.
    pub entity_id: String,
    /// The version of this action on this entity.
    pub intent_version: i64,
    /// The stored key.
    pub idempotency_key: String,
    /// The key as it is sent: another one where a tenant brought the stored one along.
    pub wire_key: String,
    /// The endpoint, where the intent names one.
    pub endpoint: Option<String>,
    /// The ordering key, where there is one.
    pub ordering_key: Option<String>,
    /// Where the intent stands.
    pub status: Status,
    /// Attempts used in the current budget.
    pub attempts: u32,
    /// When the next attempt is due, in UTC milliseconds, while the intent is pending and not
    /// queued behind another.
    pub next_attempt_at: Option<i64>,
    /// When the next lookup is due, in UTC milliseconds, while the intent is unknown.
    pub next_lookup_at: Option<i64>,
    /// When the lease ends, in UTC milliseconds, while the intent is in flight.
    pub locked_until: Option<i64>,
    /// Which relay holds the intent, while it is in flight or being looked up.
    pub locked_by: Option<String>,
    /// The last failure, while the intent is unsettled.
    pub last_error: Option<String>,
    /// The provider's id of the effect.
    pub downstream_id: Option<String>,
    /// When the intent was enqueued, in UTC milliseconds.
    pub created_at: i64,
    /// When the intent was settled, in UTC milliseconds.
    pub finished_at: Option<i64>,
    /// Whether a relay has ever registered the operation. Otherwise its intents wait.
    pub registered: bool,
    /// The stored proof, once the intent is settled. The proof and the fields below it are read for
    /// a single intent only, never in a list, and are left out of JSON where they are empty.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub receipt: Option<Receipt>,
    /// The last answer that refused the intent or did not tell, also to a lookup.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub last_answer: Option<FailingAnswer>,
    /// The HTTP method.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub method: Option<String>,
    /// The payload's media type.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub content_type: Option<String>,
    /// The payload's length in bytes; `None` once it is stripped.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub payload_bytes: Option<u64>,
    /// The names of the stored headers.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub header_names: Vec<String>,
    /// The time after which nothing is sent, in UTC milliseconds.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub expires_at: Option<i64>,
    /// The intent of the same ordering key that must leave first.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub waits_behind: Option<i64>,
    /// The intent that this one revises.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub revises: Option<i64>,
    /// The newer version that revises this intent.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub revised_by: Option<i64>,
}

impl Entry {
    /// Scheme, host and port of the endpoint, which may be shown: what is behind them can be a
    /// credential. `None` where the intent names no endpoint, or one that is not a URL.
    pub fn endpoint_origin(&self) -> Option<String> {
        origin_of(self.endpoint.as_deref()?)
    }
}

/// Which intents are meant. All conditions must hold; the default means every intent.
///
/// ```
/// use sqlite_outbox::{Filter, Status};
///
/// let dead_mails = Filter::default().status(Status::Dead).operation("mail.send").limit(100);
/// assert_eq!(dead_mails.limit, Some(100));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct Filter {
    /// Only the intents with these row ids; empty means any.
    pub ids: Vec<i64>,
    /// Only intents in this status.
    pub status: Option<Status>,
    /// Only this operation.
    pub operation: Option<String>,
    /// Only this tenant.
    pub tenant: Option<String>,
    /// Only the intents that name this agent run in their header.
    pub run: Option<String>,
    /// Only this entity.
    pub entity: Option<String>,
    /// Only intents created at or after this time, in UTC milliseconds.
    pub created_since: Option<i64>,
    /// Only intents with a greater id, for reading page by page.
    pub after: Option<i64>,
    /// At most so many; defaults to no limit.
    pub limit: Option<usize>,
}

setters! {
    Filter:
    /// Only the intents with these row ids; an empty list means any.
    pub fn ids(ids: impl IntoIterator<Item = i64>) => ids = ids.into_iter().collect();

    /// Only intents in this status.
    pub fn status(status: Status) => status = Some(status);

    /// Only intents of this operation.
    pub fn operation(operation: impl Into<String>) => operation = Some(operation.into());

    /// Only intents of this tenant.
    pub fn tenant(tenant: impl Into<String>) => tenant = Some(tenant.into());

    /// Only intents that name this agent run in their header, `x-agent-run`.
    pub fn run(run: impl Into<String>) => run = Some(run.into());

    /// Only intents on this entity.
    pub fn entity(entity: impl Into<String>) => entity = Some(entity.into());

    /// Only intents created at or after this time, in UTC milliseconds.
    pub fn created_since(at: i64) => created_since = Some(at);

    /// Only intents with a greater id, for reading page by page.
    pub fn after(id: i64) => after = Some(id);

    /// At most so many intents. Defaults to no limit.
    pub fn limit(limit: usize) => limit = Some(limit);
}

/// Counts of one operation's intents.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct OperationStats {
    /// The operation.
    pub operation: String,
    /// Whether a relay has ever registered it. Intents of an unregistered operation wait.
    pub registered: bool,
    /// In the order of [`Status::ALL`].
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "super::json::counts"))]
    pub(crate) counts: [u64; Status::ALL.len()],
    /// Since when the oldest claimable intent is due, in UTC milliseconds.
    pub oldest_due_at: Option<i64>,
    /// How many intents turned out to have been carried out twice: their provider knows them under
    /// two ids. Each has an event that names both.
    pub duplicate_effects: u64,
}

impl OperationStats {
    /// How many intents are in this status. Settled ones are counted forever, also after they are
    /// deleted.
    pub fn count(&self, status: Status) -> u64 {
        self.counts[status as usize]
    }
}
