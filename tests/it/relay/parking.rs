//! Rows about which a write fails, because an object of the application stands in the way: each
//! keeps its proof and waits alone, and the others go on.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{Delivery, Operation, Outcome, Relay, Resolution, Status};

use crate::support::world::{
    DEDUPLICATES, World, exact_backoff, maybe_sent, not_sent, pay, rejected, relay_on, sent,
    succeeded, until,
};

/// Objects of an application that make recording the success of `bad` fail, and what ends that.
const IN_THE_WAY: [(&str, &str); 6] = [
    (
        "CREATE TRIGGER app AFTER INSERT ON outbox_receipt
         WHEN (SELECT entity_id FROM outbox WHERE id = NEW.id) = 'bad'
         BEGIN SELECT RAISE(ABORT, 'no'); END",
        "DROP TRIGGER app",
    ),
    (
        "CREATE TRIGGER app AFTER INSERT ON outbox_receipt
         WHEN (SELECT entity_id FROM outbox WHERE id = NEW.id) = 'bad'
         BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
        "DROP TRIGGER app",
    ),
    // Said only when the transaction is committed.
    (
        "CREATE TABLE mirror (id TEXT REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED);
         INSERT INTO orders VALUES ('a', 'new'), ('b', 'new'), ('c', 'new'), ('d', 'new');
         CREATE TRIGGER app AFTER INSERT ON outbox_receipt
         BEGIN INSERT INTO mirror SELECT entity_id FROM outbox WHERE id = NEW.id; END",
        "INSERT INTO orders VALUES ('bad', 'new')",
    ),
    (
        "CREATE TRIGGER app BEFORE INSERT ON outbox_event
         WHEN (SELECT entity_id FROM outbox WHERE id = NEW.outbox_id) = 'bad'
         BEGIN SELECT RAISE(ABORT, 'no'); END",
        "DROP TRIGGER app",
    ),
    (
        "CREATE TRIGGER app BEFORE DELETE ON outbox_lease
         WHEN (SELECT entity_id FROM outbox WHERE id = OLD.id) = 'bad'
         BEGIN SELECT RAISE(ABORT, 'no'); END;
         CREATE TRIGGER app_too BEFORE UPDATE ON outbox_lease
         WHEN OLD.state = 'in_flight'
          AND (SELECT entity_id FROM outbox WHERE id = OLD.id) = 'bad'
         BEGIN SELECT RAISE(ABORT, 'no'); END",
        "DROP TRIGGER app; DROP TRIGGER app_too",
    ),
    // The row is not written, and nothing is said.
    (
        "CREATE TRIGGER app BEFORE INSERT ON outbox_receipt
         WHEN (SELECT entity_id FROM outbox WHERE id = NEW.id) = 'bad'
         BEGIN SELECT RAISE(IGNORE); END",
        "DROP TRIGGER app",
    ),
];

/// Five intents, the second of which is the bad one.
fn five(world: &World) -> i64 {
    ["a", "bad", "b", "c", "d"].map(|entity| world.enqueue(&pay(entity)))[1]
}

/// A relay whose outcomes come together, so that one step records several.
fn together(world: &World) -> Relay {
    let script = world.script.clone();
    let barrier = Arc::new(std::sync::Barrier::new(5));
    let first = Mutex::new(5);
    let handler = move |delivery: &Delivery| {
        let is_first = {
            let mut left = first.lock().unwrap();
            *left -= i32::from(*left > 0);
            *left >= 0 && delivery.attempt() == 1
        };
        if is_first {
            barrier.wait();
        }
        script.answer(delivery)
    };
    let pay = Operation::new(Unprotected, handler).backoff(exact_backoff());
    Relay::builder(&world.outbox).operation("pay", pay).workers(5).build().unwrap()
}

#[test]
fn outcome_that_cannot_be_recorded_is_kept_and_others_go_on() {
    for (object, mend) in IN_THE_WAY {
        for at_once in [false, true] {
            let world = World::new();
            drop(world.app());
            world.batch(object);
            let id = five(&world);
            let relay = if at_once { together(&world) } else { world.relay(Unprotected) };
            relay.drain().unwrap();
            let rest = "SELECT count(*) FROM outbox_status WHERE status = 'succeeded'";
            assert_eq!(world.number(rest), 4, "{object}");
            let said = world.outbox.why(id, None).unwrap();
            assert_eq!(said.0, "unrecorded", "{object}: {}", said.1);
            // It is tried again, and fails again. Nobody may say otherwise what is known.
            world.advance(10);
            relay.drain().unwrap();
            let refused = world.outbox.resolve(id, &Resolution::NotApplied, "ann").unwrap_err();
            assert!(refused.to_string().contains("known and kept"), "{refused}");

            world.batch(mend);
            relay.drain().unwrap();
            assert_ne!(world.entry(id).status, Status::Succeeded, "not before its time: {object}");
            world.outbox.replay(id, "ann").unwrap();
            relay.drain().unwrap();
            let entry = world.entry(id);
            assert_eq!((entry.status, entry.attempts), (Status::Succeeded, 1), "{object}");
            assert!(entry.downstream_id.is_some(), "{object}");
            assert_eq!(world.number("SELECT count(*) FROM outbox_unrecorded"), 0);
            assert_eq!(world.script.seen().len(), 5, "each was sent once: {object}");
            if object.contains("outbox_receipt") {
                let story = [
                    "unrecorded:in_flight>needs_review",
                    "replayed:needs_review>needs_review",
                    "attempt:needs_review>succeeded",
                ];
                assert_eq!(world.story(id), story);
            }
        }
    }
}

/// Whatever was known is recorded as it would have been, once that succeeds.
#[test]
fn every_outcome_is_kept_as_it_was() {
    for (outcome, status, is_in_doubt) in [
        (maybe_sent(), Status::NeedsReview, true),
        (rejected(), Status::Dead, false),
        (not_sent(), Status::Pending, false),
        (succeeded("ch_1"), Status::Succeeded, false),
    ] {
        let world = World::new();
        let id = world.enqueue(&pay("bad"));
        world.batch(IN_THE_WAY[3].0);
        world.script.then(outcome);
        let operation = world.operation_without_look_up(Unprotected);
        let relay = relay_on(&world.outbox, operation);
        relay.drain().unwrap();
        assert_eq!(world.outbox.why(id, None).unwrap().0, "unrecorded");
        world.batch(IN_THE_WAY[3].1);
        world.advance(10);
        relay.drain().unwrap();
        let entry = world.entry(id);
        assert_eq!(entry.status, status);
        let doubts = "SELECT count(*) FROM outbox_lease WHERE in_doubt_since IS NOT NULL";
        assert_eq!(world.number(doubts), i64::from(is_in_doubt));
        assert_eq!(world.script.seen().len(), 1);
    }
}

#[test]
fn row_that_cannot_be_claimed_waits_alone() {
    let world = World::new();
    let id = five(&world);
    world.batch(
        "CREATE TRIGGER app BEFORE UPDATE ON outbox_lease
         WHEN (SELECT entity_id FROM outbox WHERE id = NEW.id) = 'bad'
         BEGIN SELECT RAISE(ABORT, 'no'); END",
    );
    let relay = world.relay(DEDUPLICATES);
    assert_eq!(relay.drain().unwrap().succeeded, 4);
    let entry = world.entry(id);
    assert_eq!(entry.status, Status::Pending);
    assert!(entry.last_error.unwrap().contains("no"), "it is said why");
    world.batch("DROP TRIGGER app");
    assert_eq!(relay.drain().unwrap().attempts, 0, "not before its time");
    world.advance(10);
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    assert_eq!(sent(&world), ["a", "b", "c", "d", "bad"]);
    assert_eq!(world.entry(id).last_error, None);
}

/// A claim that fails as a whole, in the step that has an outcome to record.
#[test]
fn claim_that_fails_holds_no_answer_back() {
    let world = Arc::new(World::new());
    let (first, second) =
        (world.enqueue(&pay("a")), world.enqueue(&pay("b").delay(Duration::from_secs(3600))));
    let inside = Arc::clone(&world);
    let relay = world.other_relay(DEDUPLICATES, move |_: &Delivery| -> Outcome {
        inside.advance(3600);
        inside.batch(
            "CREATE TRIGGER app BEFORE UPDATE ON outbox_meta BEGIN SELECT RAISE(ABORT, 'no'); END",
        );
        succeeded("ch_1")
    });
    relay.drain().unwrap();
    assert_eq!(world.entry(first).status, Status::Succeeded);
    assert_eq!(world.entry(second).status, Status::Pending);
    assert_eq!(world.outbox.why(second, None).unwrap().0, "unrecorded");
}

#[test]
fn rows_with_impossible_values_move_on_or_wait_for_a_person() {
    let held = "state = 'in_flight', owner = 'relay-1-aa', token = 3, attempts = 1, claimed_at = 1";
    for (edit, status) in [
        (
            "UPDATE outbox_lease SET tries = 9223372036854775807 WHERE id = 1".into(),
            Status::Succeeded,
        ),
        ("UPDATE outbox_lease SET attempts = -5 WHERE id = 1".into(), Status::Succeeded),
        (format!("UPDATE outbox_lease SET {held}, due_at = 1 WHERE id = 1"), Status::NeedsReview),
        (
            format!(
                "INSERT INTO outbox_binding VALUES ('pay', 'ID', 2);
                 UPDATE outbox_lease SET {held}, due_at = 1, late_receipt = '{{}}', late_id = 'ID'
                 WHERE id = 1"
            ),
            Status::NeedsReview,
        ),
    ] {
        let world = World::new();
        let operation = world.operation_without_look_up(Unprotected).binds_ids();
        let relay = relay_on(&world.outbox, operation);
        relay.drain().unwrap();
        let (id, other) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
        world.batch(&edit);
        // A claim without an end would be one for ever.
        let endless = format!("UPDATE outbox_lease SET {held}, due_at = NULL WHERE id = 2");
        assert!(world.app().execute_batch(&endless).is_err());
        relay.drain().unwrap();
        assert_eq!(world.entry(other).status, Status::Succeeded, "{edit}");
        assert_eq!(world.entry(id).status, status, "{edit}");
    }
}

/// Outcomes that are known and cannot be written until the grace is over are counted, and are
/// written if the process lives on.
#[test]
fn shutdown_says_which_outcomes_are_not_written() {
    let world = World::new();
    let id = world.enqueue(&pay("a"));
    let (begins, begun) = std::sync::mpsc::channel();
    let (leave, may_leave) = std::sync::mpsc::channel::<()>();
    let may_leave = Mutex::new(may_leave);
    let handler = move |_: &Delivery| {
        begins.send(()).unwrap();
        let _ = may_leave.lock().unwrap().recv();
        succeeded("ch_1")
    };
    let pay = Operation::new(DEDUPLICATES, handler);
    let relay = Relay::builder(&world.outbox).operation("pay", pay).build().unwrap();
    let handle = relay.start().unwrap();
    begun.recv().unwrap();
    let app = world.app();
    app.execute_batch("BEGIN IMMEDIATE").unwrap();
    let stopping = std::thread::spawn(move || handle.shutdown(Duration::from_millis(300)).unwrap());
    drop(leave);
    let report = stopping.join().unwrap();
    assert_eq!((report.left, report.unwritten), (0, 1));
    drop(app);
    until(|| world.entry(id).status == Status::Succeeded);
}
