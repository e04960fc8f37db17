//! The numbers of what a relay has done.

use crate::core::status::Status;
use crate::event::{Event, EventKind};

/// Counts of attempts and of moved intents, taken as they were committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DrainReport {
    /// Attempts whose outcome was recorded.
    pub attempts: u64,
    /// Intents that were settled as succeeded.
    pub succeeded: u64,
    /// Intents that will be tried again later.
    pub retried: u64,
    /// Intents that may have been applied and are not safe to send again.
    pub unknown: u64,
    /// Intents that need review by a person.
    pub needs_review: u64,
    /// Intents that are dead: given up or refused.
    pub dead: u64,
}

impl DrainReport {
    /// Counts one event.
    pub(super) fn count(&mut self, event: &Event) {
        if event.kind == EventKind::Attempt {
            self.attempts += 1;
        }
        match event.status {
            // An inconclusive lookup, for example.
            _ if event.from_status == event.status => {}
            Status::Succeeded => self.succeeded += 1,
            Status::Pending => self.retried += 1,
            Status::Unknown => self.unknown += 1,
            Status::NeedsReview => self.needs_review += 1,
            Status::Dead => self.dead += 1,
            Status::InFlight | Status::Cancelled => {}
        }
    }

    /// The counts after `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            attempts: self.attempts - before.attempts,
            succeeded: self.succeeded - before.succeeded,
            retried: self.retried - before.retried,
            unknown: self.unknown - before.unknown,
            needs_review: self.needs_review - before.needs_review,
            dead: self.dead - before.dead,
        }
    }
}

/// The state of a relay when it had stopped, or when the grace was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Everything the relay did since it was built.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub totals: DrainReport,
    /// Attempts whose outcome was recorded after the relay was told to stop.
    pub finished: u64,
    /// Deliveries that no worker had started; they were given back, and no attempt was counted.
    pub released: u64,
    /// Deliveries still on the way when the grace was over. Their outcome is recorded if the
    /// process lives long enough; otherwise their lease runs out and they are in doubt.
    pub left: u64,
}
