//! Changing one's mind: a new version takes the place of one that was surely not applied.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{
    Delivery, Enqueued, Error, ErrorKind, EventKind, Intent, OnDead, Operation, Status,
};

use crate::support::standing::{FIRST, OTHER, Standing, all_about, first};
use crate::support::world::{
    DEDUPLICATES, World, continuing, exact_backoff, immediate, interrupted, needs_review, pay,
    rejected, relay_on, succeeded, transient,
};

/// The action with other arguments.
fn changed(intent: &Intent, amount: i64) -> Intent {
    intent.clone().args(serde_json::json!({ "amount": amount }))
}

fn revise(world: &World, id: i64, version: i64, next: &Intent) -> Result<Enqueued, Error> {
    world.outbox.transact(|tx| world.outbox.revise(tx, id, version, next, "ann"))
}

/// Revises the first version of a row of an ordering key, which every row of a test has.
fn revised(world: &World, id: i64) -> i64 {
    let entry = world.entry(id);
    let intent = changed(&pay(&entry.entity_id), 1);
    revise(world, id, entry.intent_version, &intent).unwrap().id()
}

fn keyed(world: &World, entities: &[&str]) -> Vec<i64> {
    entities.iter().map(|entity| world.enqueue(&pay(entity).ordering_key("k"))).collect()
}

/// Deliveries that were handed to the handler, in order, as entity and version.
fn sent(world: &World) -> Vec<String> {
    world.script.seen().iter().map(|d| format!("{}{}", d.entity(), d.version())).collect()
}

#[test]
fn revise_in_each_status() {
    for standing in Standing::ALL {
        let refusal = match standing {
            Standing::Pending | Standing::Retried | Standing::Dead => None,
            Standing::NeedsReviewUnsent => Some(ErrorKind::Refused),
            _ => Some(ErrorKind::TooLate),
        };
        let world = standing.then(move |world| {
            let before = all_about(world, FIRST);
            let next = changed(&first(), 1);
            // Whoever believes it to be another version is told so first.
            for version in [0, 2] {
                let error = revise(world, FIRST, version, &next).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
                assert!(error.to_string().contains("is version 1, not"), "{error}");
            }
            assert_eq!(all_about(world, FIRST), before);
            let result = revise(world, FIRST, 1, &next);
            assert_eq!(result.as_ref().err().map(Error::kind), refusal, "{standing:?}");
            let Err(error) = result else { return };
            assert!(error.to_string().contains(standing.status().as_str()), "{error}");
            assert_eq!(all_about(world, FIRST), before);
        });
        if refusal.is_some() {
            continue;
        }
        let before = world.script.seen().len();
        world.drain(DEDUPLICATES);
        assert_eq!(sent(&world)[before..], ["a2"], "{standing:?}");
        assert_eq!(world.entry(FIRST).status, Status::Cancelled);
        assert_eq!(world.entry(3).status, Status::Succeeded);
        assert_eq!(world.number("SELECT count(*) FROM outbox_keyed"), 0);
    }
    let world = World::new();
    assert_eq!(revise(&world, 99, 1, &first()).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn revise_makes_an_intent_with_its_own_key_and_origin() {
    let world = World::new();
    let old = world.enqueue(&first());
    let Enqueued::New { id, key, unsettled_version, .. } =
        revise(&world, old, 1, &changed(&pay("a"), 1)).unwrap()
    else {
        panic!("it is new")
    };
    assert_eq!(unsettled_version, None, "the version before is withdrawn, not beside it");
    let (before, after) = (world.entry(old), world.entry(id));
    assert_eq!((before.revises, before.revised_by), (None, Some(id)));
    assert_eq!((after.revises, after.revised_by), (Some(old), None));
    assert_eq!((before.status, after.status), (Status::Cancelled, Status::Pending));
    assert_eq!((after.intent_version, after.ordering_key.as_deref()), (2, Some("k")));
    assert_eq!(after.idempotency_key, key);
    assert_ne!(key, before.idempotency_key);
    let event = world.outbox.audit(old).unwrap().pop().unwrap();
    assert_eq!((event.kind, event.actor.as_deref()), (EventKind::Revised, Some("ann")));
    assert_eq!(event.reason, Some(format!("revised by intent {id}")));
    world.drain(DEDUPLICATES);
    let seen = world.script.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].idempotency_key(), seen[0].payload()), (&*key, r#"{"amount":1}"#));
}

/// Every field that makes it another action is named, and nothing is changed.
#[test]
fn revise_of_another_action_is_refused() {
    let world = World::new();
    let id = world.enqueue(&first().tenant("acme"));
    let other = world.enqueue(&pay("free"));
    let before = (all_about(&world, id), all_about(&world, other));
    let same = changed(&first().tenant("acme"), 1);
    for (row, next, field) in [
        (id, same.clone().tenant("other"), "tenant"),
        (id, Intent::new("mail", "a").tenant("acme").ordering_key("k"), "operation"),
        (id, changed(&pay("b").tenant("acme"), 1), "entity"),
        (id, same.clone().ordering_key("other"), "ordering_key"),
        (other, changed(&pay("free").ordering_key("k"), 1), "ordering_key"),
    ] {
        let error = revise(&world, row, 1, &next).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(field), "{field}: {error}");
        assert_eq!((all_about(&world, id), all_about(&world, other)), before);
    }
    assert!(revise(&world, id, 1, &same).unwrap().is_new());
}

#[test]
fn revise_again_with_the_same_is_known_and_with_another_too_late() {
    let world = World::new();
    let id = world.enqueue(&first());
    let next = changed(&first(), 1);
    let new = revise(&world, id, 1, &next).unwrap().id();
    for standing in [Status::Pending, Status::Succeeded] {
        let Enqueued::Existing(entry) = revise(&world, id, 1, &next).unwrap() else {
            panic!("it is known")
        };
        assert_eq!((entry.id, entry.status), (new, standing));
        let before = (all_about(&world, id), all_about(&world, new));
        let error = revise(&world, id, 1, &changed(&first(), 2)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLate, "{error}");
        assert!(error.to_string().contains(&format!("by intent {new}")), "{error}");
        // The same key for something else is a conflict, as when it is enqueued.
        let elsewhere = next.clone().endpoint("https://example.com/");
        let error = revise(&world, id, 1, &elsewhere).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert_eq!((all_about(&world, id), all_about(&world, new)), before);
        world.drain(DEDUPLICATES);
    }
    assert_eq!(sent(&world), ["a2"]);
}

/// The next version was enqueued beside it, with the same arguments or with others.
#[test]
fn revise_where_the_next_version_exists_is_a_conflict() {
    for amount in [1, 2] {
        let world = World::new();
        let id = world.enqueue(&first());
        let beside = world.enqueue(&changed(&first(), amount).version(2));
        let before = (all_about(&world, id), all_about(&world, beside));
        let error = revise(&world, id, 1, &changed(&first(), 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.to_string().contains(&format!("intent {beside}")), "{error}");
        assert_eq!((all_about(&world, id), all_about(&world, beside)), before);
        world.drain(DEDUPLICATES);
        assert_eq!(sent(&world), ["a1", "a2"]);
    }
}

#[test]
fn revise_belongs_to_the_callers_transaction() {
    let world = World::new();
    let id = world.enqueue(&first());
    let beside = world.enqueue(&pay("b"));
    world.enqueue(&changed(&pay("b"), 5).version(2));
    let before = all_about(&world, id);
    let mut conn = world.app();
    let next = changed(&first(), 1);
    let error = world.outbox.revise(&conn, id, 1, &next, "ann").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoTransaction);

    let tx = immediate(&mut conn);
    tx.execute("INSERT INTO orders (id, state) VALUES ('a', 'changed')", []).unwrap();
    assert!(world.outbox.revise(&tx, id, 1, &next, "ann").unwrap().is_new());
    tx.rollback().unwrap();
    assert_eq!(all_about(&world, id), before);
    assert_eq!(world.number("SELECT count(*) FROM outbox_revision"), 0);

    // A refusal takes back what it had begun and leaves the caller's savepoints, whatever their
    // name.
    let tx = immediate(&mut conn);
    tx.execute_batch("SAVEPOINT outbox_all_or_nothing").unwrap();
    tx.execute("INSERT INTO orders (id, state) VALUES ('a', 'changed')", []).unwrap();
    let error = world.outbox.revise(&tx, beside, 1, &changed(&pay("b"), 1), "ann").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(world.outbox.revise(&tx, id, 1, &next, "ann").unwrap().is_new());
    tx.execute_batch("ROLLBACK TO outbox_all_or_nothing; RELEASE outbox_all_or_nothing").unwrap();
    tx.execute("INSERT INTO orders (id, state) VALUES ('a', 'as it was')", []).unwrap();
    tx.commit().unwrap();
    assert_eq!(all_about(&world, id), before);
    assert_eq!(world.number("SELECT count(*) FROM orders WHERE state = 'as it was'"), 1);

    // Enqueued and revised in one transaction: only the last word is sent.
    let tx = immediate(&mut conn);
    let brief = world.outbox.enqueue(&tx, &pay("c")).unwrap().id();
    world.outbox.revise(&tx, brief, 1, &changed(&pay("c"), 1), "ann").unwrap();
    tx.commit().unwrap();
    world.drain(DEDUPLICATES);
    assert_eq!(sent(&world), ["a1", "b1", "b2", "c2"]);
}

/// Of a head, of a row in the middle, of the last one, and of what is a revision itself.
#[test]
fn revise_takes_the_place_in_the_ordering_key() {
    for revisions in [&[1][..], &[2], &[3], &[1, 2, 3], &[3, 2, 1], &[2, 4, 5]] {
        let world = World::new();
        keyed(&world, &["a", "b", "c"]);
        let mut expected = vec!["a1".to_owned(), "b1".into(), "c1".into()];
        for &id in revisions {
            let entry = world.entry(id);
            let place = ["a", "b", "c"].iter().position(|e| *e == entry.entity_id).unwrap();
            revised(&world, id);
            expected[place] = format!("{}{}", entry.entity_id, entry.intent_version + 1);
        }
        let acting = "SELECT count(*) FROM outbox_lease";
        assert_eq!(world.number(acting), 1, "only the first may act");
        world.enqueue(&pay("d").ordering_key("k"));
        expected.push("d1".into());
        world.drain(DEDUPLICATES);
        assert_eq!(sent(&world), expected, "{revisions:?}");
        assert_eq!(world.number("SELECT count(*) FROM outbox_keyed"), 0);
    }
}

#[test]
fn revise_of_a_dead_head_goes_before_its_followers() {
    let world = World::new();
    keyed(&world, &["a", "b"]);
    world.script.then(rejected());
    world.drain(DEDUPLICATES);
    let id = revised(&world, 1);
    world.drain(DEDUPLICATES);
    assert_eq!(sent(&world), ["a1", "a2", "b1"]);
    assert_eq!(world.entry(id).attempts, 1, "with a budget of its own");
}

/// Later rows had gone on without it, by rule or because somebody said so.
#[test]
fn revise_of_a_passed_row_comes_back_to_its_place() {
    for (revisions, first) in [(&[1, 2][..], "a2"), (&[2, 1], "a2"), (&[2], "b2")] {
        let world = World::new();
        keyed(&world, &["a", "b"]);
        world.script.then(rejected()).then(rejected());
        continuing(&world).drain().unwrap();
        keyed(&world, &["c"]);
        for &id in revisions {
            revised(&world, id);
        }
        let due =
            "SELECT count(*) FROM outbox_lease WHERE state = 'pending' AND due_at IS NOT NULL";
        assert_eq!(world.number(due), 1, "one of a key may act");
        continuing(&world).drain().unwrap();
        let sent = sent(&world);
        assert_eq!((&*sent[2], &**sent.last().unwrap()), (first, "c1"), "{sent:?}");
        assert_eq!(sent.len(), 3 + revisions.len());
    }
    let world = World::new();
    keyed(&world, &["a", "b"]);
    world.script.then(rejected());
    world.drain(DEDUPLICATES);
    world.outbox.transact(|tx| world.outbox.skip(tx, 1, "ann")).unwrap();
    let id = revised(&world, 1);
    assert_eq!(world.entry(2).waits_behind, Some(id));
    world.drain(DEDUPLICATES);
    assert_eq!(sent(&world), ["a1", "a2", "b1"]);
}

#[test]
fn revise_uses_the_delay_of_the_new_version() {
    let world = World::new();
    let id = world.enqueue(&first().delay(Duration::from_secs(3600)));
    keyed(&world, &["b"]);
    assert_eq!(world.drain(DEDUPLICATES).attempts, 0);
    let minute = Duration::from_secs(60);
    let second = revise(&world, id, 1, &changed(&first(), 1).delay(minute)).unwrap().id();
    assert_eq!(world.drain(DEDUPLICATES).attempts, 0, "the new version is delayed too");
    world.advance(60);
    let third = revise(&world, second, 2, &changed(&first(), 2)).unwrap().id();
    world.drain(DEDUPLICATES);
    assert_eq!(sent(&world), ["a3", "b1"]);
    assert_eq!(world.entry(third).revises, Some(second));
    assert_eq!(world.entry(second).revises, Some(id));
    assert_eq!(world.entry(id).finished_at, Some(crate::support::world::START));
}

/// Row 1 was passed and row 2 is being sent when row 1 is revised: it must wait for row 2, however
/// that ends, and the key must not come to a stand.
#[test]
fn revise_of_a_passed_row_waits_for_a_later_row_in_flight() {
    for replayed_first in [false, true] {
        for (outcome, after) in [
            (succeeded("2"), &["a2", "c1"][..]),
            (transient(), &["a2", "b1", "c1"]),
            (rejected(), &["a2", "c1"]),
            // The revision goes before the one that blocks, and nothing goes after that.
            (needs_review(), &["a2"]),
        ] {
            let world = Arc::new(World::new());
            keyed(&world, &["a", "b", "c"]);
            let inside = Arc::clone(&world);
            let during = interrupted(
                move || {
                    if replayed_first {
                        inside.outbox.replay(1, "ann").unwrap();
                    }
                    let id = revised(&inside, 1);
                    assert_eq!(inside.entry(id).next_attempt_at, None, "row 2 is on the way");
                    let other = inside.drain(DEDUPLICATES);
                    assert_eq!(other.attempts, 0, "and no relay sends it");
                },
                outcome.clone(),
            );
            let (script, count) = (world.script.clone(), Mutex::new(0));
            let handler = move |delivery: &Delivery| {
                let nth = {
                    let mut count = count.lock().unwrap();
                    *count += 1;
                    *count
                };
                match nth {
                    1 => rejected(),
                    2 => during(delivery),
                    _ => script.answer(delivery),
                }
            };
            let operation = Operation::new(DEDUPLICATES, handler)
                .backoff(exact_backoff())
                .on_dead(OnDead::Continue);
            let relay = relay_on(&world.second(), operation);
            relay.drain().unwrap();
            world.advance(100);
            relay.drain().unwrap();
            assert_eq!(sent(&world), after, "{outcome:?}, replayed first: {replayed_first}");
        }
    }
}

/// The old version can be deleted once it is settled; the new one stays what it is.
#[test]
fn revised_intent_may_be_pruned() {
    let world = World::new();
    let id = world.enqueue(&first());
    let new = revised(&world, id);
    world.sql(&format!("DELETE FROM outbox WHERE id = {id}"));
    world.drain(DEDUPLICATES);
    assert_eq!(world.entry(new).status, Status::Succeeded);
    world.sql(&format!("DELETE FROM outbox WHERE id = {new}"));
    let conn = Connection::open(world.path()).unwrap();
    let left: i64 =
        conn.query_row("SELECT count(*) FROM outbox_revision", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
    assert_eq!(world.entry(world.enqueue(&pay("z"))).waits_behind, None);
    assert!(world.outbox.entry(OTHER).unwrap().is_none());
}
