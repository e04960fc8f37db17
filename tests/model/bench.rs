//! A real file with three connections, used for one sequence after the other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tempfile::TempDir;

use super::downstream::{TIME_LIMIT, WINDOW};
use super::knowledge::SETTLE;
use super::sequence::LEASE_MS;
use super::verb::Move;
use crate::clock::Clock;
use crate::core::backoff::Jitter;
use crate::core::budget::{Budget, Kind, Scope};
use crate::core::{Backoff, Downstream, Limits, OnDead, Policy, Promise, millis};
use crate::store::tables::contract::{Contract, Repeats, register};
use crate::store::{Longest, Rules, Store, connection, mind_clock};
use crate::testing::ManualClock;

pub(crate) const OPERATIONS: [&str; 3] = ["deduplicates", "looked_up", "unprotected"];

/// The origin to which intents go that name no endpoint.
const ORIGIN: &str = "https://configured.example";

/// Few, so that it is used up.
pub(crate) const BUDGET: Budget =
    Budget { scope: Scope::Operation, kind: Kind::Sends, amount: 2, window_ms: 300_000 };

/// Where the clock of every sequence starts.
const START: i64 = 1_800_000_000_000;

const GIVE_UP_AFTER: Duration = Duration::from_secs(100_000);

/// A fault of the store that is made on purpose, to show that the checks find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// An outcome is written whatever claim the row is under.
    NoTokenCompare,
    /// The store does not know that the downstream forgets keys.
    NoWindow,
    /// Every row of an ordering key can come due.
    TwoHeads,
    /// The store forgets which suspect is being tried.
    ManySuspects,
    /// Outcomes that are kept because they cannot be recorded are lost.
    NoProof,
    /// A hold on one origin holds the rows of all.
    OneBreaker,
    /// The ledger of a budget forgets.
    NoLedger,
    /// The store does not notice that the wall clock was set.
    NoSteps,
}

/// The configuration of a sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup(pub u16);

impl Setup {
    pub fn random(rng: &mut fastrand::Rng) -> Self {
        Self(rng.u16(0..1 << 15))
    }

    /// Whether the wall clock jumps in the sequence.
    pub fn has_jumps(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether persons act in it, and how many intents there are at most: the fewer, the more
    /// happens to each.
    pub fn has_persons(self) -> bool {
        self.0 & 128 == 0
    }

    /// Whether a trigger of the application makes writes fail in it.
    pub fn has_obstructions(self) -> bool {
        self.0 & 1 << 11 != 0
    }

    /// Whether intents name endpoints of their own.
    pub fn has_hosts(self) -> bool {
        self.0 & 1 << 12 == 0
    }

    /// Whether few intents of an operation may be sent in a time.
    pub fn has_budget(self) -> bool {
        self.0 & 3 << 13 == 3 << 13
    }

    pub fn rows_max(self) -> usize {
        [100, 2, 3, 6][usize::from(self.0 >> 8 & 3)]
    }

    fn on_dead(self, operation: usize) -> OnDead {
        if self.0 >> (1 + operation) & 1 == 0 { OnDead::Block } else { OnDead::Continue }
    }

    /// Whether relays crash again and again, so that there are suspects.
    pub fn has_crashes(self) -> bool {
        self.0 & 1 << 10 != 0
    }

    /// More where they crash: an attempt that is lost counts too.
    fn attempts_max(self) -> u32 {
        if self.has_crashes() { 8 } else { 4 }
    }

    /// The first two may bind their ids, and then at one provider.
    pub fn binds(self, operation: usize) -> bool {
        operation < 2 && self.0 & 16 != 0
    }

    fn reconciles(self, operation: usize) -> bool {
        operation == 1 || operation == 0 && self.0 & 32 != 0
    }

    fn breaker_after(self) -> Option<u32> {
        (self.0 & 64 != 0).then_some(2)
    }
}

/// The true promise of an operation's downstream.
pub(crate) fn downstream(operation: usize) -> Downstream {
    match operation {
        0 => Downstream::DeduplicatesByKey { window: WINDOW },
        _ => Downstream::Unprotected,
    }
}

pub(crate) struct Bench {
    pub person: Connection,
    pub relays: [Connection; 2],
    pub clock: ManualClock,
    /// The moves that were made in all sequences.
    pub moves: BTreeSet<Move>,
    mutant: Option<Mutant>,
    _dir: TempDir,
}

impl Bench {
    pub fn new(mutant: Option<Mutant>) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("app.db");
        let store = Store::open(&path, true, true).expect("a file");
        let open = || {
            let conn = connection::open_own(&path).expect("a connection");
            // What is tested is no crash of the machine.
            conn.execute_batch("PRAGMA synchronous = OFF").expect("a pragma");
            conn.set_prepared_statement_cache_capacity(128);
            conn
        };
        let (person, relays) = (open(), [open(), open()]);
        drop(store);
        let trigger = match mutant {
            Some(Mutant::TwoHeads) => TWO_HEADS,
            Some(Mutant::ManySuspects) => MANY_SUSPECTS,
            Some(Mutant::NoProof) => NO_PROOF,
            Some(Mutant::OneBreaker) => ONE_BREAKER,
            Some(Mutant::NoLedger) => NO_LEDGER,
            Some(Mutant::NoSteps) => NO_STEPS,
            Some(Mutant::NoTokenCompare | Mutant::NoWindow) | None => "",
        };
        person.execute_batch(trigger).expect("a trigger");
        let (clock, moves) = (ManualClock::at(START), BTreeSet::new());
        Self { person, relays, clock, moves, mutant, _dir: dir }
    }

    /// Empties the file and registers the operations. Returns the rules that hold.
    pub fn reset(&mut self, setup: Setup) -> Vec<Rules> {
        self.person.execute_batch(EMPTY).expect("an empty file");
        self.clock = ManualClock::at(START);
        self.mind_clock();
        (0..OPERATIONS.len()).map(|operation| self.register(operation, setup)).collect()
    }

    /// As a relay does when it starts and whenever it looks around.
    pub fn mind_clock(&mut self) {
        let longest = Longest { lease_ms: LEASE_MS, wait_ms: millis(GIVE_UP_AFTER) };
        let (now, boot) = (self.clock.now(), self.clock.boot());
        mind_clock(&mut self.person, now, boot.as_ref(), Some(longest), true).expect("a clock");
    }

    fn register(&mut self, operation: usize, setup: Setup) -> Rules {
        let mut promised = downstream(operation);
        if self.mutant == Some(Mutant::NoWindow) && operation == 0 {
            promised = Downstream::DeduplicatesByKey { window: 100_000 * WINDOW };
        }
        let own = Contract {
            downstream: promised,
            on_dead: Some(setup.on_dead(operation)),
            provider: setup.binds(operation).then(|| "provider".into()),
            owner: None,
            key_recipe: None,
            limits: Limits::default(),
            time_limit: Some(TIME_LIMIT),
            attempts_max: Some(setup.attempts_max()),
            give_up_after: Some(GIVE_UP_AFTER),
            reconciles: setup.reconciles(operation),
            binds: setup.binds(operation),
            uses_network: false,
            repeats: Repeats { reads: true, rules: None },
        };
        let name = OPERATIONS[operation];
        let budgets: &[Budget] = if setup.has_budget() { &[BUDGET] } else { &[] };
        let now = self.clock.now();
        let holds =
            register(&mut self.person, name, &own, budgets, false, now).expect("a contract");
        Rules {
            operation: name.to_owned(),
            policy: policy(holds.0.downstream, setup, operation),
            on_dead: holds.0.on_dead(),
            breaker_after: setup.breaker_after(),
            network: Some(ORIGIN.to_owned()),
        }
    }

    pub fn shared_clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock.clone())
    }
}

fn policy(downstream: Downstream, setup: Setup, operation: usize) -> Policy {
    let reconciles = setup.reconciles(operation);
    let (base, cap) = (Duration::from_secs(2), Duration::from_secs(3600));
    Policy {
        promise: Promise { downstream, time_limit: TIME_LIMIT, reconciles, repeat_safe: true },
        backoff: Backoff::Exponential { base, cap, jitter: Jitter::None },
        attempts_max: setup.attempts_max(),
        give_up_after: GIVE_UP_AFTER,
        retry_after_max: Duration::from_secs(3600),
        lookup_delay: SETTLE,
        lookups_max: 4,
        repeat_rules: Arc::default(),
    }
}

pub(crate) fn begin(conn: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    conn.transaction_with_behavior(TransactionBehavior::Immediate)
}

/// With receipts for all of them, the guards let the intents go.
const EMPTY: &str = "
    BEGIN IMMEDIATE;
    DROP TRIGGER IF EXISTS app;
    INSERT OR IGNORE INTO outbox_receipt (id, status, finished_at, attempts)
    SELECT id, 'cancelled', 0, 0 FROM outbox;
    DELETE FROM outbox;
    DELETE FROM outbox_keyed;
    DELETE FROM outbox_lease;
    DELETE FROM outbox_lost;
    DELETE FROM outbox_hold;
    DELETE FROM outbox_budget;
    DELETE FROM outbox_spend;
    DELETE FROM outbox_total;
    DELETE FROM outbox_unrecorded;
    DELETE FROM outbox_settled;
    DELETE FROM outbox_operation;
    DELETE FROM outbox_operation_event;
    DELETE FROM sqlite_sequence;
    UPDATE outbox_meta SET token = 0, boot_id = NULL, wall_ahead = NULL, ahead_id = NULL;
    COMMIT";

/// Makes recording an attempt fail, for every other intent.
pub(crate) const OBSTRUCT: &str = "
    CREATE TRIGGER IF NOT EXISTS app BEFORE INSERT ON outbox_event
    WHEN NEW.kind = 'attempt' AND NEW.outbox_id % 2 = 1
    BEGIN SELECT RAISE(ABORT, 'the application is in the way'); END";

const NO_PROOF: &str = "
    CREATE TRIGGER no_proof AFTER INSERT ON outbox_unrecorded
    BEGIN DELETE FROM outbox_unrecorded WHERE id = NEW.id; END";

const TWO_HEADS: &str = "
    DROP TRIGGER outbox_insert_keyed;
    CREATE TRIGGER outbox_insert_keyed AFTER INSERT ON outbox WHEN NEW.ordering_key IS NOT NULL
    BEGIN
        INSERT INTO outbox_lease (id, operation, state, due_at)
        VALUES (NEW.id, NEW.operation, 'pending', NEW.available_at);
        INSERT INTO outbox_keyed (tenant_id, ordering_key, position, id)
        VALUES (NEW.tenant_id, NEW.ordering_key, NEW.id, NEW.id);
    END";

const MANY_SUSPECTS: &str = "
    CREATE TRIGGER suspect_is_claimed AFTER INSERT ON outbox_hold BEGIN
        UPDATE outbox_hold SET probe_id = NULL WHERE id = NEW.id;
    END;
    CREATE TRIGGER next_suspect_is_claimed AFTER UPDATE OF probe_token ON outbox_hold
    WHEN NEW.probe_token IS NOT NULL BEGIN
        UPDATE outbox_hold SET probe_id = NULL WHERE id = NEW.id;
    END";

const ONE_BREAKER: &str = "
    CREATE TRIGGER one_breaker AFTER UPDATE OF until ON outbox_hold
    WHEN NEW.domain = 'origin' AND NEW.cause IS NOT NULL
    BEGIN
        UPDATE outbox_lease SET held_by = NEW.id, resume_at = due_at, due_at = NULL
        WHERE operation = NEW.operation AND state = 'pending' AND own_endpoint
            AND due_at IS NOT NULL;
    END;
    CREATE TRIGGER one_refusal AFTER INSERT ON outbox_hold
    WHEN NEW.domain = 'origin' AND NEW.cause IS NOT NULL
    BEGIN
        UPDATE outbox_lease SET held_by = NEW.id, resume_at = due_at, due_at = NULL
        WHERE operation = NEW.operation AND state = 'pending' AND own_endpoint
            AND due_at IS NOT NULL;
    END";

const NO_LEDGER: &str = "
    CREATE TRIGGER no_ledger AFTER INSERT ON outbox_spend WHEN NEW.id % 2
    BEGIN DELETE FROM outbox_spend WHERE id = NEW.id AND token = NEW.token; END";

const NO_STEPS: &str = "
    CREATE TRIGGER no_steps AFTER UPDATE OF wall_ahead ON outbox_meta
    WHEN NEW.wall_ahead IS NOT NULL
    BEGIN UPDATE outbox_meta SET boot_id = NULL, wall_ahead = NULL; END";
