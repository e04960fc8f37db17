//! The provider's own record says that it was applied: a webhook, or an import.

use std::sync::Arc;

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{
    Delivery, Error, ErrorKind, Event, EventKind, Finding, Operation, Outcome, Receipt, Status,
};

use crate::support::standing::{FIRST, Standing, all_about};
use crate::support::world::{
    DEDUPLICATES, World, duplicates, immediate, interrupted, maybe_sent, pay, rejected, relay_on,
    succeeded, transient,
};

fn confirm(world: &World, id: i64, receipt: &Receipt) -> Result<Option<Event>, Error> {
    let entry = world.entry(id);
    let of = (entry.tenant_id.as_str(), entry.idempotency_key.as_str());
    world.outbox.transact(|tx| world.outbox.confirm(tx, of, receipt, "webhook"))
}

fn receipt(id: &str) -> Receipt {
    Receipt::new().downstream_id(id).body("{\"paid\":true}")
}

#[test]
fn confirm_settles_every_unsettled_status_with_its_receipt() {
    for standing in Standing::ALL {
        if standing.status().is_settled() {
            continue;
        }
        let world = standing.then(move |world| {
            let event = confirm(world, FIRST, &receipt("eff_1")).unwrap().unwrap();
            assert_eq!((event.kind, event.from_status), (EventKind::Confirmed, standing.status()));
            assert_eq!(
                (event.status, event.actor.as_deref()),
                (Status::Succeeded, Some("webhook"))
            );
            assert_eq!(event.downstream_id.as_deref(), Some("eff_1"));
            let last = world.outbox.audit(FIRST).unwrap().pop();
            assert_eq!(last.as_ref(), Some(&event), "it is what is on record");
        });
        let entry = world.entry(FIRST);
        assert_eq!(entry.status, Status::Succeeded, "{standing:?}");
        assert_eq!(entry.receipt, Some(receipt("eff_1")), "{standing:?}");
        assert_eq!(world.number("SELECT count(*) FROM outbox_keyed WHERE id = 1"), 0);
        assert_eq!(world.number("SELECT count(*) FROM outbox_lost"), 0);
        world.advance(1_000_000);
        let sent = world.script.seen().len();
        world.drain(DEDUPLICATES);
        world.drain(Unprotected);
        assert_eq!(world.script.seen().len(), sent, "{standing:?}: it is not sent again");
        assert_eq!(duplicates(&world), 0, "{standing:?}");
        assert_eq!(world.outbox.stats().unwrap()[0].count(Status::Succeeded), 1, "{standing:?}");
    }
}

#[test]
fn confirm_leaves_a_settled_row_as_it_is() {
    Standing::Succeeded.then(|world| {
        let before = all_about(world, FIRST);
        assert_eq!(confirm(world, FIRST, &receipt("eff_1")).unwrap(), None, "it was known");
        assert_eq!(confirm(world, FIRST, &Receipt::new()).unwrap(), None, "it was known");
        assert_eq!(all_about(world, FIRST), before);
        // Another id is another effect. The webhook is delivered more than once.
        let event = confirm(world, FIRST, &receipt("eff_2")).unwrap().unwrap();
        assert_eq!((event.kind, event.status), (EventKind::DuplicateEffect, Status::Succeeded));
        let reason = event.reason.unwrap();
        assert!(reason.contains("eff_1") && reason.contains("eff_2"), "{reason}");
        for id in ["eff_2", "eff_1", "eff_2"] {
            assert_eq!(confirm(world, FIRST, &receipt(id)).unwrap(), None);
        }
        assert_eq!(duplicates(world), 1);
        assert_eq!(world.entry(FIRST).downstream_id.as_deref(), Some("eff_1"));
    });
    for id in [Some("eff_1"), None] {
        Standing::Cancelled.then(move |world| {
            let receipt = id.map_or_else(Receipt::new, receipt);
            let event = confirm(world, FIRST, &receipt).unwrap().unwrap();
            assert_eq!((event.from_status, event.status), (Status::Cancelled, Status::Cancelled));
            assert!(event.reason.unwrap().contains("was carried out"));
            assert_eq!(confirm(world, FIRST, &receipt).unwrap(), None, "once");
            assert_eq!(world.entry(FIRST).status, Status::Cancelled);
        });
    }
}

/// Something that was lost and given up failed late; that is no reason to keep quiet about a
/// provider that says it was carried out after all.
#[test]
fn confirm_after_a_late_failure_counts() {
    let world = Arc::new(World::new());
    let id = world.enqueue(&pay("a"));
    let inside = Arc::clone(&world);
    let meanwhile = move || {
        inside.advance(91);
        inside.drain(Unprotected);
        inside.outbox.resolve(id, &sqlite_outbox::Resolution::Dead, "ann").unwrap();
    };
    world.other_relay(Unprotected, interrupted(meanwhile, rejected())).drain().unwrap();
    assert_eq!(*world.story(id).last().unwrap(), "late:dead>dead");
    let event = confirm(&world, id, &Receipt::new()).unwrap().unwrap();
    assert_eq!((event.kind, event.status), (EventKind::Confirmed, Status::Succeeded));
}

/// Reports of the worker that come afterwards change nothing; another id is another effect.
#[test]
fn confirm_is_not_overwritten_by_an_attempt_in_flight() {
    for (says, doubles) in [
        (succeeded("eff_1"), 0),
        (Outcome::Succeeded(Receipt::new()), 0),
        (succeeded("eff_2"), 1),
        (rejected(), 0),
        (transient(), 0),
        (maybe_sent(), 0),
    ] {
        let world = Arc::new(World::new());
        let (id, next) = (
            world.enqueue(&pay("a").ordering_key("k")),
            world.enqueue(&pay("b").ordering_key("k")),
        );
        let inside = Arc::clone(&world);
        let (first, script) = (
            interrupted(
                move || {
                    confirm(&inside, id, &receipt("eff_1")).unwrap().unwrap();
                    assert_eq!(confirm(&inside, id, &receipt("eff_1")).unwrap(), None, "again");
                },
                says.clone(),
            ),
            world.script.clone(),
        );
        let handler = move |delivery: &Delivery| match delivery.id() {
            1 => first(delivery),
            _ => script.answer(delivery),
        };
        relay_on(&world.second(), Operation::new(DEDUPLICATES, handler)).drain().unwrap();
        let entry = world.entry(id);
        assert_eq!((entry.status, entry.receipt), (Status::Succeeded, Some(receipt("eff_1"))));
        let word = if doubles > 0 { "duplicate_effect" } else { "late" };
        assert_eq!(
            world.story(id),
            ["confirmed:in_flight>succeeded".to_owned(), format!("{word}:succeeded>succeeded")],
            "{says:?}"
        );
        assert_eq!(duplicates(&world), doubles);
        assert_eq!(world.entry(next).status, Status::Succeeded);
        // The webhook comes once more, and tells nothing.
        assert_eq!(confirm(&world, id, &receipt("eff_1")).unwrap(), None);
        assert_eq!(confirm(&world, id, &receipt("eff_2")).unwrap().is_some(), doubles == 0);
        assert_eq!(duplicates(&world), 1, "{says:?}");
    }
}

/// The webhook of the second effect came before its worker did: one second effect, counted once.
#[test]
fn duplicate_effect_is_counted_once_whoever_reports_it() {
    for webhook_first in [true, false] {
        let world = Arc::new(World::new());
        let id = world.enqueue(&pay("a"));
        let inside = Arc::clone(&world);
        let meanwhile = move || {
            inside.advance(91);
            assert_eq!(inside.drain(DEDUPLICATES).succeeded, 1);
            if webhook_first {
                let event = confirm(&inside, id, &receipt("late")).unwrap().unwrap();
                assert_eq!(event.kind, EventKind::DuplicateEffect);
            }
        };
        world.other_relay(DEDUPLICATES, interrupted(meanwhile, succeeded("late"))).drain().unwrap();
        assert_eq!(confirm(&world, id, &receipt("late")).unwrap(), None);
        assert_eq!(duplicates(&world), 1);
        assert_eq!(world.entry(id).downstream_id.as_deref(), Some("eff_1"));
    }
}

/// The webhook comes while somebody is asking: what is found then is no news, or too late.
#[test]
fn confirm_is_not_overwritten_by_a_lookup_in_flight() {
    for (finding, doubles, last) in [
        (Finding::NotApplied, 0, "confirmed:unknown>succeeded"),
        (crate::support::world::unsure(), 0, "confirmed:unknown>succeeded"),
        (Finding::Applied(receipt("eff_1")), 0, "late:succeeded>succeeded"),
        (Finding::Applied(receipt("eff_2")), 1, "duplicate_effect:succeeded>succeeded"),
    ] {
        let world = Arc::new(World::new());
        let id = world.enqueue(&pay("a"));
        let inside = Arc::clone(&world);
        let asked = interrupted(
            move || drop(confirm(&inside, id, &receipt("eff_1")).unwrap().unwrap()),
            maybe_sent(),
        );
        let operation = Operation::new(Unprotected, |_: &Delivery| maybe_sent());
        let found = finding.clone();
        let relay = relay_on(
            &world.second(),
            operation.reconcile(move |delivery: &Delivery| {
                asked(delivery);
                found.clone()
            }),
        );
        relay.drain().unwrap();
        assert_eq!(world.entry(id).status, Status::Unknown);
        world.advance(120);
        relay.drain().unwrap();
        assert_eq!(world.story(id).last().unwrap(), last, "{finding:?}");
        assert_eq!(world.entry(id).receipt, Some(receipt("eff_1")));
        assert_eq!(duplicates(&world), doubles);
        world.advance(100_000);
        relay.drain().unwrap();
        assert_eq!(world.story(id).last().unwrap(), last, "it is not asked about again");
    }
}

#[test]
fn confirm_behind_another_row_settles_in_its_place() {
    let world = World::new();
    for entity in ["a", "b", "c"] {
        world.enqueue(&pay(entity).ordering_key("k"));
    }
    world.script.then(rejected());
    world.drain(DEDUPLICATES);
    confirm(&world, 2, &receipt("eff_2")).unwrap().unwrap();
    assert_eq!(world.story(2), ["confirmed:pending>succeeded"]);
    assert_eq!(world.entry(3).waits_behind, Some(1));
    world.drain(DEDUPLICATES);
    assert_eq!(world.script.seen().len(), 1, "the head blocks as before");
    // Confirming the head lets the key go on.
    confirm(&world, 1, &receipt("eff_1")).unwrap().unwrap();
    world.drain(DEDUPLICATES);
    let sent: Vec<i64> = world.script.seen().iter().map(Delivery::id).collect();
    assert_eq!(sent, [1, 3]);
}

#[test]
fn confirm_by_key_means_the_key_of_its_tenant() {
    let world = World::new();
    let ids = ["", "acme"].map(|tenant| world.enqueue(&pay("a").key("mine").tenant(tenant)));
    let confirm = |tenant: &str, key: &str| {
        let of = (tenant, key);
        world.outbox.transact(|tx| world.outbox.confirm(tx, of, &receipt("eff"), "webhook"))
    };
    for (tenant, key) in [("other", "mine"), ("acme", "theirs"), ("", "MINE")] {
        let error = confirm(tenant, key).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    assert_eq!(confirm("acme", "mine").unwrap().unwrap().outbox_id, ids[1]);
    assert_eq!(world.entry(ids[0]).status, Status::Pending);
    let long = "x".repeat(1025);
    for id in ["", "a\0b", &long] {
        let of = ("", "mine");
        let result =
            world.outbox.transact(|tx| world.outbox.confirm(tx, of, &receipt(id), "webhook"));
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(world.entry(ids[0]).status, Status::Pending);
}

#[test]
fn confirm_belongs_to_the_callers_transaction() {
    let world = World::new();
    let id = world.enqueue(&pay("a").ordering_key("k"));
    let next = world.enqueue(&pay("b").ordering_key("k"));
    let before = (all_about(&world, id), all_about(&world, next));
    let mut conn = world.app();
    let key = world.entry(id).idempotency_key;
    let of = ("", key.as_str());
    let error = world.outbox.confirm(&conn, of, &receipt("eff"), "webhook").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoTransaction);
    let tx = immediate(&mut conn);
    tx.execute("INSERT INTO orders (id, state) VALUES ('a', 'paid')", []).unwrap();
    assert!(world.outbox.confirm(&tx, of, &receipt("eff"), "webhook").unwrap().is_some());
    tx.rollback().unwrap();
    assert_eq!((all_about(&world, id), all_about(&world, next)), before);
    assert_eq!(world.number("SELECT count(*) FROM orders"), 0);
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 2);
}
