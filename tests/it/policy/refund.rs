//! Cost that an attempt takes from a budget, and when it comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{Delivery, Downstream, Failure, Operation, Outcome, Status};

use super::budget::{enqueue_many, entries, numbered, spent, two_relays};
use crate::support::world::{
    DEDUPLICATES, START, World, limited, maybe_sent, needs_review, not_sent, pay, rejected,
    relay_on, succeeded, transient,
};

const MINUTE: Duration = Duration::from_secs(60);
const MINUTE_MS: i64 = 60_000;

#[test]
fn refund_is_made_only_for_what_is_proven_not_applied() {
    let unauthorized = Outcome::Unauthorized(Failure::new("auth", "answered 401"));
    for (outcome, kept) in [
        (not_sent(), 0),
        (unauthorized, 0),
        (rejected(), 0),
        (transient(), 0),
        (limited(), 0),
        (maybe_sent(), 1),
        (needs_review(), 1),
        (succeeded("ok"), 1),
    ] {
        let world = World::new();
        enqueue_many(&world, &[pay("1").cost(5), pay("2").cost(5)]);
        // The second one is there so that a missing WHERE would show.
        world.sql("UPDATE outbox_lease SET due_at = due_at + 1000000 WHERE id = 2");
        world.sql(
            "INSERT INTO outbox_spend (operation, at, id, token, tenant_id, cost)
             VALUES ('pay', 1800000000000, 2, 1, '', 5)",
        );
        world.script.then(outcome.clone());
        let [relay, _] = two_relays(&world, |operation| operation.max_cost(10, MINUTE));
        relay.drain().unwrap();
        assert_eq!((entries(&world), spent(&world)), (1 + kept, 5 + 5 * kept), "{outcome:?}");
    }
}

/// A claim that waited for a worker would be sent long after it was counted.
#[test]
fn budget_claims_only_what_a_worker_begins_at_once() {
    let world = World::new();
    enqueue_many(&world, &numbered(4));
    let path = world.path();
    let in_flight = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&in_flight);
    let throttle = Operation::new(DEDUPLICATES, move |_: &Delivery| {
        let conn = Connection::open(&path).unwrap();
        let count = conn.query_row("SELECT count(*) FROM outbox_spend", [], |row| row.get(0));
        seen.store(count.unwrap(), Ordering::Relaxed);
        limited()
    });
    let relay = relay_on(&world.outbox, throttle.max_per(10, MINUTE));
    relay.drain().unwrap();
    assert_eq!(in_flight.load(Ordering::Relaxed), 1);
    assert_eq!(entries(&world), 0);
}

#[test]
fn retry_takes_the_cost_with_it() {
    let world = World::new();
    enqueue_many(&world, &[pay("1").cost(10)]);
    world.script.times(3, &maybe_sent()).then(not_sent());
    let [relay, other] = two_relays(&world, |operation| {
        operation.max_cost(10, MINUTE).max_per(100, Duration::from_secs(3600))
    });
    for round in 1..=3 {
        relay.drain().unwrap();
        assert_eq!((entries(&world), spent(&world)), (round, 10));
        world.advance(4);
    }
    // What this attempt gives back is its own entry; the reserve for the unknown ones stays.
    other.drain().unwrap();
    assert_eq!((entries(&world), spent(&world)), (3, 10));
    // In the order in which they come due: what costs nothing more goes, what costs one waits.
    enqueue_many(&world, &[pay("2").cost(1).delay(Duration::from_secs(8))]);
    world.advance(8);
    assert_eq!(other.drain().unwrap().succeeded, 1);
    assert_eq!((entries(&world), spent(&world)), (4, 10));
    assert_eq!(world.entry(2).status, Status::Pending);
    // The cost stands with the last request, which may be the one that had the effect.
    world.pass_until(START + 20_000 + MINUTE_MS - 1);
    assert_eq!(other.drain().unwrap().succeeded, 0);
    world.pass_until(START + 20_000 + MINUTE_MS);
    assert_eq!(other.drain().unwrap().succeeded, 1);
}

/// Its process died with it: nobody knows how far it came.
#[test]
fn refund_is_not_made_for_a_lost_lease() {
    let world = World::new();
    enqueue_many(&world, &[pay("1").cost(6), pay("2").cost(6)]);
    let configure = |operation: Operation| operation.max_cost(10, Duration::from_secs(600));
    // Registers the budget; the claim after it is that of a process that was killed.
    let [relay, _] = two_relays(&world, configure);
    world.batch(&format!(
        "UPDATE outbox_meta SET token = 7;
         UPDATE outbox_lease SET state = 'in_flight', owner = 'dead', token = 7,
             attempts = 1, tries = 1,
             claimed_at = {START}, due_at = {START} + 90000 WHERE id = 1;
         INSERT INTO outbox_spend (operation, at, id, token, tenant_id, cost)
             VALUES ('pay', {START}, 1, 7, '', 6);"
    ));
    assert_eq!(relay.drain().unwrap().attempts, 0, "the other does not fit");
    world.sql("UPDATE outbox_lease SET due_at = due_at + 100000 WHERE id = 2");
    world.advance(90);
    // Recovered and sent again: nothing more is spent for it, and nothing is free.
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    assert_eq!(world.entry(1).status, Status::Succeeded);
    assert_eq!((entries(&world), spent(&world)), (2, 6));
    for at in [START + 100_000, START + 90_000 + 599_999] {
        world.pass_until(at);
        assert_eq!(relay.drain().unwrap().attempts, 0);
    }
    world.pass_until(START + 90_000 + 600_000);
    assert_eq!(relay.drain().unwrap().succeeded, 1);
}

#[test]
fn refund_is_not_made_where_the_downstream_forgets_keys() {
    let world = World::new();
    enqueue_many(&world, &[pay("1").cost(10), pay("2").cost(1)]);
    world.script.then(maybe_sent());
    let operation = world.operation(Downstream::Unprotected).max_cost(10, MINUTE);
    let relay = relay_on(&world.outbox, operation);
    relay.drain().unwrap();
    assert_eq!(world.entry(1).status, Status::Unknown);
    assert_eq!((entries(&world), spent(&world)), (1, 10));
    assert_eq!(world.entry(2).status, Status::Pending);
    world.advance(60);
    assert_eq!(relay.drain().unwrap().succeeded, 1);
}

/// A relay that starts has waited for the lock with an older time than what another wrote
/// meanwhile, and must not make that leave its window early.
#[test]
fn budget_entries_of_another_relay_outlive_a_start() {
    let world = World::new();
    enqueue_many(&world, &numbered(2));
    let configure = |operation: Operation| operation.max_per(1, MINUTE);
    world.advance(3);
    let [relay, _] = two_relays(&world, configure);
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    world.clock.set(START);
    drop(two_relays(&world, configure));
    world.pass_until(START + MINUTE_MS + 2999);
    assert_eq!(relay.drain().unwrap().attempts, 0);
    world.pass_until(START + MINUTE_MS + 3000);
    assert_eq!(relay.drain().unwrap().succeeded, 1);
}
