//! How a relay treats one operation.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::core::backoff::Backoff;
use crate::core::budget::{Budget, Kind, Scope};
use crate::core::contract::{Downstream, OnDead, Promise};
use crate::core::decide::Policy;
use crate::core::flow::{Limits, Rate};
use crate::core::millis;
use crate::core::outcome::{Finding, Outcome};
use crate::error::{Error, Result};
use crate::handler::{Delivery, Handler};
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
    max_attempts: Option<u32>,
    give_up_after: Option<Duration>,
    max_in_flight: Option<usize>,
    breaker_after: Option<u32>,
    rate: Option<Rate>,
    budgets: Vec<Budget>,
    priority: i32,
    on_dead: Option<OnDead>,
    provider: Option<String>,
    owner: Option<String>,
    key_recipe: Option<String>,
    settle_delay: Option<Duration>,
    max_lookups: u32,
    binds: bool,
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
            max_attempts: None,
            give_up_after: None,
            max_in_flight: None,
            breaker_after: Some(10),
            rate: None,
            budgets: Vec::new(),
            priority: 0,
            on_dead: None,
            provider: None,
            owner: None,
            key_recipe: None,
            settle_delay: None,
            max_lookups: 8,
            binds: false,
            weaken: false,
        }
    }

    /// How delays grow. Defaults to 2 s doubling up to 1 h, with full jitter.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Attempts before a row is given up. Tries that provably never left do not count. Stored,
    /// and obeyed by every relay on the file. Defaults to what is stored, else to 10.
    #[must_use]
    pub fn max_attempts(mut self, max: u32) -> Self {
        self.max_attempts = Some(max);
        self
    }

    /// How long after the first attempt that may have left a row is given up. Stored, and obeyed by
    /// every relay on the file. Defaults to what is stored, else to 72 h.
    #[must_use]
    pub fn give_up_after(mut self, after: Duration) -> Self {
        self.give_up_after = Some(after);
        self
    }

    /// At most so many deliveries of this operation at once. It is stored, and holds over all
    /// relays on the file, also those that name none; the last relay that names one decides, and
    /// [`weaken_stored_contract`](Self::weaken_stored_contract) removes it. By itself, a relay
    /// that names none uses at most one less than its workers where it has several operations, so
    /// that none can take them all.
    #[must_use]
    pub fn max_in_flight(mut self, max: usize) -> Self {
        self.max_in_flight = Some(max);
        self
    }

    /// So many failures in a row pause the operation: attempts that did not reach the downstream,
    /// or whose answer did not come or was ambiguous. One intent at a time then tries whether it
    /// is back; the others use up nothing meanwhile. An intent that names its own endpoint counts
    /// only where it did not reach it. 0 switches the breaker off. Defaults to 10.
    #[must_use]
    pub fn breaker_after(mut self, failures: u32) -> Self {
        self.breaker_after = (failures > 0).then_some(failures);
        self
    }

    /// At most so many sends in such a time, over all relays on the file, and stored as
    /// [`max_in_flight`](Self::max_in_flight) is. Defaults to no limit.
    #[must_use]
    pub fn rate(mut self, count: u32, per: Duration) -> Self {
        self.rate = Some(Rate { count, per });
        self
    }

    /// At most so many sends in any stretch of time of this length, over all relays on the file and
    /// through restarts: a budget, stored in the file and checked in the claim. Where it is used up
    /// the operation waits until the oldest send is longer ago than that.
    ///
    /// A send counts from its claim. It is given back where it is proven that nothing was applied,
    /// and stays counted where that is not known. Budgets are the last registered relay's: one that
    /// names none leaves them. Defaults to no limit.
    #[must_use]
    pub fn max_per(self, count: u32, per: Duration) -> Self {
        self.budget(Scope::Operation, Kind::Sends, count.into(), per)
    }

    /// Intents of at most so much [`cost`](crate::Intent::cost) together in any stretch of time of
    /// this length; otherwise as [`max_per`](Self::max_per). An intent that does not fit what is
    /// left waits, and later ones wait behind it. One that costs more than the whole budget is for
    /// a person to look at. The retry of an intent costs nothing more. Defaults to no limit.
    #[must_use]
    pub fn max_cost(self, amount: u64, per: Duration) -> Self {
        self.budget(Scope::Operation, Kind::Cost, amount, per)
    }

    /// As [`max_per`](Self::max_per), for each tenant by itself. Where a tenant's is used up its
    /// intents are put off, and other tenants' go on. Defaults to no limit.
    #[must_use]
    pub fn max_per_tenant(self, count: u32, per: Duration) -> Self {
        self.budget(Scope::Tenant, Kind::Sends, count.into(), per)
    }

    /// As [`max_cost`](Self::max_cost), for each tenant by itself. Where a tenant's is used up its
    /// intents are put off, and other tenants' go on. Defaults to no limit.
    #[must_use]
    pub fn max_cost_per_tenant(self, amount: u64, per: Duration) -> Self {
        self.budget(Scope::Tenant, Kind::Cost, amount, per)
    }

    fn budget(mut self, scope: Scope, kind: Kind, amount: u64, per: Duration) -> Self {
        // What is beyond the range of the file is no limit that could ever be reached.
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        let budget = Budget { scope, kind, amount, window_ms: millis(per) };
        self.budgets.retain(|other| (other.scope, other.kind) != (scope, kind));
        self.budgets.push(budget);
        self
    }

    /// Operations of higher priority are claimed first; equal ones take turns. Defaults to 0.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// What a dead row does to later rows of its ordering key. Defaults to what is stored, else to
    /// [`OnDead::Block`]. Where two relays differ, [`OnDead::Block`] holds.
    #[must_use]
    pub fn on_dead(mut self, on_dead: OnDead) -> Self {
        self.on_dead = Some(on_dead);
        self
    }

    /// The provider's name, stored with the contract.
    #[must_use]
    pub fn provider(mut self, provider: impl Into<String>) -> Self {
        self.provider = Some(provider.into());
        self
    }

    /// Who looks after this operation, such as a team; stored with the contract for whoever asks.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// What an idempotency key of this operation is made of, in words for people: "the order's
    /// id; the version is bumped on each change". Stored with the contract.
    #[must_use]
    pub fn key_recipe(mut self, recipe: impl Into<String>) -> Self {
        self.key_recipe = Some(recipe.into());
        self
    }

    /// Sets how the system of record is asked what became of an intent that may have been applied
    /// and may not be sent again. Such an intent is `unknown` until the answer tells; without a
    /// look-up, here or in another relay on the file, it needs a person at once.
    ///
    /// # Examples
    ///
    /// ```
    /// use sqlite_outbox::{Delivery, Downstream, Failure, Finding, Operation, Outcome, Receipt};
    ///
    /// fn sent_mails(_reference: &str) -> Result<Option<String>, String> {
    ///     Ok(None) // your client: the id of the mail with this reference, if there is one
    /// }
    ///
    /// let send = |_: &Delivery| Outcome::MaybeSent(Failure::new("timeout", "no answer"));
    /// let mails = Operation::new(Downstream::Unprotected, send).reconcile(|d: &Delivery| {
    ///     match sent_mails(&d.wire_key()) {
    ///         Ok(Some(id)) => Finding::Applied(Receipt::new().downstream_id(id)),
    ///         Ok(None) => Finding::NotApplied, // only if the record is complete by now
    ///         Err(error) => Finding::Inconclusive(Failure::new("lookup", error)),
    ///     }
    /// });
    /// ```
    #[must_use]
    pub fn reconcile(
        mut self,
        lookup: impl Fn(&Delivery) -> Finding + Send + Sync + 'static,
    ) -> Self {
        self.handler = Arc::new(Reconciled { handler: self.handler, lookup });
        self
    }

    /// How long an attempt in doubt is left alone before it is asked about, and how long a relay
    /// must have known of the doubt, by a clock that nobody can set, before it believes that
    /// nothing was applied. Must be longer than one attempt may take. The waits between look-ups
    /// double from it, up to an hour, each shortened at random by up to a half. Defaults to twice
    /// the time limit, and at least 2 minutes.
    #[must_use]
    pub fn settle_delay(mut self, delay: Duration) -> Self {
        self.settle_delay = Some(delay);
        self
    }

    /// Look-ups of one intent before a person must find out. Those that provably never left do not
    /// count. Defaults to 8.
    #[must_use]
    pub fn max_lookups(mut self, max: u32) -> Self {
        self.max_lookups = max;
        self
    }

    /// Says that the id in a receipt names what was created, so that no two intents can have the
    /// same: an intent that is answered with another one's id needs review and does not take it. Ids
    /// are unique within a [`provider`](Self::provider), or within the operation where none is named. Stored,
    /// and obeyed by every relay on the file. Defaults to no.
    #[must_use]
    pub fn binds_ids(mut self) -> Self {
        self.binds = true;
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

    pub(super) fn budgets(&self) -> &[Budget] {
        &self.budgets
    }

    pub(super) fn contract(&self) -> Contract {
        Contract {
            downstream: self.downstream,
            on_dead: self.on_dead,
            provider: self.provider.clone(),
            owner: self.owner.clone(),
            key_recipe: self.key_recipe.clone(),
            limits: Limits { max_in_flight: self.max_in_flight, rate: self.rate },
            time_limit: Some(self.handler.time_limit()),
            attempts_max: self.max_attempts,
            give_up_after: self.give_up_after,
            reconciles: self.handler.reconciles(),
            binds: self.binds,
        }
    }

    pub(super) fn rules(&self, operation: &str) -> Rules {
        Rules {
            operation: operation.to_owned(),
            policy: Policy {
                promise: Promise {
                    downstream: self.downstream,
                    time_limit: self.handler.time_limit(),
                    reconciles: self.handler.reconciles(),
                },
                backoff: self.backoff.clone(),
                attempts_max: self.max_attempts.unwrap_or(10),
                give_up_after: self.give_up_after.unwrap_or(Duration::from_secs(72 * 3600)),
                retry_after_max: Duration::from_secs(24 * 3600),
                lookup_delay: self.settle_delay.unwrap_or_else(|| self.usual_settle_delay()),
                lookups_max: self.max_lookups,
            },
            on_dead: self.on_dead.unwrap_or_default(),
            breaker_after: self.breaker_after,
        }
    }

    fn usual_settle_delay(&self) -> Duration {
        Duration::from_secs(120).max(self.handler.time_limit().saturating_mul(2))
    }

    /// Checks everything that can be wrong on its own or together with the lease.
    pub(super) fn check(&self, operation: &str, lease: Duration) -> Result<()> {
        let in_operation = |error: Error| error.context(format_args!("operation {operation:?}"));
        self.handler.check().map_err(in_operation)?;
        self.backoff.check().map_err(in_operation)?;
        if self.max_attempts == Some(0) {
            return Err(in_operation(Error::invalid("max_attempts", "must be 1 or more")));
        }
        if self.max_in_flight == Some(0) {
            return Err(in_operation(Error::invalid("max_in_flight", "must be 1 or more")));
        }
        if self.rate.is_some_and(|rate| rate.count == 0 || rate.per.is_zero()) {
            return Err(in_operation(Error::invalid(
                "rate",
                "must be at least one send in some time",
            )));
        }
        if let Some(budget) = self.budgets.iter().find(|b| b.amount < 1 || b.window_ms < 1) {
            let why = "must be at least 1, in a time of at least a millisecond";
            return Err(in_operation(Error::invalid(budget.name(), why)));
        }
        let time_limit = self.handler.time_limit();
        if time_limit >= lease {
            let why = format!(
                "{lease:?} must be longer than the {time_limit:?} one attempt may take (the sum of \
                 its timeouts); raise lease or lower timeouts"
            );
            return Err(in_operation(Error::invalid("lease", why)));
        }
        if self.settle_delay.is_some_and(|delay| delay <= time_limit) {
            let why = format!(
                "must be longer than the {time_limit:?} one attempt may take, or a request that is \
                 on its way would be taken for one that was not applied"
            );
            return Err(in_operation(Error::invalid("settle_delay", why)));
        }
        if self.max_lookups == 0 {
            return Err(in_operation(Error::invalid("max_lookups", "must be 1 or more")));
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

/// A handler with a look-up of its own.
struct Reconciled<F> {
    handler: Arc<dyn Handler>,
    lookup: F,
}

impl<F: Fn(&Delivery) -> Finding + Send + Sync> Handler for Reconciled<F> {
    fn deliver(&self, delivery: &Delivery) -> Outcome {
        self.handler.deliver(delivery)
    }

    fn check(&self) -> Result<()> {
        self.handler.check()
    }

    fn time_limit(&self) -> Duration {
        self.handler.time_limit()
    }

    fn reconciles(&self) -> bool {
        true
    }

    fn reconcile(&self, delivery: &Delivery) -> Finding {
        (self.lookup)(delivery)
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
