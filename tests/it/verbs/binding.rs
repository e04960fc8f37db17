//! An id that names what was created belongs to one intent.

use std::sync::{Arc, Barrier};

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{
    Delivery, Entry, ErrorKind, EventKind, Finding, Intent, OnDead, Operation, Outbox, Outcome,
    Receipt, Relay, Resolution, Status,
};

use crate::support::standing::{FIRST, Standing, all_about};
use crate::support::world::{
    DEDUPLICATES, World, duplicates, exact_backoff, immediate, interrupted, maybe_sent, pay,
    rejected, relay_on, succeeded,
};

fn binding(world: &World) -> Relay {
    relay_on(&world.outbox, world.operation(DEDUPLICATES).binds_ids())
}

fn confirm(outbox: &Outbox, entry: &Entry, id: &str) -> Option<sqlite_outbox::Event> {
    let of = (entry.tenant_id.as_str(), entry.idempotency_key.as_str());
    let receipt = Receipt::new().downstream_id(id);
    outbox.transact(|tx| outbox.confirm(tx, of, &receipt, "webhook")).unwrap()
}

fn bind(world: &World, id: i64, downstream_id: &str) -> Result<(), ErrorKind> {
    let bound = world.outbox.transact(|tx| world.outbox.bind(tx, id, downstream_id, "ann"));
    bound.map_err(|error| error.kind())
}

/// Whose an id is, as the file has it.
fn owner(world: &World, id: &str) -> i64 {
    world.number(&format!("SELECT id FROM outbox_binding WHERE downstream_id = '{id}'"))
}

/// Asserts that the intent waits for a person, who is told of both intents and of the id.
fn needs_review(world: &World, id: i64, downstream_id: &str, other: i64) {
    let entry = world.entry(id);
    assert_eq!(entry.status, Status::NeedsReview);
    let why = entry.last_error.unwrap();
    let parts = [format!("intent {id} "), format!("{downstream_id:?}"), format!("intent {other}:")];
    assert!(parts.iter().all(|part| why.contains(part)), "{why}");
    assert_eq!(entry.downstream_id, None);
    let event = world.outbox.audit(id).unwrap().pop().unwrap();
    assert_eq!(event.error_class.as_deref(), Some("duplicate_id"));
    assert_eq!(owner(world, downstream_id), other);
}

/// Two relays get the same id for two intents and write it down at the same moment, again and
/// again. One intent has it; the other one, and nothing beside it, waits for a person.
#[test]
fn downstream_id_given_to_two_at_once_binds_one() {
    const ROUNDS: i64 = 25;
    let world = World::new();
    for round in 0..ROUNDS {
        for operation in ["pay", "charge"] {
            for entity in ["before", "same", "after"] {
                world.enqueue(&Intent::new(operation, format!("{entity}-{round}")));
            }
        }
    }
    let together = Arc::new(Barrier::new(2));
    let relay = |name: &'static str| {
        let together = Arc::clone(&together);
        let handler = move |delivery: &Delivery| match delivery.entity().split_once('-').unwrap() {
            ("same", round) => {
                together.wait();
                succeeded(&format!("id-{round}"))
            }
            _ => succeeded(&format!("own-{}", delivery.id())),
        };
        let operation = Operation::new(DEDUPLICATES, handler).provider("stripe").binds_ids();
        let relay = Relay::builder(&world.second()).operation(name, operation).workers(1);
        relay.build().unwrap()
    };
    let relays = [relay("pay"), relay("charge")];
    std::thread::scope(|scope| {
        for relay in &relays {
            scope.spawn(|| relay.drain().unwrap());
        }
    });
    for round in 0..ROUNDS {
        let first = round * 6 + 1;
        for beside in [0, 2, 3, 5] {
            let entry = world.entry(first + beside);
            assert_eq!(entry.status, Status::Succeeded, "the batch is kept whole");
            assert_eq!(entry.downstream_id, Some(format!("own-{}", entry.id)));
        }
        let same = [first + 1, first + 4];
        let has = owner(&world, &format!("id-{round}"));
        let other = same.into_iter().find(|id| *id != has).unwrap();
        assert_eq!(world.entry(has).status, Status::Succeeded);
        needs_review(&world, other, &format!("id-{round}"), has);
    }
    assert_eq!(duplicates(&world), 0);
}

/// Within one batch of one relay, where all is written in one transaction.
#[test]
fn downstream_id_twice_in_a_batch_binds_one() {
    let world = World::new();
    let ids: Vec<i64> =
        ["a", "b", "c", "d"].iter().map(|entity| world.enqueue(&pay(entity))).collect();
    for id in ["x", "x", "y", "x"] {
        world.script.then(succeeded(id));
    }
    assert_eq!(binding(&world).drain().unwrap().succeeded, 2);
    assert_eq!(world.entry(ids[2]).downstream_id.as_deref(), Some("y"));
    needs_review(&world, ids[1], "x", ids[0]);
    needs_review(&world, ids[3], "x", ids[0]);
    // It may have been applied under a name of its own, so that it is not withdrawn lightly.
    let cancel = world.outbox.transact(|tx| world.outbox.cancel(tx, ids[1], "ann"));
    assert_eq!(cancel.unwrap_err().kind(), ErrorKind::TooLate);
}

#[test]
fn downstream_ids_that_do_not_bind_are_not_compared() {
    let world = World::new();
    for entity in ["a", "b", "c"] {
        world.enqueue(&pay(entity));
        world.script.then(succeeded("accepted"));
    }
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 3);
    let fourth = world.enqueue(&pay("d"));
    confirm(&world.outbox, &world.entry(fourth), "accepted").unwrap();
    assert_eq!(world.entry(fourth).status, Status::Succeeded);
    assert_eq!(world.number("SELECT count(*) FROM outbox_binding"), 0);
    assert_eq!(duplicates(&world), 0);
}

/// Where it is unsettled, in whatever status, the id of another is no proof for it.
#[test]
fn confirm_with_the_id_of_another_is_no_proof() {
    for standing in Standing::ALL {
        if standing.status().is_settled() {
            continue;
        }
        standing.then(move |world| {
            let other = world.enqueue(&pay("other"));
            drop(relay_on(&world.second(), world.operation(Unprotected).binds_ids()));
            confirm(&world.outbox, &world.entry(other), "x").unwrap();
            let event = confirm(&world.outbox, &world.entry(FIRST), "x").unwrap();
            assert_eq!((event.kind, event.status), (EventKind::Confirmed, Status::NeedsReview));
            needs_review(world, FIRST, "x", other);
        });
    }
    // A settled one stays, and it is on record once.
    Standing::Succeeded.then(|world| {
        let other = world.enqueue(&pay("other"));
        drop(relay_on(&world.second(), world.operation(Unprotected).binds_ids()));
        confirm(&world.outbox, &world.entry(other), "x").unwrap();
        let event = confirm(&world.outbox, &world.entry(FIRST), "x").unwrap();
        assert_eq!(event.error_class.as_deref(), Some("duplicate_id"));
        assert_eq!((event.status, duplicates(world)), (Status::Succeeded, 0));
        assert_eq!(confirm(&world.outbox, &world.entry(FIRST), "x"), None);
    });
}

/// A row that was replayed waits for the one on the way; that is set aside, and never comes back.
#[test]
fn in_flight_row_set_aside_gives_way_to_the_one_behind() {
    let world = Arc::new(World::new());
    for entity in ["1", "2", "3"] {
        world.enqueue(&pay(entity).ordering_key("k"));
    }
    let other = world.enqueue(&pay("other").delay(std::time::Duration::from_secs(10_000_000)));
    let operation = world.operation(DEDUPLICATES).on_dead(OnDead::Continue).binds_ids();
    let relay = relay_on(&world.outbox, operation);
    world.script.then(rejected()).then(rejected());
    relay.drain().unwrap();
    bind(&world, other, "x").unwrap();
    world.outbox.replay(2, "ann").unwrap();
    let inside = Arc::clone(&world);
    let meanwhile = move || {
        inside.outbox.replay(1, "ann").unwrap();
        assert_eq!(inside.entry(1).next_attempt_at, None);
        confirm(&inside.outbox, &inside.entry(2), "x").unwrap();
        assert!(inside.entry(1).next_attempt_at.is_some(), "nothing is on the way any more");
    };
    world.other_relay(DEDUPLICATES, interrupted(meanwhile, rejected())).drain().unwrap();
    assert_eq!(world.entry(2).status, Status::NeedsReview);
    assert_eq!(*world.story(2).last().unwrap(), "late:needs_review>needs_review");
    assert_eq!(world.entry(1).status, Status::Dead, "the handler was asked to carry it out");
}

#[test]
fn resolve_and_bind_refuse_the_id_of_another() {
    let world = World::new();
    let (has, doubtful) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
    world.script.then(succeeded("x")).then(crate::support::world::needs_review());
    binding(&world).drain().unwrap();
    let before = all_about(&world, doubtful);
    let applied = |id: &str| Resolution::Applied { downstream_id: Some(id.into()) };
    let error = world.outbox.resolve(doubtful, &applied("x"), "ann").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let text = error.to_string();
    assert!(text.contains(&format!("intent {has}:")) && text.contains("\"x\""), "{text}");
    assert_eq!(bind(&world, doubtful, "x"), Err(ErrorKind::Conflict));
    assert_eq!(all_about(&world, doubtful), before);
    world.outbox.resolve(doubtful, &applied("y"), "ann").unwrap();
    assert_eq!(owner(&world, "y"), doubtful);
    assert_eq!(bind(&world, doubtful, "z"), Err(ErrorKind::TooLate));
    assert_eq!(bind(&world, 99, "z"), Err(ErrorKind::NotFound));
    for wrong in ["", "a\0b", &"x".repeat(1025)] {
        assert_eq!(bind(&world, doubtful, wrong), Err(ErrorKind::Invalid));
    }
}

/// The client chose the id, and wrote it down before a relay had said who the provider is.
#[test]
fn bind_before_sending_counts_under_the_later_provider() {
    for says in ["mine", "other"] {
        let world = World::new();
        let id = world.enqueue(&pay("a"));
        bind(&world, id, "mine").unwrap();
        bind(&world, id, "mine").unwrap();
        assert_eq!(world.story(id), ["bound:pending>pending"]);
        assert_eq!(bind(&world, id, "another"), Err(ErrorKind::Conflict));
        let operation = world.operation(DEDUPLICATES).provider("stripe").binds_ids();
        let stripe = Relay::builder(&world.outbox)
            .operation("pay", operation)
            .operation("charge", world.operation(DEDUPLICATES).provider("stripe").binds_ids())
            .workers(1)
            .build()
            .unwrap();
        // Another operation of the same provider cannot have it either, before or after.
        let charge = world.enqueue(&Intent::new("charge", "b"));
        assert_eq!(bind(&world, charge, "mine"), Err(ErrorKind::Conflict));
        confirm(&world.outbox, &world.entry(charge), "mine").unwrap();
        needs_review(&world, charge, "mine", id);
        world.script.then(succeeded(says));
        stripe.drain().unwrap();
        let entry = world.entry(id);
        assert_eq!((entry.status, entry.downstream_id.as_deref()), (Status::Succeeded, Some(says)));
        let second = u64::from(says != "mine");
        assert_eq!(duplicates(&world), second, "the provider calls it {says}");
        // Told again of both, nobody counts again.
        for known in ["mine", says] {
            assert_eq!(confirm(&world.outbox, &entry, known), None);
        }
        assert_eq!(duplicates(&world), second);
    }
}

#[test]
fn lookup_can_ask_for_the_bound_id() {
    let world = World::new();
    let id = world.enqueue(&pay("a"));
    bind(&world, id, "mine").unwrap();
    let operation = Operation::new(Unprotected, |_: &Delivery| maybe_sent()).binds_ids();
    let relay = relay_on(
        &world.outbox,
        operation.reconcile(|delivery: &Delivery| {
            Finding::Applied(Receipt::new().downstream_id(delivery.downstream_id().unwrap()))
        }),
    );
    relay.drain().unwrap();
    world.advance(120);
    relay.drain().unwrap();
    assert_eq!(world.entry(id).downstream_id.as_deref(), Some("mine"));
    assert_eq!(duplicates(&world), 0);
}

#[test]
fn bind_belongs_to_the_callers_transaction() {
    let world = World::new();
    let (id, other) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
    let mut conn = world.app();
    let error = world.outbox.bind(&conn, id, "x", "ann").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoTransaction);
    let tx = immediate(&mut conn);
    world.outbox.bind(&tx, id, "x", "ann").unwrap();
    tx.rollback().unwrap();
    assert_eq!(world.story(id), [""; 0]);
    bind(&world, other, "x").unwrap();
    assert_eq!(bind(&world, id, "x"), Err(ErrorKind::Conflict));
}

/// A finding, or a late success, with the id of another intent settles nothing.
#[test]
fn finding_or_late_success_with_the_id_of_another_settles_nothing() {
    let has = |world: &World| {
        drop(relay_on(&world.second(), world.operation(DEDUPLICATES).binds_ids()));
        let other = world.enqueue(&pay("other"));
        confirm(&world.outbox, &world.entry(other), "x").unwrap();
        other
    };
    let world = World::new();
    let id = world.enqueue(&pay("a"));
    let relay = relay_on(&world.outbox, world.operation(Unprotected).binds_ids());
    world.script.then(maybe_sent());
    world.script.then_find(Finding::Applied(Receipt::new().downstream_id("x")));
    relay.drain().unwrap();
    let other = has(&world);
    world.advance(120);
    relay.drain().unwrap();
    needs_review(&world, id, "x", other);

    for outcome in [maybe_sent(), rejected(), Outcome::Succeeded(Receipt::new())] {
        let world = Arc::new(World::new());
        let id = world.enqueue(&pay("a"));
        let inside = Arc::clone(&world);
        let settles = matches!(outcome, Outcome::Succeeded(_));
        let meanwhile = move || {
            inside.advance(91);
            has(&inside);
            inside.script.then(outcome);
            inside.drain(DEDUPLICATES);
        };
        world.other_relay(DEDUPLICATES, interrupted(meanwhile, succeeded("x"))).drain().unwrap();
        if settles {
            assert_eq!(world.entry(id).status, Status::Succeeded);
            assert_eq!(owner(&world, "x"), 2);
        } else {
            needs_review(&world, id, "x", 2);
        }
        assert_eq!(duplicates(&world), 0);
    }
}

/// A success that came late is kept as proof while another attempt is on the way. Confirmed with
/// the id of another intent, the row needs a person, and the proof must not outlive that: it kept
/// the row from ever moving again, and a drain from ending.
#[test]
fn late_proof_does_not_outlive_a_persons_decision() {
    let world = Arc::new(World::new());
    world.enqueue(&pay("x"));
    let relay = |handler: Box<dyn Fn(&Delivery) -> Outcome + Send + Sync>| {
        let operation = Operation::new(DEDUPLICATES, move |d: &Delivery| handler(d));
        relay_on(&world.second(), operation.backoff(exact_backoff()).binds_ids())
    };
    relay(Box::new(|_| succeeded("ch_x"))).drain().unwrap();
    let expires_in = std::time::Duration::from_secs(10_000);
    let id = world.enqueue(&pay("a").expires_in(expires_in));
    let (inside, outside) = (Arc::clone(&world), Arc::clone(&world));
    let second = interrupted(
        move || {
            // The first attempt is heard of while this one is on the way; then a webhook lies.
            outside.batch(
                "UPDATE outbox_lease SET late_id = 'ch_a', late_receipt = '{}' WHERE id = 2",
            );
            let (outbox, key) = (&outside.outbox, outside.entry(id).idempotency_key);
            let receipt = Receipt::new().downstream_id("ch_x");
            let confirmed =
                outbox.transact(|tx| outbox.confirm(tx, ("", &key), &receipt, "webhook"));
            assert_eq!(confirmed.unwrap().unwrap().status, Status::NeedsReview);
        },
        maybe_sent(),
    );
    relay(Box::new(second)).drain().unwrap();
    assert_eq!(inside.entry(id).status, Status::NeedsReview);
    world.outbox.resolve(id, &Resolution::NotApplied, "alice").unwrap();
    world.advance(20_000);
    relay(Box::new(|_| succeeded("late"))).drain().unwrap();
    assert_eq!(world.entry(id).status, Status::Dead, "it has expired, and was not applied");

    // Nor does one that was put there by hand.
    world.batch("UPDATE outbox_lease SET late_receipt = '{}' WHERE id = 2");
    world.outbox.replay(id, "alice").unwrap();
    world.batch("UPDATE outbox_lease SET late_receipt = '{}' WHERE id = 2");
    relay(Box::new(|_| succeeded("late"))).drain().unwrap();
    assert_eq!(world.entry(id).status, Status::Dead);
}

/// A request to cancel that comes while the intent is sent holds until a person has found out,
/// also where the answer names the effect of another intent.
#[test]
fn request_to_cancel_outlives_an_id_that_is_taken() {
    let world = Arc::new(World::new());
    let first = world.enqueue(&pay("x"));
    let drain = |handler: Box<dyn Fn(&Delivery) -> Outcome + Send + Sync>| {
        let operation = Operation::new(DEDUPLICATES, move |d: &Delivery| handler(d)).binds_ids();
        relay_on(&world.second(), operation).drain().unwrap();
    };
    drain(Box::new(|_| succeeded("ch_x")));
    let id = world.enqueue(&pay("a"));
    let outside = Arc::clone(&world);
    let asked = move || {
        let outbox = &outside.outbox;
        let status = outbox.transact(|tx| outbox.request_cancel(tx, id, "ann")).unwrap();
        assert_eq!(status, Status::InFlight);
    };
    drain(Box::new(interrupted(asked, succeeded("ch_x"))));
    needs_review(&world, id, "ch_x", first);
    let resolved = world.outbox.resolve(id, &Resolution::NotApplied, "ann").unwrap();
    assert_eq!(resolved, Status::Cancelled, "it is not sent again");
}
