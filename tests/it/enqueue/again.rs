//! A caller that asks again: retried, planned anew, resumed or run from the top.

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{Delivery, Enqueued, ErrorKind, Finding, Intent, Receipt, Status};

use crate::support::world::{DEDUPLICATES, World, immediate, maybe_sent, pay};

fn ask(world: &World, intent: &Intent) -> Enqueued {
    world.try_enqueue(intent).unwrap()
}

/// A slow charge that had gone through looked failed, the user tried again, and each try was a new
/// charge. In doubt, the same ask is the same intent, with its key, until a look-up has found it.
#[test]
fn repeated_ask_in_doubt_is_the_same_intent() {
    let world = World::new();
    let relay = world.relay(Unprotected);
    world.script.then(maybe_sent());
    world.script.then_find(Finding::Applied(Receipt::new().downstream_id("ch_1")));
    let first = ask(&world, &pay("order-1"));
    relay.drain().unwrap();
    for status in [Status::Unknown, Status::Succeeded] {
        let Enqueued::Existing(entry) = ask(&world, &pay("order-1")) else {
            panic!("it is the same purchase")
        };
        assert_eq!((entry.id, entry.status), (first.id(), status));
        assert_eq!(entry.idempotency_key, first.key());
        // Another amount is never merged into it: it is refused, or a version of its own.
        let other = pay("order-1").args(serde_json::json!({ "amount": 4300 }));
        let error = world.try_enqueue(&other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        world.advance(120);
        relay.drain().unwrap();
    }
    assert_eq!(world.script.seen().len(), 1, "one request, one effect");
    assert_eq!(world.entry(first.id()).downstream_id.as_deref(), Some("ch_1"));
    let other = pay("order-1").args(serde_json::json!({ "amount": 4300 })).version(2);
    let Enqueued::New { key, .. } = ask(&world, &other) else { panic!("it is another version") };
    assert_ne!(key, first.key());
}

/// A step that was planned anew repeats its effect; its call id is new and its arguments are not.
#[test]
fn repeated_ask_under_another_call_id_is_the_same_action() {
    let world = World::new();
    let refund = |call: &str, args: &str| {
        let intent = Intent::new("pay", "order-1").args_json(args);
        intent.header("x-call-id", call).header("traceparent", call)
    };
    let first = ask(&world, &refund("call-1", r#"{"amount":5,"reason":"late"}"#));
    let again = ask(&world, &refund("call-2", r#"{ "reason": "late", "amount": 5 }"#));
    assert!(first.is_new() && !again.is_new());
    assert_eq!((first.id(), first.key()), (again.id(), again.key()));
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 1);
    let meant = ask(&world, &refund("call-3", r#"{"amount":5,"reason":"late"}"#).version(2));
    assert!(meant.is_new());
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 1);
    assert_eq!(world.script.seen().len(), 2);
}

/// A tool of a step waited for a person; when the step was run again, the others fired twice.
#[test]
fn repeated_step_gets_the_first_receipt() {
    let world = World::new();
    let first = ask(&world, &pay("x"));
    world.drain(DEDUPLICATES);
    let Enqueued::Existing(entry) = ask(&world, &pay("x")) else { panic!("it was done") };
    let other = ask(&world, &pay("y"));
    assert!(other.is_new());
    assert_eq!((entry.id, entry.status), (first.id(), Status::Succeeded));
    assert_eq!(entry.receipt.unwrap().downstream_id.as_deref(), Some("eff_1"));
    world.drain(DEDUPLICATES);
    let sent: Vec<i64> = world.script.seen().iter().map(Delivery::id).collect();
    assert_eq!(sent, [first.id(), other.id()]);
}

/// Code that is run again from the top computes its arguments anew, from the time or at random. If
/// the first run was undone, the second one counts; if not, it is told of the difference.
#[test]
fn arguments_that_drift_are_a_conflict_and_no_second_effect() {
    let world = World::new();
    let mut conn = world.app();
    let mut random = 7;
    let mut step = |is_interrupted: bool| {
        random += 1;
        let args = serde_json::json!({ "at": random * 1000, "id": format!("{random:x}") });
        let tx = immediate(&mut conn);
        let enqueued = world.outbox.enqueue(&tx, &Intent::new("pay", "order-1").args(args))?;
        if is_interrupted {
            tx.rollback().unwrap();
        } else {
            tx.commit().unwrap();
        }
        Ok::<_, sqlite_outbox::Error>(enqueued)
    };
    assert!(step(true).unwrap().is_new(), "interrupted before its commit");
    let first = step(false).unwrap();
    assert!(first.is_new(), "nothing is left of the first run");
    for _ in 0..2 {
        let error = step(false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        let text = error.to_string();
        assert!(text.contains(&format!("intent {}", first.id())), "{text}");
        assert!(text.contains(first.key()), "{text}");
        world.drain(DEDUPLICATES);
    }
    assert_eq!(world.script.seen().len(), 1);
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 1);
}
