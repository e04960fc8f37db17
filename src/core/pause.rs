//! A pause of one operation: who or what began it, and when a probe may try whether it can end.

use std::time::Duration;

use super::backoff::{Backoff, Jitter};
use super::word::words;
use super::{millis, utc};

/// Why an operation stands still.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pause {
    pub kind: PauseKind,
    /// When the pause ends, or when the next probe may go; `None` where it ends only when resumed.
    pub until: Option<i64>,
    pub reason: String,
    pub actor: String,
    pub since: i64,
    /// The intent whose outcome began the pause, or made it go on.
    pub culprit: Option<i64>,
}

impl Pause {
    /// The rest of a sentence that begins with "is paused": by whom or why, since when and until
    /// when.
    pub fn in_words(&self) -> String {
        let since = utc(self.since);
        let until = self.until.map(utc);
        let why = match self.kind {
            PauseKind::Operator => {
                let until = until.unwrap_or_else(|| "it is resumed".into());
                return self.with_reason(format!("by {} since {since}, until {until}", self.actor));
            }
            PauseKind::Auth => "its credentials were refused",
            PauseKind::Breaker => "too many attempts in a row failed",
        };
        let then = until.map_or_else(
            || "it waits until it is resumed".into(),
            |until| format!("one intent tries again at {until}"),
        );
        let by = self.culprit.map_or_else(String::new, |id| format!("; intent {id} was the last"));
        self.with_reason(format!("since {since} because {why}; {then}{by}"))
    }

    fn with_reason(&self, text: String) -> String {
        if self.reason.is_empty() { text } else { format!("{text}: {}", self.reason) }
    }
}

words! {
    /// Who or what paused an operation.
    #[non_exhaustive]
    pub enum PauseKind, "paused" {
        /// A person, or the application.
        Operator = "operator",
        /// The downstream refused the credentials.
        Auth = "auth",
        /// The circuit breaker: too many outcomes in a row did not reach the downstream, or may not
        /// have.
        Breaker = "breaker",
    }
}

impl PauseKind {
    /// The longest wait for a probe; `None` for a person's pause, which has no probe.
    pub(super) fn longest_wait(self) -> Option<i64> {
        match self.probe_backoff() {
            Backoff::Exponential { cap, .. } if self != Self::Operator => Some(millis(cap)),
            _ => None,
        }
    }

    /// How long until a probe, by the probes that have failed. Refused credentials do not mend
    /// themselves, so those are asked about rarely.
    pub(super) fn probe_backoff(self) -> Backoff {
        let (base, cap) = match self {
            Self::Auth => (15 * 60, 6 * 3600),
            _ => (5, 15 * 60),
        };
        Backoff::Exponential {
            base: Duration::from_secs(base),
            cap: Duration::from_secs(cap),
            jitter: Jitter::Equal,
        }
    }
}
