//! A row in doubt about which everybody says something at the same time, in every order.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tempfile::TempDir;

use crate::clock::Clock;
use crate::core::{
    Actor, Backoff, Downstream, Finding, Intent, OnDead, Outcome, Policy, Promise, Receipt,
    Resolution, Shard, Status,
};
use crate::error::{ErrorKind, Result};
use crate::handler::{Delivery, Held};
use crate::store::query::read;
use crate::store::tables::audit;
use crate::store::verbs::enqueue;
use crate::store::verbs::resolve::{confirm, resolve};
use crate::store::{ClaimRequest, Record, RelayTx, Reported, Rules, Store, Writer};
use crate::testing::ManualClock;

const NOW: i64 = 1_800_000_000_000;
const LEASE_MS: i64 = 90_000;
const SETTLE: Duration = Duration::from_secs(120);

/// An event between a lookup and its finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    /// The lookup comes back, having found nothing.
    NotFound,
    /// The lookup comes back, having found the effect.
    Found,
    /// The worker that lost its lease comes back with a success.
    LateSuccess,
    ResolvedAsApplied,
    ResolvedAsNotApplied,
    Confirmed,
    /// The lookup's own lease runs out, and another relay asks and does not find it.
    AskedByAnother,
    /// The next relay takes it where it is pending, loses its lease, and its lease is taken back.
    SentAndLost,
}

use Meanwhile::{
    AskedByAnother, Confirmed, Found, LateSuccess, NotFound, ResolvedAsApplied,
    ResolvedAsNotApplied, SentAndLost,
};

struct Scene {
    _dir: TempDir,
    store: Store,
    now: i64,
    sent: Arc<Delivery>,
    asked: Held,
}

fn rules() -> Rules {
    Rules {
        operation: "pay".into(),
        policy: Policy {
            promise: Promise {
                downstream: Downstream::Unprotected,
                time_limit: Duration::from_secs(60),
                reconciles: true,
                repeat_safe: true,
            },
            backoff: Backoff::default(),
            attempts_max: 10,
            give_up_after: Duration::from_secs(72 * 3600),
            retry_after_max: Duration::from_secs(24 * 3600),
            lookup_delay: SETTLE,
            lookups_max: 8,
            repeat_rules: Arc::default(),
        },
        on_dead: OnDead::Block,
        breaker_after: None,
        network: None,
    }
}

/// Writes are not durable here: these tests are about order.
fn writer(store: &Store, owner: &str) -> Writer {
    let writer = store.writer(owner.into()).unwrap();
    writer.hurry().unwrap();
    writer
}

fn in_tx<T>(
    store: &Store,
    owner: &str,
    now: i64,
    f: impl FnOnce(&mut RelayTx<'_>) -> Result<T>,
) -> T {
    let writer = writer(store, owner);
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(now));
    let mut tx = writer.begin(now, clock).unwrap();
    let value = f(&mut tx).unwrap();
    tx.commit().unwrap();
    value
}

fn request(rules: &Rules) -> ClaimRequest<'_> {
    ClaimRequest {
        rules,
        starts: usize::MAX,
        limit: 1,
        bytes: usize::MAX,
        shard: Shard::ALL,
        lease_ms: LEASE_MS,
        tries_suspects: true,
    }
}

fn receipt() -> Receipt {
    Receipt::new().downstream_id("eff")
}

impl Scene {
    /// Relay A sends and loses its lease; relay B asks what became of it.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("app.db"), true, true).unwrap();
        let intent = Intent::new("pay", "a").args(1);
        let conn = store.connection().unwrap();
        conn.execute_batch("PRAGMA synchronous = OFF; BEGIN IMMEDIATE").unwrap();
        enqueue::enqueue(&conn, &intent.prepare(NOW, 1000).unwrap()).unwrap();
        conn.execute_batch("COMMIT").unwrap();
        drop(conn);
        let rules = rules();
        let sent = in_tx(&store, "a", NOW, |tx| tx.claim(&request(&rules))).deliveries.remove(0);
        let lost_at = NOW + LEASE_MS;
        in_tx(&store, "b", lost_at, |tx| tx.recover(&rules));
        let now = lost_at + 120_000;
        let asked =
            in_tx(&store, "b", now, |tx| tx.claim_lookups(&request(&rules), &|_| false)).remove(0);
        Self { _dir: dir, store, now, sent, asked }
    }

    fn number(&self, sql: &str) -> i64 {
        self.conn().query_row(sql, [], |row| row.get(0)).unwrap()
    }

    fn conn(&self) -> impl std::ops::Deref<Target = Connection> {
        self.store.connection().unwrap()
    }

    fn record(&self, owner: &str, delivery: &Arc<Delivery>, reported: Reported) {
        let record = Record { delivery: Arc::clone(delivery), reported, roll: 0.5 };
        in_tx(&self.store, owner, self.now, |tx| tx.record(&record, &rules(), &|_| false));
    }

    fn record_finding(&self, owner: &str, held: &Held, finding: Finding) {
        let Held::LookUp(delivery, lookup) = held else { panic!("claimed to be sent") };
        self.record(owner, delivery, Reported::Finding(finding, lookup.observed(SETTLE)));
    }

    fn happen(&mut self, meanwhile: Meanwhile) {
        self.now += 1000;
        let actor = Actor::new("operator");
        match meanwhile {
            Found | NotFound => {
                let finding = match meanwhile {
                    Found => Finding::Applied(receipt()),
                    _ => Finding::NotApplied,
                };
                self.record_finding("b", &self.asked, finding);
            }
            LateSuccess => {
                self.record("a", &self.sent, Reported::Outcome(Outcome::Succeeded(receipt())));
            }
            ResolvedAsApplied | ResolvedAsNotApplied => {
                let resolution = match meanwhile {
                    ResolvedAsApplied => Resolution::Applied { downstream_id: Some("eff".into()) },
                    _ => Resolution::NotApplied,
                };
                let mut conn = self.store.connection().unwrap();
                let resolved = resolve(&mut conn, 1, &resolution, &actor, &|_| false, self.now);
                let refused = resolved.is_err_and(|error| error.kind() != ErrorKind::Refused);
                assert!(!refused);
            }
            Confirmed => {
                let conn = self.conn();
                let key = self.sent.idempotency_key();
                conn.execute_batch("BEGIN IMMEDIATE").unwrap();
                confirm(&conn, ("", key), &receipt(), &actor, self.now).unwrap();
                conn.execute_batch("COMMIT").unwrap();
            }
            AskedByAnother => {
                self.now += LEASE_MS;
                let rules = rules();
                let asked = in_tx(&self.store, "c", self.now, |tx| {
                    tx.claim_lookups(&request(&rules), &|_| false)
                });
                for lookup in asked {
                    self.record_finding("c", &lookup, Finding::NotApplied);
                }
            }
            SentAndLost => {
                let rules = rules();
                in_tx(&self.store, "d", self.now, |tx| tx.claim(&request(&rules)));
                self.now += LEASE_MS;
                in_tx(&self.store, "e", self.now, |tx| tx.recover(&rules));
            }
        }
    }
}

fn orders(of: &[Meanwhile]) -> Vec<Vec<Meanwhile>> {
    let Some((&first, rest)) = of.split_first() else { return vec![Vec::new()] };
    let shorter = orders(rest);
    let at_every_place = |order: &Vec<Meanwhile>| {
        let inserted = |at| [&order[..at], &[first], &order[at..]].concat();
        (0..=order.len()).map(inserted).collect::<Vec<_>>()
    };
    shorter.iter().flat_map(at_every_place).collect()
}

/// Every order of what may happen, for each choice of who is right.
fn all_orders() -> Vec<Vec<Meanwhile>> {
    let mut all = Vec::new();
    for finding in [Found, NotFound] {
        for resolved in [ResolvedAsApplied, ResolvedAsNotApplied] {
            for other in [AskedByAnother, SentAndLost] {
                all.extend(orders(&[finding, LateSuccess, resolved, Confirmed, other]));
            }
        }
    }
    assert_eq!(all.len(), 8 * 120);
    all
}

/// The request was applied, and everybody who knows anything says it at some time: there is one
/// settlement, and it is the truth. Those who found nothing may send it back in between.
///
/// Every 23rd order, so that all eight choices and all beginnings are among them.
#[test]
fn settlement_is_one_and_true_in_many_orders() {
    all_orders().iter().step_by(23).for_each(|order| play(order));
}

#[cfg(feature = "slow-tests")]
mod slow {
    #[test]
    fn settlement_is_one_and_true_in_every_order() {
        for order in &super::all_orders() {
            super::play(order);
        }
    }
}

fn play(order: &[Meanwhile]) {
    let mut scene = Scene::new();
    for &meanwhile in order {
        scene.happen(meanwhile);
        assert!(scene.number("SELECT count(*) FROM outbox_receipt") <= 1, "{order:?}");
    }
    let entry = read::entry(&scene.conn(), 1).unwrap().unwrap();
    let trail = audit::audit(&scene.conn(), 1).unwrap();
    assert_eq!(entry.status, Status::Succeeded, "{order:?}: {trail:#?}");
    assert_eq!(entry.downstream_id.as_deref(), Some("eff"), "{order:?}");
    let settled = trail
        .iter()
        .filter(|e| e.status == Status::Succeeded && e.from_status != Status::Succeeded)
        .count();
    assert_eq!(settled, 1, "{order:?}: {trail:#?}");
    assert_eq!(scene.number("SELECT sum(total) FROM outbox_settled"), 1, "{order:?}");
    assert_eq!(scene.number("SELECT count(*) FROM outbox_lease"), 0, "{order:?}");
    assert_eq!(scene.number("SELECT count(*) FROM outbox_lost"), 0, "{order:?}");
    let connected = trail.windows(2).all(|pair| {
        pair[1].from_status == pair[0].status
            || (pair[0].status == Status::Pending && pair[1].from_status == Status::InFlight)
    });
    assert!(connected, "{order:?}: {trail:#?}");
}
