//! Faults, holds and budgets at random: a relay that finds something due gets on, and where nothing
//! can be claimed its next look is later than now.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use crate::clock::Clock;
use crate::core::budget::{Budget, Kind, Scope};
use crate::core::why::Rule;
use crate::core::{
    Backoff, Downstream, Failure, Intent, OnDead, Outcome, Policy, Promise, Receipt, Shard,
};
use crate::store::query::why::why;
use crate::store::tables::contract::{Contract, Repeats, register};
use crate::store::verbs::enqueue;
use crate::store::{ClaimRequest, Record, Reported, Rules, Store, Writer};
use crate::testing::ManualClock;

const START: i64 = 1_800_000_000_000;
const LEASE_MS: i64 = 90_000;
const HOUR_MS: i64 = 3_600_000;
const TIME_LIMIT: Duration = Duration::from_secs(60);
const GIVE_UP_AFTER: Duration = Duration::from_secs(72 * 3600);
/// Of the costs in an hour.
const BUDGET: i64 = 10;

fn contract(downstream: Downstream) -> Contract {
    Contract {
        downstream,
        on_dead: Some(OnDead::Block),
        provider: None,
        owner: None,
        key_recipe: None,
        limits: crate::core::Limits::default(),
        time_limit: Some(TIME_LIMIT),
        attempts_max: Some(1000),
        give_up_after: Some(GIVE_UP_AFTER),
        reconciles: false,
        binds: false,
        uses_network: true,
        repeats: Repeats { reads: true, rules: None },
    }
}

fn rules(downstream: Downstream) -> Rules {
    Rules {
        operation: "pay".into(),
        policy: Policy {
            promise: Promise {
                downstream,
                time_limit: TIME_LIMIT,
                reconciles: false,
                repeat_safe: true,
            },
            backoff: Backoff::default(),
            attempts_max: 1000,
            give_up_after: GIVE_UP_AFTER,
            retry_after_max: Duration::from_secs(3600),
            lookup_delay: Duration::from_secs(120),
            lookups_max: 4,
            repeat_rules: Arc::default(),
        },
        on_dead: OnDead::Block,
        breaker_after: Some(2),
        network: Some("https://configured".into()),
    }
}

struct Scene {
    conn: Connection,
    writer: Writer,
    rules: Rules,
    now: i64,
    rng: fastrand::Rng,
    enqueued: u32,
}

impl Scene {
    fn new(store: &Store, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let window = Duration::from_secs(24 * 3600);
        let downstream = if rng.bool() {
            Downstream::DeduplicatesByKey { window }
        } else {
            Downstream::Unprotected
        };
        let writer = store.writer("relay".into()).unwrap();
        writer.hurry().unwrap();
        let mut conn = crate::store::connection::open_own(&store.path).unwrap();
        conn.execute_batch("PRAGMA synchronous = OFF").unwrap();
        let cost = Budget {
            scope: Scope::Operation,
            kind: Kind::Cost,
            amount: BUDGET,
            window_ms: HOUR_MS,
        };
        let tenant = Budget { scope: Scope::Tenant, amount: BUDGET / 2, ..cost };
        let sends = Budget { kind: Kind::Sends, amount: 12, ..cost };
        let budgets = [cost, sends, tenant];
        let budgets = &budgets[..rng.usize(1..=3)];
        register(&mut conn, "pay", &contract(downstream), budgets, false, START).unwrap();
        Self { conn, writer, rules: rules(downstream), now: START, rng, enqueued: 0 }
    }

    fn enqueue(&mut self) {
        self.enqueued += 1;
        let host = ["", "", "a", "b", "c", "d"][self.rng.usize(0..6)];
        let mut intent = Intent::new("pay", self.enqueued.to_string())
            .args(1)
            .tenant(format!("t{}", self.rng.u8(0..3)))
            .cost([0, 1, 1, 2, 6, 9, 30][self.rng.usize(0..7)]);
        if !host.is_empty() {
            intent = intent.endpoint(format!("https://{host}/{}", self.rng.u8(0..2)));
        }
        self.conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        enqueue::enqueue(&self.conn, &intent.prepare(self.now, 1000).unwrap()).unwrap();
        self.conn.execute_batch("COMMIT").unwrap();
        // Its process died with it, twice; or it can only be parked.
        let changes = ["lost = 2", "attempts = 1000", "cancel_requested_at = 1"];
        if let Some(change) = changes.get(self.rng.usize(0..30)) {
            let newest = "id = (SELECT max(id) FROM outbox)";
            let sql = format!("UPDATE outbox_lease SET {change} WHERE {newest}");
            self.conn.execute(&sql, []).unwrap();
        }
    }

    fn until(&mut self) -> String {
        match self.rng.u8(0..3) {
            0 => "NULL".into(),
            1 => (self.now - 1).to_string(),
            _ => (self.now + self.rng.i64(1..2 * HOUR_MS)).to_string(),
        }
    }

    /// Something stands still, or goes on.
    fn fault(&mut self) {
        let until = self.until();
        let (now, probes) = (self.now, self.rng.u8(0..4));
        let (domain, name) = [("origin", "https://a"), ("origin", "https://b"), ("tenant", "t0")]
            [self.rng.usize(0..3)];
        let causes: &[&str] = match domain {
            "tenant" => &["operator"],
            _ => &["breaker", "throttled", "auth"],
        };
        let cause = causes[self.rng.usize(0..causes.len())];
        let tried = ["", "https://a https://c", "https://configured"][self.rng.usize(0..3)];
        let kind = ["breaker", "auth", "operator"][self.rng.usize(0..3)];
        let sql = match self.rng.u8(0..7) {
            0 | 1 => format!(
                "INSERT INTO outbox_hold (operation, domain, name, cause, since, until, probes)
                 VALUES ('pay', '{domain}', '{name}', '{cause}', {now}, {until}, {probes})
                 ON CONFLICT DO UPDATE SET cause = excluded.cause, until = excluded.until"
            ),
            2 | 6 => format!(
                "INSERT INTO outbox_hold
                     (operation, domain, name, cause, since, until, probes, reason)
                 VALUES ('', 'network', '', 'offline', {now}, {now}, {probes}, '{tried}')
                 ON CONFLICT DO NOTHING"
            ),
            3 => format!(
                "UPDATE outbox_operation
                 SET paused_kind = '{kind}', paused_until = {until}, paused_since = {now},
                     paused_by = 'x', paused_reason = 'x', probes = {probes}"
            ),
            4 => format!("UPDATE outbox_operation SET throttled_until = {until}"),
            _ => format!(
                "UPDATE outbox_operation
                 SET paused_kind = NULL, throttled_until = NULL, resumed_at = {now}"
            ),
        };
        self.conn.execute(&sql, []).unwrap();
    }

    fn outcome(&mut self) -> Outcome {
        let failure = Failure::new("connect", "refused");
        match self.rng.u8(0..8) {
            0 => Outcome::NotSent(failure),
            1 => Outcome::MaybeSent(failure),
            2 => Outcome::Limited(failure.retry_after(Duration::from_secs(30))),
            3 => Outcome::Unauthorized(failure),
            _ => Outcome::Succeeded(Receipt::new()),
        }
    }

    /// Claims until nothing is due, with an answer to each row at once. Returns the sends.
    fn drain(&mut self, seed: u64) -> usize {
        let mut sends = 0;
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(self.now));
        for _ in 0..100 {
            if !self.writer.has_due(&self.rules, Shard::ALL, self.now, None).unwrap() {
                return sends;
            }
            let limit = self.rng.usize(1..4);
            let request = ClaimRequest {
                rules: &self.rules,
                starts: limit,
                limit,
                bytes: usize::MAX,
                shard: Shard::ALL,
                lease_ms: LEASE_MS,
                tries_suspects: true,
            };
            let mut tx = self.writer.begin(self.now, Arc::clone(&clock)).unwrap();
            let claimed = tx.claim(&request).unwrap();
            tx.commit().unwrap();
            for delivery in claimed.deliveries {
                sends += 1;
                let record =
                    Record { delivery, reported: Reported::Outcome(self.outcome()), roll: 0.5 };
                let mut tx = self.writer.begin(self.now, Arc::clone(&clock)).unwrap();
                tx.record(&record, &self.rules, &|_| false).unwrap();
                tx.commit().unwrap();
            }
        }
        panic!("seed {seed}: something is due again and again, and nothing is claimed");
    }

    /// Nothing is due: so nothing could go, and there is something to wait for.
    fn check(&self, seed: u64) {
        let next = self.writer.next_due(&self.rules, Shard::ALL, self.now, None).unwrap();
        assert!(next.is_none_or(|at| at > self.now), "seed {seed}: looks again at once");
        for id in 1..=i64::from(self.enqueued) {
            let told = why(&self.conn, id, None, self.now).unwrap();
            assert_ne!(told.rule, Rule::Next, "seed {seed}: intent {id} could go");
        }
        let spent: i64 = self
            .conn
            .query_row(
                "SELECT coalesce(sum(cost), 0) FROM outbox_spend WHERE at > ?1",
                [self.now - HOUR_MS],
                |row| row.get(0),
            )
            .unwrap();
        assert!(spent <= BUDGET, "seed {seed}: {spent} are spent");
    }
}

#[test]
fn relay_that_finds_something_due_gets_on() {
    let count = std::env::var("OUTBOX_GATES_SEEDS").map_or(100, |n| n.parse().unwrap());
    let mut sends = 0;
    for seed in 0..count {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("app.db"), true, true).unwrap();
        let mut scene = Scene::new(&store, seed);
        for _ in 0..12 {
            for _ in 0..scene.rng.u8(0..4) {
                scene.enqueue();
            }
            if scene.rng.bool() {
                scene.fault();
            }
            sends += scene.drain(seed);
            scene.check(seed);
            scene.now += [1, 1000, 30_000, 600_000, HOUR_MS][scene.rng.usize(0..5)];
        }
    }
    assert!(sends > 5 * usize::try_from(count).unwrap(), "{sends} sends");
}
