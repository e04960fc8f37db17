//! Which rows are taken, by whom, and what becomes of a taking that ends without an outcome.

use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use sqlite_outbox::Downstream::{DeduplicatesByKey, Unprotected};
use sqlite_outbox::{Delivery, ErrorKind, Filter, Operation, Outcome, Relay, Shard, Status};

use crate::support::world::{
    DEDUPLICATES, LONG, START, World, interrupted, maybe_sent, not_sent, pay, rejected, relay_on,
    succeeded, transient,
};

/// Past the lease of 90 s.
const PAST_THE_LEASE: u64 = 91;

/// Leaves what is due claimed by a relay that is never heard of again.
fn lose(world: &World, times: u32) {
    world.sql(&format!(
        "UPDATE outbox_lease SET state = 'in_flight', owner = 'lost', token = 0,
             attempts = attempts + 1,
                tries = tries + 1, claimed_at = {0}, due_at = {0} + 90000, lost = {1}
         WHERE id = 1 AND state = 'pending'",
        sqlite_outbox::Clock::now(&world.clock),
        times - 1
    ));
    world.advance(PAST_THE_LEASE);
}

/// Claiming is one step: a row that one relay has taken is invisible to all others.
#[test]
fn claim_race_has_one_winner_for_each_row() {
    const ROUNDS: usize = 1000;
    let world = World::new();
    let intents: Vec<_> = (0..ROUNDS).map(|n| pay(&n.to_string())).collect();
    let start = Barrier::new(2);
    let seen: Arc<Mutex<Vec<(i64, i64)>>> = Arc::default();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (world, start, intents, sees) = (&world, &start, &intents, Arc::clone(&seen));
            scope.spawn(move || {
                let relay = world.other_relay(DEDUPLICATES, move |delivery: &Delivery| {
                    sees.lock().unwrap().push((delivery.id(), delivery.token()));
                    succeeded("once")
                });
                start.wait();
                for chunk in intents.chunks(100) {
                    world.outbox.transact(|tx| world.outbox.enqueue_all(tx, chunk)).unwrap();
                    relay.drain().expect("no lock error escapes");
                }
            });
        }
    });
    world.drain(DEDUPLICATES);
    let mut ids: Vec<i64> = seen.lock().unwrap().iter().map(|(id, _)| *id).collect();
    assert_eq!(ids.len(), ROUNDS);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), ROUNDS);
    assert_eq!(world.number("SELECT count(*) FROM outbox_receipt WHERE attempts = 1"), 1000);
}

/// Waiting was once counted as lease time, and the row handed out again and again.
#[test]
fn lease_begins_when_the_attempt_does() {
    let world = World::new();
    let scheduled = world.enqueue(&pay("a").delay(Duration::from_secs(1000)));
    let retrying = world.enqueue(&pay("b"));
    world.script.then(transient());
    world.drain(DEDUPLICATES);
    for id in [scheduled, retrying] {
        let entry = world.entry(id);
        assert_eq!(
            (entry.status, entry.locked_until, entry.locked_by),
            (Status::Pending, None, None)
        );
    }
    assert_eq!(world.number("SELECT count(*) FROM outbox_lease WHERE token IS NOT NULL"), 0);
    world.advance(999);
    for _ in 0..3 {
        world.drain(DEDUPLICATES);
    }
    assert_eq!(world.entry(scheduled).attempts, 0);
    world.advance(1);
    world.drain(DEDUPLICATES);
    assert_eq!(world.entry(scheduled).attempts, 1);
}

/// The highest id seen is no bookmark: a lower one may come due later.
#[test]
fn claim_finds_rows_by_state_not_by_id() {
    let world = World::new();
    for entity in ["a", "b", "c", "d", "e"] {
        world.enqueue(&pay(entity));
    }
    world.script.then(succeeded("1")).then(rejected());
    let relay = world.relay(DEDUPLICATES);
    assert_eq!(relay.drain().unwrap().succeeded, 4);
    world.outbox.replay(2, "alice").unwrap();
    world.enqueue(&pay("f"));
    assert_eq!(relay.drain().unwrap().succeeded, 2);
    assert_eq!(world.number("SELECT count(*) FROM outbox_lease"), 0);
}

#[test]
fn clock_going_back_sends_nothing_early() {
    let world = World::new();
    for n in 0..20 {
        world.enqueue(&pay(&n.to_string()).delay(Duration::from_secs(n * 60)));
    }
    let relay = world.relay(DEDUPLICATES);
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    world.clock.set(START - 600_000);
    assert_eq!(relay.drain().unwrap().succeeded, 0);
    world.clock.set(START + 600_000);
    assert_eq!(relay.drain().unwrap().succeeded, 10);
}

#[test]
fn token_rises_with_every_claim() {
    let world = World::new();
    let (id, _) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
    world.script.then(rejected()).then(transient());
    let relay = world.relay(DEDUPLICATES);
    for round in 0..20 {
        relay.drain().unwrap();
        if round % 3 == 0 && world.entry(id).status == Status::Dead {
            world.outbox.replay(id, "alice").unwrap();
        }
        if world.entry(id).status.is_settled() {
            break;
        }
        world.advance(5);
        world.script.then(if round % 2 == 0 { rejected() } else { not_sent() });
    }
    let seen = world.script.seen();
    let tokens: Vec<i64> =
        seen.iter().filter(|delivery| delivery.id() == id).map(Delivery::token).collect();
    assert!(tokens.len() > 3, "{tokens:?}");
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
    let all: Vec<i64> = seen.iter().map(Delivery::token).collect();
    assert!(all.is_sorted(), "{all:?}");
    assert_eq!(world.number("SELECT token FROM outbox_meta"), *all.last().unwrap());
}

/// A lease that ran out cost one attempt of many, yet the row landed among the dead.
#[test]
fn lease_lost_costs_one_attempt() {
    let world = World::new();
    let (id, other) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
    lose(&world, 1);
    world.script.then(transient()).then(transient());
    let relay = world.relay(DEDUPLICATES);
    relay.drain().unwrap();
    assert_eq!(world.story(id)[0], "lease_lost:in_flight>pending");
    assert!(world.outbox.audit(id).unwrap()[0].reason.as_ref().unwrap().contains("lease expired"));
    assert_eq!((world.entry(id).status, world.entry(id).attempts), (Status::Pending, 2));
    assert_eq!(world.entry(other).attempts, 1);
    world.advance(10);
    assert_eq!(relay.drain().unwrap().succeeded, 2);
}

#[test]
fn lease_lost_unprotected_is_unknown() {
    let world = World::new();
    let (id, other) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
    lose(&world, 1);
    world.drain(Unprotected);
    assert_eq!((world.entry(id).status, world.entry(id).attempts), (Status::Unknown, 1));
    assert_eq!(world.entry(other).status, Status::Succeeded);
    // A relay that claims more is promised obeys the stored contract.
    world.advance(1000);
    world.drain(DEDUPLICATES);
    assert_eq!(world.entry(id).status, Status::Unknown);
    assert_eq!(world.script.seen().len(), 1);
}

/// A first loss costs a row nothing: it is claimed as any other, and with others.
#[test]
fn row_lost_once_is_claimed_beside_others() {
    let world = World::new();
    let id = world.enqueue(&pay("lost"));
    lose(&world, 1);
    for n in 0..5 {
        world.enqueue(&pay(&n.to_string()));
    }
    let beside = Arc::new(Mutex::new(Vec::new()));
    let (notes, outbox) = (Arc::clone(&beside), world.second());
    let relay = world.other_relay(DEDUPLICATES, move |delivery: &Delivery| {
        let in_flight = outbox.list(&Filter::default().status(Status::InFlight)).unwrap().len();
        notes.lock().unwrap().push((delivery.id(), in_flight));
        succeeded("ok")
    });
    assert_eq!(relay.drain().unwrap().succeeded, 6);
    assert!(beside.lock().unwrap().contains(&(id, 2)), "another is claimed with it");
    assert_eq!(world.entry(id).attempts, 2);
}

/// Two losses are free, and only a death as the suspect is a strike; three of those need a person.
#[test]
fn suspect_needs_review_after_three_strikes() {
    let world = World::new();
    let id = world.enqueue(&pay("killer"));
    for times in 1..=4 {
        lose(&world, times);
        world.script.then(not_sent());
        assert_eq!(world.drain(DEDUPLICATES).retried, 2, "lost {times} times, and tried again");
        assert_eq!(world.entry(id).status, Status::Pending);
        world.advance(100);
    }
    lose(&world, 5);
    world.enqueue(&pay("neighbour"));
    let report = world.drain(DEDUPLICATES);
    assert_eq!((report.needs_review, report.succeeded), (1, 1));
    let entry = world.entry(id);
    assert_eq!(entry.status, Status::NeedsReview);
    assert!(entry.last_error.unwrap().contains("three times in a row as the suspect"));
}

#[test]
fn expired_intent_is_not_sent() {
    let world = World::new();
    let hour = Duration::from_secs(3600);
    let fresh = world.enqueue(&pay("fresh"));
    let stale = world.enqueue(&pay("stale").expires_in(hour));
    let doubtful = world.enqueue(&pay("doubtful").expires_in(hour));
    world.script.then(succeeded("1")).then(not_sent()).then(maybe_sent());
    let relay = relay_on(&world.outbox, world.operation_without_look_up(DEDUPLICATES));
    relay.drain().unwrap();
    world.advance(3600);
    let report = relay.drain().unwrap();
    assert_eq!((report.dead, report.needs_review, report.attempts), (1, 1, 0));
    assert_eq!(world.entry(fresh).status, Status::Succeeded);
    assert_eq!(world.entry(stale).status, Status::Dead);
    assert_eq!(world.outbox.audit(stale).unwrap().pop().unwrap().error_class.unwrap(), "expired");
    assert_eq!(world.entry(doubtful).status, Status::NeedsReview);
    assert_eq!(world.script.seen().len(), 3);
}

/// The downstream remembers a key for a time from the first request on. After that a repetition
/// would be a second effect.
#[test]
fn key_window_that_is_over_prevents_the_send() {
    let window = Duration::from_secs(1800);
    let world = World::new();
    let (doubtful, other) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
    world.script.then(maybe_sent()).then(not_sent());
    let relay = world.relay(DeduplicatesByKey { window });
    relay.drain().unwrap();
    // An attempt may take 60 s, and must end inside the window.
    world.advance(1741);
    relay.drain().unwrap();
    assert_eq!(world.entry(doubtful).status, Status::Unknown);
    assert_eq!(world.story(doubtful)[1], "withheld:pending>unknown");
    assert_eq!(world.entry(other).status, Status::Succeeded);
    let seen: Vec<i64> = world.script.seen().iter().map(Delivery::id).collect();
    assert_eq!(seen, [doubtful, other, other]);
}

/// Claimed in time, but kept waiting behind another row of the batch until it was too late.
#[test]
fn worker_checks_once_more_just_before_sending() {
    for (window, expires) in [(true, false), (false, true)] {
        let world = Arc::new(World::new());
        let first = world.enqueue(&pay("a"));
        let mut second = pay("b");
        if expires {
            second = second.expires_in(Duration::from_secs(1010));
        }
        let second = world.enqueue(&second);
        world.script.then(transient()).then(maybe_sent());
        let downstream = if window {
            DeduplicatesByKey { window: Duration::from_secs(1065) }
        } else {
            DEDUPLICATES
        };
        world.drain(downstream);
        world.advance(1000);
        let (inside, sent) = (Arc::clone(&world), Arc::new(Mutex::new(Vec::new())));
        let slow = interrupted(
            move || {
                assert_eq!(inside.entry(2).status, Status::InFlight, "claimed together");
                inside.advance(10);
            },
            succeeded("ok"),
        );
        let sends = Arc::clone(&sent);
        let relay = world.other_relay(downstream, move |delivery: &Delivery| {
            sends.lock().unwrap().push(delivery.id());
            slow(delivery)
        });
        relay.drain().unwrap();
        assert_eq!(*sent.lock().unwrap(), [first]);
        assert_eq!(world.entry(second).status, Status::Unknown);
        assert_eq!(world.entry(second).attempts, 1, "the claim that sent nothing is not counted");
    }
}

/// A claim that waited until its lease was too short for an attempt is given back uncounted.
#[test]
fn lease_too_short_for_an_attempt_is_given_back() {
    let world = Arc::new(World::new());
    let (first, second) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
    let inside = Arc::clone(&world);
    let slow = interrupted(move || inside.advance(31), succeeded("ok"));
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&attempts);
    let relay = world.other_relay(Unprotected, move |delivery: &Delivery| {
        notes.lock().unwrap().push((delivery.id(), delivery.attempt()));
        slow(delivery)
    });
    relay.drain().unwrap();
    assert_eq!(*attempts.lock().unwrap(), [(first, 1), (second, 1)]);
    assert_eq!(world.entry(second).status, Status::Succeeded);
    assert!(world.outbox.audit(second).unwrap().len() == 1);
}

/// For a downstream that does not deduplicate, a claim means "about to be sent": no row waits in
/// a queue, where it would be in doubt for nothing if the process died.
#[test]
fn unprotected_rows_are_claimed_one_for_each_idle_worker() {
    let world = World::new();
    for n in 0..6 {
        world.enqueue(&pay(&n.to_string()));
        world.enqueue(&sqlite_outbox::Intent::new("mail", n.to_string()));
        world.enqueue(&sqlite_outbox::Intent::new("safe", n.to_string()));
    }
    let most = Arc::new(Mutex::new(0));
    let handler = || {
        let (notes, outbox) = (Arc::clone(&most), world.second());
        move |_: &Delivery| {
            let held = outbox.list(&Filter::default().status(Status::InFlight)).unwrap();
            let unprotected = held.iter().filter(|entry| entry.operation != "safe").count();
            let mut most = notes.lock().unwrap();
            *most = unprotected.max(*most);
            succeeded("ok")
        }
    };
    let relay = Relay::builder(&world.outbox)
        .operation("safe", Operation::new(DEDUPLICATES, handler()))
        .operation("pay", Operation::new(Unprotected, handler()))
        .operation("mail", Operation::new(Unprotected, handler()))
        .workers(1);
    relay.build().unwrap().drain().unwrap();
    assert_eq!(*most.lock().unwrap(), 1);
    assert_eq!(world.number("SELECT count(*) FROM outbox_receipt"), 18);
}

/// A relay may take a stored contract back only where it says so.
#[test]
fn contract_is_weakened_only_on_purpose() {
    let world = World::new();
    let (id, other) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
    let holds = || world.outbox.operations().unwrap().pop().unwrap().downstream;
    drop(world.relay(Unprotected));
    drop(world.relay(DEDUPLICATES));
    assert_eq!(holds(), Unprotected);
    world.script.then(maybe_sent());
    let weaker = world.operation(DEDUPLICATES).weaken_stored_contract();
    relay_on(&world.outbox, weaker).drain().unwrap();
    assert_eq!(holds(), DEDUPLICATES);
    assert_eq!(world.entry(id).status, Status::Pending);
    assert_eq!(world.entry(other).status, Status::Succeeded);
    let short = DeduplicatesByKey { window: Duration::from_secs(600) };
    drop(world.relay(short));
    drop(world.relay(DEDUPLICATES));
    assert_eq!(holds(), short, "the shorter window");
}

/// A handler that drains its own relay would wait for itself.
#[test]
fn drain_within_a_drain_is_refused() {
    let world = World::new();
    world.enqueue(&pay("a"));
    let relay: Arc<std::sync::OnceLock<Relay>> = Arc::default();
    let inner = Arc::clone(&relay);
    let handler = move |_: &sqlite_outbox::Delivery| {
        let refused = inner.get().unwrap().drain().unwrap_err();
        assert!(refused.to_string().contains("being drained already"), "{refused}");
        succeeded("ok")
    };
    let built = Relay::builder(&world.outbox)
        .operation("pay", Operation::new(DEDUPLICATES, handler))
        .workers(1)
        .build()
        .unwrap();
    let relay = relay.get_or_init(|| built);
    assert_eq!(relay.drain().unwrap().succeeded, 1);
}

/// The record assumed that its row exists.
#[test]
fn deleted_row_under_its_worker_does_not_panic() {
    for outcome in [succeeded("ok"), rejected(), maybe_sent()] {
        for gone in [
            "DELETE FROM outbox_lease WHERE id = 1",
            "DROP TRIGGER outbox_delete_guard; DELETE FROM outbox WHERE id = 1",
            "DROP TRIGGER outbox_delete_guard; DELETE FROM outbox_lease WHERE id = 1;
             DELETE FROM outbox_keyed WHERE id = 1; DELETE FROM outbox WHERE id = 1",
        ] {
            let world = Arc::new(World::new());
            let relay_needs = world.enqueue(&pay("a").ordering_key("k"));
            let others = [world.enqueue(&pay("b")), world.enqueue(&pay("c"))];
            let inside = Arc::clone(&world);
            let first = interrupted(move || inside.batch(gone), outcome.clone());
            let relay = world.other_relay(DEDUPLICATES, move |delivery: &Delivery| {
                if delivery.id() == relay_needs { first(delivery) } else { succeeded("ok") }
            });
            relay.drain().unwrap();
            for other in others {
                assert_eq!(world.entry(other).status, Status::Succeeded, "{outcome:?} {gone}");
            }
        }
    }
}

#[test]
fn relay_configuration_is_checked() {
    let world = World::new();
    let op = || Operation::new(DEDUPLICATES, |_: &Delivery| -> Outcome { unreachable!() });
    let builder = || Relay::builder(&world.outbox);
    let long = Duration::from_secs(61);
    let bad = [
        ("operation", builder()),
        ("operation", builder().operation("pay now", op())),
        ("operation", builder().operation("pay", op()).operation("pay", op())),
        ("workers", builder().operation("pay", op()).workers(0)),
        ("batch", builder().operation("pay", op()).batch(0)),
        ("lease", builder().operation("pay", op()).lease(Duration::from_secs(60))),
        ("max_attempts", builder().operation("pay", op().max_attempts(0))),
        ("max_in_flight", builder().operation("pay", op().max_in_flight(0))),
        (
            "backoff",
            builder().operation("pay", op().backoff(sqlite_outbox::Backoff::Schedule(vec![]))),
        ),
        (
            "key_window",
            builder().operation(
                "pay",
                Operation::new(
                    DeduplicatesByKey { window: Duration::from_secs(60) },
                    |_: &Delivery| not_sent(),
                ),
            ),
        ),
    ];
    assert!(Shard::new(2, 2).unwrap_err().to_string().contains("shard"));
    for (option, builder) in bad {
        let error = builder.build().expect_err(option);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{option}");
        assert!(error.to_string().contains(option), "{option}: {error}");
    }
    assert!(builder().default_operation(op()).lease(long).build().is_ok());
    assert!(world.outbox.operations().unwrap().is_empty(), "nothing was stored by a refused one");
}

#[test]
fn operations_that_are_not_named_wait_unless_there_is_a_default() {
    let world = World::new();
    world.enqueue(&pay("a"));
    let other = world.enqueue(&sqlite_outbox::Intent::new("mail.send", "a"));
    world.drain(DEDUPLICATES);
    assert_eq!(world.entry(other).status, Status::Pending);
    let relay = Relay::builder(&world.outbox)
        .default_operation(world.operation(DEDUPLICATES))
        .workers(1)
        .build()
        .unwrap();
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    assert_eq!(world.outbox.operations().unwrap().len(), 2);
    let error = relay_on(&world.outbox, world.operation(DEDUPLICATES))
        .start()
        .map(|handle| handle.shutdown(LONG).map(drop));
    assert!(!matches!(error, Err(error) if error.kind() == ErrorKind::Schema));
}
