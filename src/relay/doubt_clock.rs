//! Since when a relay has known of each attempt in doubt, on the monotonic clock: a wall clock that
//! jumps two hours must not make a request that is on its way look old.

use std::collections::HashMap;
use std::time::Duration;

use crate::core::status::Status;
use crate::event::Event;

/// By row: the claim of the attempt in doubt, and since when the relay has known of it.
#[derive(Debug, Default)]
pub(crate) struct InDoubtSince(HashMap<i64, (Option<i64>, Duration)>);

/// The most rows remembered; a row beyond counts as new until there is room.
const MAX: usize = 100_000;

impl InDoubtSince {
    /// Notes a committed event: a row becomes unknown, or is unknown no longer.
    pub fn note(&mut self, event: &Event, now: Duration) {
        match (event.from_status, event.status) {
            (Status::Unknown, Status::Unknown) => {}
            (_, Status::Unknown) => drop(self.known_for(event.outbox_id, event.token, now)),
            (Status::Unknown, _) => drop(self.0.remove(&event.outbox_id)),
            _ => {}
        }
    }

    /// How long, at `now`, the relay has known that this attempt of the row is in doubt. An attempt
    /// that is asked about for the first time is known from now on.
    pub fn known_for(&mut self, id: i64, attempt: Option<i64>, now: Duration) -> Duration {
        if self.0.len() >= MAX && !self.0.contains_key(&id) {
            return Duration::ZERO;
        }
        let known = self.0.entry(id).or_insert((attempt, now));
        if known.0 != attempt {
            *known = (attempt, now);
        }
        now.saturating_sub(known.1)
    }
}
