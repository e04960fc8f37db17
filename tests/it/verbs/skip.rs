//! Letting an ordering key go on without the intent that blocks it, and what becomes of that one.

use std::sync::{Arc, Mutex};

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{
    Actor, Delivery, Downstream, Error, ErrorKind, EventKind, Finding, OnDead, Operation, Outcome,
    Relay, Resolution, Status,
};

use crate::support::standing::{FIRST, Standing, all_about};
use crate::support::world::{
    DEDUPLICATES, World, exact_backoff, immediate, maybe_sent, needs_review, pay, rejected,
    relay_on, sent, succeeded, transient,
};

fn skip(world: &World, id: i64) -> Result<(), Error> {
    world.outbox.transact(|tx| world.outbox.skip(tx, id, Actor::new("ann").reason("it is urgent")))
}

fn enqueue(world: &World, entities: &[&str]) {
    for entity in entities {
        world.enqueue(&pay(entity).ordering_key("k"));
    }
}

/// A head that blocks its key: how it came to that, and where.
fn blocked() -> [(Outcome, Downstream, Status); 3] {
    [
        (rejected(), DEDUPLICATES, Status::Dead),
        (maybe_sent(), Unprotected, Status::Unknown),
        (needs_review(), DEDUPLICATES, Status::NeedsReview),
    ]
}

#[test]
fn skip_lets_the_ordering_key_go_on_and_leaves_the_row() {
    for (outcome, downstream, status) in blocked() {
        let world = World::new();
        enqueue(&world, &["1", "2", "3"]);
        world.script.then(outcome);
        world.drain(downstream);
        world.advance(60);
        world.drain(downstream);
        assert_eq!(sent(&world), ["1"], "{status} blocks");
        assert_eq!(world.entry(2).waits_behind, Some(1));
        skip(&world, 1).unwrap();
        assert_eq!(world.entry(2).waits_behind, None);
        assert_eq!(world.drain(downstream).succeeded, 2);
        assert_eq!(sent(&world), ["1", "2", "3"]);
        assert_eq!(world.entry(1).status, status);
        let event = world.outbox.audit(1).unwrap().pop().unwrap();
        assert_eq!(
            (event.kind, event.from_status, event.status),
            (EventKind::Skipped, status, status)
        );
        assert_eq!(
            (event.actor.as_deref(), event.reason.as_deref()),
            (Some("ann"), Some("it is urgent"))
        );
        // It can be dealt with as if it had never been in anybody's way.
        world.outbox.resolve(1, &Resolution::Applied { downstream_id: None }, "ann").unwrap();
        assert_eq!(world.entry(1).status, Status::Succeeded);
        assert_eq!(world.number("SELECT count(*) FROM outbox_keyed"), 0);
    }
}

#[test]
fn skip_of_a_row_that_blocks_nothing_is_refused() {
    for standing in Standing::ALL {
        let blocks =
            matches!(standing.status(), Status::Dead | Status::Unknown | Status::NeedsReview);
        standing.then(move |world| {
            let before = all_about(world, FIRST);
            let result = skip(world, FIRST);
            assert_eq!(result.is_ok(), blocks, "{standing:?}");
            if let Err(error) = result {
                assert_eq!(error.kind(), ErrorKind::Refused);
                assert!(error.to_string().contains(standing.status().as_str()), "{error}");
                assert_eq!(all_about(world, FIRST), before);
                return;
            }
            let before = all_about(world, FIRST);
            assert_eq!(skip(world, FIRST).unwrap_err().kind(), ErrorKind::Refused, "once");
            assert_eq!(all_about(world, FIRST), before);
        });
    }
    let world = World::new();
    assert_eq!(skip(&world, 99).unwrap_err().kind(), ErrorKind::NotFound);
    let free = world.enqueue(&pay("free"));
    world.script.then(rejected());
    world.drain(DEDUPLICATES);
    let error = skip(&world, free).unwrap_err();
    assert!(error.to_string().contains("no ordering key"), "{error}");
}

#[test]
fn skip_belongs_to_the_callers_transaction() {
    let world = World::new();
    enqueue(&world, &["1", "2"]);
    world.script.then(rejected());
    world.drain(DEDUPLICATES);
    let before = all_about(&world, 1);
    let mut conn = world.app();
    let error = world.outbox.skip(&conn, 1, "ann").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoTransaction);
    let tx = immediate(&mut conn);
    world.outbox.skip(&tx, 1, "ann").unwrap();
    tx.rollback().unwrap();
    assert_eq!(all_about(&world, 1), before);
    world.drain(DEDUPLICATES);
    assert_eq!(sent(&world), ["1"]);
}

/// A relay that asks nobody. It does this in the middle of its first delivery, which ends so; what
/// follows is scripted.
fn without_look_up(
    world: &World,
    meanwhile: impl FnOnce() + Send + 'static,
    outcome: Outcome,
) -> Relay {
    let (first, script) = (Mutex::new(Some(meanwhile)), world.script.clone());
    let handler = move |delivery: &Delivery| {
        let meanwhile = first.lock().unwrap().take();
        let Some(meanwhile) = meanwhile else { return script.answer(delivery) };
        meanwhile();
        outcome.clone()
    };
    relay_on(&world.second(), Operation::new(Unprotected, handler).backoff(exact_backoff()))
}

/// How a skipped row is sent back, while a later one is on the way.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Back {
    Replayed,
    Resolved,
    Found,
}

/// The skipped one must not be beside the other, and goes next, however that one ends.
#[test]
fn skipped_row_that_is_replayed_waits_for_the_one_in_flight() {
    for (outcome, back) in [
        (rejected(), Back::Replayed),
        (maybe_sent(), Back::Resolved),
        (needs_review(), Back::Resolved),
        (maybe_sent(), Back::Found),
    ] {
        for (ends, expected) in [
            (succeeded("2"), &["1", "1", "3"][..]),
            (transient(), &["1", "1", "2", "3"]),
            (maybe_sent(), &["1", "1"]),
        ] {
            let world = Arc::new(World::new());
            enqueue(&world, &["1", "2", "3"]);
            world.script.then(outcome.clone());
            // It must have known of the doubt for as long as the settle delay.
            let asking = Arc::new(world.relay(Unprotected));
            asking.drain().unwrap();
            skip(&world, 1).unwrap();
            world.advance(120);
            let (inside, asks) = (Arc::clone(&world), Arc::clone(&asking));
            let meanwhile = move || {
                match back {
                    Back::Replayed => inside.outbox.replay(1, "ann").unwrap(),
                    Back::Resolved => {
                        inside.outbox.resolve(1, &Resolution::NotApplied, "ann").unwrap();
                    }
                    Back::Found => drop(inside.script.then_find(Finding::NotApplied)),
                }
                asks.drain().unwrap();
                let entry = inside.entry(1);
                assert_eq!((entry.status, entry.next_attempt_at), (Status::Pending, None));
                let (rule, text) = inside.outbox.why(1, None).unwrap();
                assert_eq!(rule, "queued", "{text}");
                assert!(text.contains("intent 2"), "{text}");
            };
            without_look_up(&world, meanwhile, ends.clone()).drain().unwrap();
            world.advance(10);
            asking.drain().unwrap();
            assert_eq!(sent(&world), expected, "{back:?} after {outcome:?}, {ends:?}");
        }
    }
}

/// Asking about a skipped row, and not being told, let a row go that waited for one on the way.
#[test]
fn lookup_of_a_skipped_row_moves_no_other_row() {
    let world = Arc::new(World::new());
    enqueue(&world, &["1", "2", "3", "4"]);
    world.script.then(maybe_sent()).then(rejected());
    let asking = Arc::new(world.relay(Unprotected));
    asking.drain().unwrap();
    skip(&world, 1).unwrap();
    asking.drain().unwrap();
    skip(&world, 2).unwrap();
    world.advance(120);
    let (inside, asks) = (Arc::clone(&world), Arc::clone(&asking));
    let meanwhile = move || {
        inside.outbox.replay(2, "ann").unwrap();
        asks.drain().unwrap();
        assert_eq!(inside.script.asked(), 1);
        assert_eq!(inside.entry(1).status, Status::Unknown);
        assert_eq!(inside.entry(2).next_attempt_at, None, "3 is on the way");
        assert_eq!(sent(&inside), ["1", "2"]);
    };
    without_look_up(&world, meanwhile, succeeded("3")).drain().unwrap();
    asking.drain().unwrap();
    assert_eq!(sent(&world), ["1", "2", "2", "4"]);
}

/// A row that is given up is passed where dead rows are, and blocks where they do.
#[test]
fn resolve_as_dead_obeys_on_dead() {
    for (on_dead, expected) in [(OnDead::Continue, &["1", "2"][..]), (OnDead::Block, &["1"])] {
        for (outcome, downstream, status) in blocked().into_iter().skip(1) {
            let world = World::new();
            enqueue(&world, &["1", "2"]);
            let relay = relay_on(&world.outbox, world.operation(downstream).on_dead(on_dead));
            world.script.then(outcome);
            relay.drain().unwrap();
            assert_eq!(world.entry(1).status, status);
            relay.drain().unwrap();
            assert_eq!(sent(&world), ["1"], "{status} blocks in either case");
            world.outbox.resolve(1, &Resolution::Dead, "ann").unwrap();
            relay.drain().unwrap();
            assert_eq!(sent(&world), expected);
            assert_eq!(world.entry(1).status, Status::Dead);
        }
    }
}
