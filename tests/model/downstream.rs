//! The true effects at the downstreams, which the store cannot see and is checked against.

use std::collections::BTreeMap;
use std::time::Duration;

/// How long one attempt may take, and a request that had no answer may still be applied.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(60);

/// How long the downstream that deduplicates remembers a key.
pub(crate) const WINDOW: Duration = Duration::from_secs(600);

/// All downstreams, in monotonic time.
#[derive(Debug, Default)]
pub(crate) struct Downstreams {
    /// The ids of the effects of each intent.
    effects: BTreeMap<i64, Vec<String>>,
    /// For intents whose downstream deduplicates: when the key was last applied anew.
    remembered: BTreeMap<i64, Duration>,
    /// Requests that are still under way, each with the time at which it is applied.
    lingering: Vec<Lingering>,
    made: u32,
}

#[derive(Debug)]
struct Lingering {
    at: Duration,
    id: i64,
    deduplicates: bool,
}

impl Downstreams {
    /// Applies a request. Returns the id of the effect.
    pub fn apply(&mut self, id: i64, deduplicates: bool, now: Duration) -> String {
        let effects = self.effects.entry(id).or_default();
        let applied = self.remembered.get(&id);
        if deduplicates
            && let Some(known) = effects.last()
            && applied.is_some_and(|&at| now < at + WINDOW)
        {
            return known.clone();
        }
        self.made += 1;
        effects.push(format!("eff_{}", self.made));
        self.remembered.insert(id, now);
        format!("eff_{}", self.made)
    }

    /// Lets a request be applied some time before its attempt must have ended.
    pub fn linger(&mut self, id: i64, deduplicates: bool, began: Duration) {
        self.lingering.push(Lingering { at: began + TIME_LIMIT, id, deduplicates });
    }

    /// Applies what has lingered until now.
    pub fn pass(&mut self, now: Duration) {
        let lingering = std::mem::take(&mut self.lingering);
        let (due, later) = lingering.into_iter().partition(|lingering| lingering.at <= now);
        self.lingering = later;
        for Lingering { at, id, deduplicates } in due {
            self.apply(id, deduplicates, at);
        }
    }

    pub fn effects(&self, id: i64) -> &[String] {
        self.effects.get(&id).map_or(&[], Vec::as_slice)
    }

    pub fn is_lingering(&self, id: i64) -> bool {
        self.lingering.iter().any(|lingering| lingering.id == id)
    }

    /// The id of an effect of another intent.
    pub fn effect_of_another(&self, id: i64) -> Option<String> {
        self.effects
            .iter()
            .find(|(other, _)| **other != id)
            .and_then(|(_, ids)| ids.last().cloned())
    }
}
