//! Withdrawing intents, and how they are counted.

use std::sync::Arc;

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{
    Actor, Delivery, Error, ErrorKind, EventKind, Failure, Finding, Operation, OperationStats,
    Outcome, Receipt, Status,
};

use crate::support::standing::{FIRST, Standing, all_about};
use crate::support::world::{
    DEDUPLICATES, START, World, immediate, interrupted, limited, maybe_sent, needs_review,
    not_sent, pay, rejected, relay_on, succeeded, transient, unsure,
};

fn cancel(world: &World, id: i64) -> Result<(), Error> {
    world
        .outbox
        .transact(|tx| world.outbox.cancel(tx, id, Actor::new("alice").reason("not wanted")))
}

#[test]
fn cancel_in_each_status() {
    for standing in Standing::ALL {
        // In doubt, it may have been applied already, also where a person gave it up.
        let refusal = match standing {
            Standing::Pending | Standing::Retried | Standing::Dead => None,
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
fn cancel_belongs_to_the_callers_transaction() {
    let world = World::new();
    let (id, other) = (world.enqueue(&pay("a")), world.enqueue(&pay("b").ordering_key("k")));
    let mut conn = world.app();
    let error = world.outbox.cancel(&conn, id, "alice").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoTransaction);
    let tx = immediate(&mut conn);
    world.outbox.cancel(&tx, id, "alice").unwrap();
    world.outbox.cancel(&tx, other, "alice").unwrap();
    tx.rollback().unwrap();
    assert_eq!(world.entry(id).status, Status::Pending);
    assert_eq!(world.story(other), [""; 0]);
    // Written and withdrawn in one transaction: nothing is ever sent.
    let tx = immediate(&mut conn);
    let brief = world.outbox.enqueue(&tx, &pay("c")).unwrap().id();
    world.outbox.cancel(&tx, brief, "alice").unwrap();
    tx.commit().unwrap();
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 2);
    assert_eq!(world.entry(brief).status, Status::Cancelled);
}

fn request(world: &World, id: i64) -> Result<Status, Error> {
    world
        .outbox
        .transact(|tx| world.outbox.request_cancel(tx, id, Actor::new("alice").reason("stop it")))
}

/// When somebody wanted to stop it, as the trail has it.
fn requested_at(world: &World, id: i64) -> Option<i64> {
    let trail = world.outbox.audit(id).unwrap();
    let event = trail.into_iter().find(|event| event.kind == EventKind::CancelRequested)?;
    assert_eq!((event.from_status, event.actor.as_deref()), (event.status, Some("alice")));
    assert_eq!(event.reason.as_deref(), Some("stop it"));
    Some(event.at)
}

#[test]
fn cancel_request_in_each_status() {
    for standing in Standing::ALL {
        let expected = match standing {
            Standing::Pending | Standing::Retried | Standing::Dead => Ok(Status::Cancelled),
            Standing::DeadInDoubt => Ok(Status::Dead),
            Standing::PendingInDoubt => Ok(Status::Pending),
            Standing::InFlight => Ok(Status::InFlight),
            // A look-up, or a person, may still find that it was not applied.
            Standing::Unknown => Ok(Status::Unknown),
            Standing::NeedsReview => Ok(Status::NeedsReview),
            Standing::NeedsReviewUnsent => Err(ErrorKind::Refused),
            _ => Err(ErrorKind::TooLate),
        };
        standing.then(move |world| {
            let before = all_about(world, FIRST);
            let result = request(world, FIRST).map_err(|error| error.kind());
            assert_eq!(result, expected, "{standing:?}");
            match result {
                Ok(status) => assert_eq!(world.entry(FIRST).status, status),
                Err(_) => assert_eq!(all_about(world, FIRST), before),
            }
            let is_too_late = result.is_ok_and(|status| status != Status::Cancelled);
            assert_eq!(requested_at(world, FIRST).is_some(), is_too_late);
            if is_too_late {
                // Asked again, it is on record already.
                let before = all_about(world, FIRST);
                assert_eq!(request(world, FIRST).ok(), result.ok());
                assert_eq!(all_about(world, FIRST), before);
            }
        });
    }
    let world = World::new();
    assert_eq!(request(&world, 99).unwrap_err().kind(), ErrorKind::NotFound);
}

/// Somebody cancels while the handler is at work. It is not stopped: what it says decides, but it
/// is not tried again. An answer that may come after it was applied, such as 500, leaves it in
/// doubt, and is never taken for a cancellation.
#[test]
fn cancel_in_flight_ends_as_the_attempt_does() {
    let auth = Outcome::Unauthorized(Failure::new("auth", "answered 401"));
    for (outcome, downstream, status, attempts) in [
        (succeeded("x"), DEDUPLICATES, Status::Succeeded, 1),
        (transient(), DEDUPLICATES, Status::Cancelled, 1),
        (transient(), Unprotected, Status::Cancelled, 1),
        (limited(), DEDUPLICATES, Status::Cancelled, 0),
        (not_sent(), DEDUPLICATES, Status::Cancelled, 0),
        (auth, DEDUPLICATES, Status::Cancelled, 0),
        (rejected(), DEDUPLICATES, Status::Dead, 1),
        (needs_review(), DEDUPLICATES, Status::NeedsReview, 1),
        (maybe_sent(), Unprotected, Status::Unknown, 1),
        // Without the request it would be repeated under its key.
        (maybe_sent(), DEDUPLICATES, Status::Unknown, 1),
    ] {
        let world = Arc::new(World::new());
        let (id, next) = (
            world.enqueue(&pay("a").ordering_key("k")),
            world.enqueue(&pay("b").ordering_key("k")),
        );
        let inside = Arc::clone(&world);
        let meanwhile = move || {
            inside.advance(1);
            for _ in 0..2 {
                assert_eq!(request(&inside, id).unwrap(), Status::InFlight);
            }
            inside.outbox.pause("pay", None, "alice").unwrap();
        };
        let relay = world.other_relay(downstream, interrupted(meanwhile, outcome.clone()));
        relay.drain().unwrap();
        let entry = world.entry(id);
        assert_eq!((entry.status, entry.attempts), (status, attempts), "{outcome:?}");
        assert_eq!(requested_at(&world, id), Some(START + 1000));
        if status == Status::Succeeded {
            assert_eq!(entry.downstream_id.as_deref(), Some("x"));
            assert!(entry.receipt.is_some());
        }
        if status == Status::Cancelled {
            assert_eq!(entry.finished_at, Some(START + 1000), "at once, also while it is paused");
            assert_eq!(entry.receipt.unwrap_or_default(), Receipt::new());
        }
        world.outbox.resume("pay", "alice").unwrap();
        world.advance(100);
        world.drain(downstream);
        let sent: Vec<i64> = world.script.seen().iter().map(Delivery::id).collect();
        let goes_on = status.is_settled();
        assert_eq!(sent, if goes_on { vec![next] } else { vec![] }, "{outcome:?}");
    }
}

/// Where nothing can be asked, it waits for a person at once.
#[test]
fn cancel_in_flight_and_lost_without_lookup_needs_review() {
    let world = Arc::new(World::new());
    let id = world.enqueue(&pay("a"));
    let inside = Arc::clone(&world);
    let handler = interrupted(move || assert!(request(&inside, id).is_ok()), maybe_sent());
    relay_on(&world.second(), Operation::new(DEDUPLICATES, handler)).drain().unwrap();
    let entry = world.entry(id);
    assert_eq!((entry.status, entry.attempts), (Status::NeedsReview, 1));
    assert!(entry.last_error.unwrap().contains("cancellation was requested"));
    // A person who sends it again has changed the mind.
    world.outbox.replay(id, "alice").unwrap();
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 1);
}

/// An attempt that waits to be repeated is not, and that is seen once it is due.
#[test]
fn cancel_between_two_attempts_prevents_the_next() {
    let world = Standing::PendingInDoubt.then(|world| {
        assert_eq!(request(world, FIRST).unwrap(), Status::Pending);
        assert_eq!(world.outbox.why(FIRST, None).unwrap().0, "not_due");
    });
    world.advance(10);
    assert_eq!(world.outbox.why(FIRST, None).unwrap().0, "cancel_requested");
    world.drain(DEDUPLICATES);
    assert_eq!(world.script.seen().len(), 1);
    assert_eq!(world.entry(FIRST).status, Status::Unknown);
    // The look-up finds that it was not applied: it is withdrawn then, and not sent.
    let relay = world.relay(DEDUPLICATES);
    relay.drain().unwrap();
    world.script.then_find(unsure()).then_find(Finding::NotApplied);
    world.advance(120);
    relay.drain().unwrap();
    world.advance(1000);
    relay.drain().unwrap();
    assert_eq!(world.script.asked(), 2);
    assert_eq!(world.entry(FIRST).status, Status::Cancelled);
    assert_eq!(world.script.seen().len(), 1);
}

/// Somebody cancels while the question is on its way: if it was not applied, it is not sent either.
#[test]
fn cancel_during_a_lookup_prevents_the_next_attempt() {
    for (finding, status) in [
        (Finding::NotApplied, Status::Cancelled),
        (unsure(), Status::Unknown),
        (Finding::Applied(Receipt::new()), Status::Succeeded),
    ] {
        let world = Arc::new(World::new());
        let id = world.enqueue(&pay("a"));
        let inside = Arc::clone(&world);
        let operation = Operation::new(Unprotected, |_: &Delivery| maybe_sent());
        let operation = operation.reconcile(move |_: &Delivery| {
            assert_eq!(request(&inside, id).unwrap(), Status::Unknown);
            inside.outbox.pause("pay", None, "alice").unwrap();
            finding.clone()
        });
        let relay = relay_on(&world.second(), operation);
        relay.drain().unwrap();
        world.advance(120);
        relay.drain().unwrap();
        assert_eq!(world.entry(id).status, status, "at once, also while it is paused");
        assert_eq!(world.entry(id).attempts, 1);
    }
}

/// A row that takes its process down each time: cancelled while its dead owner still holds the
/// lease, between two crashes, or while the operation is paused, it is not started again.
#[test]
fn cancel_stops_a_row_that_kills_its_process() {
    for (paused, after_recovery) in [(false, false), (false, true), (true, false), (true, true)] {
        for has_look_up in [true, false] {
            let world = World::new();
            let id = world.enqueue(&pay("killer"));
            let relay = || {
                let operation = if has_look_up {
                    world.operation(DEDUPLICATES)
                } else {
                    world.operation_without_look_up(DEDUPLICATES)
                };
                relay_on(&world.second(), operation)
            };
            drop(relay());
            // As it is when the process is gone, and its lease is not.
            world.sql(
                "UPDATE outbox_lease SET state = 'in_flight', attempts = 1, tries = 1, token = 0,
                        owner = 'relay-0-gone', claimed_at = 1800000000000, due_at = 1800000090000",
            );
            if paused {
                world.outbox.pause("pay", None, "alice").unwrap();
            }
            if after_recovery {
                world.advance(91);
                world.outbox.pause("pay", None, "alice").unwrap();
                relay().drain().unwrap();
                assert_eq!(world.entry(id).status, Status::Pending, "lost once");
                if !paused {
                    world.outbox.resume("pay", "alice").unwrap();
                }
            }
            request(&world, id).unwrap();
            world.advance(91);
            relay().drain().unwrap();
            if paused {
                world.outbox.resume("pay", "alice").unwrap();
                relay().drain().unwrap();
            }
            let status = if has_look_up { Status::Unknown } else { Status::NeedsReview };
            assert_eq!(world.entry(id).status, status, "a send was possible");
            assert_eq!(world.script.seen().len(), 0, "it is not started again");
        }
    }
}

fn counts(world: &World) -> Vec<OperationStats> {
    world.outbox.stats().unwrap()
}

/// By status, in the order of an intent's life.
fn numbers(line: &OperationStats) -> Vec<u64> {
    Status::ALL.iter().map(|status| line.count(*status)).collect()
}

#[test]
fn settled_intents_are_counted_forever() {
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
    assert_eq!(numbers(&mail), [2, 0, 0, 0, 0, 0, 0], "the queued one too");
    assert_eq!(mail.oldest_due_at, Some(START));
    assert_eq!(numbers(&pay_line), [0, 0, 0, 0, 1, 2, 1]);
    assert_eq!(pay_line.oldest_due_at, None);
    world.sql("DELETE FROM outbox WHERE id IN (SELECT id FROM outbox_receipt)");
    assert_eq!(numbers(&counts(&world)[1]), [0, 0, 0, 0, 1, 2, 1]);
    cancel(&world, 3).unwrap();
    assert_eq!(numbers(&counts(&world)[1]), [0, 0, 0, 0, 0, 2, 2]);
    assert_eq!(
        world.number(
            "SELECT total FROM outbox_settled WHERE operation = 'pay' AND status = 'cancelled'"
        ),
        2
    );
}
