//! Another round for intents that failed: which may have one, and what it changes.

use std::sync::{Arc, Barrier};

use sqlite_outbox::Downstream::{DeduplicatesByKey, Unprotected};
use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{
    Actor, Delivery, Downstream, ErrorKind, Filter, Intent, Outcome, Relay, Shard, Status,
};

use crate::support::world::{
    DEDUPLICATES, START, WINDOW, World, interrupted, maybe_sent, needs_review, pay, rejected,
    relay_on, succeeded, transient,
};

/// A file with one row that got to its status by this outcome, and one that waits.
fn after(outcome: Outcome, downstream: Downstream) -> World {
    let world = World::new();
    world.enqueue(&pay("a"));
    world.enqueue(&pay("b").delay(std::time::Duration::from_secs(10_000_000)));
    world.script.then(outcome);
    world.drain(downstream);
    world
}

fn refused(world: &World, id: i64) -> String {
    let before = (world.entry(id), world.story(id));
    let error = world.outbox.replay(id, "alice").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert_eq!((world.entry(id), world.story(id)), before);
    error.to_string()
}

#[test]
fn replay_in_each_status() {
    let long = Downstream::DeduplicatesByKey { window: 2 * WINDOW };
    for (outcome, downstream, status, may) in [
        (rejected(), DEDUPLICATES, Status::Dead, true),
        (rejected(), Unprotected, Status::Dead, true),
        (needs_review(), DEDUPLICATES, Status::NeedsReview, true),
        (needs_review(), long, Status::NeedsReview, true),
        (needs_review(), Unprotected, Status::NeedsReview, false),
        (maybe_sent(), Unprotected, Status::Unknown, false),
        (transient(), DEDUPLICATES, Status::Pending, false),
        (succeeded("x"), DEDUPLICATES, Status::Succeeded, false),
    ] {
        let world = after(outcome, downstream);
        assert_eq!(world.entry(1).status, status);
        if !may {
            assert!(refused(&world, 1).contains(status.as_str()));
            continue;
        }
        world.outbox.replay(1, Actor::new("alice").reason("fixed")).unwrap();
        let entry = world.entry(1);
        assert_eq!((entry.status, entry.attempts), (Status::Pending, 0));
        assert_eq!(entry.next_attempt_at, Some(START));
        let event = world.outbox.audit(1).unwrap().pop().unwrap();
        assert_eq!(
            (event.kind.as_str(), event.from_status.as_str()),
            ("replayed", status.as_str())
        );
        assert_eq!(
            (event.actor.as_deref(), event.reason.as_deref()),
            (Some("alice"), Some("fixed"))
        );
        assert_eq!(world.drain(downstream).succeeded, 1);
        assert_eq!(world.story(2), [""; 0], "the other row is not touched");
    }
    let world = after(rejected(), DEDUPLICATES);
    assert_eq!(world.outbox.replay(99, "alice").unwrap_err().kind(), ErrorKind::NotFound);
    world.outbox.transact(|tx| world.outbox.cancel(tx, 1, "alice")).unwrap();
    assert!(refused(&world, 1).contains("cancelled"));
}

#[test]
fn replay_of_a_row_in_flight_is_refused() {
    let world = Arc::new(World::new());
    let (id, other) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
    let inside = Arc::clone(&world);
    let trying = interrupted(move || drop(refused(&inside, 1)), succeeded("ok"));
    world.other_relay(DEDUPLICATES, trying).drain().unwrap();
    assert_eq!(world.story(id), ["attempt:in_flight>succeeded"]);
    assert_eq!(world.entry(other).attempts, 1);
}

#[test]
fn replay_of_a_review_is_refused_once_the_key_may_be_forgotten() {
    let window = std::time::Duration::from_secs(1000);
    let world = after(needs_review(), DeduplicatesByKey { window });
    world.advance(941);
    assert!(refused(&world, 1).contains("may have been applied"));
    assert_eq!(world.entry(2).status, Status::Pending);
}

/// An operation whose contract nobody has stored is treated as unprotected.
#[test]
fn replay_of_a_review_without_a_contract_is_refused() {
    let world = after(needs_review(), DEDUPLICATES);
    world.sql("DELETE FROM outbox_operation");
    refused(&world, 1);
}

fn many(world: &World, count: usize) {
    let intents: Vec<Intent> = (0..count)
        .map(|n| {
            let tenant = if n % 2 == 0 { "even" } else { "odd" };
            pay(&n.to_string()).tenant(tenant)
        })
        .collect();
    world.outbox.transact(|tx| world.outbox.enqueue_all(tx, &intents)).unwrap();
    world.script.times(count, &rejected());
    assert_eq!(world.drain(DEDUPLICATES).dead, count as u64);
}

fn dead() -> Filter {
    Filter::default().status(Status::Dead)
}

/// Those that were replayed, of all that matched.
fn replayed(matched: &[(i64, sqlite_outbox::Result<()>)]) -> Vec<i64> {
    matched.iter().filter(|(_, done)| done.is_ok()).map(|(id, _)| *id).collect()
}

/// Retrying the failed list enqueued copies and left the originals; a second try doubled it.
#[test]
fn replay_all_of_thousands_twice_makes_no_copies() {
    let world = World::new();
    many(&world, 2000);
    let replay = |dry_run| {
        replayed(
            &world
                .outbox
                .replay_all(&dead(), Actor::new("alice").reason("outage"), dry_run)
                .unwrap(),
        )
    };
    let would_be = replay(true);
    assert_eq!(would_be.len(), 2000);
    assert_eq!(world.number("SELECT count(*) FROM outbox_event WHERE kind = 'replayed'"), 0);
    assert_eq!(replay(false), would_be);
    assert!(replay(false).is_empty());
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 2000);
    assert_eq!(world.number("SELECT count(*) FROM outbox_event WHERE kind = 'replayed'"), 2000);
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 2000);
}

/// Half an hour of outage was a hole for ever: what had used up its attempts was found by no list
/// and no command. Here one command brings back that hour, and nothing else deletes what is dead.
#[test]
fn replay_all_makes_good_an_outage() {
    let world = World::new();
    let old = world.enqueue(&pay("old"));
    world.script.then(rejected());
    world.drain(DEDUPLICATES);
    world.advance(3600);
    let began = sqlite_outbox::Clock::now(&world.clock);
    for n in 0..100 {
        world.enqueue(&pay(&n.to_string()));
    }
    world.script.times(200, &transient());
    let operation = || world.operation(DEDUPLICATES).max_attempts(2).breaker_after(0);
    for _ in 0..2 {
        relay_on(&world.outbox, operation()).drain().unwrap();
        world.advance(60);
    }
    let window = dead().created_since(began);
    assert_eq!(world.outbox.list(&window).unwrap().len(), 100);
    let deleted = Connection::open(world.path()).unwrap().execute("DELETE FROM outbox", []);
    assert!(deleted.unwrap_err().to_string().contains("cannot be deleted"));
    let matched =
        world.outbox.replay_all(&window, Actor::new("alice").reason("outage"), false).unwrap();
    assert_eq!(replayed(&matched).len(), 100);
    assert_eq!(relay_on(&world.outbox, operation()).drain().unwrap().succeeded, 100);
    assert_eq!(world.entry(old).status, Status::Dead);
}

/// A republish at the start, one by the clock and one by hand each sent the same: three copies.
/// Here relays, drains and replays all at once go through one claim.
#[test]
fn replay_drain_and_relay_at_once_send_one_copy() {
    let world = World::new();
    for n in 0..100 {
        world.enqueue(&pay(&n.to_string()));
    }
    // Half of them are dead, half are left over from a crash.
    world.script.times(50, &rejected());
    let relay = Relay::builder(&world.outbox).operation("pay", world.operation(DEDUPLICATES));
    let relay = relay.workers(1).shard(Shard::new(0, 2).unwrap()).build().unwrap();
    assert_eq!(relay.drain().unwrap().dead, 50);
    world.sql("UPDATE outbox_lease SET due_at = 1700000000000 WHERE state = 'pending'");
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let relay = relay_on(&world.second(), world.operation(Unprotected));
                start.wait();
                relay.drain().unwrap();
            });
        }
        for actor in ["alice", "bob"] {
            let (start, world) = (&start, &world);
            scope.spawn(move || {
                start.wait();
                world.second().replay_all(&Filter::default(), actor, false).unwrap();
                world.second().resume("pay", actor).unwrap();
            });
        }
    });
    world.drain(Unprotected);
    let mut sent: Vec<i64> = world.script.seen().iter().skip(50).map(Delivery::id).collect();
    sent.sort_unstable();
    assert_eq!(sent, (1..=100).collect::<Vec<_>>(), "each once");
}

#[test]
fn replay_all_obeys_its_filter() {
    let world = World::new();
    many(&world, 1200);
    world.advance(60);
    world.enqueue(&pay("later").tenant("odd"));
    world.script.then(rejected());
    world.drain(DEDUPLICATES);
    let ids = |filter: &Filter| replayed(&world.outbox.replay_all(filter, "a", true).unwrap());
    let tenant = |name: &str| dead().tenant(name);
    assert_eq!(ids(&tenant("odd")).len(), 601);
    assert_eq!(ids(&tenant("nobody")).len(), 0);
    assert_eq!(ids(&dead().operation("mail")).len(), 0);
    assert_eq!(ids(&dead().entity("7")), [8]);
    assert_eq!(ids(&dead().created_since(START + 1)), [1201]);
    assert_eq!(ids(&dead().after(1190)).len(), 11);
    for limit in [0, 1, 499, 500, 501, 1000] {
        let limited = dead().limit(limit);
        assert_eq!(ids(&limited), (1..=i64::try_from(limit).unwrap()).collect::<Vec<_>>());
    }
    let few = tenant("odd").limit(3);
    let matched = world.outbox.replay_all(&few, "a", false).unwrap();
    assert_eq!(replayed(&matched), [2, 4, 6]);
    assert_eq!(world.number("SELECT count(*) FROM outbox_lease WHERE state = 'pending'"), 3);
}

/// A limit counts what was replayed, so refused rows do not use it up.
#[test]
fn replay_all_names_refused_rows_and_goes_on() {
    let world = World::new();
    for n in 0..4 {
        world.enqueue(&pay(&n.to_string()));
    }
    world.script.then(maybe_sent()).then(needs_review()).then(rejected());
    world.drain(Unprotected);
    let matched = world.outbox.replay_all(&Filter::default(), "alice", false).unwrap();
    assert_eq!(matched.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(replayed(&matched), [3]);
    let why = |place: usize| matched[place].1.as_ref().unwrap_err().to_string();
    assert!(why(0).contains("unknown") && why(3).contains("succeeded"));
    world.drain(Unprotected);
    assert_eq!(world.script.seen().len(), 5);
}

#[test]
fn replay_by_two_people_at_once_happens_once() {
    let world = World::new();
    many(&world, 1100);
    let start = Barrier::new(2);
    let replayed: Vec<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = ["alice", "bob"]
            .map(|actor| {
                let (outbox, start) = (world.second(), &start);
                scope.spawn(move || {
                    start.wait();
                    replayed(&outbox.replay_all(&dead(), actor, false).unwrap()).len()
                })
            })
            .into();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(replayed.iter().sum::<usize>(), 1100);
    assert_eq!(world.number("SELECT count(*) FROM outbox_event WHERE kind = 'replayed'"), 1100);
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 1100);
}
