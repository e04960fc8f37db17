//! Configuring a relay.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Relay;
use super::engine::Engine;
use super::operation::Operation;
use super::shared::{Observer, Options, Shared};
use crate::core::Shard;
use crate::core::intent::check_operation;
use crate::core::setters::setters;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::liveness::Lifeline;
use crate::outbox::Outbox;

/// Configures a [`Relay`], whose page has an example.
#[must_use = "a builder does nothing until it is built"]
pub struct RelayBuilder {
    outbox: Outbox,
    options: Options,
    operations: Vec<(String, Operation)>,
    default_operation: Option<Operation>,
    observers: Vec<Observer>,
}

impl Relay {
    /// Begins to configure a relay on this outbox.
    pub fn builder(outbox: &Outbox) -> RelayBuilder {
        RelayBuilder {
            outbox: outbox.clone(),
            options: Options::default(),
            operations: Vec::new(),
            default_operation: None,
            observers: Vec::new(),
        }
    }
}

impl RelayBuilder {
    /// Sends intents of the operation `name`. Intents of operations that are not named wait.
    pub fn operation(mut self, name: impl Into<String>, operation: Operation) -> Self {
        self.operations.push((name.into(), operation));
        self
    }

    /// Calls `observer` with every status move after it is durable, on the writer's thread: it
    /// should return quickly.
    pub fn observe(mut self, observer: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// Checks the configuration and stores the contracts of its operations.
    ///
    /// # Errors
    /// `Invalid` names the option that cannot be accepted and why;
    /// otherwise the file cannot be written.
    pub fn build(self) -> Result<Relay> {
        self.check()?;
        let owner = format!("relay-{}-{:08x}", std::process::id(), fastrand::u32(..));
        let lifeline = Lifeline::hold(self.outbox.path(), &owner)?;
        let shared = Arc::new(Shared {
            outbox: self.outbox,
            owner,
            options: self.options,
            operations: self.operations,
            default_operation: self.default_operation,
            observers: self.observers,
            totals: Mutex::default(),
            stop: AtomicBool::new(false),
            lifeline,
        });
        let engine = Mutex::new(Engine::new(&shared)?);
        Ok(Relay { shared, engine })
    }

    fn check(&self) -> Result<()> {
        let Options { workers, batch, lease, .. } = self.options;
        for (name, number, max) in [("workers", workers, 1024), ("batch", batch, 10_000)] {
            if !(1..=max).contains(&number) {
                return Err(Error::invalid(name, format!("{number} is not within 1 to {max}")));
            }
        }
        if self.operations.is_empty() && self.default_operation.is_none() {
            return Err(Error::invalid("operation", "name at least one, or set a default"));
        }
        for (place, (name, operation)) in self.operations.iter().enumerate() {
            check_operation(name)?;
            if self.operations[..place].iter().any(|(earlier, _)| earlier == name) {
                return Err(Error::invalid("operation", format!("{name:?} is given twice")));
            }
            operation.check(name, lease)?;
        }
        if let Some(default) = &self.default_operation {
            default.check("default", lease)?;
        }
        Ok(())
    }
}

setters! {
    RelayBuilder:

    /// Sends intents of all operations that are not named by [`operation`](Self::operation).
    /// Without a default they wait.
    pub fn default_operation(operation: Operation) => default_operation = Some(operation);

    /// Threads that run handlers, 1 to 1024. Defaults to 4.
    pub fn workers(workers: usize) => options.workers = workers;

    /// The most intents that one transaction claims, 1 to 10,000. Defaults to 100.
    pub fn batch(batch: usize) => options.batch = batch;

    /// How long a claim lasts without being renewed; live claims are renewed at a third of it.
    /// Must be longer than any attempt may take, which [`Handler::time_limit`] says: 60 s for a
    /// closure and for the timeouts that `Http` has by default. Defaults to 90 s.
    ///
    /// [`Handler::time_limit`]: crate::Handler::time_limit
    pub fn lease(lease: Duration) => options.lease = lease;

    /// Claims intents of this shard alone, so that several relays share the work without competing.
    /// Defaults to [`Shard::ALL`].
    pub fn shard(shard: Shard) => options.shard = shard;

    /// Seeds the jitter of delays, for tests that must repeat. Defaults to a random seed.
    pub fn seed(seed: u64) => options.seed = Some(seed);
}

impl fmt::Debug for RelayBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayBuilder").field("options", &self.options).finish_non_exhaustive()
    }
}
