//! Where an intent stands, and what an operator may do about it there.

use std::fmt;

/// Where an intent stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// Waiting for its time, its turn or a free worker.
    Pending,
    /// A relay holds it under a lease.
    InFlight,
    /// It may have been applied, and sending it again is not safe.
    Unknown,
    /// A person must look.
    NeedsReview,
    /// It was not applied and will not be tried again by itself.
    Dead,
    /// It was applied; there is a receipt.
    Succeeded,
    /// It was withdrawn before it was applied; or after a person had given it up in doubt.
    Cancelled,
}

impl Status {
    /// Every status, in the order of an intent's life.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::InFlight,
        Self::Unknown,
        Self::NeedsReview,
        Self::Dead,
        Self::Succeeded,
        Self::Cancelled,
    ];

    /// The word used in the file, in the CLI and in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InFlight => "in_flight",
            Self::Unknown => "unknown",
            Self::NeedsReview => "needs_review",
            Self::Dead => "dead",
            Self::Succeeded => "succeeded",
            Self::Cancelled => "cancelled",
        }
    }

    /// The status of that word, as [`as_str`](Self::as_str) prints it.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }

    /// Whether nothing happens any more unless a person acts.
    pub const fn waits_for_a_person(self) -> bool {
        matches!(self, Self::NeedsReview | Self::Dead)
    }

    /// Whether nothing can change it any more.
    pub const fn is_settled(self) -> bool {
        matches!(self, Self::Succeeded | Self::Cancelled)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
