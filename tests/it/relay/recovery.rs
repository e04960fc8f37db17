//! Leases of relays that died or were stopped: who takes them back, when, and what it says.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{
    Delivery, Downstream, Intent, Operation, Outcome, Relay, RelayHandle, Resolution, Status,
};

use crate::support::world::{
    DEDUPLICATES, LONG, World, exact_backoff, pay, relay_on, succeeded, until,
};

/// The lock files of the relays on this file.
fn folder(world: &World) -> PathBuf {
    let mut name = world.path().into_os_string();
    name.push("-outbox");
    name.into()
}

/// As if the relay `owner` had claimed a row just now.
fn lease(world: &World, id: i64, owner: &str) {
    let claimed = world.sql(&format!(
        "UPDATE outbox_lease SET state = 'in_flight', owner = '{owner}', token = 0, last_token = 0,
             attempts = attempts + 1, tries = tries + 1, claimed_at = {0}, due_at = {0} + 90000
         WHERE id = {id} AND state = 'pending'",
        sqlite_outbox::Clock::now(&world.clock)
    ));
    assert_eq!(claimed, 1);
}

/// After a crash the rows in flight waited for the rest of their lease, 90 s by default. The lock
/// file shows at once that nothing works on them any more; a file that is missing shows nothing.
#[test]
fn lease_of_a_dead_relay_is_taken_back_at_once() {
    let world = World::new();
    let ids = ["dead", "living", "missing"].map(|name| (name, world.enqueue(&pay(name))));
    for (name, id) in ids {
        lease(&world, id, &format!("relay-{name}"));
    }
    fs::create_dir_all(folder(&world)).unwrap();
    fs::write(folder(&world).join("relay-dead"), "").unwrap();
    let living = File::create(folder(&world).join("relay-living")).unwrap();
    living.lock().unwrap();

    let relay = world.relay(DEDUPLICATES);
    assert!(folder(&world).join("relay-dead").exists(), "its leases are not taken back yet");
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    let [(_, dead), (_, living_id), (_, missing)] = ids;
    assert_eq!(world.story(dead), ["lease_lost:in_flight>pending", "attempt:in_flight>succeeded"]);
    let reason = world.outbox.audit(dead).unwrap().remove(0).reason.unwrap();
    assert!(reason.contains("the process died"), "{reason}");
    assert!(!folder(&world).join("relay-dead").exists(), "nothing is leased to it any more");
    for id in [living_id, missing] {
        assert_eq!(world.entry(id).status, Status::InFlight);
    }
    world.advance(91);
    assert_eq!(relay.drain().unwrap().succeeded, 2, "timers are the fallback");
    assert!(folder(&world).join("relay-living").exists());
}

/// The lookup of a relay that died held its row for as long as a lease.
#[test]
fn lookup_of_a_dead_relay_is_taken_over_at_once() {
    let world = World::new();
    let id = world.enqueue(&pay("a"));
    let other = world.enqueue(&pay("b"));
    world.script.then(crate::support::world::maybe_sent()).then(succeeded("2"));
    world.drain(Unprotected);
    assert_eq!(world.entry(other).status, Status::Succeeded);
    world.advance(200);
    let now = sqlite_outbox::Clock::now(&world.clock);
    world.sql(&format!(
        "UPDATE outbox_lease SET owner = 'relay-dead', token = 7, due_at = {now} + 90000
         WHERE id = {id} AND state = 'unknown'"
    ));
    let asked = world.script.asked();
    world.drain(Unprotected);
    assert_eq!(world.script.asked(), asked, "its file is missing: its lease is waited for");
    fs::write(folder(&world).join("relay-dead"), "").unwrap();
    world.drain(Unprotected);
    assert_eq!(world.script.asked(), asked + 1);
}

/// An operation was taken out of the configuration while a row of it was in flight. The row stayed
/// in flight for ever, no verb moved it, and other operations waited behind it in its ordering key.
#[test]
fn operation_that_no_relay_names_is_recovered_by_any() {
    for (downstream, status) in [
        (None, Status::NeedsReview),
        (Some(Unprotected), Status::NeedsReview),
        (Some(DEDUPLICATES), Status::Pending),
    ] {
        let world = World::new();
        let gone = world.enqueue(&Intent::new("gone", "1").ordering_key("k"));
        let next = world.enqueue(&pay("next").ordering_key("k"));
        if let Some(downstream) = downstream {
            let handler = |_: &Delivery| succeeded("never called");
            let operation = Operation::new(downstream, handler);
            let relay = Relay::builder(&world.outbox).operation("gone", operation);
            drop(relay.build().unwrap());
        }
        lease(&world, gone, "relay-of-old");
        let relay = world.relay(DEDUPLICATES);
        relay.drain().unwrap();
        assert_eq!(world.entry(gone).status, Status::InFlight, "{downstream:?}");
        world.advance(91);
        relay.drain().unwrap();
        assert_eq!(world.entry(gone).status, status, "{downstream:?}");
        assert_eq!(world.entry(next).status, Status::Pending, "{downstream:?}");
        if status == Status::NeedsReview {
            world.outbox.transact(|tx| world.outbox.skip(tx, gone, "ann")).unwrap();
            assert_eq!(relay.drain().unwrap().succeeded, 1, "{downstream:?}");
            let settled = world.outbox.resolve(gone, &Resolution::Dead, "ann").unwrap();
            assert_eq!(settled, Status::Dead);
        }
    }
}

/// A handler that tells which attempt it makes, waits for leave, and succeeds.
fn gated(downstream: Downstream, world: &World) -> (Relay, Receiver<i64>, Sender<()>) {
    let (began, begins) = channel();
    let (leave, leaves) = channel::<()>();
    let (began, leaves) = (Mutex::new(began), Mutex::new(leaves));
    let handler = move |delivery: &Delivery| -> Outcome {
        let _ = began.lock().unwrap().send(delivery.id());
        let _ = leaves.lock().unwrap().recv();
        succeeded("late")
    };
    let operation = Operation::new(downstream, handler).backoff(exact_backoff());
    (relay_on(&world.second(), operation), begins, leave)
}

fn stop_in_flight(relay: Relay, begins: &Receiver<i64>) -> RelayHandle {
    let handle = relay.start().unwrap();
    begins.recv_timeout(LONG).unwrap();
    handle
}

/// A desktop program was closed three times while a slow downstream had not answered. Each time
/// counted as a crash of its process, and the intent was left for a person.
#[test]
fn orderly_stop_is_no_crash() {
    let world = World::new();
    let id = world.enqueue(&pay("a"));
    world.enqueue(&pay("other").delay(Duration::from_secs(1_000_000)));
    for stop in 1..=6 {
        let (relay, begins, leave) = gated(DEDUPLICATES, &world);
        let report = stop_in_flight(relay, &begins).shutdown(Duration::ZERO).unwrap();
        assert_eq!((report.finished, report.released, report.left), (0, 0, 1));
        let entry = world.entry(id);
        assert_eq!((entry.status, entry.attempts), (Status::Pending, stop));
        assert_eq!(entry.next_attempt_at, Some(crate::support::world::START), "at once");
        assert_eq!(world.number("SELECT sum(lost) FROM outbox_lease"), 0);
        // The process lives on; its worker does not come back.
        std::mem::forget(leave);
    }
    assert_eq!(world.story(id), vec!["stopped:in_flight>pending"; 6]);
    assert!(world.entry(id).last_error.unwrap().contains("the relay stopped"));
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 1);
}

/// An answer that comes after the stop is heard all the same: a success settles the row.
#[test]
fn answer_after_an_orderly_stop_is_recorded_as_late() {
    for downstream in [DEDUPLICATES, Unprotected] {
        let world = World::new();
        let id = world.enqueue(&pay("a"));
        let other = world.enqueue(&pay("b").delay(Duration::from_secs(1_000_000)));
        let (relay, begins, leave) = gated(downstream, &world);
        // Dropping the handle stops with a grace of ten seconds; this is the same without it.
        let report = stop_in_flight(relay, &begins).shutdown(Duration::ZERO).unwrap();
        assert_eq!(report.left, 1);
        let (status, word) = match downstream {
            Unprotected => (Status::NeedsReview, "needs_review"),
            Downstream::DeduplicatesByKey { .. } => (Status::Pending, "pending"),
        };
        assert_eq!(world.entry(id).status, status);
        if downstream == Unprotected {
            let not_applied = world.outbox.resolve(id, &Resolution::NotApplied, "ann");
            let refusal = not_applied.unwrap_err().to_string();
            assert!(refusal.contains("may still be on its way"), "{refusal}");
            assert_eq!(world.drain(downstream).attempts, 0, "no second request");
        }
        drop(leave);
        until(|| world.entry(id).status == Status::Succeeded);
        assert_eq!(world.entry(id).downstream_id.as_deref(), Some("late"));
        let story = [format!("stopped:in_flight>{word}"), format!("late:{word}>succeeded")];
        assert_eq!(world.story(id), story);
        assert_eq!(world.number("SELECT count(*) FROM outbox_lost"), 0);
        assert_eq!(world.entry(other).attempts, 0);
    }
}

/// A relay that had stopped while its worker was still sending looked dead, and its row was taken
/// for one whose request is over.
#[test]
fn relay_shows_that_it_is_alive_until_its_last_worker_is_back() {
    let world = World::new();
    let id = world.enqueue(&pay("a"));
    let (relay, begins, leave) = gated(DEDUPLICATES, &world);
    let handle = stop_in_flight(relay, &begins);
    let owner = world.entry(id).locked_by.unwrap();
    let file = folder(&world).join(&owner);
    let is_locked = || File::open(&file).is_ok_and(|file| file.try_lock_shared().is_err());
    assert!(is_locked());
    // Somebody who tidies up takes the folder away; the relay puts its file back.
    fs::remove_dir_all(folder(&world)).unwrap();
    until(is_locked);
    handle.shutdown(Duration::ZERO).unwrap();
    assert!(is_locked(), "a worker is still sending");
    drop(leave);
    until(|| !file.exists());
}
