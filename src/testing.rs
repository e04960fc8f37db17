//! A kit for tests: a clock that moves when told, deliveries without a file, and assertions about
//! what was enqueued.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{Boot, Clock, SystemClock};
use crate::core::setters::setters;
use crate::core::{Downstream, Entry, Facts, Filter, Intent, header, millis};
use crate::error::Result;
use crate::handler::{Delivery, StoredIntent};
use crate::lease::Lease;
use crate::outbox::Outbox;

/// A clock that stands still until it is moved. Clones move together. Advancing it is time that
/// passes; setting it is what a person or a time server does to the wall clock alone.
///
/// With one worker and [`Relay::drain`](crate::Relay::drain) it makes tests of retries and
/// leases exact, without a sleep.
///
/// ```
/// use std::time::Duration;
/// use sqlite_outbox::testing::ManualClock;
/// use sqlite_outbox::{Clock, Outbox};
///
/// let clock = ManualClock::at(1_800_000_000_000);
/// # let folder = tempfile::tempdir().expect("a folder");
/// # let file = folder.path().join("app.db");
/// let outbox = Outbox::builder().clock(clock.clone()).open(&file)?;
/// clock.advance(Duration::from_secs(60));
/// assert_eq!(clock.now(), 1_800_000_060_000);
/// # drop(outbox);
/// # Ok::<(), sqlite_outbox::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Times>);

#[derive(Debug, Default)]
struct Times {
    wall: AtomicI64,
    passed: AtomicU64,
    /// How often the machine was started anew, and what had passed then.
    boots: AtomicU64,
    booted: AtomicU64,
}

impl ManualClock {
    /// A clock that stands at this time, in UTC milliseconds.
    pub fn at(now: i64) -> Self {
        Self(Arc::new(Times { wall: AtomicI64::new(now), ..Times::default() }))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0.wall.fetch_add(millis(by), Ordering::SeqCst);
        self.0.passed.fetch_add(millis(by).unsigned_abs(), Ordering::SeqCst);
    }

    /// Sets the wall clock, also backward. No time passes by it.
    pub fn set(&self, now: i64) {
        self.0.wall.store(now, Ordering::SeqCst);
    }

    /// Starts the machine anew, with its wall clock at this time: nobody knows what time passed.
    pub fn reboot(&self, now: i64) {
        self.0.boots.fetch_add(1, Ordering::SeqCst);
        self.0.booted.store(self.0.passed.load(Ordering::SeqCst), Ordering::SeqCst);
        self.set(now);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> i64 {
        self.0.wall.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.passed.load(Ordering::SeqCst))
    }

    fn boot(&self) -> Option<Boot> {
        let passed = self.0.passed.load(Ordering::SeqCst);
        let since = passed.saturating_sub(self.0.booted.load(Ordering::SeqCst));
        let id = format!("manual-{}", self.0.boots.load(Ordering::SeqCst));
        Some(Boot::new(id, i64::try_from(since).unwrap_or(i64::MAX)))
    }
}

/// The delivery that a handler gets for an intent, so that the handler is tested alone: without a
/// file and without a relay.
///
/// ```
/// use sqlite_outbox::{Delivery, Handler, Intent, Outcome, Receipt, testing};
///
/// let print = |delivery: &Delivery| {
///     println!("{} with key {}", delivery.payload(), delivery.wire_key());
///     Outcome::Succeeded(Receipt::new().downstream_id("msg_1"))
/// };
/// let mail = Intent::new("mail.send", "order-42").args(serde_json::json!({"to": "ada"}));
///
/// let second = testing::delivery(&mail)?.attempt(2).build();
/// assert_eq!(second.attempt(), 2);
/// assert!(matches!(print.deliver(&second), Outcome::Succeeded(_)));
/// # Ok::<(), sqlite_outbox::Error>(())
/// ```
///
/// # Errors
/// The intent would not be accepted by [`Outbox::enqueue`]: the text names the field.
pub fn delivery(intent: &Intent) -> Result<DeliveryBuilder> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let prepared = intent.prepare(clock.now(), usize::MAX)?;
    // The text was written a moment ago, from names and values that were checked.
    let headers = header::read(&prepared.headers).unwrap_or_default();
    let stored = StoredIntent {
        tenant_id: intent.tenant_id.clone(),
        entity_id: intent.entity_id.clone(),
        intent_version: intent.version,
        idempotency_key: prepared.key.clone().into_owned(),
        args_hash: Some(prepared.args_hash.clone()),
        endpoint: intent.endpoint.clone(),
        method: intent.method.clone(),
        content_type: intent.content_type.clone(),
        payload: prepared.payload.as_ref().into(),
        headers,
        ordering_key: intent.ordering_key.clone(),
        created_at: prepared.created_at,
        cost: prepared.cost,
    };
    let delivery = Delivery {
        id: 1,
        operation: intent.operation.clone(),
        other_key: stored.other_key(&intent.operation),
        intent: stored,
        downstream: Downstream::Unprotected,
        repeat_rules: Arc::default(),
        facts: Facts { attempts: 1, tries: 1, ..Facts::default() },
        token: 1,
        downstream_id: None,
        lease: Arc::new(Lease::new(i64::MAX, Arc::clone(&clock))),
    };
    Ok(DeliveryBuilder { delivery, clock, lease: None })
}

/// A delivery in the making: from [`delivery`] until it is [built](Self::build).
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct DeliveryBuilder {
    delivery: Delivery,
    clock: Arc<dyn Clock>,
    lease: Option<Duration>,
}

impl DeliveryBuilder {
    /// Sets which attempt it is. Defaults to 1.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.delivery.facts.attempts = attempt;
        self.delivery.facts.tries = attempt;
        self
    }

    /// The delivery.
    pub fn build(mut self) -> Delivery {
        let ends_at = self.lease.map(|lease| self.clock.now().saturating_add(millis(lease)));
        self.delivery.lease = Arc::new(Lease::new(ends_at.unwrap_or(i64::MAX), self.clock));
        self.delivery
    }
}

setters! {
    DeliveryBuilder:
    /// Sets what the downstream promises. Defaults to [`Downstream::Unprotected`].
    pub fn downstream(downstream: Downstream) => delivery.downstream = downstream;

    /// Sets the clock of the lease and of dates in answers. Defaults to [`SystemClock`].
    pub fn clock(clock: impl Clock + 'static) => clock = Arc::new(clock);

    /// Sets how long the lease lasts from the time of building on. Defaults to forever.
    pub fn lease(lease: Duration) => lease = Some(lease);
}

/// Asserts that an intent was enqueued that matches, and returns the first one.
///
/// ```
/// use sqlite_outbox::{Filter, Intent, Outbox, testing};
///
/// # let folder = tempfile::tempdir().expect("a folder");
/// let outbox = Outbox::open(folder.path().join("app.db"))?;
/// let mail = Intent::new("mail.send", "order-42").args(serde_json::json!({"to": "ada"}));
/// outbox.transact(|tx| outbox.enqueue(tx, &mail))?;
///
/// let wanted = Filter::default().operation("mail.send").entity("order-42");
/// let entry = testing::assert_enqueued(&outbox, &wanted);
/// assert_eq!(entry.tenant_id, "");
/// # Ok::<(), sqlite_outbox::Error>(())
/// ```
///
/// # Panics
/// No committed intent matches: the message says what was wanted and lists the newest intents that
/// are there. Also where the file cannot be read.
#[track_caller]
pub fn assert_enqueued(outbox: &Outbox, wanted: &Filter) -> Entry {
    let found = outbox.list(&wanted.clone().limit(1)).map(|mut entries| entries.pop());
    match found {
        Ok(Some(entry)) => entry,
        Ok(None) => panic!("no intent matches {wanted:?}{}", what_is_there(outbox)),
        Err(error) => panic!("the outbox cannot be read: {error}"),
    }
}

/// The newest intents of a file, a line for each.
fn what_is_there(outbox: &Outbox) -> String {
    const SHOWN: usize = 20;
    let entries = match outbox.list(&Filter::default()) {
        Ok(entries) if entries.is_empty() => return "; the outbox is empty".into(),
        Ok(entries) => entries,
        Err(error) => return format!("; the outbox cannot be read: {error}"),
    };
    let mut text = format!("; of {} intents the newest are:", entries.len());
    for entry in entries.iter().rev().take(SHOWN) {
        let Entry { id, operation, entity_id, intent_version, tenant_id, status, .. } = entry;
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n  {id}: {operation} on {entity_id:?}, version {intent_version}, \
             tenant {tenant_id:?}, {status}"
        );
    }
    text
}

#[cfg(test)]
mod tests;
