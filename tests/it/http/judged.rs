//! Answers judged as an operation's service gives them: its rules, on which all relays on the file
//! agree, and what no rule can make of an answer that may have been applied.

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{
    Actor, Delivery, Downstream, Handler as _, HoldCause, Http, Intent, Meaning, Operation, Outbox,
    Predicate, Relay, Status,
};

use crate::support::wire::{Wire, http, relay, seeing};
use crate::support::world::{DEDUPLICATES, pay};

fn busy() -> Predicate {
    Predicate::equals("/error", "scripted")
}

fn operation(downstream: Downstream, http: Http) -> Operation {
    seeing(Operation::new(downstream, http))
}

/// The rules by which a 5xx of the scripted server means that nothing was applied.
fn rules() -> [fn(Http) -> Http; 5] {
    [
        |http| http.not_applied_when(busy()),
        |http| http.transient_when(busy()),
        |http| http.limited_when(busy()),
        |http| http.on_status(521, Meaning::NotReached),
        |http| http.on_status(521, Meaning::Transient),
    ]
}

fn stored_rules(outbox: &Outbox) -> Vec<String> {
    outbox.operations().unwrap().remove(0).repeat_rules
}

/// Drains twice, so that what may be sent again is, and returns the requests.
fn requests(wire: &Wire, relay: &Relay, id: i64) -> usize {
    relay.drain().unwrap();
    wire.world.advance(3600);
    relay.drain().unwrap();
    wire.server.requests_for(&wire.world.entry(id).idempotency_key).len()
}

#[test]
fn answer_in_doubt_is_repeated_only_by_a_rule_in_the_stored_contract() {
    for rule in rules() {
        let wire = Wire::new();
        let failing = |name: &str| pay(name).endpoint(wire.server.url("/fail/1/521"));
        let first = wire.world.enqueue(&failing("first"));
        let plain = relay(&wire.world.outbox, operation(Unprotected, rule(http())));
        assert_eq!(requests(&wire, &plain, first), 1);
        assert_eq!(wire.world.entry(first).status, Status::Unknown);
        assert!(stored_rules(&wire.world.outbox).is_empty());

        let weaker = operation(Unprotected, rule(http())).weaken_stored_contract();
        let weaker = relay(&wire.world.outbox, weaker);
        let second = wire.world.enqueue(&failing("second"));
        assert_eq!(requests(&wire, &weaker, second), 2);
        assert_eq!(wire.world.entry(second).status, Status::Succeeded);
        assert_eq!(stored_rules(&wire.world.outbox).len(), 1);

        // Stored, it holds without being asked for again; and a relay that does not have the rule
        // takes it from all.
        let third = wire.world.enqueue(&failing("third"));
        assert_eq!(requests(&wire, &plain, third), 2);
        let other = relay(&wire.world.second(), operation(Unprotected, http()));
        other.drain().unwrap();
        assert!(stored_rules(&wire.world.outbox).is_empty());
        let fourth = wire.world.enqueue(&failing("fourth"));
        assert_eq!(requests(&wire, &weaker, fourth), 1);
        assert_eq!(wire.world.entry(fourth).status, Status::Unknown);
    }
}

#[test]
fn operation_that_deduplicates_brings_its_rules_once() {
    let wire = Wire::new();
    let register = |downstream, rule: fn(Http) -> Http| {
        let relay = relay(&wire.world.outbox, operation(downstream, rule(http())));
        relay.drain().unwrap();
        stored_rules(&wire.world.outbox)
    };
    let [by_body, _, _, by_status, _] = rules();
    assert_eq!(register(DEDUPLICATES, by_body).len(), 1);
    assert_eq!(register(DEDUPLICATES, by_body).len(), 1);
    assert_eq!(register(DEDUPLICATES, by_status), [""; 0], "another rule is no common one");
    assert_eq!(register(DEDUPLICATES, by_body), [""; 0], "and none comes back by itself");
    // What was promised of a downstream that deduplicates does not hold for an unprotected one.
    let wire = Wire::new();
    let protected = relay(&wire.world.outbox, operation(DEDUPLICATES, by_body(http())));
    protected.drain().unwrap();
    assert_eq!(stored_rules(&wire.world.outbox).len(), 1);
    let unprotected = relay(&wire.world.outbox, operation(Unprotected, by_body(http())));
    unprotected.drain().unwrap();
    assert!(stored_rules(&wire.world.outbox).is_empty());
}

fn read(wire: &Wire, path: &str) -> Intent {
    pay(path).method("GET").payload("").endpoint(wire.server.url(path))
}

const READS: [&str; 4] = ["/fail/1/500", "/fail/1/302", "/lost/1", "/cut/1"];

#[test]
fn read_is_repeated_at_an_unprotected_downstream_and_a_write_is_not() {
    for path in READS {
        let wire = Wire::new();
        let write = wire.world.enqueue(&pay("write").endpoint(wire.server.url(path)));
        let with_body = Intent::new("pay", "body").method("GET").payload("{}");
        let with_body = wire.world.enqueue(&with_body.endpoint(wire.server.url(path)));
        let id = wire.world.enqueue(&read(&wire, path));
        let relay = relay(&wire.world.outbox, operation(Unprotected, http()));
        assert_eq!(requests(&wire, &relay, id), 2, "{path}");
        assert_eq!(wire.world.entry(id).status, Status::Succeeded, "{path}");
        for id in [write, with_body] {
            assert_eq!(requests(&wire, &relay, id), 1, "{path}");
            assert_eq!(wire.world.entry(id).status, Status::Unknown, "{path}");
        }
    }
}

#[test]
fn read_is_not_repeated_where_a_relay_says_so_or_code_of_the_application_sends() {
    for path in READS {
        let wire = Wire::new();
        let id = wire.world.enqueue(&read(&wire, path));
        let closure = |delivery: &Delivery| http().deliver(delivery);
        let relay_of = |operation| relay(&wire.world.outbox, seeing(operation));
        let of_closure = relay_of(Operation::new(Unprotected, closure));
        assert_eq!(requests(&wire, &of_closure, id), 1, "{path}");
        assert_eq!(wire.world.entry(id).status, Status::Unknown, "{path}");

        let wire = Wire::new();
        let usual = relay(&wire.world.outbox, operation(Unprotected, http()));
        usual.drain().unwrap();
        let strict = operation(Unprotected, http()).repeat_safe(false);
        relay(&wire.world.second(), strict).drain().unwrap();
        let id = wire.world.enqueue(&read(&wire, path));
        assert_eq!(requests(&wire, &usual, id), 1, "{path}");
        assert_eq!(wire.world.entry(id).status, Status::Unknown, "{path}");
    }
}

/// A read changes nothing about a doubt that was there before.
#[test]
fn read_after_a_crash_stays_in_doubt() {
    let wire = Wire::new();
    let id = wire.world.enqueue(&read(&wire, "/ok"));
    let panics = |_: &Delivery| -> sqlite_outbox::Outcome { panic!("dies") };
    relay(&wire.world.outbox, seeing(Operation::new(Unprotected, panics))).drain().unwrap();
    let usual = relay(&wire.world.outbox, operation(Unprotected, http()));
    assert_eq!(requests(&wire, &usual, id), 0);
    assert_eq!(wire.world.entry(id).status, Status::Unknown);
}

#[test]
fn endpoint_that_is_gone_is_held_until_a_person_resumes_it() {
    let wire = Wire::new();
    let to =
        |name: &str, path: &str| wire.world.enqueue(&pay(name).endpoint(wire.server.url(path)));
    let first = to("first", "/status/410");
    let relay = relay(&wire.world.outbox, operation(Unprotected, http()).breaker_after(1));
    relay.drain().unwrap();
    assert_eq!(wire.world.entry(first).status, Status::Dead);
    let waiting = [to("second", "/status/410"), to("third", "/status/410")];
    let other = to("other", "/ok");
    for _ in 0..3 {
        wire.world.advance(30 * 24 * 3600);
        relay.drain().unwrap();
    }
    assert_eq!(wire.world.entry(other).status, Status::Succeeded);
    assert_eq!(wire.server.requests().len(), 2);
    // A person who wants one row sent resumes the endpoint.
    wire.world.outbox.retry(waiting[0], "ada").unwrap();
    relay.drain().unwrap();
    assert_eq!(wire.server.requests().len(), 2);
    let hold = wire.world.outbox.operations().unwrap().remove(0).holds.remove(0);
    assert_eq!((hold.cause, hold.culprit, hold.until), (HoldCause::Gone, Some(first), None));
    assert!(hold.reason.contains("410"), "{}", hold.reason);
    let (_, why) = wire.world.outbox.why(waiting[0], None).unwrap();
    assert!(why.contains("it answered that it is gone"), "{why}");

    assert!(wire.world.outbox.resume("pay", Actor::new("ada")).unwrap());
    relay.drain().unwrap();
    assert_eq!(wire.server.requests().len(), 3, "the next one finds out whether it still is");
    wire.world.advance(3600);
    relay.drain().unwrap();
    assert_eq!(wire.server.requests().len(), 3);
}

#[test]
fn status_410_of_the_configured_endpoint_is_the_intents_own() {
    let wire = Wire::new();
    let ids = ["a", "b"].map(|name| wire.world.enqueue(&pay(name)));
    let relay = relay(&wire.world.outbox, operation(Unprotected, wire.to("/status/410")));
    relay.drain().unwrap();
    assert_eq!(ids.map(|id| wire.world.entry(id).status), [Status::Dead; 2]);
    assert!(wire.world.outbox.operations().unwrap()[0].holds.is_empty());
}

/// A network that asks to be logged in to is no failure of an intent, however long it takes.
#[test]
fn status_511_waits_and_uses_no_attempt() {
    let wire = Wire::new();
    let id = wire.world.enqueue(&pay("order"));
    let portal = operation(Unprotected, wire.to("/status/511")).max_attempts(2);
    let portal = relay(&wire.world.outbox, portal);
    for _ in 0..50 {
        portal.drain().unwrap();
        wire.world.advance(3600);
    }
    let entry = wire.world.entry(id);
    assert_eq!((entry.status, entry.attempts), (Status::Pending, 0));
    assert_eq!(wire.class(id).as_deref(), Some("not_reached"));
    assert!(wire.server.requests().len() > 10);
    let paused = wire.world.outbox.operations().unwrap().remove(0).paused;
    assert_eq!(paused, Some(sqlite_outbox::PauseKind::Breaker));
    let home = relay(&wire.world.outbox, operation(Unprotected, wire.to("/ok")));
    home.drain().unwrap();
    assert_eq!(wire.world.entry(id).status, Status::Succeeded);
}
