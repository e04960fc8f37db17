//! How a relay treats one operation.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::core::backoff::Backoff;
use crate::core::contract::{Downstream, OnDead};
use crate::core::decide::Policy;
use crate::error::{Error, Result};
use crate::handler::Handler;
use crate::store::{Contract, Rules};

/// What a relay needs to know about one operation: what its downstream promises, who carries it
/// out, and how often and how long it is tried.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use sqlite_outbox::{Backoff, Delivery, Downstream, Operation, Outcome, Receipt};
///
/// let charge = |delivery: &Delivery| {
///     // … the provider is asked, with delivery.wire_key() …
///     Outcome::Succeeded(Receipt::new())
/// };
/// let window = Duration::from_secs(24 * 3600);
/// let charges = Operation::new(Downstream::DeduplicatesByKey { window }, charge)
///     .backoff(Backoff::Schedule([5, 60, 900].map(Duration::from_secs).into()))
///     .max_attempts(4)
///     .provider("stripe");
/// ```
#[derive(Clone)]
pub struct Operation {
    downstream: Downstream,
    handler: Arc<dyn Handler>,
    backoff: Backoff,
    max_attempts: u32,
    give_up_after: Duration,
    max_in_flight: Option<usize>,
    priority: i32,
    on_dead: OnDead,
    provider: Option<String>,
    weaken: bool,
}

impl Operation {
    /// An operation whose downstream keeps this contract, carried out by `handler`: an
    /// `Http`, or a closure from [`Delivery`](crate::Delivery) to
    /// [`Outcome`](crate::Outcome).
    pub fn new(downstream: Downstream, handler: impl Handler + 'static) -> Self {
        Self {
            downstream,
            handler: Arc::new(handler),
            backoff: Backoff::default(),
            max_attempts: 10,
            give_up_after: Duration::from_secs(72 * 3600),
            max_in_flight: None,
            priority: 0,
            on_dead: OnDead::Block,
            provider: None,
            weaken: false,
        }
    }

    /// How delays grow. Defaults to 2 s doubling up to 1 h, with full jitter.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Attempts before a row is given up. Tries that provably never left do not count. Defaults
    /// to 10.
    #[must_use]
    pub fn max_attempts(mut self, max: u32) -> Self {
        self.max_attempts = max;
        self
    }

    /// How long after the first attempt that may have left a row is given up. Defaults to 72 h.
    #[must_use]
    pub fn give_up_after(mut self, after: Duration) -> Self {
        self.give_up_after = after;
        self
    }

    /// At most so many deliveries of this operation at once in this relay. Defaults to one less
    /// than the workers where the relay has several operations, so that none can take them all.
    #[must_use]
    pub fn max_in_flight(mut self, max: usize) -> Self {
        self.max_in_flight = Some(max);
        self
    }

    /// Operations of higher priority are claimed first; equal ones take turns. Defaults to 0.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// What a dead row does to later rows of its ordering key. Defaults to [`OnDead::Block`].
    #[must_use]
    pub fn on_dead(mut self, on_dead: OnDead) -> Self {
        self.on_dead = on_dead;
        self
    }

    /// The provider's name, stored with the contract.
    #[must_use]
    pub fn provider(mut self, provider: impl Into<String>) -> Self {
        self.provider = Some(provider.into());
        self
    }

    /// Lets this configuration replace a stored contract that promises less. Without it the
    /// stricter of the two holds.
    #[must_use]
    pub fn weaken_stored_contract(mut self) -> Self {
        self.weaken = true;
        self
    }

    pub(super) fn handler(&self) -> &Arc<dyn Handler> {
        &self.handler
    }

    pub(super) fn priority_value(&self) -> i32 {
        self.priority
    }

    pub(super) fn max_in_flight_value(&self) -> Option<usize> {
        self.max_in_flight
    }

    pub(super) fn may_weaken(&self) -> bool {
        self.weaken
    }

    pub(super) fn contract(&self) -> Contract {
        Contract {
            downstream: self.downstream,
            on_dead: self.on_dead,
            provider: self.provider.clone(),
        }
    }

    pub(super) fn rules(&self, operation: &str) -> Rules {
        Rules {
            operation: operation.to_owned(),
            policy: Policy {
                downstream: self.downstream,
                backoff: self.backoff.clone(),
                attempts_max: self.max_attempts,
                give_up_after: self.give_up_after,
                retry_after_max: Duration::from_secs(24 * 3600),
                time_limit: self.handler.time_limit(),
            },
            on_dead: self.on_dead,
        }
    }

    /// Checks everything that can be wrong on its own or together with the lease.
    pub(super) fn check(&self, operation: &str, lease: Duration) -> Result<()> {
        let in_operation = |error: Error| error.context(format_args!("operation {operation:?}"));
        self.backoff.check().map_err(in_operation)?;
        if self.max_attempts == 0 {
            return Err(in_operation(Error::invalid("max_attempts", "must be 1 or more")));
        }
        if self.max_in_flight == Some(0) {
            return Err(in_operation(Error::invalid("max_in_flight", "must be 1 or more")));
        }
        let time_limit = self.handler.time_limit();
        if time_limit >= lease {
            let why = format!(
                "{lease:?} must be longer than the {time_limit:?} one attempt may take (the sum of \
                 its timeouts); raise lease or lower timeouts"
            );
            return Err(in_operation(Error::invalid("lease", why)));
        }
        if let Downstream::DeduplicatesByKey { window } = self.downstream
            && window <= time_limit
        {
            let why = format!(
                "{window:?} must be longer than the {time_limit:?} one attempt may take, or \
                 nothing could ever be repeated"
            );
            return Err(in_operation(Error::invalid("key_window", why)));
        }
        Ok(())
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("downstream", &self.downstream)
            .field("backoff", &self.backoff)
            .field("max_attempts", &self.max_attempts)
            .finish_non_exhaustive()
    }
}
