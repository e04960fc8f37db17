//! How a relay treats one operation.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::core::limit::Bounds;
use crate::core::setters::setters;
use crate::core::{
    Backoff, Budget, Downstream, Finding, Kind, Limits, OnDead, Outcome, Policy, Promise, Rate,
    Scope, length, millis,
};
use crate::error::{Error, Result};
use crate::handler::{Delivery, Handler};
use crate::store::{Contract, Repeats, Rules};

/// With the default backoff the last attempt of an intent comes more than three hours after the
/// first in all but one of thousands of draws.
const ATTEMPTS_MAX: u32 = 25;

/// How a relay treats the intents of one operation: what the downstream promises, which handler
/// sends, and how often and how long an intent is tried.
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
#[must_use = "an operation does nothing until a relay is built with it"]
pub struct Operation {
    pub(super) handler: Arc<dyn Handler>,
    /// The settings stored in the file, which every relay on it obeys.
    pub(super) contract: Contract,
    pub(super) budgets: Vec<Budget>,
    /// Whether `contract` may replace a stored one that promises more.
    pub(super) weaken: bool,
    pub(super) priority: i32,
    backoff: Backoff,
    breaker_after: Option<u32>,
    lookup_delay: Option<Duration>,
    max_lookups: u32,
}

impl Operation {
    /// An operation whose downstream keeps this contract, carried out by `handler`: an
    /// `Http`, or a closure from [`Delivery`](crate::Delivery) to
    /// [`Outcome`](crate::Outcome).
    pub fn new(downstream: Downstream, handler: impl Handler + 'static) -> Self {
        let contract = Contract {
            downstream,
            on_dead: None,
            provider: None,
            owner: None,
            key_recipe: None,
            limits: Limits::default(),
            time_limit: Some(handler.time_limit()),
            attempts_max: None,
            give_up_after: None,
            reconciles: handler.reconciles(),
            binds: false,
            uses_network: handler.network().is_some(),
            repeats: Repeats { reads: true, rules: Some(handler.repeat_rules().into()) },
        };
        Self {
            handler: Arc::new(handler),
            contract,
            budgets: Vec::new(),
            weaken: false,
            priority: 0,
            backoff: Backoff::default(),
            breaker_after: Some(10),
            lookup_delay: None,
            max_lookups: 8,
        }
    }

    /// At most `count` sends in any stretch of time as long as `per`, over all relays on the file
    /// and over restarts: a budget, stored in the file and checked in the claim. When the budget is
    /// used up, the operation waits until the oldest send is `per` ago.
    ///
    /// A send is refunded if nothing was applied for certain, and stays counted if that is not
    /// known. Budgets over different times all hold, and of two over the same time the smaller,
    /// whichever relay asked for it, until `outbox limit` or
    /// [`weaken_stored_contract`](Self::weaken_stored_contract) sets another. Defaults to no limit.
    pub fn max_per(self, count: u32, per: Duration) -> Self {
        self.budget(Scope::Operation, Kind::Sends, count.into(), per)
    }

    /// Intents of at most `amount` [`cost`](crate::Intent::cost) together in any stretch of time as
    /// long as `per`; otherwise as [`max_per`](Self::max_per). An intent that does not fit what is
    /// left waits, and later ones wait behind it, unless it could not go in any case: its tenant,
    /// its origin or the configured endpoint stands still. An intent that costs more than the whole
    /// budget needs review. Where the downstream deduplicates, an intent's cost counts once, from
    /// its last request. Defaults to no limit.
    pub fn max_cost(self, amount: u64, per: Duration) -> Self {
        self.budget(Scope::Operation, Kind::Cost, amount, per)
    }

    /// A budget as [`max_per`](Self::max_per), for each tenant separately. When a tenant's budget
    /// is used up, its intents are deferred and other tenants' go on. Defaults to no limit.
    pub fn max_per_tenant(self, count: u32, per: Duration) -> Self {
        self.budget(Scope::Tenant, Kind::Sends, count.into(), per)
    }

    /// A budget as [`max_cost`](Self::max_cost), for each tenant separately, as
    /// [`max_per_tenant`](Self::max_per_tenant). Defaults to no limit.
    pub fn max_cost_per_tenant(self, amount: u64, per: Duration) -> Self {
        self.budget(Scope::Tenant, Kind::Cost, amount, per)
    }

    /// A budget as [`max_per_tenant`](Self::max_per_tenant), for each agent run: the value of the
    /// header that names it, `x-agent-run`. Intents that name none are not counted. Defaults to no
    /// limit.
    pub fn max_per_run(self, count: u32, per: Duration) -> Self {
        self.budget(Scope::Run, Kind::Sends, count.into(), per)
    }

    /// A budget as [`max_cost`](Self::max_cost), for each agent run, as
    /// [`max_per_run`](Self::max_per_run). Defaults to no limit.
    pub fn max_cost_per_run(self, amount: u64, per: Duration) -> Self {
        self.budget(Scope::Run, Kind::Cost, amount, per)
    }

    fn budget(mut self, scope: Scope, kind: Kind, amount: u64, per: Duration) -> Self {
        // An amount beyond the range of the file could never be reached.
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        let budget = Budget { scope, kind, amount, window_ms: millis(per) };
        self.budgets.retain(|other| !other.is_like(&budget));
        self.budgets.push(budget);
        self
    }

    /// Sets the lookup: how the system of record is asked whether an intent was applied that may
    /// have been and may not be sent again. Such an intent is `unknown` until the lookup answers.
    /// Without a lookup, in this relay or in another one on the file, it needs review at once.
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
    pub fn reconcile(
        mut self,
        lookup: impl Fn(&Delivery) -> Finding + Send + Sync + 'static,
    ) -> Self {
        self.handler = Arc::new(Reconciled { handler: self.handler, lookup });
        self.contract.reconciles = true;
        self
    }

    /// The rules of a relay for the operation of this name, before the stored contract is known.
    pub(super) fn rules(&self, operation: &str) -> Rules {
        let time_limit = self.handler.time_limit();
        let usual_delay = Duration::from_secs(120).max(time_limit.saturating_mul(2));
        Rules {
            operation: operation.to_owned(),
            policy: Policy {
                promise: Promise {
                    downstream: self.contract.downstream,
                    time_limit,
                    reconciles: self.handler.reconciles(),
                    repeat_safe: self.contract.repeats.reads,
                },
                backoff: self.backoff.clone(),
                attempts_max: self.contract.attempts_max.unwrap_or(ATTEMPTS_MAX),
                give_up_after: self
                    .contract
                    .give_up_after
                    .unwrap_or(Duration::from_secs(72 * 3600)),
                retry_after_max: Duration::from_secs(24 * 3600),
                lookup_delay: self.lookup_delay.unwrap_or(usual_delay),
                lookups_max: self.max_lookups,
                repeat_rules: Arc::default(),
            },
            on_dead: self.contract.on_dead(),
            breaker_after: self.breaker_after,
            network: self.handler.network(),
        }
    }

    /// Checks each setting, alone and together with the lease.
    pub(super) fn check(&self, operation: &str, lease: Duration) -> Result<()> {
        let handler = self.handler.check().and_then(|()| self.backoff.check());
        let settings = handler.and_then(|()| self.check_settings());
        let times = settings.and_then(|()| self.check_times(lease));
        times.map_err(|error| error.context(format_args!("operation {operation:?}")))
    }

    fn check_settings(&self) -> Result<()> {
        let Contract { attempts_max, limits, .. } = &self.contract;
        let zero =
            [("max_attempts", *attempts_max == Some(0)), ("max_lookups", self.max_lookups == 0)];
        if let Some((name, _)) = zero.into_iter().find(|(_, is_zero)| *is_zero) {
            return Err(Error::invalid(name, "must be 1 or more"));
        }
        Bounds { limits: *limits, budgets: self.budgets.clone() }.check()
    }

    fn check_times(&self, lease: Duration) -> Result<()> {
        let time_limit = self.handler.time_limit();
        let attempt = length(time_limit);
        if time_limit >= lease {
            let why = format!(
                "{} must be longer than the {attempt} one attempt may take (the sum of \
                 its timeouts); raise lease or lower timeouts",
                length(lease)
            );
            return Err(Error::invalid("lease", why));
        }
        if self.lookup_delay.is_some_and(|delay| delay <= time_limit) {
            let why = format!(
                "must be longer than the {attempt} one attempt may take, or a request that is \
                 on its way would be taken for one that was not applied"
            );
            return Err(Error::invalid("lookup_delay", why));
        }
        if let Downstream::DeduplicatesByKey { window } = self.contract.downstream
            && window <= time_limit
        {
            let why = format!(
                "{} must be longer than the {attempt} one attempt may take, or \
                 nothing could ever be repeated",
                length(window)
            );
            return Err(Error::invalid("key_window", why));
        }
        Ok(())
    }
}

setters! {
    Operation:

    /// How the delays between attempts grow. Defaults to 2 s doubling up to 1 h, with full jitter.
    pub fn backoff(backoff: Backoff) => backoff = backoff;

    /// Attempts of one intent before it is dead, without those that provably never left. Stored,
    /// and obeyed by every relay on the file. Defaults to what is stored, else to 25, which with
    /// the default [`backoff`](Self::backoff) outlasts an outage of three hours.
    pub fn max_attempts(max: u32) => contract.attempts_max = Some(max);

    /// How long after its first attempt that may have left an intent is dead. Stored, and obeyed by
    /// every relay on the file. Defaults to what is stored, else to 72 h.
    pub fn give_up_after(after: Duration) => contract.give_up_after = Some(after);

    /// At most `max` deliveries of this operation at once, over all relays on the file. Stored, and
    /// obeyed also by relays that set none; the smaller holds, until `outbox limit` or
    /// [`weaken_stored_contract`](Self::weaken_stored_contract) sets another. Where no limit is
    /// stored, a relay with several operations keeps one worker free for the others.
    /// Defaults to what is stored, else to no limit.
    pub fn max_in_flight(max: usize) => contract.limits.max_in_flight = Some(max);

    /// The circuit breaker: this many failures in a row pause the operation. A failure is an
    /// attempt that did not reach the downstream, or whose answer was ambiguous or did not come. A
    /// single intent at a time then probes the downstream; the others use up no attempts meanwhile.
    /// An intent that names its own endpoint counts only if it did not reach it. 0 switches the
    /// breaker off. Defaults to 10.
    pub fn breaker_after(failures: u32) => breaker_after = (failures > 0).then_some(failures);

    /// At most `count` sends in a time of `per`, over all relays on the file. Stored as
    /// [`max_in_flight`](Self::max_in_flight) is. Defaults to what is stored, else to no limit.
    pub fn rate(count: u32, per: Duration) => contract.limits.rate = Some(Rate { count, per });

    /// Operations of higher priority are claimed first; equal ones take turns. Defaults to 0.
    pub fn priority(priority: i32) => priority = priority;

    /// Whether a dead intent blocks later ones of its ordering key. Defaults to what is stored,
    /// else to [`OnDead::Block`]. Where two relays differ, [`OnDead::Block`] holds.
    pub fn on_dead(on_dead: OnDead) => contract.on_dead = Some(on_dead);

    /// The provider's name, stored with the contract.
    pub fn provider(provider: impl Into<String>) => contract.provider = Some(provider.into());

    /// The team or person that looks after this operation, stored with the contract.
    pub fn owner(owner: impl Into<String>) => contract.owner = Some(owner.into());

    /// A description for people of what an idempotency key of this operation is made of: "the
    /// order's id; the version is bumped on each change". Stored with the contract.
    pub fn key_recipe(recipe: impl Into<String>) => contract.key_recipe = Some(recipe.into());

    /// How long after an attempt in doubt the first lookup is made. A relay accepts the answer "not
    /// applied" only after it has known of the doubt for as long, on the monotonic clock. Must be
    /// longer than one attempt may take. The delays between lookups double from it, up to an hour,
    /// each shortened at random by up to a half. Defaults to twice the time limit, and at least 2
    /// minutes.
    pub fn lookup_delay(delay: Duration) => lookup_delay = Some(delay);

    /// Lookups of one intent before it needs review, without those that provably never left.
    /// Defaults to 8.
    pub fn max_lookups(max: u32) => max_lookups = max;

    /// Declares that the id in a receipt names what was created, so that two intents cannot have
    /// the same id: an intent that is answered with the id of another one needs review and does not
    /// take it. Ids are unique within a [`provider`](Self::provider), or within the operation if it
    /// has none. Stored, and obeyed by every relay on the file. Defaults to no.
    pub fn binds_ids() => contract.binds = true;

    /// Whether a GET without a body, as `Http` has really sent it, may be sent again although the
    /// downstream is unprotected: a read applies nothing. Set it to false for a service that
    /// changes something on a GET. Stored, and obeyed by every relay on the file; false holds.
    /// Defaults to true.
    pub fn repeat_safe(repeats: bool) => contract.repeats.reads = repeats;

    /// Sets the [repeat rules](Handler::repeat_rules) that this relay agrees to. Defaults to those
    /// of the handler.
    pub fn repeat_rules(rules: Vec<String>) => contract.repeats.rules = Some(rules.into());

    /// Lets this configuration replace a stored contract that is stricter. Otherwise the stricter
    /// of the two holds.
    pub fn weaken_stored_contract() => weaken = true;
}

/// A handler with a lookup that was set beside it.
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

    fn runs_in_process(&self) -> bool {
        self.handler.runs_in_process()
    }

    fn network(&self) -> Option<String> {
        self.handler.network()
    }

    fn repeat_rules(&self) -> Vec<String> {
        self.handler.repeat_rules()
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
            .field("contract", &self.contract)
            .field("backoff", &self.backoff)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
