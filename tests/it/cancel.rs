//! Withdrawing intents, and how they are counted.

use sqlite_outbox::{Error, ErrorKind, EventKind, OperationStats, Status};

use crate::standing::{FIRST, Standing, all_about};
use crate::world::{DEDUPLICATES, START, World, immediate, pay, rejected, succeeded};

fn cancel(world: &World, id: i64) -> Result<(), Error> {
    world.outbox.transact(|tx| world.outbox.cancel(tx, id, "alice", Some("not wanted")))
}

#[test]
fn which_statuses_may_be_cancelled() {
    for standing in Standing::ALL {
        // In doubt: it may have been applied already. What a person gave up is his to withdraw.
        let refusal = match standing {
            Standing::Pending | Standing::Retried | Standing::Dead | Standing::DeadInDoubt => None,
            Standing::NeedsReviewUnsent => Some(ErrorKind::Refused),
            _ => Some(ErrorKind::TooLate),
        };
        let world = standing.then(move |world| {
            let before = all_about(world, FIRST);
            let result = cancel(world, FIRST);
            assert_eq!(result.as_ref().err().map(Error::kind), refusal, "{standing:?}");
            let Err(error) = result else { return };
            assert!(error.to_string().contains(standing.status().as_str()), "{error}");
            assert_eq!(all_about(world, FIRST), before);
        });
        if refusal.is_some() {
            continue;
        }
        let entry = world.entry(FIRST);
        assert_eq!((entry.status, entry.finished_at), (Status::Cancelled, Some(START)));
        let event = world.outbox.audit(FIRST).unwrap().pop().unwrap();
        assert_eq!((event.kind, event.actor.as_deref()), (EventKind::Cancelled, Some("alice")));
        assert_eq!(event.reason.as_deref(), Some("not wanted"));
        assert_eq!(cancel(&world, FIRST).unwrap_err().kind(), ErrorKind::TooLate, "once");
        world.advance(100_000);
        let sent = world.script.seen().len();
        world.drain(DEDUPLICATES);
        assert_eq!(world.script.seen().len(), sent);
    }
    let world = World::new();
    assert_eq!(cancel(&world, 99).unwrap_err().kind(), ErrorKind::NotFound);
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
