//! A worker that was suspended past its lease: what it has to say when it comes back.
//!
//! The suspended worker is the handler of relay A; what happens meanwhile happens inside it, on
//! the same thread, so nothing depends on timing.

use std::sync::{Arc, mpsc};

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{Delivery, Downstream, Outcome, Status};

use crate::support::world::{
    DEDUPLICATES, World, interrupted, limited, maybe_sent, needs_review, not_sent, pay, rejected,
    succeeded, transient,
};

/// Past the lease of 90 s.
const PAST_THE_LEASE: u64 = 91;

/// Lets relay A's worker sleep past its lease, do `meanwhile`, and then report `outcome`.
fn suspended(
    world: &Arc<World>,
    downstream: Downstream,
    outcome: Outcome,
    meanwhile: impl FnOnce(&World) + Send + 'static,
) {
    let inside = Arc::clone(world);
    let handler = interrupted(
        move || {
            inside.advance(PAST_THE_LEASE);
            meanwhile(&inside);
        },
        outcome,
    );
    world.other_relay(downstream, handler).drain().unwrap();
}

fn two_rows() -> (Arc<World>, i64, i64) {
    let world = Arc::new(World::new());
    let id = world.enqueue(&pay("a"));
    let other = world.enqueue(&pay("b").delay(std::time::Duration::from_secs(1_000_000)));
    (world, id, other)
}

/// The lease was taken back by B, and the row settled by it. A's success is only an event; but if
/// the provider gave it another id, the effect happened twice.
#[test]
fn late_success_after_the_row_is_settled_may_be_a_duplicate_effect() {
    for (says, word, duplicates) in [("eff_1", "late", 0), ("late", "duplicate_effect", 1)] {
        let (world, id, other) = two_rows();
        suspended(&world, DEDUPLICATES, succeeded(says), |world| {
            assert_eq!(world.drain(DEDUPLICATES).succeeded, 1);
        });
        let entry = world.entry(id);
        assert_eq!((entry.status, entry.attempts), (Status::Succeeded, 2));
        assert_eq!(entry.downstream_id.as_deref(), Some("eff_1"));
        let [lost, attempt, late] = world.story(id).try_into().unwrap();
        assert_eq!(lost, "lease_lost:in_flight>pending");
        assert_eq!(attempt, "attempt:in_flight>succeeded");
        assert_eq!(late, format!("{word}:succeeded>succeeded"));
        let late = world.outbox.audit(id).unwrap().pop().unwrap();
        assert_eq!((late.downstream_id.as_deref(), late.token), (Some(says), Some(1)));
        if duplicates > 0 {
            let reason = late.reason.unwrap();
            assert!(reason.contains("eff_1") && reason.contains("late"), "{reason}");
        }
        assert_eq!(world.entry(other).status, Status::Pending);
        let stats = world.outbox.stats().unwrap().remove(0);
        assert_eq!((stats.count(Status::Succeeded), stats.duplicate_effects), (1, duplicates));
    }
}

const DOUBTS: &str = "SELECT count(*) FROM outbox_lease WHERE in_doubt_since IS NOT NULL";

/// The word that the only attempt never left ends the doubt in which its lost lease had left it.
#[test]
fn late_word_that_it_was_never_sent_clears_the_doubt() {
    let (world, id, _) = two_rows();
    suspended(&world, Unprotected, not_sent(), |world| {
        assert_eq!(world.drain(Unprotected).unknown, 1);
    });
    let entry = world.entry(id);
    assert_eq!((entry.status, entry.attempts), (Status::Pending, 0));
    assert_eq!(world.number(DOUBTS), 0);
    assert_eq!(world.story(id), ["lease_lost:in_flight>unknown", "late:unknown>pending"]);
    world.advance(1);
    assert_eq!(world.drain(Unprotected).succeeded, 1);

    // With an earlier attempt in doubt it stays so; without one, a wish to cancel it is heeded.
    for (earlier, status) in [(true, Status::Unknown), (false, Status::Cancelled)] {
        let (world, id, _) = two_rows();
        if earlier {
            world.script.then(maybe_sent());
            world.drain(DEDUPLICATES);
            world.advance(1);
        }
        suspended(&world, DEDUPLICATES, not_sent(), move |world| {
            world.outbox.transact(|tx| world.outbox.request_cancel(tx, id, "ann")).unwrap();
            assert_eq!(world.drain(DEDUPLICATES).unknown, 1);
        });
        assert_eq!(world.entry(id).status, status);
    }
}

/// Rows in each unsettled status to which they may have got meanwhile: a late success wins.
#[test]
fn late_success_settles_every_unsettled_status() {
    for (outcome, downstream, status) in [
        (transient(), DEDUPLICATES, Status::Pending),
        (rejected(), DEDUPLICATES, Status::Unknown),
        (needs_review(), DEDUPLICATES, Status::NeedsReview),
        (maybe_sent(), Unprotected, Status::Unknown),
    ] {
        let (world, id, other) = two_rows();
        suspended(&world, downstream, succeeded("late"), move |world| {
            world.script.then(outcome);
            world.drain(downstream);
            assert_eq!(world.entry(1).status, status);
        });
        let entry = world.entry(id);
        assert_eq!(entry.status, Status::Succeeded, "{status}");
        assert_eq!(entry.downstream_id.as_deref(), Some("late"), "{status}");
        let story = world.story(id);
        assert_eq!(*story.last().unwrap(), format!("late:{status}>succeeded"));
        assert_eq!(world.number("SELECT count(*) FROM outbox_lease"), 1, "of the other row");
        assert_eq!(world.entry(other).status, Status::Pending);
        world.advance(2_000_000);
        let attempts = world.script.seen().len();
        world.drain(downstream);
        assert_eq!(world.script.seen().len(), attempts + 1, "only the other row is sent");
    }
}

/// A row is dead only where no attempt is in doubt, so the row that A lost is made dead by hand.
#[test]
fn late_success_settles_a_dead_row() {
    let (world, id, other) = two_rows();
    suspended(&world, DEDUPLICATES, succeeded("late"), |world| {
        world.sql(
            "UPDATE outbox_lease SET state = 'dead', due_at = NULL, token = NULL, owner = NULL
             WHERE id = 1",
        );
    });
    assert_eq!(world.entry(id).status, Status::Succeeded);
    assert_eq!(world.entry(other).status, Status::Pending);
}

#[test]
fn late_failure_changes_nothing() {
    for late in [maybe_sent(), rejected(), transient(), limited()] {
        let (world, id, other) = two_rows();
        let before = Arc::new(std::sync::Mutex::new(None));
        let keeps = Arc::clone(&before);
        suspended(&world, DEDUPLICATES, late, move |world| {
            world.script.then(transient());
            world.drain(DEDUPLICATES);
            *keeps.lock().unwrap() = Some(world.entry(1));
        });
        assert_eq!(Some(world.entry(id)), *before.lock().unwrap());
        assert_eq!(*world.story(id).last().unwrap(), "late:pending>pending");
        world.advance(10);
        world.drain(DEDUPLICATES);
        assert_eq!(world.entry(id).status, Status::Succeeded);
        assert_eq!(world.entry(other).status, Status::Pending);
    }
}

/// A reports while B is on the way. `b_says` is what B ends with; returns what the row ended as.
fn while_b_is_in_flight(
    a_says: Outcome,
    b_says: impl Fn(&World, &Delivery) -> Outcome + Send + Sync + 'static,
) -> (Arc<World>, i64) {
    let (world, id, _) = two_rows();
    let (a_holds, a_is_held) = mpsc::channel();
    let (let_a_go, a_may_go) = mpsc::channel::<()>();
    let relay_a = world.other_relay(
        DEDUPLICATES,
        interrupted(
            move || {
                a_holds.send(()).unwrap();
                a_may_go.recv().unwrap();
            },
            a_says,
        ),
    );
    let a = std::thread::spawn(move || relay_a.drain().unwrap());
    a_is_held.recv().unwrap();
    world.advance(PAST_THE_LEASE);
    let (inside, a) = (Arc::clone(&world), std::sync::Mutex::new(Some((let_a_go, a))));
    let relay_b = world.other_relay(DEDUPLICATES, move |delivery: &Delivery| {
        let first = a.lock().unwrap().take();
        if let Some((let_a_go, a)) = first {
            let_a_go.send(()).unwrap();
            a.join().unwrap();
        }
        b_says(&inside, delivery)
    });
    relay_b.drain().unwrap();
    (world, id)
}

#[test]
fn late_success_is_kept_while_another_attempt_is_in_flight() {
    // B fails in any way: A's proof wins, also where somebody wants no further attempt.
    let says =
        [maybe_sent(), rejected(), transient(), limited(), crate::support::world::not_sent()];
    for (b_says, cancels) in
        says.iter().flat_map(|says| [(says.clone(), false), (says.clone(), true)])
    {
        let (world, id) = while_b_is_in_flight(succeeded("from a"), move |world, delivery| {
            let id = delivery.id();
            assert_eq!(world.entry(id).status, Status::InFlight, "B holds it");
            if cancels {
                let cancel = |tx: &_| world.outbox.request_cancel(tx, id, "ann");
                assert_eq!(world.outbox.transact(|tx| cancel(tx)).unwrap(), Status::InFlight);
            }
            b_says.clone()
        });
        let entry = world.entry(id);
        assert_eq!(entry.status, Status::Succeeded);
        assert_eq!(entry.downstream_id.as_deref(), Some("from a"));
        assert_eq!(world.number("SELECT count(*) FROM outbox_lease"), 1);
    }
    // B succeeds too: its own receipt is the one, A's is in the trail. Two ids are two effects.
    let (world, id) = while_b_is_in_flight(succeeded("from a"), |_, _| succeeded("from b"));
    assert_eq!(world.entry(id).downstream_id.as_deref(), Some("from b"));
    let trail = world.outbox.audit(id).unwrap().into_iter();
    let ids: Vec<_> = trail
        .filter_map(|event| event.downstream_id.map(|id| format!("{} {id}", event.kind.as_str())))
        .collect();
    assert_eq!(ids, ["late from a", "attempt from b", "duplicate_effect from b"]);
    assert_eq!(world.outbox.stats().unwrap()[0].duplicate_effects, 1);
    let (world, _) = while_b_is_in_flight(succeeded("one"), |_, _| succeeded("one"));
    assert_eq!(world.outbox.stats().unwrap()[0].duplicate_effects, 0);
}

#[test]
fn late_success_wins_when_the_other_attempt_is_lost_too() {
    let (world, id) = while_b_is_in_flight(succeeded("from a"), |world, _| {
        // B is suspended past its lease as well, and a third relay takes it back.
        world.advance(PAST_THE_LEASE);
        assert_eq!(world.drain(DEDUPLICATES).attempts, 0, "there is nothing to send");
        assert_eq!(world.entry(1).status, Status::Succeeded);
        rejected()
    });
    assert_eq!(world.entry(id).downstream_id.as_deref(), Some("from a"));
    assert!(world.script.seen().is_empty());
}

/// A row that was given back unsent went out again, although proof of success had come meanwhile.
#[test]
fn late_success_wins_when_the_other_attempt_is_given_back() {
    let (world, id, _) = two_rows();
    // Comes due while A is suspended; B then claims it together with A's row.
    let first = world.enqueue(&pay("first").delay(std::time::Duration::from_secs(80)));
    let (a_holds, a_is_held) = mpsc::channel();
    let (let_a_go, a_may_go) = mpsc::channel::<()>();
    let relay_a = world.other_relay(
        DEDUPLICATES,
        interrupted(
            move || {
                a_holds.send(()).unwrap();
                a_may_go.recv().unwrap();
            },
            succeeded("from a"),
        ),
    );
    let a = std::thread::spawn(move || relay_a.drain().unwrap());
    a_is_held.recv().unwrap();
    world.advance(PAST_THE_LEASE);
    // As if A had given the row back: B does not claim it alone, and after the first.
    world.sql("UPDATE outbox_lease SET state = 'pending', token = NULL, owner = NULL WHERE id = 1");
    let inside = Arc::clone(&world);
    let handler = interrupted(
        move || {
            assert_eq!(inside.entry(1).status, Status::InFlight, "claimed with the first");
            let_a_go.send(()).unwrap();
            a.join().unwrap();
        },
        // The operation is paused, so what B holds is given back unsent.
        sqlite_outbox::Outcome::Unauthorized(sqlite_outbox::Failure::new("auth", "answered 401")),
    );
    world.other_relay(DEDUPLICATES, handler).drain().unwrap();
    assert_eq!(world.entry(first).status, Status::Pending);
    let entry = world.entry(id);
    assert_eq!(entry.status, Status::Succeeded);
    assert_eq!(entry.downstream_id.as_deref(), Some("from a"));
    assert_eq!(world.number("SELECT count(*) FROM outbox_lease"), 2);
}

/// A counter kept in the row restarted after dead and replay, so that a suspended worker's token
/// fitted again.
#[test]
fn late_record_cannot_reach_a_replayed_row() {
    let (world, id, other) = two_rows();
    suspended(&world, DEDUPLICATES, rejected(), |world| {
        world.script.then(transient());
        world.drain(DEDUPLICATES);
        world.sql("UPDATE outbox_lease SET state = 'dead', due_at = NULL WHERE id = 1");
        world.outbox.replay(1, "alice").unwrap();
        assert_eq!(world.entry(1).attempts, 0);
        world.sql("UPDATE outbox_lease SET due_at = due_at + 1 WHERE id = 1");
    });
    let entry = world.entry(id);
    assert_eq!((entry.status, entry.attempts), (Status::Pending, 0));
    world.advance(1);
    world.drain(DEDUPLICATES);
    assert_eq!(world.entry(id).status, Status::Succeeded);
    let tokens: Vec<i64> = world.script.seen().iter().map(Delivery::token).collect();
    assert_eq!(tokens, [2, 3]);
    assert_eq!(world.entry(other).status, Status::Pending);
}

/// A's record must name its own claim: B's row and the neighbour's are not touched by it.
#[test]
fn late_record_under_a_lost_claim_changes_no_row() {
    let (world, id) = while_b_is_in_flight(rejected(), |world, delivery| {
        let entry = world.entry(delivery.id());
        assert_eq!((entry.status, entry.attempts), (Status::InFlight, 2));
        assert!(delivery.token() > 1);
        succeeded("from b")
    });
    assert_eq!(world.entry(id).downstream_id.as_deref(), Some("from b"));
    assert_eq!(
        world.story(id),
        ["lease_lost:in_flight>pending", "late:in_flight>in_flight", "attempt:in_flight>succeeded"]
    );
}
