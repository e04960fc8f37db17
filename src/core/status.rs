//! Where an intent stands, and what an operator may do about it there.

use super::word::words;

words! {
    /// Where an intent stands.
    #[derive(PartialOrd, Ord)]
    #[non_exhaustive]
    pub enum Status, "status" {
        /// The intent waits for its time, its turn or a free worker.
        Pending = "pending",
        /// A relay holds the intent under a lease.
        InFlight = "in_flight",
        /// The intent may have been applied, and sending it again is not safe.
        Unknown = "unknown",
        /// A person must look.
        NeedsReview = "needs_review",
        /// The intent was not applied and is not tried again automatically: a dead letter.
        Dead = "dead",
        /// The intent was applied; there is a receipt.
        Succeeded = "succeeded",
        /// The intent was withdrawn before it was applied, or after a person had given it up in
        /// doubt.
        Cancelled = "cancelled",
    }
}

impl Status {
    /// Whether nothing happens any more unless a person acts.
    pub const fn waits_for_a_person(self) -> bool {
        matches!(self, Self::NeedsReview | Self::Dead)
    }

    /// Whether nothing can change it any more.
    pub const fn is_settled(self) -> bool {
        matches!(self, Self::Succeeded | Self::Cancelled)
    }
}
