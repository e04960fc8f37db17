//! How look-ups share a relay with sends, with other relays, and with what other hands have
//! written.

use std::sync::{Arc, RwLock};

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{Delivery, EventKind, Finding, Intent, Operation, Relay, Status};

use super::reconcile::{SETTLE, applied, doubtful};
use crate::support::world::{LONG, World, maybe_sent, pay, relay_on, unsure, until};

/// With threads, look-ups and sends go on beside each other.
#[test]
fn lookups_and_sends_do_not_wait_for_each_other() {
    let world = World::new();
    for n in 0..40 {
        world.enqueue(&pay(&format!("doubtful-{n}")));
    }
    world.script.times(40, &maybe_sent());
    let operation = world.operation(Unprotected).breaker_after(0);
    let relay =
        Relay::builder(&world.outbox).operation("pay", operation).workers(4).build().unwrap();
    assert_eq!(relay.drain().unwrap().unknown, 40);
    for n in 0..40 {
        world.enqueue(&pay(&format!("fresh-{n}")));
        world.script.then_find(if n % 2 == 0 { applied(&n.to_string()) } else { unsure() });
    }
    world.advance(SETTLE);
    let report = relay.drain().unwrap();
    assert_eq!((report.succeeded, world.script.asked()), (60, 40));
    assert_eq!(world.number("SELECT count(*) FROM outbox_lease WHERE state = 'unknown'"), 20);
    let again = world.script.seen().iter().filter(|d| d.entity().starts_with("doubtful")).count();
    assert_eq!(again, 40, "nothing in doubt is sent again");
}

/// Providers that do not answer look-ups keep at most half of the workers from sending, however
/// many operations ask them.
#[test]
fn lookups_that_hang_do_not_keep_others_from_sending() {
    let world = World::new();
    let outbox = world.on_real_time();
    for n in 0..8 {
        world.enqueue(&Intent::new(["a", "b"][n % 2], n.to_string()).args(n));
    }
    let gate = Arc::new(RwLock::new(()));
    let closed = gate.write().unwrap();
    let hangs = |gate: &Arc<RwLock<()>>| {
        let gate = Arc::clone(gate);
        Operation::new(Unprotected, |_: &Delivery| maybe_sent()).reconcile(move |_| {
            drop(gate.read().unwrap());
            unsure()
        })
    };
    let relay = Relay::builder(&outbox)
        .operation("a", hangs(&gate).breaker_after(0))
        .operation("b", hangs(&gate).breaker_after(0))
        .operation("pay", world.operation(Unprotected))
        .workers(4)
        .build()
        .unwrap();
    assert_eq!(relay.drain().unwrap().unknown, 8);
    world.batch("UPDATE outbox_lease SET due_at = 1600000000000 WHERE state = 'unknown'");
    let handle = relay.start().unwrap();
    until(|| world.number("SELECT count(*) FROM outbox_lease WHERE owner IS NOT NULL") == 2);
    let sent = world.enqueue(&pay("sent"));
    assert_eq!(outbox.wait(sent, LONG).unwrap().status, Status::Succeeded);
    assert_eq!(world.number("SELECT count(*) FROM outbox_lease WHERE owner IS NOT NULL"), 2);
    drop(closed);
    until(|| world.number("SELECT min(lookups) FROM outbox_lease") == 1);
    handle.shutdown(LONG).unwrap();
}

/// With one worker they take turns, so that many look-ups do not hold up what is to be sent.
#[test]
fn lookups_and_sends_take_turns_with_one_worker() {
    let world = World::new();
    for n in 0..20 {
        world.enqueue(&pay(&format!("doubtful-{n}")));
    }
    world.script.times(20, &maybe_sent());
    let relay = relay_on(&world.outbox, world.operation(Unprotected).breaker_after(0));
    assert_eq!(relay.drain().unwrap().unknown, 20);
    world.advance(SETTLE);
    for n in 0..5 {
        world.enqueue(&pay(&format!("fresh-{n}")));
    }
    relay.drain().unwrap();
    let trail = world.outbox.events(20, 0, 100).unwrap();
    let sent = trail.iter().take(10).filter(|event| event.kind == EventKind::Attempt).count();
    assert_eq!(sent, 5, "of the first ten");
}

/// Foreign bytes in the tables that lookups read keep no relay from its work.
#[test]
fn lookup_meets_foreign_bytes_and_goes_on() {
    for spoil in [
        "INSERT INTO outbox_lost VALUES (1, 1, CAST(x'ff' AS TEXT))",
        "INSERT INTO outbox_binding VALUES ('pay', CAST(x'ff' AS TEXT), 1)",
    ] {
        let (world, id, relay) = doubtful();
        world.batch(spoil);
        let other = world.enqueue(&pay("b"));
        for _ in 0..2 {
            world.advance(SETTLE);
            world.script.then_find(Finding::NotApplied);
            relay.drain().unwrap();
        }
        assert_eq!(world.entry(other).status, Status::Succeeded, "{spoil}");
        assert_eq!(world.entry(id).status, Status::Succeeded, "{spoil}");
    }
}

/// The look-up was taken out of the configuration: what is in doubt must not wait for it for ever.
#[test]
fn lookup_stale_for_a_day_needs_review() {
    let (world, id, relay) = doubtful();
    drop(relay);
    let blind = relay_on(&world.outbox, world.operation_without_look_up(Unprotected));
    world.advance(SETTLE + 24 * 3600 - 1);
    assert_eq!(blind.drain().unwrap().needs_review, 0);
    world.advance(1);
    world.outbox.pause("pay", None, "alice").unwrap();
    assert_eq!(blind.drain().unwrap().needs_review, 0, "while it is paused nobody is to ask");
    world.outbox.resume("pay", "alice").unwrap();
    assert_eq!(blind.drain().unwrap().needs_review, 1);
    assert!(world.entry(id).last_error.unwrap().contains("no relay with a lookup has asked"));
    assert_eq!(world.story(id)[1..], ["reconciled:unknown>needs_review"]);
}
