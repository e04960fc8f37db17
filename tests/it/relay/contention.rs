//! Writers, relays and slow handlers in each other's way.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{
    Delivery, Filter, Handler, Operation, Outbox, Outcome, Receipt, Relay, Status,
};

use crate::support::world::{DEDUPLICATES, World, immediate, pay};

fn done(delivery: &Delivery) -> Outcome {
    Outcome::Succeeded(Receipt::new().downstream_id(format!("eff_{}", delivery.id())))
}

/// A handler with a time limit of its own.
struct Limited<F>(Duration, F);

impl<F: Fn(&Delivery) -> Outcome + Send + Sync> Handler for Limited<F> {
    fn deliver(&self, delivery: &Delivery) -> Outcome {
        self.1(delivery)
    }

    fn time_limit(&self) -> Duration {
        self.0
    }
}

/// A web request's transaction used to fail as locked because the queue's own processes were
/// writing. Here callers wait a little, with SQLite's ordinary busy time-out, and never fail.
#[test]
fn write_lock_is_left_to_callers_by_a_draining_relay() {
    let world = World::new();
    for n in 0..2000 {
        world.enqueue(&pay(&format!("before-{n}")));
    }
    let relay = Relay::builder(&world.outbox)
        .operation("pay", Operation::new(DEDUPLICATES, done))
        .workers(4)
        .build()
        .unwrap();
    let waits = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|caller| {
                let (world, waits) = (&world, &waits);
                scope.spawn(move || {
                    let mut conn = Connection::open(world.path()).unwrap();
                    for n in 0..50 {
                        let began = Instant::now();
                        let tx = immediate(&mut conn);
                        world.outbox.enqueue(&tx, &pay(&format!("{caller}-{n}"))).unwrap();
                        tx.commit().unwrap();
                        waits.lock().unwrap().push(began.elapsed());
                    }
                })
            })
            .collect();
        while callers.iter().any(|caller| !caller.is_finished()) {
            relay.drain().unwrap();
        }
    });
    relay.drain().unwrap();
    let mut waits = waits.into_inner().unwrap();
    waits.sort();
    println!("median {:?}, p99 {:?}, max {:?}", waits[100], waits[198], waits[199]);
    // Half of SQLite's busy time-out, within which every one of them got the lock.
    assert!(waits[198] < Duration::from_millis(2500), "{waits:?}");
    let succeeded = Filter::default().status(Status::Succeeded);
    assert_eq!(world.outbox.list(&succeeded).unwrap().len(), 2200);
}

/// Renewals used to fail as locked, or wait for a thread that was busy with the work itself. Here
/// they have a thread and a connection of their own.
#[test]
fn leases_are_renewed_while_every_worker_spins_and_others_write() {
    let world = World::new();
    let outbox = world.on_real_time();
    let ids: Vec<i64> = (0..4).map(|n| world.enqueue(&pay(&format!("{n}")))).collect();
    let finish = Arc::new(AtomicBool::new(false));
    let spin = Arc::clone(&finish);
    let (started, starts) = channel();
    let handler = Limited(Duration::from_secs(2), move |delivery: &Delivery| {
        started.send(()).unwrap();
        while !spin.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        done(delivery)
    });
    let (tell, told) = channel();
    let relay = Relay::builder(&outbox)
        .operation("pay", Operation::new(DEDUPLICATES, handler))
        .lease(Duration::from_millis(2100))
        .workers(4)
        .observe(move |event| tell.send((event.outbox_id, event.status)).unwrap())
        .build()
        .unwrap();
    let handle = relay.start().unwrap();
    for _ in &ids {
        starts.recv().unwrap();
    }
    let mut expiries = BTreeSet::new();
    let mut conn = Connection::open(world.path()).unwrap();
    while expiries.len() < 3 {
        // Every look is a write transaction of another connection.
        let tx = immediate(&mut conn);
        let sql = "SELECT min(due_at) FROM outbox_lease WHERE state = 'in_flight'";
        expiries.insert(tx.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap());
        tx.commit().unwrap();
    }
    finish.store(true, Ordering::Relaxed);
    for _ in &ids {
        assert_eq!(told.recv().unwrap().1, Status::Succeeded);
    }
    handle.shutdown(Duration::from_secs(10)).unwrap();
    for id in ids {
        assert_eq!(world.story(id), ["attempt:in_flight>succeeded"]);
    }
}

/// Thousands of rows used to stay in flight for months behind blocked code that ignored its
/// deadline. Here the lease of such a handler ends, another worker takes over, and the rest flows.
#[test]
fn handler_that_never_returns_loses_its_lease() {
    let world = World::new();
    let outbox = world.on_real_time();
    let hung = world.enqueue(&pay("hung"));
    let others: Vec<i64> = (0..10).map(|n| world.enqueue(&pay(&format!("{n}")))).collect();
    let (release, released) = sync_channel::<()>(0);
    let released = Mutex::new(released);
    let handler = Limited(Duration::from_millis(50), move |delivery: &Delivery| {
        if delivery.entity() == "hung" && delivery.attempt() == 1 {
            let _ = released.lock().unwrap().recv();
        }
        done(delivery)
    });
    let (tell, told) = channel();
    let relay = Relay::builder(&outbox)
        .operation("pay", Operation::new(DEDUPLICATES, handler))
        .lease(Duration::from_millis(300))
        .workers(2)
        .observe(move |event| tell.send((event.outbox_id, event.status)).unwrap())
        .build()
        .unwrap();
    let handle = relay.start().unwrap();
    let mut seen = Vec::new();
    while seen.iter().filter(|(_, to)| *to == Status::Succeeded).count() < 11 {
        seen.push(told.recv().unwrap());
    }
    assert!(seen.contains(&(hung, Status::Pending)));
    release.send(()).unwrap();
    assert_eq!(told.recv().unwrap(), (hung, Status::Succeeded));
    handle.shutdown(Duration::from_secs(10)).unwrap();
    assert_eq!(
        world.story(hung),
        ["lease_lost:in_flight>pending", "attempt:in_flight>succeeded", "late:succeeded>succeeded"]
    );
    assert_eq!(world.entry(others[0]).attempts, 1);
}

/// A live worker used to be declared dead by a peer, and its row ended both finished and failed.
/// Here leases run out all the time while outcomes come in, and each row has one outcome.
#[test]
fn outcome_is_one_where_recovery_and_completion_collide() {
    let world = World::new();
    let ids: Vec<i64> = (0..200).map(|n| world.enqueue(&pay(&format!("{n}")))).collect();
    let calls = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (clock, calls) = (world.clock.clone(), Arc::clone(&calls));
            let outbox = Outbox::builder().clock(clock.clone()).open(world.path()).unwrap();
            scope.spawn(move || {
                let handler = Limited(Duration::from_millis(400), move |delivery: &Delivery| {
                    calls.fetch_add(1, Ordering::Relaxed);
                    clock.advance(Duration::from_millis(300));
                    done(delivery)
                });
                let relay = Relay::builder(&outbox)
                    .operation("pay", Operation::new(DEDUPLICATES, handler))
                    .lease(Duration::from_millis(500))
                    .workers(2)
                    .build()
                    .unwrap();
                relay.drain().unwrap();
            });
        }
    });
    assert!(calls.load(Ordering::Relaxed) > 0);
    // What the last of them held when the others were done.
    world.advance(1);
    world.drain(DEDUPLICATES);
    for id in ids {
        let story = world.story(id);
        let settled = story
            .iter()
            .filter(|line| line.ends_with(">succeeded") && !line.contains(":succeeded>"));
        let status = world.entry(id).status;
        match status {
            Status::Succeeded => assert_eq!(settled.count(), 1, "{story:?}"),
            Status::NeedsReview => assert_eq!(settled.count(), 0, "{story:?}"),
            _ => panic!("{id} is {status}: {story:?}"),
        }
    }
}

/// Rescheduling a failure and releasing its claim used to be two writes, and a row stayed locked
/// by a live process. Here no lease is left after any round.
#[test]
fn lease_is_not_left_behind_by_failures() {
    let world = World::new();
    let relay = Relay::builder(&world.outbox)
        .operation("pay", world.operation(DEDUPLICATES))
        .workers(4)
        .build()
        .unwrap();
    for round in 0..20 {
        let ids: Vec<i64> = (0..13).map(|n| world.enqueue(&pay(&format!("{round}-{n}")))).collect();
        world.script.times(2, &crate::support::world::maybe_sent());
        assert_eq!(relay.drain().unwrap().retried, 2);
        assert_eq!(world.number("SELECT count(*) FROM outbox_lease WHERE state = 'in_flight'"), 0);
        world.advance(10);
        assert_eq!(relay.drain().unwrap().succeeded, 2);
        assert!(ids.iter().all(|&id| world.entry(id).status == Status::Succeeded));
        assert_eq!(world.number("SELECT count(*) FROM outbox_lease"), 0);
    }
}

/// The next attempt used to live in a timer that a restart forgot. Here every relay finds it by
/// asking the file.
#[test]
fn retries_survive_restarts() {
    let world = World::new();
    let ids: Vec<i64> = (0..3).map(|n| world.enqueue(&pay(&format!("{n}")))).collect();
    world.script.times(9, &crate::support::world::transient());
    for _ in 0..4 {
        // A relay of its own each time, on a handle of its own.
        let outbox = Outbox::builder().clock(world.clock.clone()).open(world.path()).unwrap();
        let relay = Relay::builder(&outbox)
            .operation("pay", world.operation(DEDUPLICATES))
            .workers(1)
            .build()
            .unwrap();
        relay.drain().unwrap();
        world.advance(60);
    }
    for id in ids {
        assert_eq!((world.entry(id).status, world.entry(id).attempts), (Status::Succeeded, 4));
    }
}

/// A lease that nobody ever answers for is taken back, whatever the row's address looks like.
#[test]
fn leases_of_the_dead_are_taken_back_however_the_endpoint_is_spelled() {
    let world = World::new();
    let endpoints = [
        "https://EXAMPLE.com:443/a/",
        "https://example.com/a",
        "https://example.com/%61",
        "https://example.com",
    ];
    let ids: Vec<i64> = endpoints
        .iter()
        .enumerate()
        .map(|(n, endpoint)| world.enqueue(&pay(&format!("{n}")).endpoint(*endpoint)))
        .collect();
    world.sql(
        "UPDATE outbox_lease SET state = 'in_flight', owner = 'relay-dead', token = 1, attempts = 1,
             tries = 1, claimed_at = due_at, due_at = due_at + 90000",
    );
    world.advance(89);
    assert_eq!(world.drain(DEDUPLICATES).attempts, 0);
    world.advance(1);
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 4);
    for id in ids {
        assert_eq!(
            world.story(id),
            ["lease_lost:in_flight>pending", "attempt:in_flight>succeeded"]
        );
        assert_eq!(world.entry(id).attempts, 2);
    }
}

/// Scripts fed to a shell go on after an error: BEGIN fails as busy, and the rest used to be
/// stored half. Here the file itself keeps every row in a legal state.
#[test]
fn repair_script_that_runs_on_after_an_error_harms_nothing() {
    let world = World::new();
    let (id, other) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
    let mut locker = Connection::open(world.path()).unwrap();
    let lock = immediate(&mut locker);
    let shell = Connection::open(world.path()).unwrap();
    shell.busy_timeout(Duration::ZERO).unwrap();
    let script = [
        "BEGIN IMMEDIATE",
        "UPDATE outbox SET payload = '{}' WHERE id = 1",
        "DELETE FROM outbox WHERE id = 1",
        "INSERT OR REPLACE INTO outbox (operation, entity_id, idempotency_key, payload)
             SELECT operation, entity_id, idempotency_key, '{}' FROM outbox WHERE id = 1",
        "COMMIT",
    ];
    assert!(shell.execute_batch(script[0]).is_err());
    lock.rollback().unwrap();
    for statement in &script[1..] {
        assert!(shell.execute_batch(statement).is_err(), "{statement}");
    }
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 2);
    assert_eq!(world.script.seen()[0].payload(), r#"{"amount":4200}"#);
    assert_eq!(
        (world.entry(id).status, world.entry(other).status),
        (Status::Succeeded, Status::Succeeded)
    );
}

/// A handler that writes to a database of its own reports success only after its commit did.
#[test]
fn handler_whose_own_commit_fails_is_not_a_success() {
    let world = World::new();
    let (bad, good) = (world.enqueue(&pay("bad")), world.enqueue(&pay("good")));
    let path = world.dir.path().join("ledger.db");
    let ledger = Connection::open(&path).unwrap();
    ledger
        .execute_batch(
            "CREATE TABLE account (id TEXT PRIMARY KEY);
             CREATE TABLE entry (account TEXT REFERENCES account (id)
                 DEFERRABLE INITIALLY DEFERRED);
             INSERT INTO account VALUES ('good')",
        )
        .unwrap();
    let handler = move |delivery: &Delivery| {
        let write = || {
            let mut conn = Connection::open(&path)?;
            conn.pragma_update(None, "foreign_keys", true)?;
            let tx = conn.transaction()?;
            tx.execute("INSERT INTO entry VALUES (?1)", [delivery.entity()])?;
            tx.commit()
        };
        match write() {
            Ok(()) => Outcome::Succeeded(Receipt::new()),
            Err(error) => {
                Outcome::Rejected(sqlite_outbox::Failure::new("ledger", error.to_string()))
            }
        }
    };
    let relay = Relay::builder(&world.outbox)
        .operation("pay", Operation::new(DEDUPLICATES, handler))
        .workers(1)
        .build()
        .unwrap();
    relay.drain().unwrap();
    assert_eq!(world.entry(bad).status, Status::Dead);
    assert!(world.entry(bad).last_error.unwrap().contains("FOREIGN KEY"));
    assert_eq!(world.entry(good).status, Status::Succeeded);
    assert_eq!(
        ledger.query_row("SELECT count(*) FROM entry", [], |r| r.get::<_, i64>(0)).unwrap(),
        1
    );
}

/// A connection that comes back from a panic with an open transaction used to be handed to the
/// next user, with the write lock.
#[test]
fn panic_inside_a_transaction_leaves_no_lock() {
    let world = World::new();
    for n in 0..20 {
        let outbox = world.outbox.clone();
        let panicked = std::thread::spawn(move || {
            outbox.transact(|tx| -> sqlite_outbox::Result<()> {
                outbox.enqueue(tx, &pay(&format!("lost-{n}")))?;
                tx.execute_batch("SAVEPOINT deep").unwrap();
                let _statement = tx.prepare("SELECT * FROM outbox").unwrap();
                panic!("in the middle");
            })
        });
        assert!(panicked.join().is_err());
        world.enqueue(&pay(&format!("kept-{n}")));
    }
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 20);
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 20);
}
