//! Withdrawing intents, and how they are counted.

use std::sync::Arc;

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{Error, ErrorKind, OperationStats, Status};

use crate::world::{
    DEDUPLICATES, START, World, immediate, interrupted, maybe_sent, needs_review, pay, rejected,
    succeeded, transient,
};

fn cancel(world: &World, id: i64) -> Result<(), Error> {
    world.outbox.transact(|tx| world.outbox.cancel(tx, id, "alice", Some("not wanted")))
}

#[test]
fn which_statuses_may_be_cancelled() {
    for (outcome, downstream, status, may) in [
        (transient(), DEDUPLICATES, Status::Pending, true),
        (rejected(), DEDUPLICATES, Status::Dead, true),
        // In doubt: it may have been applied already.
        (maybe_sent(), DEDUPLICATES, Status::Pending, false),
        (maybe_sent(), Unprotected, Status::Unknown, false),
        (needs_review(), DEDUPLICATES, Status::NeedsReview, false),
        (succeeded("x"), DEDUPLICATES, Status::Succeeded, false),
    ] {
        let world = World::new();
        let (id, other) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
        world.script.then(outcome);
        world.drain(downstream);
        assert_eq!(world.entry(id).status, status);
        let before = (world.entry(id), world.story(id));
        let result = cancel(&world, id);
        if !may {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused);
            assert!(error.to_string().contains(status.as_str()), "{error}");
            assert_eq!((world.entry(id), world.story(id)), before);
            continue;
        }
        result.unwrap();
        let entry = world.entry(id);
        assert_eq!((entry.status, entry.finished_at), (Status::Cancelled, Some(START)));
        let event = world.outbox.audit(id).unwrap().pop().unwrap();
        assert_eq!((event.kind.as_str(), event.actor.as_deref()), ("cancelled", Some("alice")));
        assert_eq!(event.reason.as_deref(), Some("not wanted"));
        assert_eq!(cancel(&world, id).unwrap_err().kind(), ErrorKind::Refused, "once");
        world.advance(100_000);
        let sent = world.script.seen().len();
        world.drain(downstream);
        assert_eq!(world.script.seen().len(), sent);
        assert_eq!(world.entry(other).status, Status::Succeeded);
    }
}

#[test]
fn what_is_on_the_way_is_not_cancelled() {
    let world = Arc::new(World::new());
    let (id, other) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
    let inside = Arc::clone(&world);
    let trying = interrupted(
        move || {
            assert_eq!(cancel(&inside, 1).unwrap_err().kind(), ErrorKind::Refused);
            assert_eq!(cancel(&inside, 99).unwrap_err().kind(), ErrorKind::NotFound);
        },
        succeeded("ok"),
    );
    world.other_relay(DEDUPLICATES, trying).drain().unwrap();
    assert_eq!(world.entry(id).status, Status::Succeeded);
    assert_eq!(world.entry(other).status, Status::Succeeded);
}

#[test]
fn it_belongs_to_the_callers_transaction() {
    let world = World::new();
    let (id, other) = (world.enqueue(&pay("a")), world.enqueue(&pay("b").ordering_key("k")));
    let mut conn = world.app();
    let error = world.outbox.cancel(&conn, id, "alice", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoTransaction);
    let tx = immediate(&mut conn);
    world.outbox.cancel(&tx, id, "alice", None).unwrap();
    world.outbox.cancel(&tx, other, "alice", None).unwrap();
    tx.rollback().unwrap();
    assert_eq!(world.entry(id).status, Status::Pending);
    assert_eq!(world.story(other), [""; 0]);
    // Written and withdrawn in one transaction: nothing is ever sent.
    let tx = immediate(&mut conn);
    let brief = world.outbox.enqueue(&tx, &pay("c")).unwrap().id();
    world.outbox.cancel(&tx, brief, "alice", None).unwrap();
    tx.commit().unwrap();
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 2);
    assert_eq!(world.entry(brief).status, Status::Cancelled);
}

fn counts(world: &World) -> Vec<OperationStats> {
    world.outbox.stats().unwrap()
}

#[test]
fn settled_intents_are_counted_for_ever() {
    let world = World::new();
    for entity in ["a", "b", "c", "d"] {
        world.enqueue(&pay(entity));
    }
    for entity in ["1", "2"] {
        world.enqueue(&sqlite_outbox::Intent::new("mail.send", entity).ordering_key("k"));
    }
    cancel(&world, 2).unwrap();
    world.script.then(succeeded("1")).then(rejected());
    world.drain(DEDUPLICATES);
    let [mail, pay_line] = counts(&world).try_into().unwrap();
    assert_eq!(mail.operation, "mail.send");
    assert!(!mail.registered && pay_line.registered);
    assert_eq!(mail.counts, [2, 0, 0, 0, 0, 0, 0], "the queued one too");
    assert_eq!(mail.oldest_due_at, Some(START));
    assert_eq!(pay_line.counts, [0, 0, 0, 0, 1, 2, 1]);
    assert_eq!(pay_line.oldest_due_at, None);
    world.sql("DELETE FROM outbox WHERE id IN (SELECT id FROM outbox_receipt)");
    assert_eq!(counts(&world)[1].counts, [0, 0, 0, 0, 1, 2, 1]);
    cancel(&world, 3).unwrap();
    assert_eq!(counts(&world)[1].counts, [0, 0, 0, 0, 0, 2, 2]);
    assert_eq!(
        world.number(
            "SELECT total FROM outbox_settled WHERE operation = 'pay' AND status = 'cancelled'"
        ),
        2
    );
}
