//! A file, a clock, an outbox and a scripted handler: every test starts from here.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlite_outbox::rusqlite::{Connection, TransactionBehavior};
use sqlite_outbox::testing::ManualClock;
use sqlite_outbox::{
    Backoff, Clock, Delivery, Downstream, DrainReport, Enqueued, Entry, Failure, Finding, Intent,
    Jitter, OnDead, Operation, Outbox, Outcome, Receipt, Relay, Result, SystemClock,
};
use tempfile::TempDir;

use crate::support::folder::folder;

/// Where the clock of every world starts, in UTC milliseconds.
pub const START: i64 = 1_800_000_000_000;

/// How long the downstreams of the worlds remember a key.
pub const WINDOW: Duration = Duration::from_secs(24 * 3600);

pub const DEDUPLICATES: Downstream = Downstream::DeduplicatesByKey { window: WINDOW };

pub struct World {
    pub dir: TempDir,
    pub clock: ManualClock,
    pub outbox: Outbox,
    pub script: Script,
}

impl World {
    pub fn new() -> Self {
        let dir = folder();
        let clock = ManualClock::at(START);
        let outbox =
            Outbox::builder().clock(clock.clone()).open(dir.path().join("app.db")).unwrap();
        Self { dir, clock, outbox, script: Script::default() }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("app.db")
    }

    /// The same file with the machine's clock, for tests in which leases really run out. Moves
    /// the world's clock there too, so that what it enqueues is due.
    pub fn on_real_time(&self) -> Outbox {
        self.clock.set(SystemClock.now());
        Outbox::open(self.path()).unwrap()
    }

    /// A connection of the application's own, with a business table.
    pub fn app(&self) -> Connection {
        let conn = Connection::open(self.path()).unwrap();
        conn.execute_batch("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT)")
            .unwrap();
        conn
    }

    /// Any statement on a connection that has nothing to do with the library.
    pub fn sql(&self, sql: &str) -> usize {
        Connection::open(self.path()).unwrap().execute(sql, []).unwrap()
    }

    /// Several statements, as from a shell: also ones that our guards are not meant to allow.
    pub fn batch(&self, sql: &str) {
        Connection::open(self.path()).unwrap().execute_batch(sql).unwrap();
    }

    /// A single number from the file.
    pub fn number(&self, sql: &str) -> i64 {
        Connection::open(self.path()).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
    }

    pub fn try_enqueue(&self, intent: &Intent) -> Result<Enqueued> {
        self.outbox.transact(|tx| self.outbox.enqueue(tx, intent))
    }

    pub fn enqueue(&self, intent: &Intent) -> i64 {
        self.try_enqueue(intent).unwrap().id()
    }

    /// A relay with one worker, so that a drain is exact, for the operation `pay`.
    pub fn relay(&self, downstream: Downstream) -> Relay {
        relay_on(&self.outbox, self.operation(downstream))
    }

    /// The file as another process sees it: through an outbox of its own, on the same clock.
    pub fn second(&self) -> Outbox {
        Outbox::builder().clock(self.clock.clone()).open(self.path()).unwrap()
    }

    /// A relay as of another process, with one worker and this handler for `pay`.
    pub fn other_relay(
        &self,
        downstream: Downstream,
        handler: impl Fn(&Delivery) -> Outcome + Send + Sync + 'static,
    ) -> Relay {
        let script = self.script.clone();
        let operation = Operation::new(downstream, handler)
            .backoff(exact_backoff())
            .reconcile(move |_: &Delivery| script.find());
        relay_on(&self.second(), operation)
    }

    /// The scripted handler with delays that can be computed: 1 s, 2 s, 4 s and so on.
    /// What is in doubt is looked up after two minutes, and the look-ups are scripted too.
    pub fn operation(&self, downstream: Downstream) -> Operation {
        let script = self.script.clone();
        self.operation_without_look_up(downstream).reconcile(move |_: &Delivery| script.find())
    }

    pub fn operation_without_look_up(&self, downstream: Downstream) -> Operation {
        let script = self.script.clone();
        Operation::new(downstream, move |delivery: &Delivery| script.answer(delivery))
            .backoff(exact_backoff())
    }

    pub fn drain(&self, downstream: Downstream) -> DrainReport {
        self.relay(downstream).drain().unwrap()
    }

    /// Drains at the machine's time, for rows that were stamped by others.
    pub fn drain_now(&self, downstream: Downstream) -> DrainReport {
        self.clock.set(SystemClock.now());
        self.drain(downstream)
    }

    pub fn entry(&self, id: i64) -> Entry {
        self.outbox.entry(id).unwrap().expect("the intent exists")
    }

    /// Lets the time pass until then.
    pub fn pass_until(&self, at: i64) {
        let left = at - self.clock.now();
        self.clock.advance(Duration::from_millis(left.try_into().expect("a time to come")));
    }

    pub fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    /// The audit trail of an intent as `kind:from>to` words.
    pub fn story(&self, id: i64) -> Vec<String> {
        let trail = self.outbox.audit(id).unwrap();
        trail
            .iter()
            .map(|e| format!("{}:{}>{}", e.kind.as_str(), e.from_status, e.status))
            .collect()
    }
}

/// A relay with one worker that passes dead rows of an ordering key.
pub fn continuing(world: &World) -> Relay {
    relay_on(&world.outbox, world.operation(DEDUPLICATES).on_dead(OnDead::Continue))
}

/// Entities in the order in which they were handed to the handler.
pub fn sent(world: &World) -> Vec<String> {
    world.script.seen().iter().map(|delivery| delivery.entity().to_owned()).collect()
}

/// How many effects happened twice, as the file counts them.
pub fn duplicates(world: &World) -> u64 {
    world.outbox.stats().unwrap().iter().map(|line| line.duplicate_effects).sum()
}

/// A relay with one worker for the operation `pay`.
pub fn relay_on(outbox: &Outbox, pay: Operation) -> Relay {
    Relay::builder(outbox).operation("pay", pay).workers(1).seed(7).build().unwrap()
}

pub fn succeeded(downstream_id: &str) -> Outcome {
    Outcome::Succeeded(Receipt::new().downstream_id(downstream_id))
}

/// A handler that does something of the test's in the middle of its first delivery.
pub fn interrupted(
    meanwhile: impl FnOnce() + Send + 'static,
    outcome: Outcome,
) -> impl Fn(&Delivery) -> Outcome + Send + Sync + 'static {
    let meanwhile = Mutex::new(Some(meanwhile));
    move |_: &Delivery| {
        let first = meanwhile.lock().unwrap().take();
        if let Some(first) = first {
            first();
        }
        outcome.clone()
    }
}

pub fn exact_backoff() -> Backoff {
    Backoff::Exponential {
        base: Duration::from_secs(1),
        cap: Duration::from_secs(3600),
        jitter: Jitter::None,
    }
}

/// An intent of the operation `pay` on this entity.
pub fn pay(entity: &str) -> Intent {
    Intent::new("pay", entity).args(serde_json::json!({ "amount": 4200 }))
}

/// Answers of the handler, one outcome after the other; success when the list is used up.
#[derive(Clone, Default)]
pub struct Script {
    outcomes: Arc<Mutex<VecDeque<Outcome>>>,
    findings: Arc<Mutex<VecDeque<Finding>>>,
    asked: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<Delivery>>>,
}

impl Script {
    pub fn then(&self, outcome: Outcome) -> &Self {
        self.outcomes.lock().unwrap().push_back(outcome);
        self
    }

    pub fn times(&self, count: usize, outcome: &Outcome) -> &Self {
        for _ in 0..count {
            self.then(outcome.clone());
        }
        self
    }

    pub fn answer(&self, delivery: &Delivery) -> Outcome {
        self.seen.lock().unwrap().push(delivery.clone());
        let next = self.outcomes.lock().unwrap().pop_front();
        next.unwrap_or_else(|| {
            Outcome::Succeeded(Receipt::new().downstream_id(format!("eff_{}", delivery.id())))
        })
    }

    /// The next finding of a look-up; those that are not scripted do not tell.
    pub fn then_find(&self, finding: Finding) -> &Self {
        self.findings.lock().unwrap().push_back(finding);
        self
    }

    pub fn find(&self) -> Finding {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let next = self.findings.lock().unwrap().pop_front();
        next.unwrap_or_else(unsure)
    }

    /// How often the look-up was asked.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Every delivery the handler was handed, in order.
    pub fn seen(&self) -> Vec<Delivery> {
        self.seen.lock().unwrap().clone()
    }
}

pub fn unsure() -> Finding {
    Finding::Inconclusive(Failure::new("lookup", "answered 500"))
}

pub fn not_sent() -> Outcome {
    Outcome::NotSent(Failure::new("connect", "connection refused"))
}

pub fn maybe_sent() -> Outcome {
    Outcome::MaybeSent(Failure::new("timeout", "no response"))
}

pub fn transient() -> Outcome {
    Outcome::Transient(Failure::new("transient", "answered 408").status(408))
}

pub fn limited() -> Outcome {
    Outcome::Limited(Failure::new("limited", "answered 429").status(429))
}

pub fn rejected() -> Outcome {
    Outcome::Rejected(Failure::new("permanent", "answered 400").status(400))
}

pub fn needs_review() -> Outcome {
    Outcome::NeedsReview(Failure::new("success_when", "answered 200, but not ok").status(200))
}

/// An immediate transaction, as docs/sql.md recommends.
pub fn immediate(conn: &mut Connection) -> sqlite_outbox::rusqlite::Transaction<'_> {
    conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap()
}

/// How long a test waits for what must happen, before it says that it did not.
pub const LONG: Duration = Duration::from_secs(20);

/// Waits for a state of the file that must come about.
pub fn until(mut holds: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONG, "it did not come about");
        // A look at the file costs a transaction, so the others get time in between.
        std::thread::park_timeout(Duration::from_millis(2));
    }
}
