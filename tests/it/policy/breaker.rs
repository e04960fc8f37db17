//! A bad day downstream: pauses, the circuit breaker, throttling and rates.

use std::time::Duration;

use sqlite_outbox::{Actor, Delivery, Failure, Operation, Outcome, PauseKind, Relay, Status};

use crate::support::world::{
    DEDUPLICATES, START, World, exact_backoff, limited, maybe_sent, not_sent, pay, relay_on,
};

fn unauthorized() -> Outcome {
    Outcome::Unauthorized(Failure::new("auth", "answered 401").status(401))
}

fn enqueue_many(world: &World, count: usize) {
    let intents: Vec<_> = (0..count).map(|n| pay(&n.to_string())).collect();
    world.outbox.transact(|tx| world.outbox.enqueue_all(tx, &intents)).unwrap();
}

fn events(world: &World) -> i64 {
    world.number(
        "SELECT (SELECT count(*) FROM outbox_event)
              + (SELECT count(*) FROM outbox_operation_event)",
    )
}

#[test]
fn pause_and_resume_by_a_person() {
    let world = World::new();
    enqueue_many(&world, 3);
    let relay = world.relay(DEDUPLICATES);
    world.outbox.pause("pay", None, Actor::new("alice").reason("their maintenance")).unwrap();
    world.advance(1_000_000);
    assert_eq!(relay.drain().unwrap().attempts, 0);
    let stored = world.outbox.operations().unwrap().remove(0);
    assert_eq!((stored.paused, stored.paused_until), (Some(PauseKind::Operator), None));
    assert_eq!(stored.paused_by.as_deref(), Some("alice"));
    assert_eq!(stored.paused_reason.as_deref(), Some("their maintenance"));
    // Another relay, another process, a restart: the pause is in the file.
    assert_eq!(world.drain(DEDUPLICATES).attempts, 0);
    assert!(world.outbox.resume("pay", "alice").unwrap());
    assert!(!world.outbox.resume("pay", "alice").unwrap());
    assert_eq!(relay.drain().unwrap().succeeded, 3);
    assert_eq!(world.outbox.operations().unwrap()[0].paused, None);
    let moves = "SELECT count(*) FROM outbox_operation_event WHERE actor = 'alice'";
    assert_eq!(world.number(moves), 2);
    assert!(world.outbox.pause("unheard.of", None, "alice").is_err());
}

#[test]
fn pause_with_an_end_ends_automatically() {
    let world = World::new();
    enqueue_many(&world, 2);
    let relay = world.relay(DEDUPLICATES);
    world.outbox.pause("pay", Some(Duration::from_secs(60)), "alice").unwrap();
    world.advance(59);
    assert_eq!(relay.drain().unwrap().attempts, 0);
    world.advance(1);
    assert_eq!(relay.drain().unwrap().succeeded, 2);
    assert_eq!(
        world.number("SELECT count(*) FROM outbox_operation_event WHERE kind = 'resumed'"),
        1
    );
}

/// A token expired in the middle of thousands of rows, and the rest of them burned.
#[test]
fn auth_pause_costs_one_row_and_a_restart_goes_on() {
    let world = World::new();
    enqueue_many(&world, 50);
    for _ in 0..20 {
        world.script.then(crate::support::world::succeeded("ok"));
    }
    world.script.times(3, &unauthorized());
    let relay = world.relay(DEDUPLICATES);
    assert_eq!(relay.drain().unwrap().succeeded, 20);
    assert_eq!(world.script.seen().len(), 21);
    // A slow probe, one row at a time, without an event.
    let before = events(&world);
    world.advance(3600);
    assert_eq!(relay.drain().unwrap().attempts, 0);
    assert_eq!(world.script.seen().len(), 22);
    assert_eq!(events(&world), before);
    // A restart may bring new credentials, so it asks at once; these were not.
    let relay = world.relay(DEDUPLICATES);
    relay.drain().unwrap();
    assert_eq!(world.script.seen().len(), 23);
    assert_eq!(world.number("SELECT count(*) FROM outbox_lease WHERE state <> 'pending'"), 0);
    assert_eq!(world.number("SELECT max(attempts) FROM outbox_lease"), 0);
    world.outbox.resume("pay", Actor::new("alice").reason("new token")).unwrap();
    assert_eq!(relay.drain().unwrap().succeeded, 30);
    let twice = "SELECT count(*) FROM outbox_receipt WHERE attempts > 1";
    assert_eq!(world.number(twice), 0);
}

/// A request may have had an effect although it was only a probe: its row says so.
#[test]
fn probe_that_may_have_been_applied_is_in_the_trail() {
    let world = World::new();
    enqueue_many(&world, 3);
    world.script.then(unauthorized()).times(2, &maybe_sent());
    let relay = world.relay(DEDUPLICATES);
    relay.drain().unwrap();
    for probes in 1..=2 {
        world.advance(3600);
        assert_eq!(relay.drain().unwrap().attempts, 1);
        let told = "SELECT count(*) FROM outbox_event WHERE error_class = 'timeout'";
        assert_eq!(world.number(told), probes);
        let doubts = "SELECT count(*) FROM outbox_lease WHERE in_doubt_since IS NOT NULL";
        assert_eq!(world.number(doubts), world.number(told));
    }
    assert_eq!(world.number("SELECT max(attempts) FROM outbox_lease"), 0, "none is used up");
}

/// The same with five thousand rows and four workers, some of which are with the downstream when
/// the token expires.
#[test]
fn auth_pause_in_the_middle_of_thousands_kills_none() {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    let world = World::new();
    enqueue_many(&world, 5000);
    let expired = std::sync::Arc::new(AtomicBool::new(false));
    let sent: std::sync::Arc<[AtomicUsize]> = (0..5001).map(|_| AtomicUsize::new(0)).collect();
    let (state, counts, total) = (expired.clone(), sent.clone(), AtomicUsize::new(0));
    let operation = Operation::new(DEDUPLICATES, move |delivery: &Delivery| {
        counts[usize::try_from(delivery.id()).unwrap()].fetch_add(1, Ordering::Relaxed);
        if total.fetch_add(1, Ordering::Relaxed) == 2500 {
            state.store(true, Ordering::Relaxed);
        }
        if state.load(Ordering::Relaxed) {
            unauthorized()
        } else {
            crate::support::world::succeeded("ok")
        }
    });
    let relay = Relay::builder(&world.outbox).operation("pay", operation).build().unwrap();
    relay.drain().unwrap();
    let left = "SELECT count(*) FROM outbox_lease WHERE state = 'pending'";
    let done = world.number("SELECT count(*) FROM outbox_receipt");
    assert_eq!(done + world.number(left), 5000);
    assert!((2000..=2501).contains(&done), "{done}");
    expired.store(false, Ordering::Relaxed);
    world.outbox.resume("pay", Actor::new("alice").reason("new token")).unwrap();
    for _ in 0..20 {
        relay.drain().unwrap();
        world.advance(5);
    }
    assert_eq!(world.number("SELECT count(*) FROM outbox_receipt"), 5000);
    assert!(sent.iter().all(|count| count.load(Ordering::Relaxed) <= 2));
}

#[test]
fn breaker_opens_probes_one_at_a_time_and_closes() {
    let world = World::new();
    enqueue_many(&world, 100);
    world.script.times(13, &not_sent());
    let relay = world.relay(DEDUPLICATES);
    relay.drain().unwrap();
    // Ten in a row opened it; the others were not tried.
    assert_eq!(world.script.seen().len(), 10);
    assert_eq!(world.outbox.operations().unwrap()[0].paused, Some(PauseKind::Breaker));
    let mut probes = 0;
    while world.outbox.operations().unwrap()[0].paused.is_some() {
        let before = events(&world);
        let until = world.outbox.operations().unwrap().remove(0).paused_until.unwrap();
        world.pass_until(until - 1);
        assert_eq!(relay.drain().unwrap().attempts, 0);
        assert_eq!(world.script.seen().len(), 10 + probes);
        world.pass_until(until);
        relay.drain().unwrap();
        probes += 1;
        if probes <= 3 {
            assert_eq!(world.script.seen().len(), 10 + probes, "one probe at a time");
            assert_eq!(events(&world), before, "a failed probe leaves no event");
        }
        assert!(probes <= 4);
    }
    // The rest follows; rows that had failed themselves are due by their own backoff.
    world.advance(60);
    relay.drain().unwrap();
    assert_eq!(world.number("SELECT count(*) FROM outbox_receipt"), 100);
    let kinds = "SELECT group_concat(kind) = 'paused,resumed' FROM outbox_operation_event";
    assert_eq!(world.number(kinds), 1);
}

/// Rows that fail while others would not: each probe reaches further back in the line, so that bad
/// ones in front cannot keep the operation closed.
#[test]
fn breaker_probes_reach_past_a_bad_front() {
    let world = World::new();
    let intents: Vec<_> = (0..30).map(|n| pay(&format!("bad{n}"))).collect();
    world.outbox.transact(|tx| world.outbox.enqueue_all(tx, &intents)).unwrap();
    enqueue_many(&world, 30);
    let script = world.script.clone();
    let operation = Operation::new(DEDUPLICATES, move |delivery: &Delivery| {
        if delivery.entity().starts_with("bad") { maybe_sent() } else { script.answer(delivery) }
    });
    let relay = relay_on(&world.outbox, operation.backoff(exact_backoff()));
    let good = "SELECT count(*) FROM outbox_receipt";
    for _ in 0..120 {
        relay.drain().unwrap();
        world.advance(30);
    }
    assert_eq!(world.number(good), 30);
}

#[test]
fn offline_for_four_days_costs_nothing() {
    let world = World::new();
    // Twice as many rows as tries are allowed: one try of each would be too many.
    enqueue_many(&world, 2000);
    let offline = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let tries = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let (network, count) = (offline.clone(), tries.clone());
    let operation = Operation::new(DEDUPLICATES, move |_: &Delivery| {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if network.load(std::sync::atomic::Ordering::Relaxed) {
            not_sent()
        } else {
            crate::support::world::succeeded("ok")
        }
    });
    let relay =
        Relay::builder(&world.outbox).operation("pay", operation).workers(1).build().unwrap();
    let end = START + 4 * 24 * 3600 * 1000;
    while sqlite_outbox::Clock::now(&world.clock) < end {
        relay.drain().unwrap();
        world.advance(60);
    }
    let tried = tries.load(std::sync::atomic::Ordering::Relaxed);
    assert!(tried < 1000, "{tried}");
    assert!(events(&world) < 1000);
    assert_eq!(world.number("SELECT count(*) FROM outbox_lease WHERE state = 'pending'"), 2000);
    assert_eq!(world.number("SELECT max(attempts) FROM outbox_lease"), 0);
    offline.store(false, std::sync::atomic::Ordering::Relaxed);
    for _ in 0..120 {
        relay.drain().unwrap();
        world.advance(30);
    }
    assert_eq!(world.number("SELECT count(*) FROM outbox_receipt"), 2000);
    assert_eq!(world.number("SELECT max(attempts) FROM outbox_receipt"), 1);
}

#[test]
fn status_429_holds_the_operation_until_retry_after() {
    let world = World::new();
    enqueue_many(&world, 10);
    let asked = Outcome::Limited(
        Failure::new("limited", "answered 429").retry_after(Duration::from_secs(30)),
    );
    world.script.then(asked).then(limited());
    let relay = world.relay(DEDUPLICATES);
    relay.drain().unwrap();
    assert_eq!(world.script.seen().len(), 1);
    world.advance(29);
    relay.drain().unwrap();
    assert_eq!(world.script.seen().len(), 1);
    // Without Retry-After the backoff holds it.
    world.advance(1);
    relay.drain().unwrap();
    assert_eq!(world.script.seen().len(), 2);
    world.advance(10);
    assert_eq!(relay.drain().unwrap().succeeded, 10);
    assert_eq!(world.number("SELECT max(attempts) FROM outbox_receipt"), 1);
}

#[test]
fn rate_holds_over_all_relays() {
    let world = World::new();
    enqueue_many(&world, 100);
    let relay =
        || relay_on(&world.outbox, world.operation(DEDUPLICATES).rate(20, Duration::from_secs(1)));
    let relays = [relay(), relay()];
    let mut sent = Vec::new();
    for _ in 0..100 {
        for relay in &relays {
            relay.drain().unwrap();
        }
        sent.push(world.script.seen().len());
        world.clock.advance(Duration::from_millis(50));
    }
    assert_eq!(*sent.last().unwrap(), 100);
    for second in sent.windows(21) {
        assert!(second[20] - second[0] <= 20, "{sent:?}");
    }
    // And it is used: a hundred in about five seconds.
    assert!(sent[99] == 100 && sent[80] >= 78, "{sent:?}");
}

#[test]
fn max_in_flight_holds_over_all_relays() {
    let world = World::new();
    enqueue_many(&world, 10);
    world.sql(
        "UPDATE outbox_lease SET state = 'in_flight', owner = 'another', token = 1,
             claimed_at = due_at,
             due_at = due_at + 90000 WHERE id <= 2",
    );
    let relay = |most| relay_on(&world.outbox, world.operation(DEDUPLICATES).max_in_flight(most));
    assert_eq!(relay(2).drain().unwrap().attempts, 0);
    assert_eq!(relay(3).drain().unwrap().attempts, 0, "the smaller one holds");
    let three = world.operation(DEDUPLICATES).max_in_flight(3).weaken_stored_contract();
    assert_eq!(relay_on(&world.outbox, three).drain().unwrap().succeeded, 8);
    assert_eq!(world.entry(1).status, Status::InFlight);
}

/// The probe's process dies: another probe goes when its lease is over.
#[test]
fn breaker_probe_that_is_lost_does_not_keep_it_open() {
    let world = World::new();
    enqueue_many(&world, 20);
    world.script.times(10, &not_sent());
    let relay = world.relay(DEDUPLICATES);
    relay.drain().unwrap();
    let until = world.outbox.operations().unwrap().remove(0).paused_until.unwrap();
    world.pass_until(until);
    world.sql(&format!(
        "UPDATE outbox_lease SET state = 'in_flight', owner = 'dead', token = 99,
             attempts = 1, tries = 1,
             claimed_at = {until}, due_at = {until} + 90000 WHERE id = 20"
    ));
    world.sql("UPDATE outbox_operation SET probe_id = 20, probe_token = 99");
    assert_eq!(relay.drain().unwrap().attempts, 0);
    world.advance(90);
    relay.drain().unwrap();
    assert_eq!(world.outbox.operations().unwrap()[0].paused, None);
}
