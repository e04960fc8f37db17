//! What observers are told, after it is durable.

use crate::core::status::Status;

/// One status move, as it was committed. The same facts are in `outbox_event`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The intent's row id.
    pub id: i64,
    /// What kind of action it is.
    pub operation: String,
    /// When it was committed, in UTC milliseconds.
    pub at: i64,
    /// Why it moved.
    pub kind: EventKind,
    /// Where it stood.
    pub from: Status,
    /// Where it stands.
    pub to: Status,
    /// Attempts used so far in this budget.
    pub attempt: u32,
    /// The fencing token of the claim, where there was one.
    pub token: Option<i64>,
    /// The failure's short word, where there was one.
    pub error_class: Option<String>,
}

/// Why a row moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// A handler reported an outcome.
    Attempt,
    /// A lease ran out with no outcome recorded.
    LeaseLost,
    /// The row came due, but may not be sent any more.
    Withheld,
    /// The row cannot be read.
    Unreadable,
    /// An outcome came after the lease was lost; a success settled the row.
    Late,
    /// A person, or the application, ordered another round.
    Replayed,
    /// A person, or the application, withdrew it.
    Cancelled,
}

impl EventKind {
    /// The word used in the file and in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Attempt => "attempt",
            Self::LeaseLost => "lease_lost",
            Self::Withheld => "withheld",
            Self::Unreadable => "unreadable",
            Self::Late => "late",
            Self::Replayed => "replayed",
            Self::Cancelled => "cancelled",
        }
    }
}
