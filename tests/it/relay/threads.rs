//! A started relay: threads, waking, stopping, and what its workers may do to it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{
    Delivery, Downstream, Filter, Handler, Operation, Outbox, Outcome, Relay, Status,
};

use crate::support::world::{
    DEDUPLICATES, LONG, World, exact_backoff, interrupted, maybe_sent, pay, succeeded, until,
};

/// A handler that tells which row it was given, waits for leave, and succeeds.
fn gated() -> (impl Fn(&Delivery) -> Outcome + Send + Sync + 'static, Receiver<i64>, Sender<()>) {
    let (began, begins) = channel();
    let (leave, leaves) = channel::<()>();
    let (began, leaves) = (Mutex::new(began), Mutex::new(leaves));
    let handler = move |delivery: &Delivery| {
        let _ = began.lock().unwrap().send(delivery.id());
        let _ = leaves.lock().unwrap().recv();
        succeeded("ok")
    };
    (handler, begins, leave)
}

/// A handler that tells which row it was given and succeeds.
fn telling() -> (impl Fn(&Delivery) -> Outcome + Send + Sync + 'static, Receiver<i64>) {
    let (handler, begins, leave) = gated();
    drop(leave);
    (handler, begins)
}

fn relay_with(world: &World, workers: usize, handler: impl Handler + 'static) -> Relay {
    let pay = Operation::new(DEDUPLICATES, handler).backoff(exact_backoff());
    Relay::builder(&world.outbox).operation("pay", pay).workers(workers).build().unwrap()
}

fn count(world: &World, status: Status) -> usize {
    let filter = Filter::default().status(status);
    world.outbox.list(&filter).unwrap().len()
}

#[test]
fn relay_wakes_for_every_kind_of_commit() {
    let world = World::new();
    let (handler, begins) = telling();
    let handle = relay_with(&world, 2, handler).start().unwrap();
    // In this process, through the outbox.
    let first = world.enqueue(&pay("a"));
    assert_eq!(begins.recv_timeout(LONG).unwrap(), first);
    // On a connection of the application's own, with a hint.
    let conn = world.app();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    let second = world.outbox.enqueue(&conn, &pay("b")).unwrap().id();
    conn.execute_batch("COMMIT").unwrap();
    world.outbox.wake();
    assert_eq!(begins.recv_timeout(LONG).unwrap(), second);
    // By somebody who knows nothing of this library.
    world.sql(
        "INSERT INTO outbox (operation, entity_id, idempotency_key, payload, available_at,
             created_at)
         VALUES ('pay', 'c', 'k', '{}', 1700000000000, 1700000000000)",
    );
    assert_eq!(begins.recv_timeout(LONG).unwrap(), 3);
    // And when a row's time has come.
    world.enqueue(&pay("d").delay(Duration::from_secs(60)));
    world.advance(60);
    assert_eq!(begins.recv_timeout(LONG).unwrap(), 4);
    let report = handle.shutdown(LONG).unwrap();
    assert_eq!((report.released, report.left), (0, 0));
    assert_eq!(count(&world, Status::Succeeded), 4);
}

#[test]
fn commit_precedes_the_send() {
    let world = World::new();
    let (handler, begins) = telling();
    let handle = relay_with(&world, 1, handler).start().unwrap();
    let conn = world.app();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    for entity in ["a", "b"] {
        world.outbox.enqueue(&conn, &pay(entity)).unwrap();
    }
    world.outbox.wake();
    assert!(begins.try_recv().is_err());
    conn.execute_batch("COMMIT").unwrap();
    assert_eq!(begins.recv_timeout(LONG).unwrap(), 1);
    drop(handle);
}

#[test]
fn shutdown_finishes_what_is_in_flight_and_gives_back_the_rest() {
    let world = World::new();
    for n in 0..6 {
        world.enqueue(&pay(&n.to_string()));
    }
    let (handler, begins, leave) = gated();
    let handle = relay_with(&world, 2, handler).start().unwrap();
    let mut on_the_way = [begins.recv_timeout(LONG).unwrap(), begins.recv_timeout(LONG).unwrap()];
    on_the_way.sort_unstable();
    let stopping = std::thread::spawn(move || handle.shutdown(LONG).unwrap());
    until(|| count(&world, Status::InFlight) == 2);
    drop(leave);
    let report = stopping.join().unwrap();
    assert_eq!((report.finished, report.left), (2, 0));
    assert!(report.released > 0, "rows had waited for a worker: {report:?}");
    assert_eq!(count(&world, Status::Succeeded), 2);
    for entry in world.outbox.list(&Filter::default()).unwrap() {
        let attempts = u32::from(on_the_way.contains(&entry.id));
        assert_eq!(entry.attempts, attempts, "{entry:?}");
    }
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 4);
}

/// Rows that waited for a busy worker were sent long after their operation had been paused.
#[test]
fn pause_takes_back_what_waits_for_a_worker() {
    let world = World::new();
    for n in 0..6 {
        world.enqueue(&pay(&n.to_string()));
    }
    let (handler, begins, leave) = gated();
    let handle = relay_with(&world, 1, handler).start().unwrap();
    let first = begins.recv_timeout(LONG).unwrap();
    assert!(count(&world, Status::InFlight) > 1, "others wait for the worker");
    world.outbox.pause("pay", None, "ann").unwrap();
    until(|| count(&world, Status::InFlight) == 1);
    drop(leave);
    until(|| count(&world, Status::Succeeded) == 1);
    handle.shutdown(LONG).unwrap();
    for entry in world.outbox.list(&Filter::default()).unwrap() {
        assert_eq!(entry.attempts, u32::from(entry.id == first), "{entry:?}");
    }
}

#[test]
fn shutdown_after_the_grace_leaves_the_rest_and_still_records_it() {
    let world = World::new();
    let ids = [world.enqueue(&pay("a")), world.enqueue(&pay("b"))];
    let (handler, begins, leave) = gated();
    let handle = relay_with(&world, 2, handler).start().unwrap();
    begins.recv_timeout(LONG).unwrap();
    begins.recv_timeout(LONG).unwrap();
    let report = handle.shutdown(Duration::ZERO).unwrap();
    assert_eq!((report.finished, report.released, report.left), (0, 0, 2));
    drop(leave);
    until(|| count(&world, Status::Succeeded) == 2);
    for id in ids {
        assert_eq!(world.entry(id).attempts, 1);
    }
}

/// Stopping once ended what stores completions before the workers had handed theirs in.
#[test]
fn relay_in_many_short_runs_sends_everything_once() {
    let world = World::new();
    let intents: Vec<_> = (0..300).map(|n| pay(&n.to_string())).collect();
    world.outbox.transact(|tx| world.outbox.enqueue_all(tx, &intents)).unwrap();
    let sent: Arc<Mutex<Vec<i64>>> = Arc::default();
    for run in 0..100 {
        let sends = Arc::clone(&sent);
        let handler = move |delivery: &Delivery| {
            sends.lock().unwrap().push(delivery.id());
            succeeded("ok")
        };
        let pay = Operation::new(DEDUPLICATES, handler);
        let relay = Relay::builder(&world.outbox).operation("pay", pay).workers(4).batch(3).build();
        let handle = relay.unwrap().start().unwrap();
        if run % 2 == 0 {
            let report = handle.shutdown(LONG).unwrap();
            assert_eq!(report.left, 0);
        } else {
            drop(handle);
        }
        assert_eq!(count(&world, Status::InFlight), 0);
    }
    world.drain(DEDUPLICATES);
    let mut sent = sent.lock().unwrap().clone();
    sent.extend(world.script.seen().iter().map(Delivery::id));
    sent.sort_unstable();
    assert_eq!(sent, (1..=300).collect::<Vec<i64>>());
    assert_eq!(world.number("SELECT count(*) FROM outbox_receipt WHERE attempts = 1"), 300);
}

/// Intents that are enqueued while a relay stops are durable, and sent by the next.
#[test]
fn shutdown_leaves_what_comes_meanwhile_to_the_next_start() {
    let world = World::new();
    let (handler, begins) = telling();
    let handle = relay_with(&world, 2, handler).start().unwrap();
    let enqueued = std::thread::scope(|scope| {
        let (stopped, stops) = channel::<()>();
        let business = scope.spawn({
            let world = &world;
            move || {
                let (mut n, mut going) = (0, true);
                while going || n < 20 {
                    world.enqueue(&pay(&n.to_string()));
                    n += 1;
                    going &= stops.try_recv().is_err();
                }
                n
            }
        });
        begins.recv_timeout(LONG).unwrap();
        handle.shutdown(LONG).unwrap();
        stopped.send(()).unwrap();
        business.join().unwrap()
    });
    let (handler, _begins) = telling();
    let handle = relay_with(&world, 2, handler).start().unwrap();
    until(|| count(&world, Status::Succeeded) == enqueued);
    handle.shutdown(LONG).unwrap();
    assert_eq!(world.number("SELECT count(*) FROM outbox_receipt WHERE attempts <> 1"), 0);
}

/// Panics again when it is dropped.
struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "dropped");
    }
}

/// A panicking handler ended its worker's thread, and after a few nothing was processed.
#[test]
fn panic_in_a_handler_is_an_outcome_and_the_worker_survives() {
    let world = World::new();
    let bad: Vec<i64> = (0..12).map(|n| world.enqueue(&pay(&format!("bad{n}")))).collect();
    for n in 0..100 {
        world.enqueue(&pay(&format!("good{n}")));
    }
    let (threads, all_four) = (Arc::<Mutex<HashSet<_>>>::default(), Barrier::new(4));
    let used = Arc::clone(&threads);
    let handler = move |delivery: &Delivery| {
        used.lock().unwrap().insert(std::thread::current().id());
        match (delivery.entity().strip_prefix("bad"), delivery.id() % 3) {
            (Some(_), 0) => panic!("a text"),
            (Some(_), 1) => std::panic::panic_any(7_u8),
            (Some(_), _) => std::panic::panic_any(Grenade),
            // Passed only where four workers are alive.
            _ if delivery.entity() == "last" || delivery.id() > 112 => {
                all_four.wait();
                succeeded("ok")
            }
            _ => succeeded("ok"),
        }
    };
    let pay_operation =
        Operation::new(DEDUPLICATES, handler).max_attempts(2).backoff(exact_backoff());
    let relay = Relay::builder(&world.outbox).operation("pay", pay_operation).workers(4);
    let handle = relay.build().unwrap().start().unwrap();
    until(|| count(&world, Status::Succeeded) == 100);
    until(|| {
        bad.iter()
            .all(|&id| world.entry(id).attempts == 1 && world.entry(id).status == Status::Pending)
    });
    world.advance(10);
    until(|| count(&world, Status::NeedsReview) == 12);
    for n in 0..4 {
        world.enqueue(&pay(&format!("last{n}")));
    }
    until(|| count(&world, Status::Succeeded) == 104);
    handle.shutdown(LONG).unwrap();
    assert_eq!(threads.lock().unwrap().len(), 4);
    for id in bad {
        let (entry, trail) = (world.entry(id), world.outbox.audit(id).unwrap());
        let error = entry.last_error.unwrap();
        assert!(error.contains("the handler panicked at tests/it/relay/threads.rs:"), "{error}");
        assert_eq!(trail.len(), 2, "one event for each attempt");
        assert!(trail.iter().all(|event| event.error_class.as_deref() == Some("panic")));
    }
    let texts = world.number("SELECT count(*) FROM outbox_event WHERE reason LIKE '%a text%'");
    assert_eq!(texts, 0, "the text of a panic may hold anything");
}

struct Patient {
    path: std::path::PathBuf,
}

impl Handler for Patient {
    /// Stays until its lease was seen to be renewed three times.
    fn deliver(&self, delivery: &Delivery) -> Outcome {
        let conn = Connection::open(&self.path).unwrap();
        let mut ends = HashSet::new();
        until(|| {
            let due_at = "SELECT due_at FROM outbox_lease WHERE id = ?1";
            ends.insert(
                conn.query_row(due_at, [delivery.id()], |row| row.get::<_, i64>(0)).unwrap(),
            );
            ends.len() >= 4
        });
        assert!(delivery.holds_lease_for(Duration::from_millis(1)));
        succeeded("ok")
    }

    /// Just under the lease. What overruns it by more than the lease is not renewed.
    fn time_limit(&self) -> Duration {
        Duration::from_millis(390)
    }
}

#[test]
fn lease_of_a_live_worker_is_renewed() {
    let world = World::new();
    let outbox = Outbox::open(world.path()).unwrap();
    for entity in ["a", "b"] {
        outbox.transact(|tx| outbox.enqueue(tx, &pay(entity))).unwrap();
    }
    let pay = Operation::new(DEDUPLICATES, Patient { path: world.path() });
    let relay = Relay::builder(&outbox).operation("pay", pay).workers(2);
    let handle = relay.lease(Duration::from_millis(400)).build().unwrap().start().unwrap();
    until(|| count(&world, Status::Succeeded) == 2);
    handle.shutdown(LONG).unwrap();
    for id in [1, 2] {
        assert_eq!(world.story(id), ["attempt:in_flight>succeeded"]);
        assert_eq!(world.entry(id).attempts, 1);
    }
}

/// An operation's slow downstream took all workers, and everyone's intents crawled.
#[test]
fn slow_operation_does_not_starve_another() {
    for other in [DEDUPLICATES, Downstream::Unprotected] {
        let world = World::new();
        let slow = |n: usize| sqlite_outbox::Intent::new("slow", n.to_string());
        let intents: Vec<_> = (0..400).map(slow).collect();
        world.outbox.transact(|tx| world.outbox.enqueue_all(tx, &intents)).unwrap();
        // Quick at first, so that many are held, then stuck.
        let (count_slow, (stuck, begins, leave)) = (AtomicUsize::new(0), gated());
        let handler = move |delivery: &Delivery| {
            if count_slow.fetch_add(1, Ordering::Relaxed) < 150 {
                return succeeded("quick");
            }
            stuck(delivery)
        };
        let (quick, quick_begins) = telling();
        let relay = Relay::builder(&world.outbox)
            .operation("slow", Operation::new(DEDUPLICATES, handler))
            .operation("pay", Operation::new(other, quick))
            .workers(4);
        let handle = relay.build().unwrap().start().unwrap();
        for _ in 0..3 {
            begins.recv_timeout(LONG).unwrap();
        }
        for n in 0..50 {
            world.enqueue(&pay(&n.to_string()));
        }
        for _ in 0..50 {
            quick_begins.recv_timeout(LONG).unwrap();
        }
        assert!(begins.try_recv().is_err(), "one worker stays free for the others");
        drop(leave);
        handle.shutdown(LONG).unwrap();
    }
}

/// Busy operations kept every worker supplied, so that one which is claimed for idle workers
/// alone never had its turn.
#[test]
fn unprotected_operation_has_its_turn_among_busy_ones() {
    for workers in [1, 2] {
        let world = World::new();
        for operation in ["a", "b", "mail"] {
            let count = if operation == "mail" { 10 } else { 400 };
            let new = |n: usize| sqlite_outbox::Intent::new(operation, n.to_string());
            let intents: Vec<_> = (0..count).map(new).collect();
            world.outbox.transact(|tx| world.outbox.enqueue_all(tx, &intents)).unwrap();
        }
        let order: Arc<Mutex<Vec<String>>> = Arc::default();
        let noting = |downstream| {
            let notes = Arc::clone(&order);
            Operation::new(downstream, move |delivery: &Delivery| {
                notes.lock().unwrap().push(delivery.operation().to_owned());
                succeeded("ok")
            })
        };
        let relay = Relay::builder(&world.outbox)
            .operation("a", noting(DEDUPLICATES))
            .operation("b", noting(DEDUPLICATES))
            .operation("mail", noting(Downstream::Unprotected))
            .batch(20)
            .workers(workers);
        let handle = relay.build().unwrap().start().unwrap();
        until(|| count(&world, Status::Succeeded) == 810);
        handle.shutdown(LONG).unwrap();
        let last = order.lock().unwrap().iter().rposition(|name| name == "mail").unwrap();
        assert!(last < 700, "the last of ten went out as number {last} of 810");
    }
}

#[test]
fn observer_that_panics_is_contained() {
    let world = World::new();
    let (a, b) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
    let told: Arc<Mutex<Vec<(i64, Status)>>> = Arc::default();
    let tells = Arc::clone(&told);
    let relay = Relay::builder(&world.outbox)
        .operation("pay", world.operation(DEDUPLICATES))
        .workers(1)
        .observe(|_| panic!("the observer's bug"))
        .observe(|_| std::panic::panic_any(Grenade))
        .observe(move |event| tells.lock().unwrap().push((event.outbox_id, event.status)))
        .build()
        .unwrap();
    world.script.then(maybe_sent());
    relay.drain().unwrap();
    assert_eq!(*told.lock().unwrap(), [(a, Status::Pending), (b, Status::Succeeded)]);
}

/// An outcome that cannot be written waits, in a started relay too, while another process holds
/// the write lock.
#[test]
fn outcome_waits_for_the_write_lock() {
    let world = Arc::new(World::new());
    let ids = [world.enqueue(&pay("a")), world.enqueue(&pay("b"))];
    let (locked, locks) = channel();
    let (inside, locked) = (Arc::clone(&world), Mutex::new(locked));
    let locking = interrupted(
        move || {
            let conn = Connection::open(inside.path()).unwrap();
            conn.execute_batch("BEGIN IMMEDIATE").unwrap();
            locked.lock().unwrap().send(conn).unwrap();
        },
        succeeded("ok"),
    );
    let handle = relay_with(&world, 1, locking).start().unwrap();
    let conn = locks.recv_timeout(LONG).unwrap();
    assert_eq!(count(&world, Status::Succeeded), 0);
    conn.execute_batch("COMMIT").unwrap();
    until(|| count(&world, Status::Succeeded) == 2);
    handle.shutdown(LONG).unwrap();
    for id in ids {
        assert_eq!(world.entry(id).attempts, 1);
        assert_eq!(world.story(id), ["attempt:in_flight>succeeded"]);
    }
}

#[test]
fn drain_with_many_workers_ends_and_can_be_stopped() {
    let world = World::new();
    for n in 0..200 {
        world.enqueue(&pay(&n.to_string()));
    }
    let (handler, begins, leave) = gated();
    let relay = Arc::new(relay_with(&world, 4, handler));
    let drains = Arc::clone(&relay);
    let drain = std::thread::spawn(move || drains.drain().unwrap());
    for _ in 0..4 {
        begins.recv_timeout(LONG).unwrap();
    }
    relay.stop_drain();
    until(|| count(&world, Status::InFlight) == 4);
    drop(leave);
    assert_eq!(drain.join().unwrap().succeeded, 4);
    assert_eq!(relay.drain().unwrap().succeeded, 196);
    assert_eq!(relay.drain().unwrap().attempts, 0);
}

/// A drain with one worker used to send all it had claimed before it looked whether to stop.
#[test]
fn drain_with_one_worker_gives_back_at_a_stop_what_it_has_not_begun() {
    let world = World::new();
    for n in 0..3 {
        world.enqueue(&pay(&n.to_string()));
    }
    let (handler, begins, leave) = gated();
    let relay = Arc::new(relay_with(&world, 1, handler));
    let drains = Arc::clone(&relay);
    let drain = std::thread::spawn(move || drains.drain().unwrap());
    begins.recv_timeout(LONG).unwrap();
    relay.stop_drain();
    drop(leave);
    assert_eq!(drain.join().unwrap().succeeded, 1);
    assert_eq!(count(&world, Status::Pending), 2);
    assert_eq!(relay.drain().unwrap().attempts, 2);
    assert_eq!(relay.totals().succeeded, 3);
}
