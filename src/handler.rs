//! The handler that sends an intent, and the intent as the handler sees it.

use std::sync::Arc;
use std::time::Duration;

use crate::core::{Downstream, Facts, Failure, Finding, Observed, Outcome, key};
use crate::error::Result;
use crate::lease::Lease;

/// Sends intents of one operation. A closure `Fn(&Delivery) -> Outcome` is a handler.
///
/// `deliver` is called on a worker thread, outside any transaction, with a claim that is already
/// durable. The handler reports what happened, and never decides what follows. A panic is contained
/// and counts as [`Outcome::MaybeSent`].
///
/// # Examples
///
/// A closure needs its argument's type written out. A type of its own can set the time limit,
/// which is 60 s otherwise and must be shorter than the relay's lease (90 s by default):
///
/// ```
/// use std::time::Duration;
/// use sqlite_outbox::{Delivery, Downstream, Handler, Operation, Outcome, Receipt};
///
/// struct Printer;
///
/// impl Handler for Printer {
///     fn deliver(&self, delivery: &Delivery) -> Outcome {
///         println!("{}", delivery.payload());
///         Outcome::Succeeded(Receipt::new())
///     }
///
///     fn time_limit(&self) -> Duration {
///         Duration::from_secs(5)
///     }
/// }
///
/// let closure = |_: &Delivery| Outcome::Succeeded(Receipt::new());
/// let operations = [
///     Operation::new(Downstream::Unprotected, Printer),
///     Operation::new(Downstream::Unprotected, closure),
/// ];
/// ```
pub trait Handler: Send + Sync {
    /// Makes one attempt to send the intent.
    fn deliver(&self, delivery: &Delivery) -> Outcome;

    /// Says which part of the configuration cannot be accepted. Asked once, when a relay is built;
    /// its error then names the operation. Defaults to nothing.
    ///
    /// # Errors
    /// The configuration cannot be accepted.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// The longest one attempt may take. The lease must be longer, and nothing is sent whose
    /// attempt could end after the downstream has forgotten the key. The lease of an attempt that
    /// overruns the limit by more than a lease is no longer renewed: the intent is recovered as if
    /// its process had died, and its outcome is recorded as late. Defaults to 60 s.
    fn time_limit(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// Whether an attempt runs code that could end this process, as one in C or with a large buffer
    /// may. While a relay tries an intent with which processes died more than once, it claims
    /// nothing for an unprotected downstream, so that a further death leaves none of those in
    /// doubt. Defaults to yes; `Http` says no.
    fn runs_in_process(&self) -> bool {
        true
    }

    /// The origin (scheme, host and port) to which intents go that name no endpoint, of a handler
    /// that goes over the machine's network; empty where there is none. Its intents wait while
    /// several origins in a row fail with the class `offline`. Defaults to `None`: the network does
    /// not concern it.
    fn network(&self) -> Option<String> {
        None
    }

    /// The answers that this handler takes for word that a request was not applied, though by
    /// themselves they leave that open, as texts such as `on_status 503 = "transient"`. They are
    /// part of the stored contract: only those are to be obeyed that a
    /// [delivery has](Delivery::repeat_rules). Defaults to none.
    fn repeat_rules(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether this handler has a lookup, [`reconcile`](Self::reconcile). Where no relay on the
    /// file has one, an intent that may have been applied and may not be sent again needs review at
    /// once. Defaults to no.
    fn reconciles(&self) -> bool {
        false
    }

    /// Looks up in the system of record whether an intent that may have been applied was. Called as
    /// `deliver` is, at the earliest one [lookup delay](crate::Operation::lookup_delay) after the
    /// attempt, and must change nothing there. A panic counts as [`Finding::Inconclusive`].
    fn reconcile(&self, delivery: &Delivery) -> Finding {
        let _ = delivery;
        Finding::Inconclusive(Failure::new("lookup", "this handler cannot ask"))
    }
}

impl<F: Fn(&Delivery) -> Outcome + Send + Sync> Handler for F {
    fn deliver(&self, delivery: &Delivery) -> Outcome {
        self(delivery)
    }
}

/// A claimed intent as a handler sees it: the stored bytes, unchanged on every attempt.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub(crate) id: i64,
    pub(crate) operation: String,
    pub(crate) intent: StoredIntent,
    /// The key as sent, where that is not the stored one: a hash, so it is told once.
    pub(crate) other_key: Option<String>,
    pub(crate) downstream: Downstream,
    pub(crate) repeat_rules: Arc<[String]>,
    pub(crate) facts: Facts,
    pub(crate) token: i64,
    pub(crate) lease: Arc<Lease>,
    /// The provider's id, in a lookup of an intent that was bound before.
    pub(crate) downstream_id: Option<String>,
}

/// An intent's columns in `outbox`, as the file holds them.
#[derive(Debug, Clone)]
pub(crate) struct StoredIntent {
    pub tenant_id: String,
    pub entity_id: String,
    pub intent_version: i64,
    pub idempotency_key: String,
    pub args_hash: Option<String>,
    pub endpoint: Option<String>,
    pub method: String,
    pub content_type: String,
    pub payload: Arc<str>,
    pub headers: Vec<(String, String)>,
    pub ordering_key: Option<String>,
    pub created_at: i64,
    pub cost: i64,
}

impl StoredIntent {
    /// The key under which the intent is sent, where that is not the stored one.
    pub fn other_key(&self, operation: &str) -> Option<String> {
        key::other_wire_key(&self.tenant_id, operation, &self.idempotency_key)
    }
}

impl Delivery {
    /// The intent's row id in `outbox`.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// The tenant, column `tenant_id`; empty where the application has no tenants.
    pub fn tenant(&self) -> &str {
        &self.intent.tenant_id
    }

    /// The operation, column `operation`.
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// The business object acted on, column `entity_id`.
    pub fn entity(&self) -> &str {
        &self.intent.entity_id
    }

    /// The intent's version from 1, column `intent_version`.
    pub fn version(&self) -> i64 {
        self.intent.intent_version
    }

    /// The key as stored, column `idempotency_key`: forever the same for this business action.
    pub fn idempotency_key(&self) -> &str {
        &self.intent.idempotency_key
    }

    /// The key as sent. It differs from the stored one only for a key that a named tenant brought
    /// along, so that tenants cannot collide at a shared account.
    pub fn wire_key(&self) -> String {
        self.other_key.as_ref().unwrap_or(&self.intent.idempotency_key).clone()
    }

    /// The intent's own endpoint, if it names one.
    pub fn endpoint(&self) -> Option<&str> {
        self.intent.endpoint.as_deref()
    }

    /// The HTTP method.
    pub fn method(&self) -> &str {
        &self.intent.method
    }

    /// The media type of the payload.
    pub fn content_type(&self) -> &str {
        &self.intent.content_type
    }

    /// The body to send.
    pub fn payload(&self) -> &str {
        &self.intent.payload
    }

    /// Headers stored with the intent, such as trace ids.
    pub fn headers(&self) -> &[(String, String)] {
        &self.intent.headers
    }

    /// The key within which intents go out in order.
    pub fn ordering_key(&self) -> Option<&str> {
        self.intent.ordering_key.as_deref()
    }

    /// When the intent was enqueued, in UTC milliseconds.
    pub fn created_at(&self) -> i64 {
        self.intent.created_at
    }

    /// Which attempt this is, from 1. Attempts that provably never left do not count.
    pub fn attempt(&self) -> u32 {
        self.facts.attempts
    }

    /// The provider's id of the effect, in a lookup of an intent that it was bound to with
    /// [`Outbox::bind`](crate::Outbox::bind).
    pub fn downstream_id(&self) -> Option<&str> {
        self.downstream_id.as_deref()
    }

    /// The fencing token of this claim. It rises with every claim in this file, so a receiver
    /// that stores the highest one seen can refuse a late worker.
    pub fn token(&self) -> i64 {
        self.token
    }

    /// The promise of the downstream in the stored contract.
    pub fn downstream(&self) -> Downstream {
        self.downstream
    }

    /// The [repeat rules](Handler::repeat_rules) in the stored contract, on which all relays agree.
    pub fn repeat_rules(&self) -> &[String] {
        &self.repeat_rules
    }

    /// Whether the lease will be held for at least `needed` from now. A handler with several stages
    /// asks before each stage that has an effect, and stops with [`Outcome::NotSent`] if the answer
    /// is no and nothing has left yet.
    pub fn holds_lease_for(&self, needed: Duration) -> bool {
        self.lease.holds_for(needed)
    }
}

/// A claimed row, by what it was claimed for.
#[derive(Debug, Clone)]
pub(crate) enum Held {
    /// The intent is to be sent.
    Send(Arc<Delivery>),
    /// The intent is in doubt, and is to be looked up.
    LookUp(Arc<Delivery>, Lookup),
}

/// The facts about a doubt when its lookup is claimed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lookup {
    /// The claim of the attempt that is in doubt.
    pub attempt_token: Option<i64>,
    /// Whether a relay that lost its lease on the row, and has not reported, was alive at the
    /// claim: it may send after the lookup.
    pub may_be_on_its_way: bool,
}

impl Lookup {
    /// The evidence for and against a finding of this lookup.
    pub fn observed(&self, in_doubt_for: Duration) -> Observed {
        Observed { in_doubt_for, may_be_on_its_way: self.may_be_on_its_way }
    }
}

impl Held {
    pub fn delivery(&self) -> &Arc<Delivery> {
        match self {
            Self::Send(delivery) | Self::LookUp(delivery, _) => delivery,
        }
    }

    /// Whether the row is sent although its process may have died of it before.
    pub fn is_suspect(&self) -> bool {
        matches!(self, Self::Send(delivery) if delivery.facts.is_suspect())
    }
}
