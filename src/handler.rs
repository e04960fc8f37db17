//! What carries out an intent, and the intent as it sees it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::core::contract::Downstream;
use crate::core::decide::Facts;
use crate::core::key;
use crate::core::millis;
use crate::core::outcome::{Failure, Finding, Outcome};
use crate::error::Result;

/// Carries out intents of one operation. A closure `Fn(&Delivery) -> Outcome` is a handler.
///
/// `deliver` is called on a worker thread, outside any transaction, with a claim that is already
/// durable. It reports what happened; it never decides what follows. A panic is contained and
/// counts as [`Outcome::MaybeSent`].
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
    /// Makes one attempt.
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
    /// attempt could end after the downstream has forgotten the key. An attempt that overruns it
    /// by more than the lease is no longer renewed: the row is taken back as one whose process
    /// died, and what the handler says later is recorded as late. Defaults to 60 s.
    fn time_limit(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// Whether [`reconcile`](Self::reconcile) can ask. An intent that may have been applied and may
    /// not be sent again needs a person at once where nothing can. Defaults to no.
    fn reconciles(&self) -> bool {
        false
    }

    /// Asks the system of record what became of an intent that may have been applied. Called as
    /// `deliver` is, at the earliest one settle delay after the attempt, and must change nothing
    /// there. A panic counts as [`Finding::Inconclusive`].
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
    pub(crate) tenant_id: String,
    pub(crate) operation: String,
    pub(crate) entity_id: String,
    pub(crate) intent_version: i64,
    pub(crate) idempotency_key: String,
    pub(crate) args_hash: Option<String>,
    pub(crate) endpoint: Option<String>,
    pub(crate) method: String,
    pub(crate) content_type: String,
    pub(crate) payload: Arc<str>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) ordering_key: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) downstream: Downstream,
    pub(crate) facts: Facts,
    pub(crate) token: i64,
    pub(crate) lease: Arc<Lease>,
    pub(crate) lookup: Option<Lookup>,
}

/// What is known beside the intent where it is asked about and not sent.
#[derive(Debug, Clone)]
pub(crate) struct Lookup {
    /// The claim of the attempt that is in doubt.
    pub attempt_token: Option<i64>,
    /// The provider's id, where it was given up front.
    pub downstream_id: Option<String>,
    /// Whether a relay that lost its lease was alive when this was claimed, and had not said how it
    /// went: it may send after the question.
    pub may_be_on_its_way: bool,
}

impl Delivery {
    /// The intent's row id in `outbox`.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Whose intent it is; empty where the application has no tenants.
    pub fn tenant(&self) -> &str {
        &self.tenant_id
    }

    /// What kind of action it is.
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// The business object acted on.
    pub fn entity(&self) -> &str {
        &self.entity_id
    }

    /// The intent's version, from 1.
    pub fn version(&self) -> i64 {
        self.intent_version
    }

    /// The key as it is stored: the same for this business action for ever.
    pub fn idempotency_key(&self) -> &str {
        &self.idempotency_key
    }

    /// The key as it is sent. It differs from the stored one only where a named tenant brought
    /// its own key, so that tenants cannot collide at a shared account.
    pub fn wire_key(&self) -> String {
        key::wire_key(&self.tenant_id, &self.operation, &self.idempotency_key)
    }

    /// SHA-256 of the canonical arguments in hex, where the caller stored it.
    pub fn args_hash(&self) -> Option<&str> {
        self.args_hash.as_deref()
    }

    /// Where to send it, where the intent says so itself.
    pub fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }

    /// The HTTP method.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The media type of the payload.
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// The body to send.
    pub fn payload(&self) -> &str {
        &self.payload
    }

    /// Headers stored with the intent, such as trace ids.
    pub fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    /// The key within which intents go out in order.
    pub fn ordering_key(&self) -> Option<&str> {
        self.ordering_key.as_deref()
    }

    /// When the intent was enqueued, in UTC milliseconds.
    pub fn created_at(&self) -> i64 {
        self.created_at
    }

    /// Which attempt this is, from 1. Attempts that provably never left do not count.
    pub fn attempt(&self) -> u32 {
        self.facts.attempts
    }

    /// The provider's id of the effect, in a look-up of an intent to which it was given with
    /// [`Outbox::bind`](crate::Outbox::bind).
    pub fn downstream_id(&self) -> Option<&str> {
        self.lookup.as_ref()?.downstream_id.as_deref()
    }

    /// The fencing token of this claim. It rises with every claim in this file, so a receiver
    /// that stores the highest one seen can refuse a late worker.
    pub fn token(&self) -> i64 {
        self.token
    }

    /// What the stored contract says about this downstream.
    pub fn downstream(&self) -> Downstream {
        self.downstream
    }

    /// Whether it must be the only one, because it has died with its process before.
    pub(crate) fn must_be_alone(&self) -> bool {
        self.facts.lost > 0 && self.lookup.is_none()
    }

    /// Whether the lease is still held and will be for at least `needed`. A handler with several
    /// stages asks before each stage that has an effect, and stops with
    /// [`Outcome::NotSent`] where the answer is no and nothing has left yet.
    pub fn holds_lease_for(&self, needed: Duration) -> bool {
        self.lease.holds_for(needed)
    }
}

/// The shared end of a lease: the relay's writer moves it, workers read it.
#[derive(Debug)]
pub(crate) struct Lease {
    expires_at: AtomicI64,
    clock: Arc<dyn Clock>,
    /// When a worker began. Monotonic, so that a machine that slept did not work meanwhile.
    began: OnceLock<Instant>,
}

impl Lease {
    pub fn new(expires_at: i64, clock: Arc<dyn Clock>) -> Self {
        Self { expires_at: AtomicI64::new(expires_at), clock, began: OnceLock::new() }
    }

    pub fn holds_for(&self, needed: Duration) -> bool {
        self.clock.now().saturating_add(millis(needed)) <= self.expires_at.load(Ordering::Acquire)
    }

    pub fn extend_to(&self, expires_at: i64) {
        self.expires_at.store(expires_at, Ordering::Release);
    }

    /// Notes when a worker began. Whoever asks does the reckoning.
    pub fn begin(&self, at: Instant) {
        self.began.get_or_init(|| at);
    }

    /// When a worker began, or `None` while the delivery waits for one.
    pub fn began(&self) -> Option<Instant> {
        self.began.get().copied()
    }

    /// Marks the lease as taken by somebody else.
    pub fn revoke(&self) {
        self.extend_to(i64::MIN);
    }
}
