//! Every rule once: the explanation names it, and a relay on the same file does as it says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::Connection;
use tempfile::TempDir;

use crate::core::backoff::Jitter;
use crate::core::contract::Downstream::Unprotected;
use crate::core::why::Rule;
use crate::core::{
    Actor, Backoff, Failure, Finding, Intent, Outcome, PauseKind, Receipt, Shard,
    contract::Downstream,
};
use crate::handler::{Delivery, Handler};
use crate::outbox::Outbox;
use crate::relay::{Operation, Relay};
use crate::testing::ManualClock;

const START: i64 = 1_800_000_000_000;
const SECOND: Duration = Duration::from_secs(1);
const DEDUPLICATES: Downstream =
    Downstream::DeduplicatesByKey { window: Duration::from_secs(24 * 3600) };

/// A file, and a relay for `pay` whose answers are scripted; without a script it succeeds.
struct Scene {
    dir: TempDir,
    clock: ManualClock,
    outbox: Outbox,
    answers: Arc<Mutex<VecDeque<Outcome>>>,
    seen: Arc<Mutex<Vec<i64>>>,
    relay: Option<Relay>,
    shard: Shard,
}

impl Scene {
    /// Two intents, and a relay that has not run yet.
    fn new(downstream: Downstream, configure: impl Fn(Operation) -> Operation) -> Self {
        Self::with(&plain_intents(), downstream, configure)
    }

    fn with(
        intents: &[Intent; 2],
        downstream: Downstream,
        configure: impl Fn(Operation) -> Operation,
    ) -> Self {
        let mut scene = Self::without_relay(intents);
        scene.relay = Some(scene.relay("pay", downstream, configure));
        scene
    }

    fn without_relay(intents: &[Intent; 2]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock = ManualClock::at(START);
        let outbox =
            Outbox::builder().clock(clock.clone()).open(dir.path().join("app.db")).unwrap();
        outbox.transact(|tx| outbox.enqueue_all(tx, intents)).unwrap();
        let (answers, seen) = (Arc::default(), Arc::default());
        Self { dir, clock, outbox, answers, seen, relay: None, shard: Shard::ALL }
    }

    /// With a relay for this operation and shard alone.
    fn relayed_as(name: &str, shard: Shard) -> Self {
        let mut scene = Self::without_relay(&plain_intents());
        scene.shard = shard;
        scene.relay = Some(scene.relay(name, DEDUPLICATES, |o| o));
        scene
    }

    fn relay(
        &self,
        name: &str,
        downstream: Downstream,
        configure: impl Fn(Operation) -> Operation,
    ) -> Relay {
        let (answers, seen) = (Arc::clone(&self.answers), Arc::clone(&self.seen));
        let operation = Operation::new(downstream, move |delivery: &Delivery| {
            seen.lock().unwrap().push(delivery.id());
            let answer = answers.lock().unwrap().pop_front();
            answer.unwrap_or_else(|| {
                Outcome::Succeeded(Receipt::new().downstream_id(format!("eff_{}", delivery.id())))
            })
        });
        let backoff =
            Backoff::Exponential { base: SECOND, cap: 3600 * SECOND, jitter: Jitter::None };
        Relay::builder(&self.outbox)
            .operation(name, configure(operation.backoff(backoff)))
            .workers(1)
            .shard(self.shard)
            .build()
            .unwrap()
    }

    fn answer(self, outcome: Outcome) -> Self {
        self.answers.lock().unwrap().push_back(outcome);
        self
    }

    fn drain(self) -> Self {
        self.relay.as_ref().unwrap().drain().unwrap();
        self
    }

    fn advance(self, seconds: u64) -> Self {
        self.clock.advance(Duration::from_secs(seconds));
        self
    }

    fn sql(self, sql: &str) -> Self {
        Connection::open(self.dir.path().join("app.db")).unwrap().execute_batch(sql).unwrap();
        self
    }

    /// As if another relay held the first intent.
    fn held_by_another(self) -> Self {
        self.sql(
            "UPDATE outbox_lease SET state = 'in_flight', owner = 'another', token = 99,
                 claimed_at = due_at, due_at = due_at + 90000, attempts = 1 WHERE id = 1",
        )
    }

    fn paused_by(kind: PauseKind) -> Self {
        match kind {
            PauseKind::Operator => {
                let scene = Self::new(DEDUPLICATES, |o| o);
                scene
                    .outbox
                    .pause("pay", None, Actor::new("alice").reason("their maintenance"))
                    .unwrap();
                scene
            }
            PauseKind::Auth => Self::new(DEDUPLICATES, |o| o)
                .answer(Outcome::Unauthorized(failure("auth")))
                .drain(),
            PauseKind::Breaker => Self::new(DEDUPLICATES, |o| o.breaker_after(1))
                .answer(Outcome::NotSent(failure("connect")))
                .drain(),
        }
    }

    /// With a second intent whose origin is held.
    fn held() -> Self {
        let own = Intent::new("pay", "b").endpoint("https://b.example/secret");
        Self::with(&[Intent::new("pay", "a"), own], DEDUPLICATES, |o| o).sql(
            "INSERT INTO outbox_hold (operation, domain, name, cause, since, until, culprit)
             VALUES ('pay', 'origin', 'https://b.example', 'breaker', 1800000000000,
                     1800000060000, 7)",
        )
    }

    /// Without a network, and with a handler that goes over it.
    fn offline() -> Self {
        let mut scene = Self::without_relay(&plain_intents());
        let operation = Operation::new(DEDUPLICATES, Networked);
        let relay = Relay::builder(&scene.outbox).operation("pay", operation);
        scene.relay = Some(relay.build().unwrap());
        scene.sql(
            "INSERT INTO outbox_hold (operation, domain, name, cause, since, until)
             VALUES ('', 'network', '', 'offline', 1800000000000, 1800000060000)",
        )
    }

    /// The answer of `why` about an intent. Checks that the relay does as it says: only where no
    /// rule is in the way does it send the intent.
    fn why(&self, id: i64) -> (&'static str, String) {
        let shard = (self.shard != Shard::ALL).then_some(self.shard);
        let (word, text) = self.outbox.why(id, shard).unwrap();
        let sent = || self.seen.lock().unwrap().iter().filter(|&&seen| seen == id).count();
        let before = sent();
        if let Some(relay) = &self.relay {
            relay.drain().unwrap();
        }
        let is_next = word == Rule::Next.as_str();
        assert_eq!(sent() - before, usize::from(is_next), "{word}: {text}");
        (word, text)
    }
}

/// A handler that goes over the network, and that no test lets send.
struct Networked;

impl Handler for Networked {
    fn deliver(&self, _: &Delivery) -> Outcome {
        panic!("it is not to be sent");
    }

    fn network(&self) -> Option<String> {
        Some("https://a.example".into())
    }
}

fn plain_intents() -> [Intent; 2] {
    [Intent::new("pay", "a"), Intent::new("pay", "b")]
}

fn failure(class: &'static str) -> Failure {
    Failure::new(class, "it went wrong")
}

const SPOIL: &str =
    "DROP TRIGGER outbox_update_guard; UPDATE outbox SET payload = '{' WHERE id = 1";

const FAILS: &str = "CREATE TRIGGER app BEFORE INSERT ON outbox_receipt
                     BEGIN SELECT RAISE(ABORT, 'no such order'); END";

/// The scene of a rule, and the intent it is about.
fn scene(rule: Rule) -> (Scene, i64) {
    let plain = || Scene::new(DEDUPLICATES, |o| o);
    let answered = |outcome| plain().answer(outcome).drain();
    let second = |b| Scene::with(&[Intent::new("pay", "a"), b], DEDUPLICATES, |o| o);
    match rule {
        Rule::Settled => (plain().drain(), 1),
        Rule::Dead => (answered(Outcome::Rejected(failure("permanent"))), 1),
        Rule::Unknown => {
            let unsure = |_: &Delivery| Finding::Inconclusive(failure("lookup"));
            let scene = Scene::new(Unprotected, |o| o.reconcile(unsure));
            (scene.answer(Outcome::MaybeSent(failure("timeout"))).drain(), 1)
        }
        Rule::NeedsReview => (answered(Outcome::NeedsReview(failure("not_ok"))), 1),
        Rule::InFlight => (plain().held_by_another(), 1),
        Rule::Queued => {
            let both = ["a", "b"].map(|entity| Intent::new("pay", entity).ordering_key("k"));
            let scene = Scene::with(&both, DEDUPLICATES, |o| o);
            (scene.answer(Outcome::Rejected(failure("permanent"))).drain(), 2)
        }
        Rule::Held => (Scene::held(), 2),
        Rule::Unrecorded => (plain().sql(FAILS).drain(), 1),
        Rule::NotRegistered => (Scene::relayed_as("mail", Shard::ALL), 1),
        Rule::NotDue => (second(Intent::new("pay", "b").delay(60 * SECOND)), 2),
        Rule::Unreadable => (plain().sql(SPOIL), 1),
        Rule::Expired => (second(Intent::new("pay", "b").expires_in(60 * SECOND)).advance(60), 2),
        Rule::InDoubt => {
            // An attempt may take a minute, and would end after the window.
            let scene = answered(Outcome::MaybeSent(failure("timeout")));
            (scene.advance(24 * 3600 - 59), 1)
        }
        Rule::CancelRequested => {
            let scene = answered(Outcome::MaybeSent(failure("timeout"))).advance(3600);
            let outbox = &scene.outbox;
            outbox.transact(|tx| outbox.request_cancel(tx, 1, "alice")).unwrap();
            (scene, 1)
        }
        Rule::Attempts => {
            let mut scene = answered(Outcome::Transient(failure("transient"))).advance(3600);
            scene.relay = Some(scene.relay("pay", DEDUPLICATES, |o| o.max_attempts(1)));
            (scene, 1)
        }
        Rule::Paused => (Scene::paused_by(PauseKind::Operator), 1),
        Rule::Probing => {
            let scene = Scene::paused_by(PauseKind::Breaker).advance(60).held_by_another();
            (scene.sql("UPDATE outbox_operation SET probe_id = 1, probe_token = 99"), 2)
        }
        Rule::Throttled => {
            let asked = Failure::new("limited", "answered 429").retry_after(30 * SECOND);
            (answered(Outcome::Limited(asked)), 2)
        }
        Rule::Offline => (Scene::offline(), 1),
        Rule::TooManyInFlight => {
            (Scene::new(DEDUPLICATES, |o| o.max_in_flight(1)).held_by_another(), 2)
        }
        Rule::Resuming => {
            let scene = plain().held_by_another();
            scene.outbox.pause("pay", None, "alice").unwrap();
            scene.outbox.resume("pay", "alice").unwrap();
            (scene, 2)
        }
        Rule::Rate => (Scene::new(DEDUPLICATES, |o| o.rate(1, 60 * SECOND)).drain(), 2),
        Rule::Budget => (Scene::new(DEDUPLICATES, |o| o.max_per(1, 60 * SECOND)).drain(), 2),
        Rule::Turn => (Scene::new(DEDUPLICATES, |o| o.rate(1, 60 * SECOND)), 2),
        Rule::OtherShard => (Scene::relayed_as("pay", Shard::new(0, 2).unwrap()), 1),
        Rule::Next => (plain(), 2),
    }
}

/// The words that the answer with this rule must contain.
fn words(rule: Rule) -> &'static [&'static str] {
    match rule {
        Rule::Settled => &["succeeded at 2027-01-15T08:00:00Z", "eff_1"],
        Rule::Dead => &["dead (it went wrong)", "replay"],
        Rule::Unknown => &["not safe", "from 2027-01-15T08:02:00Z on", "resolve"],
        Rule::NeedsReview => &["a person must look (it went wrong)"],
        Rule::InFlight => &["another", "since 2027-01-15T08:00:00Z", "until 2027-01-15T08:01:30Z"],
        Rule::Queued => &["behind intent 1", "dead", "waits for a person"],
        Rule::Held => &["the origin https://b.example is held", "(intent 7 last)", "08:01:00Z"],
        Rule::Unrecorded => &["no such order", "again at 2027-01-15T08:00:10Z", "replay"],
        Rule::NotRegistered => &["\"pay\""],
        Rule::NotDue => &["until 2027-01-15T08:01:00Z"],
        Rule::Unreadable => &["outbox.payload", "review"],
        Rule::Expired => &["expired", "since 2027-01-15T08:01:00Z"],
        Rule::InDoubt => &["attempt of 2027-01-15T08:00:00Z", "forgotten the key"],
        Rule::CancelRequested => &["cancellation was requested"],
        Rule::Attempts => &["used up: 1 of 1"],
        Rule::Paused => &["alice", "until it is resumed", "their maintenance"],
        Rule::Probing => &["another intent tries"],
        Rule::Throttled => &["until 2027-01-15T08:00:30Z"],
        Rule::Offline => &["no network", "08:01:00Z"],
        Rule::TooManyInFlight => &["at once: 1"],
        Rule::Resuming => &["begun again"],
        Rule::Rate => &["its next may go at 2027-01-15T08:01:00Z"],
        Rule::Budget => &["used up until 2027-01-15T08:01:00Z"],
        Rule::Turn => &["1 other is due before it", "1 may go"],
        Rule::OtherShard => &["1/2", "0/2"],
        Rule::Next => &["next claim"],
    }
}

#[test]
fn every_rule_is_named_and_holds() {
    for &rule in Rule::ALL {
        let (scene, id) = scene(rule);
        let (word, text) = scene.why(id);
        assert_eq!(word, rule.as_str(), "{text}");
        for expected in words(rule) {
            assert!(text.contains(expected), "{word}: {text}");
        }
    }
}

#[test]
fn every_kind_of_pause_says_by_whom_and_what_ends_it() {
    // The match in `paused_by` has no other kinds.
    for (kind, words) in [
        (PauseKind::Operator, ["by alice since 2027-01-15T08:00:00Z", "until it is resumed"]),
        (PauseKind::Auth, ["credentials", "tries again at"]),
        (PauseKind::Breaker, ["too many attempts in a row", "it went wrong"]),
    ] {
        let (word, text) = Scene::paused_by(kind).why(2);
        assert_eq!(word, "paused", "{text}");
        assert!(words.iter().all(|expected| text.contains(expected)), "{text}");
    }
}

#[test]
fn a_pause_whose_time_is_over_lets_one_through_at_a_time() {
    let scene = Scene::new(DEDUPLICATES, |o| o.rate(1, 60 * SECOND));
    scene.outbox.pause("pay", Some(SECOND), "alice").unwrap();
    let scene = scene.advance(1);
    assert_eq!(scene.outbox.why(2, None).unwrap().0, "turn");
    assert_eq!(scene.why(1).0, "next");
}

#[test]
fn of_several_due_rows_one_is_the_probe() {
    // The row that failed is due again, and first; the probe after a failed one passes it over.
    let scene = Scene::paused_by(PauseKind::Breaker).advance(3600);
    assert_eq!(scene.outbox.why(1, None).unwrap().0, "turn");
    assert_eq!(scene.outbox.why(2, None).unwrap().0, "next");
    let scene = scene.answer(Outcome::NotSent(failure("connect"))).drain();
    assert_eq!(*scene.seen.lock().unwrap(), [1, 2]);
}

/// A relay that names no limits must not lift those of the others by starting.
#[test]
fn limits_hold_over_all_relays_until_they_are_lifted() {
    let scene =
        Scene::new(DEDUPLICATES, |o| o.rate(1, 60 * SECOND).owner("payments").max_in_flight(7));
    let other = scene.relay("pay", DEDUPLICATES, |o| o.key_recipe("order id"));
    other.drain().unwrap();
    assert_eq!(scene.seen.lock().unwrap().len(), 1);
    assert_eq!(scene.why(2).0, "rate");
    let stored = scene.outbox.operations().unwrap().remove(0);
    assert_eq!((stored.rate, stored.max_in_flight), (Some((1, 60 * SECOND)), Some(7)));
    assert_eq!(stored.owner.as_deref(), Some("payments"));
    assert_eq!(stored.key_recipe.as_deref(), Some("order id"));
    scene.outbox.pause("pay", None, "alice").unwrap();
    scene.outbox.resume("pay", "alice").unwrap();
    assert_eq!(scene.outbox.operations().unwrap()[0].rate, Some((1, 60 * SECOND)));
    let lifting = scene.relay("pay", DEDUPLICATES, Operation::weaken_stored_contract);
    lifting.drain().unwrap();
    assert_eq!(scene.seen.lock().unwrap().len(), 2);
    assert_eq!(scene.outbox.operations().unwrap()[0].rate, None);
}

#[test]
fn only_the_operations_that_were_named_are_enqueued() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let outbox = Outbox::builder().operations(["pay", "mail"]).open(&path).unwrap();
    outbox.transact(|tx| outbox.enqueue(tx, &Intent::new("pay", "a"))).unwrap();
    let wrong = outbox.transact(|tx| outbox.enqueue(tx, &Intent::new("pya", "a"))).unwrap_err();
    assert_eq!(wrong.kind(), crate::error::ErrorKind::Invalid);
    let text = wrong.to_string();
    assert!(text.contains("\"pya\"") && text.contains("pay, mail"), "{text}");
    assert!(Outbox::builder().operations(["no good"]).open(&path).is_err());
    let entry = outbox.entry(1).unwrap().unwrap();
    assert!(!entry.registered);
    assert!(outbox.why(2, None).unwrap_err().to_string().contains("no intent 2"));
}
