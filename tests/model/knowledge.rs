//! The knowledge about each intent's attempts, computed from what was handed out and reported and
//! not from the file: the promise is checked against it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::downstream::{TIME_LIMIT, WINDOW};
use crate::core::{CLOCK_SLACK_MS, Downstream, millis};

/// An attempt that was handed to a relay.
#[derive(Debug)]
struct Attempt {
    token: i64,
    owner: String,
    /// By the wall clock.
    claimed_at: i64,
    /// The attempt's relay has reported, whatever the outcome.
    is_reported: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    /// By intent: the attempts of which no report says that they were not applied.
    doubtful: BTreeMap<i64, Vec<Attempt>>,
    /// Claims that may have been sent, by operation: intent, token and monotonic time.
    spent: BTreeMap<usize, Vec<(i64, i64, Duration)>>,
    /// Intents of which a person has said what need not be true.
    pub hearsay: BTreeSet<i64>,
    /// Intents whose cancellation was requested.
    pub unwanted: BTreeSet<i64>,
}

/// A downstream's promise: which attempts may be repeated, and when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Promise {
    pub downstream: Downstream,
    /// Whether the wall clock jumps, so that it measures only roughly.
    pub has_jumps: bool,
}

impl Model {
    /// Why an intent may not be sent once more, by an attempt under this token.
    pub fn forbids(&self, id: i64, token: i64, promise: Promise, now: i64) -> Option<String> {
        let earlier = self.doubtful.get(&id)?.iter().find(|attempt| attempt.token < token)?;
        let Downstream::DeduplicatesByKey { .. } = promise.downstream else {
            return Some(format!(
                "intent {id} is sent under token {token}, but may have been applied under token {}",
                earlier.token
            ));
        };
        let slack = if promise.has_jumps { CLOCK_SLACK_MS } else { 0 };
        let forgotten = earlier.claimed_at + millis(WINDOW);
        (now + millis(TIME_LIMIT) > forgotten + slack).then(|| {
            let gone = now - earlier.claimed_at;
            format!("intent {id} is sent {gone} ms after an attempt that may have been applied")
        })
    }

    pub fn hand_out(&mut self, id: i64, token: i64, owner: &str, claimed_at: i64) {
        let attempt = Attempt { token, owner: owner.to_owned(), claimed_at, is_reported: false };
        self.doubtful.entry(id).or_default().push(attempt);
    }

    /// Counts what is handed out. Returns how many there are within the time, this one included.
    pub fn spend(
        &mut self,
        operation: usize,
        (id, token): (i64, i64),
        now: Duration,
        within: Duration,
    ) -> usize {
        let spent = self.spent.entry(operation).or_default();
        spent.push((id, token, now));
        spent.iter().filter(|(_, _, at)| *at + within > now).count()
    }

    /// Forgets an attempt that was definitely not applied, or was never begun.
    pub fn not_applied(&mut self, id: i64, token: i64) {
        for spent in self.spent.values_mut() {
            spent.retain(|(spent, under, _)| (*spent, *under) != (id, token));
        }
        if let Some(attempts) = self.doubtful.get_mut(&id) {
            attempts.retain(|attempt| attempt.token != token);
        }
    }

    pub fn reported(&mut self, id: i64, token: i64) {
        let attempts = self.doubtful.get_mut(&id).into_iter().flatten();
        attempts.filter(|a| a.token == token).for_each(|a| a.is_reported = true);
    }

    /// Whether an attempt may still be on its way: its relay is alive and has not reported it.
    pub fn may_be_on_its_way(&self, id: i64, is_alive: impl Fn(&str) -> bool) -> bool {
        let mut attempts = self.doubtful.get(&id).into_iter().flatten();
        attempts.any(|attempt| !attempt.is_reported && is_alive(&attempt.owner))
    }

    /// A person or lookup that may say so has said that none of the attempts was applied.
    pub fn cleared(&mut self, id: i64) {
        self.doubtful.remove(&id);
        for spent in self.spent.values_mut() {
            spent.retain(|(spent, _, _)| *spent != id);
        }
    }

    pub fn is_in_doubt(&self, id: i64) -> bool {
        self.doubtful.get(&id).is_some_and(|attempts| !attempts.is_empty())
    }
}

/// How long a relay must have known of a doubt before it believes that nothing was applied.
pub(crate) const SETTLE: Duration = Duration::from_secs(120);
