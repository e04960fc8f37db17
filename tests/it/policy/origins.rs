//! Faults at origins: what is learnt at one holds back its own intents, and no others.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlite_outbox::{
    Actor, Delivery, Failure, Handler, HoldCause, HoldDomain, Intent, Operation, Outcome,
    PauseKind, Relay, Status, StoredContract, StoredHold,
};

use crate::support::world::{
    DEDUPLICATES, World, exact_backoff, maybe_sent, not_sent, pay, relay_on, succeeded,
};

/// The hosts of a world, each with its answer to everything; others succeed.
#[derive(Clone, Default)]
struct Hosts {
    answers: Arc<Mutex<HashMap<String, Outcome>>>,
    seen: Arc<Mutex<Vec<(i64, String)>>>,
    /// Goes over the machine's network.
    is_networked: bool,
}

impl Hosts {
    fn set(&self, host: &str, answer: Outcome) {
        self.answers.lock().unwrap().insert(host.into(), answer);
    }

    fn mend(&self, host: &str) {
        self.answers.lock().unwrap().remove(host);
    }

    fn count(&self, host: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|(_, seen)| seen == host).count()
    }

    fn relay(&self, world: &World) -> Relay {
        relay_on(&world.outbox, self.operation())
    }

    fn operation(&self) -> Operation {
        Operation::new(DEDUPLICATES, self.clone()).backoff(exact_backoff())
    }
}

impl Handler for Hosts {
    fn deliver(&self, delivery: &Delivery) -> Outcome {
        let endpoint = delivery.endpoint().unwrap_or("https://configured/");
        let host = endpoint.split('/').nth(2).unwrap().to_owned();
        self.seen.lock().unwrap().push((delivery.id(), host.clone()));
        let answer = self.answers.lock().unwrap().get(&host).cloned();
        answer.unwrap_or_else(|| succeeded("ok"))
    }

    fn network(&self) -> Option<String> {
        self.is_networked.then(|| "https://configured".into())
    }
}

fn to(host: &str, name: &str) -> Intent {
    pay(&format!("{host}-{name}")).endpoint(format!("https://{host}/{name}"))
}

/// Enqueues so many intents to a host, or to the configured endpoint.
fn enqueue(world: &World, host: &str, count: usize) -> Vec<i64> {
    let intent = |n: usize| match host {
        "configured" => pay(&format!("configured-{n}")),
        host => to(host, &n.to_string()),
    };
    let intents: Vec<_> = (0..count).map(intent).collect();
    let enqueued = world.outbox.transact(|tx| world.outbox.enqueue_all(tx, &intents));
    enqueued.unwrap().iter().map(sqlite_outbox::Enqueued::id).collect()
}

fn stored(world: &World) -> StoredContract {
    world.outbox.operations().unwrap().remove(0)
}

fn only_hold(world: &World) -> StoredHold {
    let mut holds = stored(world).holds;
    assert_eq!(holds.len(), 1, "{holds:?}");
    holds.remove(0)
}

fn limited_for(seconds: u64) -> Outcome {
    let failure = Failure::new("limited", "answered 429").status(429);
    Outcome::Limited(failure.retry_after(Duration::from_secs(seconds)))
}

fn forbidden() -> Outcome {
    Outcome::Transient(Failure::new("auth", "answered 403").status(403))
}

fn unauthorized() -> Outcome {
    Outcome::Unauthorized(Failure::new("auth", "answered 401").status(401))
}

const HELD: &str = "SELECT count(*) FROM outbox_lease WHERE held_by IS NOT NULL";
const DONE: &str = "SELECT count(*) FROM outbox_receipt";

#[test]
fn an_origin_that_is_not_reached_holds_back_its_own_intents_alone() {
    for failing in [not_sent(), maybe_sent()] {
        let (world, hosts) = (World::new(), Hosts::default());
        hosts.set("dead", failing.clone());
        let ids = enqueue(&world, "dead", 30);
        enqueue(&world, "well", 5);
        enqueue(&world, "configured", 5);
        let relay = hosts.relay(&world);
        relay.drain().unwrap();
        assert_eq!((hosts.count("well"), hosts.count("configured")), (5, 5));
        assert_eq!(hosts.count("dead"), 10);
        assert_eq!(stored(&world).paused, None);
        let hold = only_hold(&world);
        assert_eq!((hold.domain, hold.cause), (HoldDomain::Origin, HoldCause::Breaker));
        assert_eq!((hold.name.as_str(), hold.culprit), ("https://dead", Some(ids[9])));
        assert_eq!(hold.reason, failing.failure().unwrap().message);
        // One at a time tries it, at growing intervals, and no attempt is used up by that.
        for tries in 1..=3 {
            let until = only_hold(&world).until.unwrap();
            world.pass_until(until - 1);
            relay.drain().unwrap();
            assert_eq!(hosts.count("dead"), 9 + tries);
            world.pass_until(until);
            relay.drain().unwrap();
            assert_eq!(hosts.count("dead"), 10 + tries);
        }
        assert!(world.number("SELECT max(attempts) FROM outbox_lease") <= 1);
        let (word, text) = world.outbox.why(ids[29], None).unwrap();
        assert_eq!(word, "held", "{text}");
        assert!(text.contains("the origin https://dead is held since"), "{text}");
        hosts.mend("dead");
        for _ in 0..60 {
            relay.drain().unwrap();
            world.advance(30);
        }
        assert_eq!(world.number(DONE), 40);
        assert_eq!(world.number("SELECT count(*) FROM outbox_hold"), 0);
    }
}

#[test]
fn a_row_that_cannot_be_moved_does_not_keep_others_from_trying_their_origin() {
    let (world, hosts) = (World::new(), Hosts::default());
    hosts.set("dead", not_sent());
    enqueue(&world, "dead", 30);
    let relay = hosts.relay(&world);
    relay.drain().unwrap();
    let next = "SELECT id FROM outbox_lease WHERE held_by IS NOT NULL ORDER BY resume_at, id";
    let first = world.number(next);
    let trigger = format!(
        "CREATE TRIGGER app BEFORE UPDATE ON outbox_lease
         WHEN OLD.id = {first} AND NEW.state = 'in_flight' BEGIN SELECT RAISE(ABORT, 'no'); END"
    );
    world.app().execute_batch(&trigger).unwrap();
    hosts.mend("dead");
    for _ in 0..60 {
        relay.drain().unwrap();
        world.advance(30);
    }
    assert_eq!(world.number(DONE), 29);
    world.app().execute_batch("DROP TRIGGER app").unwrap();
    for _ in 0..2 {
        world.advance(3600);
        relay.drain().unwrap();
    }
    assert_eq!(world.number(DONE), 30);
}

#[test]
fn success_at_an_own_origin_does_not_close_the_configured_breaker() {
    let (world, hosts) = (World::new(), Hosts::default());
    hosts.set("configured", maybe_sent());
    enqueue(&world, "configured", 5);
    let relay = hosts.relay(&world);
    for n in 0..200 {
        world.enqueue(&to("well", &n.to_string()));
        relay.drain().unwrap();
        world.advance(1);
    }
    assert_eq!(hosts.count("well"), 200);
    assert_eq!(stored(&world).paused, Some(PauseKind::Breaker));
    assert!(hosts.count("configured") < 25, "{}", hosts.count("configured"));
    assert!(world.number("SELECT max(attempts) FROM outbox_lease") <= 3);
}

#[test]
fn an_own_origin_that_refuses_the_credentials_is_held_alone() {
    let (world, hosts) = (World::new(), Hosts::default());
    hosts.set("strict", unauthorized());
    let ids = enqueue(&world, "strict", 5);
    enqueue(&world, "configured", 5);
    let relay = hosts.relay(&world);
    relay.drain().unwrap();
    assert_eq!((hosts.count("strict"), hosts.count("configured")), (1, 5));
    let hold = only_hold(&world);
    assert_eq!((hold.cause, hold.culprit), (HoldCause::Auth, Some(ids[0])));
    assert_eq!(world.number("SELECT max(attempts) FROM outbox_lease"), 0);
    // New credentials come with a restart, or a person says so.
    let relay = hosts.relay(&world);
    relay.drain().unwrap();
    assert_eq!(hosts.count("strict"), 2);
    hosts.mend("strict");
    assert!(world.outbox.resume("pay", Actor::new("ann").reason("new token")).unwrap());
    assert!(!world.outbox.resume("pay", "ann").unwrap());
    for _ in 0..10 {
        relay.drain().unwrap();
        world.advance(1);
    }
    assert_eq!(world.number(DONE), 10);
}

#[test]
fn one_403_stops_its_own_intent_and_three_intents_pause_the_operation() {
    let world = World::new();
    let poison = world.enqueue(&pay("poison"));
    let script = world.script.clone();
    let operation =
        Operation::new(DEDUPLICATES, move |delivery: &Delivery| match delivery.entity() {
            "poison" => forbidden(),
            _ => script.answer(delivery),
        });
    let relay = relay_on(&world.outbox, operation.backoff(exact_backoff()));
    // However often one intent gets it, it is the same intent.
    for _ in 0..6 {
        relay.drain().unwrap();
        world.advance(60);
    }
    assert_eq!((stored(&world).paused, world.entry(poison).status), (None, Status::Pending));
    // A success between starts the count anew.
    for outcome in [forbidden(), succeeded("a"), forbidden(), forbidden(), forbidden()] {
        assert_eq!(stored(&world).paused, None);
        world.script.then(outcome);
        world.enqueue(&pay(&format!("{}", world.script.seen().len())));
        relay.drain().unwrap();
    }
    let pause = stored(&world);
    assert_eq!(pause.paused, Some(PauseKind::Auth));
    assert_eq!(pause.paused_culprit, world.script.seen().last().map(Delivery::id));
    assert!(pause.pause_in_words().unwrap().contains("was the last: answered 403"));
}

#[test]
fn retry_after_holds_an_endpoint_then_its_origin_and_no_other() {
    let (world, hosts) = (World::new(), Hosts::default());
    hosts.set("slow", limited_for(600));
    for n in 0..3 {
        world.enqueue(&pay(&format!("one-{n}")).endpoint("https://slow/one?secret"));
    }
    enqueue(&world, "configured", 3);
    let relay = hosts.relay(&world);
    relay.drain().unwrap();
    assert_eq!((hosts.count("slow"), hosts.count("configured")), (1, 3));
    let hold = only_hold(&world);
    assert_eq!((hold.domain, hold.cause), (HoldDomain::Endpoint, HoldCause::Throttled));
    assert!(hold.name.starts_with("https://slow #") && !hold.name.contains("secret"));
    // Other endpoints of the origin go on, until three of them have said so.
    for (name, tried) in [("two", 2), ("three", 3), ("four", 3)] {
        world.enqueue(&to("slow", name));
        relay.drain().unwrap();
        assert_eq!(hosts.count("slow"), tried, "{name}");
    }
    let holds = stored(&world).holds;
    assert!(holds.iter().any(|hold| hold.name == "https://slow"), "{holds:?}");
    hosts.mend("slow");
    for _ in 0..100 {
        world.advance(30);
        relay.drain().unwrap();
    }
    assert_eq!(world.number(DONE), 9);
    assert!(stored(&world).holds.is_empty());
}

#[test]
fn retry_after_is_capped_at_a_day_and_shown() {
    let (world, hosts) = (World::new(), Hosts::default());
    hosts.set("configured", limited_for(60 * 365 * 24 * 3600));
    let ids = enqueue(&world, "configured", 2);
    let relay = hosts.relay(&world);
    relay.drain().unwrap();
    let day = 24 * 3600 * 1000;
    let known = stored(&world);
    let now = sqlite_outbox::Clock::now(&world.clock);
    assert_eq!(known.throttled_until, Some(now + day));
    assert_eq!((known.throttled_since, known.throttled_by), (Some(now), Some(ids[0])));
    assert!(known.holds_in_words()[0].contains("asked to be left alone"));
    // As an older build has written it.
    world.sql(&format!("UPDATE outbox_operation SET throttled_until = {now} + 1000 * {day}"));
    hosts.mend("configured");
    for _ in 0..3 {
        world.clock.advance(Duration::from_secs(25 * 3600));
        relay.drain().unwrap();
    }
    assert_eq!(world.number(DONE), 2);
}

/// A backlog to a host that is gone: each row is moved aside once, and neither the rows nor the
/// healthy host pay for it afterwards.
#[test]
fn ten_thousand_intents_to_a_dead_host_cost_others_nothing() {
    let (world, hosts) = (World::new(), Hosts::default());
    hosts.set("dead", not_sent());
    enqueue(&world, "dead", 10_000);
    world.batch(
        "CREATE TABLE writes (id INTEGER, aside INTEGER);
         CREATE TRIGGER counted AFTER UPDATE ON outbox_lease
         BEGIN INSERT INTO writes VALUES (NEW.id, NEW.held_by IS NOT NULL); END;
         CREATE TABLE first (aside INTEGER);
         CREATE TRIGGER noted AFTER INSERT ON outbox_receipt
         BEGIN INSERT INTO first SELECT count(*) FROM writes WHERE aside; END;",
    );
    world.enqueue(&to("well", "first"));
    let relay = hosts.relay(&world);
    relay.drain().unwrap();
    // It did not wait until all of them were moved.
    let aside_before = world.number("SELECT aside FROM first");
    assert!(aside_before < 1000, "{aside_before}");
    assert_eq!(world.number(HELD), 10_000 - 10);
    let writes = "SELECT count(*) FROM writes";
    let before = world.number(writes);
    for n in 0..60 {
        let well = world.enqueue(&to("well", &n.to_string()));
        // The very next claim sends it: it passes no row of the backlog.
        relay.drain().unwrap();
        assert_eq!(world.entry(well).status, Status::Succeeded);
        world.advance(60);
    }
    let aside = "SELECT coalesce(max(n), 0) FROM
                 (SELECT count(*) AS n FROM writes WHERE aside GROUP BY id)";
    assert!(world.number(aside) <= 2, "{}", world.number(aside));
    // A claim of each healthy one, and the tries of an hour with the rows that failed before.
    let hour = world.number(writes) - before - 60;
    assert!(hour < 100, "{hour}");
    assert!(hosts.count("dead") < 40, "{}", hosts.count("dead"));
}

fn offline() -> Outcome {
    Outcome::NotSent(Failure::new("offline", "the network is unreachable"))
}

#[test]
fn a_machine_without_a_network_tries_one_origin_after_the_other() {
    let world = World::new();
    let hosts = Hosts { is_networked: true, ..Hosts::default() };
    let names = ["a", "b", "c", "d", "e"];
    for host in names {
        hosts.set(host, offline());
        enqueue(&world, host, 100);
    }
    // A handler that does not go over the network is not concerned.
    world.enqueue(&Intent::new("local", "x"));
    let script = world.script.clone();
    let local = Operation::new(DEDUPLICATES, move |delivery: &Delivery| script.answer(delivery));
    let relay = Relay::builder(&world.outbox)
        .operation("pay", hosts.operation().breaker_after(0))
        .operation("local", local)
        .workers(1)
        .build()
        .unwrap();
    relay.drain().unwrap();
    assert_eq!(world.script.seen().len(), 1);
    let pay = world.outbox.operations().unwrap().into_iter().find(|o| o.operation == "pay");
    let holds = pay.unwrap().holds;
    assert_eq!((holds[0].domain, holds[0].cause), (HoldDomain::Network, HoldCause::Offline));
    assert_eq!(world.outbox.why(500, None).unwrap().0, "offline");
    let before = hosts.seen.lock().unwrap().len();
    assert!(before >= 3);
    for _ in 0..240 {
        world.advance(30);
        relay.drain().unwrap();
    }
    let tried: Vec<_> = hosts.seen.lock().unwrap()[before..].to_vec();
    // Two hours, of which all but the first minute have a try a minute.
    assert!((60..=200).contains(&tried.len()), "{}", tried.len());
    let origins: HashSet<_> = tried.iter().map(|(_, host)| host).collect();
    assert_eq!(origins.len(), names.len(), "{origins:?}");
    assert_eq!(world.number(HELD), 0);
    hosts.answers.lock().unwrap().clear();
    for _ in 0..100 {
        world.advance(60);
        relay.drain().unwrap();
    }
    assert_eq!(world.number(DONE), 501);
}

#[test]
fn a_name_that_does_not_exist_proves_a_network() {
    let world = World::new();
    let hosts = Hosts { is_networked: true, ..Hosts::default() };
    for host in ["a", "b", "d"] {
        hosts.set(host, offline());
    }
    let missing = Failure::new("dns", "the host name was not found");
    hosts.set("c", Outcome::NotSent(missing));
    for host in ["a", "b", "c", "d", "well"] {
        enqueue(&world, host, 1);
    }
    let relay = hosts.relay(&world);
    relay.drain().unwrap();
    assert_eq!((hosts.count("well"), stored(&world).holds.len()), (1, 0));
}

/// A suspect that waits for the pause of the configured endpoint keeps no other from being tried.
#[test]
fn suspect_behind_a_pause_holds_back_none_of_another_origin() {
    let world = World::new();
    let hosts = Hosts::default();
    let relay = hosts.relay(&world);
    let ids = [enqueue(&world, "configured", 2), enqueue(&world, "own.example", 1)].concat();
    world.sql("UPDATE outbox_lease SET lost = 2, tries = 2");
    hosts.set("configured", Outcome::Unauthorized(Failure::new("auth", "answered 401")));
    for _ in 0..4 {
        relay.drain().unwrap();
        world.advance(1);
    }
    assert_eq!(world.entry(ids[2]).status, Status::Succeeded);
    assert_eq!(hosts.count("configured"), 1);
}
