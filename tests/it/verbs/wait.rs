//! Waiting for an intent to come to rest.

use std::time::{Duration, Instant};

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{ErrorKind, Outbox, Relay, Status};

use crate::support::world::{DEDUPLICATES, LONG, World, maybe_sent, pay, rejected};

#[test]
fn wait_returns_when_the_intent_is_settled() {
    let world = World::new();
    let outbox = world.on_real_time();
    let id = world.enqueue(&pay("a"));
    let key = world.entry(id).idempotency_key;
    std::thread::scope(|scope| {
        // Each with an outbox of its own, as in processes of their own.
        let by_id = scope.spawn(|| Outbox::open(world.path()).unwrap().wait(id, LONG));
        let by_key =
            scope.spawn(|| Outbox::open(world.path()).unwrap().wait_by_key("", &key, LONG));
        let handle = Relay::builder(&outbox)
            .operation("pay", world.operation(DEDUPLICATES))
            .build()
            .unwrap()
            .start()
            .unwrap();
        for waiting in [by_id, by_key] {
            let entry = waiting.join().unwrap().unwrap();
            assert_eq!((entry.id, entry.status), (id, Status::Succeeded));
            assert_eq!(entry.receipt.unwrap().downstream_id, Some(format!("eff_{id}")));
        }
        handle.shutdown(LONG).unwrap();
    });
}

/// An intent that is settled already, or waits for a person, is returned at once.
#[test]
fn wait_for_what_has_come_to_rest_returns_at_once() {
    let world = World::new();
    let ids = ["a", "b", "c"].map(|entity| world.enqueue(&pay(entity)));
    world.script.then(rejected());
    world.drain(DEDUPLICATES);
    let began = Instant::now();
    for (id, status) in ids.into_iter().zip([Status::Dead, Status::Succeeded, Status::Succeeded]) {
        assert_eq!(world.outbox.wait(id, LONG).unwrap().status, status);
    }
    assert!(began.elapsed() < LONG / 2);
}

#[test]
fn wait_returns_the_entry_when_the_time_is_over() {
    let world = World::new();
    let pending = world.enqueue(&pay("a"));
    let moment = Duration::from_millis(30);
    let began = Instant::now();
    assert_eq!(world.outbox.wait(pending, moment).unwrap().status, Status::Pending);
    assert!(began.elapsed() >= moment);
    // A look-up may still tell.
    world.script.then(maybe_sent());
    world.drain(Unprotected);
    assert_eq!(world.outbox.wait(pending, moment).unwrap().status, Status::Unknown);
    assert_eq!(world.outbox.wait(pending, Duration::ZERO).unwrap().status, Status::Unknown);
}

#[test]
fn wait_for_what_could_never_come_is_refused() {
    let world = World::new();
    assert_eq!(world.outbox.wait(7, LONG).unwrap_err().kind(), ErrorKind::NotFound);
    let unknown = world.outbox.wait_by_key("", "pay:1", LONG).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    let id = world.enqueue(&pay("a"));
    let inside = world.outbox.transact(|_| world.outbox.wait(id, LONG)).unwrap_err();
    assert_eq!(inside.kind(), ErrorKind::Busy);
    assert!(inside.to_string().contains("wait after the transaction"), "{inside}");
}
