//! Since when a relay has known of each attempt in doubt, by a clock that nobody can set: a wall clock
//! that jumps two hours must not make a request that is on its way look like an old one.

use std::collections::HashMap;
use std::time::Duration;

use crate::core::status::Status;
use crate::event::Event;
use crate::handler::Delivery;

/// By row: the attempt that is in doubt, and since when that is known.
#[derive(Debug, Default)]
pub(crate) struct Doubts(HashMap<i64, (Option<i64>, Duration)>);

/// So many rows are remembered; others are known of as new until there is room.
const MAX: usize = 100_000;

impl Doubts {
    /// Takes note of what was committed.
    pub fn note(&mut self, event: &Event, now: Duration) {
        if event.status == Status::Unknown {
            if event.from_status != Status::Unknown {
                self.since(event.outbox_id, event.token, now);
            }
        } else if event.from_status == Status::Unknown {
            self.0.remove(&event.outbox_id);
        }
    }

    /// Takes note of a look-up that was claimed.
    pub fn note_lookup(&mut self, delivery: &Delivery, now: Duration) {
        self.known_for(delivery, now);
    }

    /// For how long, at this time, the doubt about a look-up's row has been known.
    pub fn known_for(&mut self, delivery: &Delivery, at: Duration) -> Duration {
        let attempt = delivery.lookup.as_ref().and_then(|lookup| lookup.attempt_token);
        at.saturating_sub(self.since(delivery.id, attempt, at))
    }

    fn since(&mut self, id: i64, attempt: Option<i64>, now: Duration) -> Duration {
        if self.0.len() >= MAX && !self.0.contains_key(&id) {
            return now;
        }
        let known = self.0.entry(id).or_insert((attempt, now));
        if known.0 != attempt {
            *known = (attempt, now);
        }
        known.1
    }
}
