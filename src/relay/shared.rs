//! The state that the writer, the workers and the handle of one relay share: its numbers as they
//! were set, and its counts.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::operation::Operation;
use crate::core::{Downstream, Shard, Status, length, millis};
use crate::error::Result;
use crate::event::{Event, EventKind};
use crate::liveness::Lifeline;
use crate::outbox::Outbox;
use crate::store::tables::contract;
use crate::store::{Longest, Rules};

/// A callback for every status move.
pub(super) type Observer = Box<dyn Fn(&Event) + Send + Sync>;

/// The state that the writer, the workers and the handle share.
pub(super) struct Shared {
    pub outbox: Outbox,
    pub owner: String,
    pub options: Options,
    pub operations: Vec<(String, Operation)>,
    pub default_operation: Option<Operation>,
    pub observers: Vec<Observer>,
    pub totals: Mutex<DrainReport>,
    /// Set by [`Relay::stop_drain`](super::Relay::stop_drain).
    pub stop: AtomicBool,
    /// Tells other relays that this one is alive, until the last of its threads ends.
    pub lifeline: Lifeline,
}

impl Shared {
    /// Everything the relay has done so far.
    pub fn totals(&self) -> DrainReport {
        *self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn count(&self, event: &Event) {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner).count(event);
    }

    /// Stores an operation's contract and returns the rules that hold.
    pub fn register(&self, name: &str, operation: &Operation) -> Result<Rules> {
        let Operation { contract: own, budgets, weaken, .. } = operation;
        let now = self.outbox.clock().now();
        let mut conn = self.outbox.store().connection()?;
        let (holds, overruled) = contract::register(&mut conn, name, own, budgets, *weaken, now)?;
        drop(conn);
        if holds.downstream != own.downstream {
            log::warn!(
                "operation {name:?}: its stored contract says {}, which is stricter than the \
                 configured {} and holds; to replace it, set weaken_stored_contract = true in \
                 relay.toml, or call Operation::weaken_stored_contract",
                in_words(holds.downstream),
                in_words(own.downstream)
            );
        }
        if !overruled.is_empty() {
            log::warn!(
                "operation {name:?}: stricter limits than the configured {} are stored and hold; \
                 to replace them, use `outbox limit`, or set weaken_stored_contract = true",
                overruled.join(", ")
            );
        }
        let stored = holds.repeats.rules.as_deref().unwrap_or_default();
        let own = own.repeats.rules.as_deref().unwrap_or_default();
        let missing: Vec<&str> =
            own.iter().filter(|rule| !stored.contains(rule)).map(String::as_str).collect();
        if !missing.is_empty() {
            log::warn!(
                "operation {name:?}: its stored contract does not have {}, so that an answer which \
                 may have been applied stays in doubt; to store that, set weaken_stored_contract \
                 = true for one start",
                missing.join(", ")
            );
        }
        let mut rules = operation.rules(name);
        rules.policy.promise.downstream = holds.downstream;
        rules.on_dead = holds.on_dead();
        Ok(rules)
    }

    /// The longest waits that this relay can make: a lease, and a backoff or what is asked for.
    pub fn longest(&self) -> Longest {
        let named = self.operations.iter().map(|(_, operation)| operation);
        let waits = named.chain(&self.default_operation).map(|o| o.rules("").policy.longest_wait());
        let wait = waits.max().unwrap_or_default();
        Longest { lease_ms: millis(self.options.lease), wait_ms: millis(wait) }
    }

    /// Writes the `Debug` form of a public type that stands for this relay.
    pub fn fmt_as(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("owner", &self.owner)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// A contract as `relay.toml` would say it.
fn in_words(downstream: Downstream) -> String {
    match downstream {
        Downstream::DeduplicatesByKey { window } => {
            let window = length(window);
            format!("\"deduplicates\" with key_window {window}")
        }
        Downstream::Unprotected => "\"unprotected\"".into(),
    }
}

/// The numbers a relay was built with.
#[derive(Debug, Clone)]
pub(super) struct Options {
    pub workers: usize,
    pub batch: usize,
    pub lease: Duration,
    pub shard: Shard,
    pub seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        let lease = Duration::from_secs(90);
        Self { workers: 4, batch: 100, lease, shard: Shard::ALL, seed: None }
    }
}

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
    /// Deliveries still on the way when the grace was over, recorded as ones that may have been
    /// sent. An outcome that comes while the process lives is recorded as late. Where the file
    /// could not be written, the next relay finds them as after a crash.
    pub left: u64,
    /// Outcomes that are known and could not be written by the end of the grace. Each is logged,
    /// with the key as sent and the provider's id; they are written if the process lives long
    /// enough.
    pub unwritten: u64,
}
