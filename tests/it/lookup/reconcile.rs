//! Look-ups: what may have been applied is found out, and nothing is sent twice because of it.

use std::sync::Arc;
use std::time::Duration;

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{Finding, Operation, Receipt, Relay, Status};

use crate::support::world::{
    DEDUPLICATES, START, World, interrupted, maybe_sent, pay, rejected, relay_on,
};

/// Seconds that an operation waits before it looks up, by default.
pub const SETTLE: u64 = 120;

/// A world with one intent that may have been applied, and the relay that knows of it since then.
pub fn doubtful() -> (World, i64, Relay) {
    let world = World::new();
    let id = world.enqueue(&pay("a"));
    world.script.then(maybe_sent());
    let relay = world.relay(Unprotected);
    assert_eq!(relay.drain().unwrap().unknown, 1);
    (world, id, relay)
}

pub fn applied(id: &str) -> Finding {
    Finding::Applied(Receipt::new().downstream_id(id))
}

#[test]
fn lookup_waits_for_the_lookup_delay() {
    let (world, id, relay) = doubtful();
    let entry = world.entry(id);
    assert_eq!(entry.next_lookup_at, Some(START + 120_000));
    world.advance(SETTLE - 1);
    relay.drain().unwrap();
    assert_eq!(world.script.asked(), 0);
    world.advance(1);
    world.script.then_find(applied("ch_1"));
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    let entry = world.entry(id);
    assert_eq!((entry.status, entry.attempts), (Status::Succeeded, 1));
    assert_eq!(entry.downstream_id.as_deref(), Some("ch_1"));
    assert_eq!(entry.receipt.unwrap().downstream_id.as_deref(), Some("ch_1"));
    assert_eq!(world.story(id), ["attempt:in_flight>unknown", "reconciled:unknown>succeeded"]);
    assert_eq!((world.script.asked(), world.script.seen().len()), (1, 1));
}

#[test]
fn not_applied_is_sent_once_more_under_its_key() {
    let (world, id, relay) = doubtful();
    world.advance(SETTLE);
    world.script.then_find(Finding::NotApplied);
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    let sent = world.script.seen();
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0].idempotency_key(), sent[1].idempotency_key());
    assert_eq!(sent[1].attempt(), 2, "what it has used stays used");
    assert_eq!(
        world.story(id),
        ["attempt:in_flight>unknown", "reconciled:unknown>pending", "attempt:in_flight>succeeded"]
    );
}

/// The wall clock jumps two hours while the request is on its way: by it the attempt is old, but
/// the relay has known of the doubt for no time at all.
#[test]
fn clock_jump_does_not_end_the_lookup_delay() {
    let (world, id, relay) = doubtful();
    world.clock.set(START + 2 * 3_600_000);
    world.script.then_find(Finding::NotApplied);
    relay.drain().unwrap();
    assert_eq!(world.script.asked(), 0, "the delay is measured by a clock that nobody sets");
    world.sql("UPDATE outbox_lease SET due_at = 0");
    relay.drain().unwrap();
    assert_eq!(
        (world.script.asked(), world.script.seen().len()),
        (1, 1),
        "asked, and not believed"
    );
    assert_eq!(world.entry(id).status, Status::Unknown);
    let event = world.outbox.audit(id).unwrap().pop().unwrap();
    assert!(event.reason.unwrap().contains("not known of the doubt for long enough"));

    world.advance(SETTLE);
    world.script.then_find(Finding::NotApplied);
    relay.drain().unwrap();
    assert_eq!(world.script.seen().len(), 2);
}

/// A relay that has just started has known of nothing for long.
#[test]
fn not_applied_is_not_believed_by_a_relay_that_has_just_started() {
    let (world, id, relay) = doubtful();
    drop(relay);
    world.advance(10 * SETTLE);
    let second = world.relay(Unprotected);
    world.script.then_find(Finding::NotApplied);
    second.drain().unwrap();
    assert_eq!(world.entry(id).status, Status::Unknown);
    // An effect that is there is believed at once.
    world.advance(SETTLE);
    world.script.then_find(Finding::NotApplied);
    assert_eq!(second.drain().unwrap().succeeded, 1);
}

/// The lease of a relay that is alive ran out in the middle of its request: nobody may send again
/// before that relay has said how it went.
#[test]
fn not_applied_is_not_believed_while_the_sending_relay_lives() {
    let world = Arc::new(World::new());
    let id = world.enqueue(&pay("a"));
    let inside = Arc::clone(&world);
    let meanwhile = move || {
        let other = relay_on(&inside.second(), inside.operation(Unprotected));
        inside.advance(91);
        assert_eq!(other.drain().unwrap().unknown, 1, "its lease is taken back");
        for _ in 0..3 {
            inside.advance(3600);
            inside.script.then_find(Finding::NotApplied);
            other.drain().unwrap();
        }
        assert_eq!(inside.script.asked(), 3);
        let event = inside.outbox.audit(id).unwrap().pop().unwrap();
        assert!(event.reason.unwrap().contains("may still be sending"));
        assert_eq!(inside.entry(id).status, Status::Unknown);
    };
    let first = world.other_relay(Unprotected, interrupted(meanwhile, maybe_sent()));
    first.drain().unwrap();
    // It has said that it does not know; its attempt is over.
    assert_eq!(world.entry(id).status, Status::Unknown);
    world.advance(3600);
    let other = world.relay(Unprotected);
    for _ in 0..2 {
        world.script.then_find(Finding::NotApplied);
        other.drain().unwrap();
        world.advance(3600);
    }
    assert_eq!(world.entry(id).status, Status::Succeeded, "sent again, by the scripted handler");
    assert_eq!(world.script.seen().len(), 1);
}

#[test]
fn not_applied_is_believed_once_the_sending_relay_is_dead() {
    let world = Arc::new(World::new());
    let id = world.enqueue(&pay("a"));
    let inside = Arc::clone(&world);
    let meanwhile = move || {
        inside.advance(91);
        inside.drain(Unprotected);
        // As if it had been killed: nothing holds its lock any more, and it never says anything.
        inside.batch("UPDATE outbox_lost SET owner = 'relay-0-dead'");
    };
    let first = world.other_relay(Unprotected, interrupted(meanwhile, maybe_sent()));
    first.drain().unwrap();
    world.batch("INSERT OR IGNORE INTO outbox_lost VALUES (1, 1, 'relay-0-dead')");
    let other = world.relay(Unprotected);
    for _ in 0..2 {
        world.advance(SETTLE);
        world.script.then_find(Finding::NotApplied);
        other.drain().unwrap();
    }
    assert_eq!(world.entry(id).status, Status::Succeeded);
    assert_eq!(world.number("SELECT count(*) FROM outbox_lost"), 0, "nothing is left of it");
}

#[test]
fn lookups_that_stay_inconclusive_need_review() {
    let (world, id, relay) = doubtful();
    for _ in 0..40 {
        world.advance(3600);
        relay.drain().unwrap();
    }
    assert_eq!(world.entry(id).status, Status::NeedsReview);
    assert_eq!((world.script.asked(), world.script.seen().len()), (8, 1));
    assert!(world.entry(id).last_error.unwrap().contains("the lookups are used up"));
}

/// Days without a network: nothing is used up, and hardly anything is written.
#[test]
fn lookup_that_is_never_sent_uses_up_nothing() {
    let (world, id, relay) = doubtful();
    for _ in 0..96 {
        world.advance(3600);
        let offline = sqlite_outbox::Failure::new("connect", "refused");
        world.script.then_find(Finding::NotAsked(offline));
        relay.drain().unwrap();
    }
    assert_eq!(world.entry(id).status, Status::Unknown);
    assert_eq!(world.story(id), ["attempt:in_flight>unknown"], "no news, no event");
    world.advance(3600);
    world.script.then_find(applied("ch_1"));
    assert_eq!(relay.drain().unwrap().succeeded, 1);
}

#[test]
fn doubt_without_a_lookup_needs_review_at_once() {
    let world = World::new();
    let id = world.enqueue(&pay("a"));
    world.script.then(maybe_sent());
    let blind = || relay_on(&world.outbox, world.operation_without_look_up(Unprotected));
    blind().drain().unwrap();
    assert_eq!(world.entry(id).status, Status::NeedsReview);
    assert!(world.entry(id).last_error.unwrap().contains("nothing can look up"));
    assert_eq!(world.story(id), ["attempt:in_flight>needs_review"]);

    // Where another relay on the file can ask, it is left to that one.
    let seeing = world.relay(Unprotected);
    let second = world.enqueue(&pay("b"));
    world.script.then(maybe_sent());
    blind().drain().unwrap();
    assert_eq!(world.entry(second).status, Status::Unknown);
    world.advance(SETTLE);
    blind().drain().unwrap();
    assert_eq!(world.script.asked(), 0);
    world.script.then_find(applied("ch_2"));
    seeing.drain().unwrap();
    assert_eq!(world.entry(second).status, Status::Succeeded);
}

/// A pause holds look-ups back as well: whoever paused the operation does not want it asked.
#[test]
fn pause_holds_lookups_back() {
    let (world, _, relay) = doubtful();
    world.outbox.pause("pay", None, "alice").unwrap();
    world.advance(SETTLE);
    relay.drain().unwrap();
    assert_eq!(world.script.asked(), 0);
    world.outbox.resume("pay", "alice").unwrap();
    relay.drain().unwrap();
    assert_eq!(world.script.asked(), 1);
}

/// The breaker is open because of the very rows that are in doubt: no row is left that could try
/// whether it can close, and the look-ups must not wait for one.
#[test]
fn lookups_go_on_where_the_breaker_has_nothing_to_probe_with() {
    let world = World::new();
    for n in 0..10 {
        world.enqueue(&pay(&n.to_string()));
    }
    world.script.times(10, &maybe_sent());
    let relay = world.relay(Unprotected);
    assert_eq!(relay.drain().unwrap().unknown, 10);
    assert!(world.outbox.operations().unwrap()[0].paused.is_some());
    world.advance(3600);
    for n in 0..10 {
        world.script.then_find(applied(&format!("ch_{n}")));
    }
    assert_eq!(relay.drain().unwrap().succeeded, 10);
}

/// A look-up that ends with its process is counted in its claim, and another relay asks on.
#[test]
fn lookup_that_dies_with_its_process_is_counted() {
    let (world, id, _relay) = doubtful();
    for _ in 0..9 {
        world.batch(
            "UPDATE outbox_lease SET owner = 'relay-0-dead', token = 99, lookups = lookups + 1,
                    due_at = 1700000000000",
        );
    }
    let other = world.relay(Unprotected);
    other.drain().unwrap();
    let entry = world.entry(id);
    assert_eq!((entry.status, world.script.asked()), (Status::NeedsReview, 0));
    assert!(entry.last_error.unwrap().contains("used up"));
}

/// While one relay asks, others do not.
#[test]
fn lookup_is_made_by_one_relay_at_a_time() {
    let world = Arc::new(World::new());
    world.enqueue(&pay("a"));
    world.script.then(maybe_sent());
    let inside = Arc::clone(&world);
    let second = Arc::new(world.relay(Unprotected));
    let other = Arc::clone(&second);
    let asks = world.operation_without_look_up(Unprotected).reconcile(move |_| {
        other.drain().unwrap();
        assert_eq!(inside.script.asked(), 0, "it is being asked about");
        applied("ch_1")
    });
    let first = relay_on(&world.outbox, asks);
    first.drain().unwrap();
    world.advance(SETTLE);
    assert_eq!(first.drain().unwrap().succeeded, 1);
    assert_eq!(world.script.asked(), 0);
}

#[test]
fn lookup_that_panics_is_inconclusive() {
    let world = World::new();
    let id = world.enqueue(&pay("a"));
    world.script.then(maybe_sent());
    let panics = world.operation_without_look_up(Unprotected).reconcile(|_| panic!("no client"));
    let relay = relay_on(&world.outbox, panics);
    relay.drain().unwrap();
    world.advance(SETTLE);
    relay.drain().unwrap();
    assert_eq!(world.entry(id).status, Status::Unknown);
    let error = world.entry(id).last_error.unwrap();
    assert!(error.contains("the handler panicked at tests/it/lookup/reconcile.rs:"), "{error}");
    assert!(!error.contains("no client"), "{error}");
}

/// Cost of attempts in doubt is given back with the proof that none of them was applied.
#[test]
fn not_applied_gives_back_the_cost() {
    let world = World::new();
    world.enqueue(&pay("a").cost(5));
    world.script.then(maybe_sent());
    let day = Duration::from_secs(24 * 3600);
    let relay = relay_on(&world.outbox, world.operation(Unprotected).max_cost(5, day));
    relay.drain().unwrap();
    let spent = || world.number("SELECT coalesce(sum(cost), 0) FROM outbox_spend");
    assert_eq!(spent(), 5, "it may have been applied");
    world.outbox.pause("pay", None, "alice").unwrap();
    world.advance(SETTLE);
    world.outbox.resume("pay", "alice").unwrap();
    world.script.then_find(Finding::NotApplied).then(rejected());
    relay.drain().unwrap();
    assert_eq!(spent(), 0, "and the second attempt was refused");
}

/// Whatever ends the attempts of a row in doubt, its look-up is asked before a person is.
#[test]
fn lookup_is_made_for_what_is_given_up_in_doubt() {
    for (finding, status, sent) in [
        (applied("ch_1"), Status::Succeeded, 2),
        // Sent once more, and refused as before: now it is known that nothing was applied.
        (Finding::NotApplied, Status::Dead, 3),
    ] {
        let world = World::new();
        let id = world.enqueue(&pay("a"));
        world.script.then(maybe_sent()).then(rejected()).then(rejected());
        let relay = world.relay(DEDUPLICATES);
        relay.drain().unwrap();
        world.advance(10);
        relay.drain().unwrap();
        assert_eq!(world.entry(id).status, Status::Unknown);
        world.advance(SETTLE);
        world.script.then_find(finding);
        relay.drain().unwrap();
        assert_eq!(world.entry(id).status, status);
        assert_eq!(world.script.seen().len(), sent);
    }
    // Used up is used up: what was not applied is dead, and not sent again.
    let world = World::new();
    let id = world.enqueue(&pay("a"));
    world.script.then(maybe_sent());
    let relay = relay_on(&world.outbox, world.operation(DEDUPLICATES).max_attempts(1));
    relay.drain().unwrap();
    world.advance(SETTLE);
    world.script.then_find(Finding::NotApplied);
    relay.drain().unwrap();
    assert_eq!((world.entry(id).status, world.script.seen().len()), (Status::Dead, 1));
}

/// A downstream that forgets keys leaves doubt as well, and may be asked.
#[test]
fn key_window_that_is_over_leads_to_a_lookup() {
    let world = World::new();
    world.enqueue(&pay("a"));
    world.script.then(maybe_sent());
    let relay = world.relay(DEDUPLICATES);
    assert_eq!(relay.drain().unwrap().retried, 1);
    world.advance(25 * 3600);
    assert_eq!(relay.drain().unwrap().unknown, 1);
    // The doubt is older, and since it was withheld the relay has known of it as well.
    world.advance(SETTLE - 1);
    assert_eq!(relay.drain().unwrap().attempts, 0);
    world.advance(1);
    world.script.then_find(Finding::NotApplied);
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    assert_eq!((world.script.asked(), world.script.seen().len()), (1, 2));
}

/// A relay that has learnt of a doubt only just asks in vain: that costs no look-up, and it asks
/// again as soon as it can believe the answer.
#[test]
fn lookup_that_comes_too_early_uses_up_nothing() {
    let (world, id, relay) = doubtful();
    drop(relay);
    world.advance(10 * SETTLE);
    for n in 0..20 {
        let started = world.relay(Unprotected);
        world.script.then_find(Finding::NotApplied);
        started.drain().unwrap();
        let entry = world.entry(id);
        assert_eq!(entry.status, Status::Unknown);
        assert_eq!(entry.next_lookup_at, Some(START + 1_320_000 + n * 120_000));
        assert_eq!(world.number("SELECT lookups FROM outbox_lease"), 0);
        world.advance(SETTLE);
    }
    assert_eq!(world.script.seen().len(), 1);
}

#[test]
fn lookup_settings_that_cannot_work_are_refused_at_build() {
    let world = World::new();
    let build = |operation: Operation| {
        Relay::builder(&world.outbox).operation("pay", operation).build().err().unwrap().to_string()
    };
    let hasty = build(world.operation(Unprotected).lookup_delay(Duration::from_secs(60)));
    assert!(hasty.contains("lookup_delay: must be longer than the 1m"), "{hasty}");
    let none = build(world.operation(Unprotected).max_lookups(0));
    assert!(none.contains("max_lookups: must be 1 or more"), "{none}");
}

#[test]
fn lookup_of_an_unreadable_row_parks_it() {
    let (world, id, relay) = doubtful();
    world.batch("DROP TRIGGER outbox_update_guard; UPDATE outbox SET payload = '{' WHERE id = 1");
    world.advance(SETTLE);
    relay.drain().unwrap();
    assert_eq!((world.entry(id).status, world.script.asked()), (Status::NeedsReview, 0));
}
