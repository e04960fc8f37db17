//! The first things to try with the library, over a real connection.

use sqlite_outbox::{Clock, Enqueued, ErrorKind, Status};

use crate::support::wire::Wire;
use crate::support::world::{DEDUPLICATES, immediate, pay};

#[test]
fn failures_five_times_then_success() {
    let wire = Wire::new();
    let id = wire.world.enqueue(&pay("order-1"));
    let relay = wire.relay(DEDUPLICATES, wire.to("/fail/5/500"));
    let mut due = Vec::new();
    for attempt in 1..=5 {
        assert_eq!(relay.drain().unwrap().retried, 1);
        let entry = wire.world.entry(id);
        assert_eq!((entry.status, entry.attempts), (Status::Pending, attempt));
        assert!(entry.last_error.unwrap().contains("HTTP 500"));
        due.push(entry.next_attempt_at.unwrap());
        assert_eq!(relay.drain().unwrap().attempts, 0, "not before it is due");
        wire.world.pass_until(entry.next_attempt_at.unwrap());
    }
    assert!(due.windows(2).all(|pair| pair[0] < pair[1]));
    let delays: Vec<i64> = due.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(delays, [2000, 4000, 8000, 16000]);

    assert_eq!(relay.drain().unwrap().succeeded, 1);
    let entry = wire.world.entry(id);
    assert_eq!((entry.status, entry.attempts), (Status::Succeeded, 6));
    assert_eq!(entry.downstream_id.as_deref(), Some("eff_1_1"));
    assert_eq!(entry.finished_at, Some(wire.world.clock.now()));
    let receipt = entry.receipt.unwrap();
    assert_eq!((receipt.status, receipt.downstream_id.as_deref()), (Some(200), Some("eff_1_1")));
    assert_eq!(wire.server.requests_for(&entry.idempotency_key).len(), 6);
    assert_eq!(wire.server.effects(&entry.idempotency_key), 1);
    assert_eq!(wire.world.story(id).len(), 6);
}

#[test]
fn status_400_is_dead_after_one_request() {
    let wire = Wire::new();
    let id = wire.world.enqueue(&pay("order-1"));
    wire.drain(DEDUPLICATES, "/status/400");
    wire.world.advance(1_000_000);
    wire.drain(DEDUPLICATES, "/ok");
    let entry = wire.world.entry(id);
    assert_eq!((entry.status, entry.attempts), (Status::Dead, 1));
    assert!(entry.last_error.unwrap().contains("HTTP 400"));
    assert_eq!(wire.server.requests().len(), 1);
    assert_eq!(wire.world.story(id), ["attempt:in_flight>dead"]);
}

#[test]
fn version_2_is_another_action_with_another_key() {
    let wire = Wire::new();
    let first = wire.world.try_enqueue(&pay("order-1")).unwrap();
    let second = wire.world.try_enqueue(&pay("order-1").version(2)).unwrap();
    assert_ne!(first.key(), second.key());
    let Enqueued::New { unsettled_version, .. } = second else { panic!("{second:?}") };
    assert_eq!(unsettled_version, Some(first.id()));
    wire.drain(DEDUPLICATES, "/ok");
    assert_eq!(wire.server.distinct_keys().len(), 2);
    assert!(wire.server.distinct_keys().iter().all(|key| wire.server.effects(key) == 1));
}

#[test]
fn rollback_leaves_nothing_to_send() {
    let wire = Wire::new();
    let mut app = wire.world.app();
    let tx = immediate(&mut app);
    tx.execute("INSERT INTO orders VALUES ('order-1', 'paying')", []).unwrap();
    let key = wire.world.outbox.enqueue(&tx, &pay("order-1")).unwrap().key().to_owned();
    tx.rollback().unwrap();
    wire.drain(DEDUPLICATES, "/ok");
    assert_eq!(wire.server.connections(), 0);
    assert_eq!(wire.world.outbox.entry_by_key("", &key).unwrap(), None);
    assert_eq!(wire.world.number("SELECT count(*) FROM orders"), 0);
    // The same action can be asked for again.
    assert!(wire.world.try_enqueue(&pay("order-1")).unwrap().is_new());
}

/// A model that does not know whether it has acted asks once more, and changes its mind about the
/// amount on the way.
#[test]
fn repeated_enqueue_gives_the_receipt_and_other_arguments_are_refused() {
    let wire = Wire::new();
    let id = wire.world.enqueue(&pay("order-1"));
    let other = pay("order-1").args(serde_json::json!({ "amount": 9900 }));
    let before = wire.world.try_enqueue(&other).unwrap_err();
    wire.drain(DEDUPLICATES, "/ok");
    let after = wire.world.try_enqueue(&other).unwrap_err();
    let key = wire.world.entry(id).idempotency_key;
    for refused in [before, after] {
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        let text = refused.to_string();
        assert!(text.contains(&key) && text.contains("needs a new version"), "{text}");
    }
    let Enqueued::Existing(entry) = wire.world.try_enqueue(&pay("order-1")).unwrap() else {
        panic!("it was asked for before")
    };
    assert_eq!((entry.id, entry.status), (id, Status::Succeeded));
    assert_eq!(entry.receipt.unwrap().downstream_id.as_deref(), Some("eff_1_1"));
    wire.drain(DEDUPLICATES, "/ok");
    assert_eq!(wire.server.requests().len(), 1);
}
