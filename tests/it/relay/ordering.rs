//! Intents of one ordering key go out one after the other, in the order they were enqueued.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{Delivery, Intent, OnDead, Operation, Relay, Shard, Status};

use crate::support::world::{
    DEDUPLICATES, World, continuing, exact_backoff, immediate, interrupted, maybe_sent,
    needs_review, pay, rejected, relay_on, sent, succeeded, transient,
};

fn keyed(entity: &str, key: &str) -> Intent {
    pay(entity).ordering_key(key)
}

#[test]
fn ordering_keys_are_independent_of_each_other() {
    let world = World::new();
    for (entity, key) in [("a1", "a"), ("b1", "b"), ("a2", "a"), ("a3", "a"), ("b2", "b")] {
        world.enqueue(&keyed(entity, key));
    }
    world.enqueue(&keyed("t1", "a").tenant("other"));
    world.enqueue(&pay("free"));
    assert_eq!(
        world.number("SELECT count(*) FROM outbox_lease"),
        4,
        "three heads and the free one"
    );
    world.script.then(transient());
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 4);
    assert_eq!(sent(&world), ["a1", "b1", "b2", "t1", "free"]);
    assert_eq!(world.entry(3).status, Status::Pending);
    assert_eq!(world.entry(3).next_attempt_at, None, "queued");
    world.advance(1);
    world.drain(DEDUPLICATES);
    assert_eq!(sent(&world)[5..], ["a1", "a2", "a3"]);
    assert_eq!(world.number("SELECT count(*) FROM outbox_keyed"), 0);
    assert_eq!(world.number("SELECT count(*) FROM outbox_lease"), 0);
}

/// A and B of one key were claimed in one cycle; A failed and was put off, and B went out.
#[test]
fn retry_of_the_head_holds_its_followers() {
    let world = World::new();
    world.enqueue(&keyed("a", "k"));
    world.enqueue(&keyed("b", "k"));
    world.script.times(2, &transient());
    for _ in 0..4 {
        world.drain(DEDUPLICATES);
        world.advance(2);
    }
    assert_eq!(sent(&world), ["a", "a", "a", "b"]);
}

/// After an outage, retries and first sends were picked by separate rules, and newer intents
/// left before older ones.
#[test]
fn outage_in_the_middle_keeps_the_order() {
    let world = World::new();
    for n in 0..5 {
        world.enqueue(&keyed(&n.to_string(), "k"));
    }
    world.script.times(3, &maybe_sent());
    for _ in 0..3 {
        world.drain(DEDUPLICATES);
        world.advance(5);
    }
    for n in 5..10 {
        world.enqueue(&keyed(&n.to_string(), "k"));
    }
    world.drain(DEDUPLICATES);
    let mut order = sent(&world);
    order.dedup();
    assert_eq!(order, (0..10).map(|n| n.to_string()).collect::<Vec<_>>());
}

/// Order was by a time the application took, which differs from the order of commits and goes
/// back with the clock.
#[test]
fn order_is_that_of_ids_not_of_clocks() {
    let world = World::new();
    let late = world.clock.clone();
    world.enqueue(&keyed("1", "k"));
    late.set(crate::support::world::START - 60_000);
    world.enqueue(&keyed("2", "k"));
    late.set(crate::support::world::START + 1);
    world.enqueue(&keyed("3", "k"));
    let mut conn = world.app();
    let tx = immediate(&mut conn);
    // By plain SQL, with a time of its own long ago.
    tx.execute(
        "INSERT INTO outbox (operation, entity_id, idempotency_key, payload, ordering_key,
                             created_at, available_at)
         VALUES ('pay', '4', 'k4', '{}', 'k', 1000000000000, 1000000000000)",
        [],
    )
    .unwrap();
    tx.commit().unwrap();
    world.drain(DEDUPLICATES);
    assert_eq!(sent(&world), ["1", "2", "3", "4"]);
}

#[test]
fn scheduled_head_holds_its_followers() {
    let world = World::new();
    world.enqueue(&keyed("1", "k").delay(Duration::from_secs(60)));
    world.enqueue(&keyed("2", "k"));
    assert_eq!(world.drain(DEDUPLICATES).attempts, 0);
    world.advance(60);
    world.drain(DEDUPLICATES);
    assert_eq!(sent(&world), ["1", "2"]);
}

#[test]
fn dead_or_doubtful_head_blocks_its_key_alone() {
    for (outcome, downstream, status) in [
        (rejected(), DEDUPLICATES, Status::Dead),
        (maybe_sent(), Unprotected, Status::Unknown),
        (needs_review(), DEDUPLICATES, Status::NeedsReview),
    ] {
        let world = World::new();
        let head = world.enqueue(&keyed("1", "k"));
        let next = world.enqueue(&keyed("2", "k"));
        let free = world.enqueue(&keyed("x", "other"));
        world.script.then(outcome);
        world.drain(downstream);
        world.advance(1_000);
        world.drain(downstream);
        assert_eq!(world.entry(head).status, status);
        assert_eq!(world.entry(next).status, Status::Pending);
        assert_eq!(world.entry(free).status, Status::Succeeded);
        assert_eq!(sent(&world), ["1", "x"]);
    }
}

#[test]
fn dead_head_goes_first_when_it_is_replayed() {
    let world = World::new();
    let head = world.enqueue(&keyed("1", "k"));
    world.enqueue(&keyed("2", "k"));
    world.script.then(rejected());
    world.drain(DEDUPLICATES);
    world.outbox.replay(head, "alice").unwrap();
    world.drain(DEDUPLICATES);
    assert_eq!(sent(&world), ["1", "1", "2"]);
}

#[test]
fn on_dead_continue_lets_the_others_go_on() {
    let world = World::new();
    let ids: Vec<i64> = ["1", "2", "3"].map(|entity| world.enqueue(&keyed(entity, "k"))).into();
    world.script.then(rejected()).then(rejected());
    continuing(&world).drain().unwrap();
    assert_eq!(sent(&world), ["1", "2", "3"]);
    assert_eq!(world.entry(ids[0]).status, Status::Dead);
    assert_eq!(world.entry(ids[1]).status, Status::Dead);
    assert_eq!(world.entry(ids[2]).status, Status::Succeeded);
}

/// Rows that were passed are replayed, in either order: they go out by their place again, before
/// what has not been sent yet.
#[test]
fn passed_rows_take_their_places_again() {
    for order in [[1, 2], [2, 1]] {
        let world = World::new();
        for entity in ["1", "2"] {
            world.enqueue(&keyed(entity, "k"));
        }
        world.script.then(rejected()).then(rejected());
        continuing(&world).drain().unwrap();
        world.enqueue(&keyed("3", "k"));
        for id in order {
            world.outbox.replay(id, "alice").unwrap();
        }
        let due = world.number(
            "SELECT count(*) FROM outbox_lease WHERE state = 'pending' AND due_at IS NOT NULL",
        );
        assert_eq!(due, 1, "one of a key may act");
        continuing(&world).drain().unwrap();
        assert_eq!(sent(&world)[2..], ["1", "2", "3"], "replayed as {order:?}");
        assert_eq!(world.number("SELECT count(*) FROM outbox_keyed"), 0);
    }
}

/// Row 1 was passed; while row 2 is being sent, row 1 is replayed and must wait for it, however
/// row 2 ends, and whatever else happens to the key meanwhile.
#[test]
fn passed_row_that_is_replayed_waits_for_the_one_in_flight() {
    for (outcome, after) in [
        (succeeded("2"), &["1", "3"][..]),
        (transient(), &["1", "2", "3"]),
        (rejected(), &["1", "3"]),
        // The head goes before the one that blocks, and nothing goes after that.
        (needs_review(), &["1"]),
    ] {
        let world = Arc::new(World::new());
        for entity in ["1", "2", "3", "4"] {
            world.enqueue(&keyed(entity, "k"));
        }
        // Row 1 dies and is passed.
        let one = interrupted(|| (), rejected());
        let inside = Arc::clone(&world);
        let two = interrupted(
            move || {
                inside.outbox.replay(1, "alice").unwrap();
                inside.outbox.transact(|tx| inside.outbox.cancel(tx, 4, "alice")).unwrap();
                assert_eq!(inside.entry(1).next_attempt_at, None, "2 is on the way");
                let seen_before = inside.script.seen().len();
                inside.drain(DEDUPLICATES);
                assert_eq!(inside.script.seen().len(), seen_before);
            },
            outcome.clone(),
        );
        let script = world.script.clone();
        let step = Mutex::new(0);
        let operation = Operation::new(DEDUPLICATES, move |delivery: &Delivery| {
            let step = {
                let mut step = step.lock().unwrap();
                *step += 1;
                *step
            };
            match step {
                1 => one(delivery),
                2 => two(delivery),
                _ => script.answer(delivery),
            }
        });
        let relay =
            relay_on(&world.second(), operation.backoff(exact_backoff()).on_dead(OnDead::Continue));
        relay.drain().unwrap();
        world.advance(100);
        relay.drain().unwrap();
        assert_eq!(sent(&world), after, "{outcome:?}");
    }
}

/// A relay that passes dead rows and one that stops at them: a replay must not let two of one
/// key act at once.
#[test]
fn dead_row_that_is_not_the_head_waits_when_replayed() {
    let world = World::new();
    world.enqueue(&keyed("1", "k"));
    world.enqueue(&keyed("2", "k"));
    world.script.then(rejected());
    world.script.then(rejected());
    continuing(&world).drain().unwrap();
    world.outbox.replay(2, "alice").unwrap();
    world.script.then(rejected());
    world.drain(DEDUPLICATES);
    // Row 2 is dead in its place; row 1 was passed.
    world.outbox.replay(1, "alice").unwrap();
    world.outbox.replay(2, "alice").unwrap();
    assert_eq!(world.entry(2).next_attempt_at, None, "1 is first");
    world.drain(DEDUPLICATES);
    assert_eq!(sent(&world)[3..], ["1", "2"]);
}

#[test]
fn cancelled_head_lets_the_next_go() {
    let world = World::new();
    for entity in ["1", "2", "3"] {
        world.enqueue(&keyed(entity, "k"));
    }
    // The queued one first: nothing else moves.
    world.outbox.transact(|tx| world.outbox.cancel(tx, 2, "alice")).unwrap();
    assert_eq!(world.number("SELECT count(*) FROM outbox_lease"), 1);
    world.outbox.transact(|tx| world.outbox.cancel(tx, 1, "alice")).unwrap();
    assert_eq!(world.entry(3).next_attempt_at, Some(crate::support::world::START));
    world.drain(DEDUPLICATES);
    assert_eq!(sent(&world), ["3"]);
    assert_eq!(world.entry(1).status, Status::Cancelled);
    assert_eq!(world.entry(2).status, Status::Cancelled);
}

/// Shards are by id, so the rows of a key are spread over relays: the order holds all the same,
/// and no relay spins on rows of another. How much waits for each shard is not told yet; a regular
/// pattern of ids can leave one of them idle.
#[test]
fn ordering_key_over_several_shards_keeps_its_order() {
    let world = World::new();
    for n in 0..12 {
        world.enqueue(&keyed(&n.to_string(), if n % 3 == 0 { "a" } else { "b" }));
    }
    let shard = |index| {
        Relay::builder(&world.outbox)
            .operation("pay", world.operation(DEDUPLICATES))
            .workers(1)
            .shard(Shard::new(index, 2).unwrap())
            .build()
            .unwrap()
    };
    let relays = [shard(0), shard(1)];
    for _ in 0..12 {
        for relay in &relays {
            relay.drain().unwrap();
        }
    }
    let seen = world.script.seen();
    assert_eq!(seen.len(), 12);
    for key in ["a", "b"] {
        let ids: Vec<i64> =
            seen.iter().filter(|d| d.ordering_key() == Some(key)).map(Delivery::id).collect();
        assert!(ids.is_sorted(), "{key}: {ids:?}");
    }
}

/// Failing rows at the front once filled the batch, and newer rows were never fetched.
#[test]
fn failing_rows_at_the_front_do_not_hide_the_others() {
    let world = World::new();
    for n in 0..100 {
        world.enqueue(&pay(&format!("bad{n}")));
    }
    for n in 0..100 {
        world.enqueue(&pay(&format!("good{n}")));
    }
    let script = world.script.clone();
    let operation = Operation::new(DEDUPLICATES, move |delivery: &Delivery| {
        if delivery.entity().starts_with("bad") { maybe_sent() } else { script.answer(delivery) }
    });
    // Without the breaker, which is another matter: see there.
    let operation = operation.backoff(exact_backoff()).breaker_after(0);
    let report = relay_on(&world.outbox, operation).drain().unwrap();
    assert_eq!((report.succeeded, report.retried), (100, 100));
}
