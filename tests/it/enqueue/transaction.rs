//! An intent exists exactly when the caller's own writes do.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};

use sqlite_outbox::rusqlite::{Connection, Error as SqlError, TransactionBehavior};
use sqlite_outbox::{Error, ErrorKind, Status};

use crate::support::world::{DEDUPLICATES, World, immediate, pay};

#[test]
fn connection_that_could_not_keep_the_promise_is_refused() {
    let world = World::new();
    let conn = world.app();
    let refused = |conn: &Connection| world.outbox.enqueue(conn, &pay("a")).unwrap_err();
    assert_eq!(refused(&conn).kind(), ErrorKind::NoTransaction);

    let memory = Connection::open_in_memory().unwrap();
    memory.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(refused(&memory).kind(), ErrorKind::WrongFile);

    let elsewhere = Connection::open(world.dir.path().join("other.db")).unwrap();
    elsewhere.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = refused(&elsewhere);
    assert_eq!(error.kind(), ErrorKind::WrongFile);
    assert!(error.to_string().contains("other.db") && error.to_string().contains("app.db"));

    conn.execute_batch("PRAGMA synchronous = OFF; BEGIN IMMEDIATE").unwrap();
    assert_eq!(refused(&conn).kind(), ErrorKind::NotDurable);
    conn.execute_batch("ROLLBACK; PRAGMA synchronous = NORMAL; BEGIN IMMEDIATE").unwrap();
    assert!(world.outbox.enqueue(&conn, &pay("a")).unwrap().is_new());
    assert!(world.outbox.enqueue(&conn, &pay("b")).unwrap().is_new());
    conn.execute_batch("COMMIT").unwrap();
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 2);
    let level: i64 = conn.query_row("PRAGMA synchronous", [], |row| row.get(0)).unwrap();
    assert_eq!(level, 1, "the caller's pragmas are not touched");
}

#[cfg(unix)]
#[test]
fn file_by_another_name_is_accepted() {
    let world = World::new();
    let folder = world.dir.path().join("sub");
    std::fs::create_dir(&folder).unwrap();
    let link = folder.join("symbolic.db");
    std::os::unix::fs::symlink(world.path(), &link).unwrap();
    let roundabout = folder.join("..").join("app.db");
    for (entity, path) in [("a", link), ("b", roundabout)] {
        let conn = Connection::open(path).unwrap();
        conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        assert!(world.outbox.enqueue(&conn, &pay(entity)).unwrap().is_new());
        conn.execute_batch("COMMIT").unwrap();
    }
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 2);
}

/// A hard link of another name has a WAL of its own: writing through both corrupts the file.
#[cfg(unix)]
#[test]
fn hard_link_is_refused() {
    let world = World::new();
    world.batch("PRAGMA wal_checkpoint(TRUNCATE)");
    let link = world.dir.path().join("hard.db");
    std::fs::hard_link(world.path(), &link).unwrap();
    let conn = Connection::open(&link).unwrap();
    conn.execute_batch("BEGIN").unwrap();
    let refused = world.outbox.enqueue(&conn, &pay("a")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WrongFile, "{refused}");
}

#[test]
fn rollback_of_the_business_write_takes_the_intent() {
    let world = World::new();
    let mut conn = world.app();
    for (order, commits) in [("a", false), ("b", true)] {
        let tx = immediate(&mut conn);
        tx.execute("INSERT INTO orders VALUES (?1, 'paid')", [order]).unwrap();
        world.outbox.enqueue(&tx, &pay(order)).unwrap();
        if commits { tx.commit().unwrap() } else { tx.rollback().unwrap() }
    }
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 1);
    assert_eq!(world.number("SELECT count(*) FROM outbox_lease"), 1);
    world.drain(DEDUPLICATES);
    let entities: Vec<_> = world.script.seen().iter().map(|d| d.entity().to_owned()).collect();
    assert_eq!(entities, ["b"]);
    // What was rolled back leaves no trace that would refuse it now.
    assert!(world.try_enqueue(&pay("a")).unwrap().is_new());
}

/// A partial rollback took the row, but a hook that was registered with it still ran.
#[test]
fn rollback_to_a_savepoint_takes_the_intent() {
    let world = World::new();
    let mut conn = world.app();
    let tx = immediate(&mut conn);
    let first = world.outbox.enqueue(&tx, &pay("1").ordering_key("k")).unwrap().id();
    tx.execute_batch("SAVEPOINT a").unwrap();
    world.outbox.enqueue(&tx, &pay("2").ordering_key("k")).unwrap();
    tx.execute_batch("ROLLBACK TO a").unwrap();
    let third = world.outbox.enqueue(&tx, &pay("3").ordering_key("k")).unwrap().id();
    tx.execute_batch("RELEASE a").unwrap();
    tx.commit().unwrap();
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 2);
    let seen: Vec<i64> = world.script.seen().iter().map(sqlite_outbox::Delivery::id).collect();
    assert_eq!(seen, [first, third]);
}

#[test]
fn savepoint_alone_is_a_transaction() {
    let world = World::new();
    let mut conn = world.app();
    let savepoint = conn.savepoint().unwrap();
    world.outbox.enqueue(&savepoint, &pay("a")).unwrap();
    savepoint.commit().unwrap();
    drop(conn.savepoint().map(|savepoint| world.outbox.enqueue(&savepoint, &pay("b")).unwrap()));
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 1);
}

/// After ROLLBACK TO a savepoint stays open; a helper that forgets it leaves the caller with one
/// more than it opened.
#[test]
fn savepoints_of_the_caller_are_left_as_found_by_errors() {
    let world = World::new();
    world.enqueue(&pay("taken").key("k"));
    let mut conn = world.app();
    let bad = [
        pay("other").key("k"),
        pay("a").key("not a key"),
        pay("a").content_type("text/plain").payload("x".repeat(2_000_000)),
    ];
    for name in ["mine", "outbox_all_or_nothing", "outbox"] {
        let tx = immediate(&mut conn);
        tx.execute_batch(&format!(
            "INSERT INTO orders VALUES ('{name}', 'before'); SAVEPOINT {name}"
        ))
        .unwrap();
        for intent in &bad {
            world.outbox.enqueue(&tx, intent).unwrap_err();
            world.outbox.enqueue_all(&tx, [&pay(name), intent]).unwrap_err();
        }
        world.outbox.enqueue_all(&tx, [&pay(name)]).unwrap();
        tx.execute_batch(&format!(
            "INSERT INTO orders VALUES ('{name}2', 'after'); RELEASE {name};"
        ))
        .unwrap();
        let again = tx.execute_batch(&format!("RELEASE {name}")).unwrap_err().to_string();
        assert!(again.contains("no such savepoint"), "exactly one was open: {again}");
        tx.commit().unwrap();
    }
    assert_eq!(world.number("SELECT count(*) FROM orders"), 6);
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 4);
}

#[test]
fn panic_in_enqueue_all_leaves_no_savepoint() {
    let world = World::new();
    let mut conn = world.app();
    let tx = immediate(&mut conn);
    world.outbox.enqueue(&tx, &pay("before")).unwrap();
    let intents = [pay("a"), pay("b")];
    let panicking = intents.iter().inspect(|intent| assert_ne!(**intent, pay("b"), "a bug"));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        world.outbox.enqueue_all(&tx, panicking)
    }));
    assert!(result.is_err());
    let error = tx.execute_batch("RELEASE outbox_all_or_nothing").unwrap_err().to_string();
    assert!(error.contains("no such savepoint"), "{error}");
    tx.commit().unwrap();
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 1);
}

/// SQLite ends a transaction by itself after some errors. An intent written after that would be
/// committed alone, without its business change.
#[test]
fn rollback_by_sqlite_is_noticed() {
    let world = World::new();
    let conn = world.app();
    conn.execute("INSERT INTO orders VALUES ('a', 'new')", []).unwrap();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    world.outbox.enqueue(&conn, &pay("a")).unwrap();
    conn.execute("INSERT OR ROLLBACK INTO orders VALUES ('a', 'again')", []).unwrap_err();
    let error = world.outbox.enqueue(&conn, &pay("b")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoTransaction);
    assert!(error.to_string().contains("rolled it back"), "{error}");
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 0);
}

#[test]
fn full_file_is_reported_as_full() {
    let world = World::new();
    let conn = world.app();
    let pages = world.number("PRAGMA page_count");
    conn.execute_batch(&format!("PRAGMA max_page_count = {}; BEGIN IMMEDIATE", pages + 2)).unwrap();
    conn.execute("INSERT INTO orders VALUES ('a', 'new')", []).unwrap();
    let big = |entity| pay(entity).content_type("text/plain").payload("x".repeat(100_000));
    let error = world.outbox.enqueue(&conn, &big("a")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.to_string().contains("full") && error.to_string().contains("13"), "{error}");
    if conn.is_autocommit() {
        let error = world.outbox.enqueue(&conn, &pay("b")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoTransaction);
    } else {
        conn.execute_batch("ROLLBACK").unwrap();
    }
    conn.execute_batch("PRAGMA max_page_count = 100000; BEGIN IMMEDIATE").unwrap();
    world.outbox.enqueue_all(&conn, [&big("a"), &big("b")]).unwrap();
    conn.execute_batch("COMMIT").unwrap();
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 2);
    assert_eq!(world.number("SELECT count(*) FROM orders"), 0);
}

#[test]
fn interrupted_write_rolls_the_transaction_back() {
    let world = World::new();
    let conn = world.app();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    world.outbox.enqueue(&conn, &pay("a")).unwrap();
    let (handle, done) = (conn.get_interrupt_handle(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                handle.interrupt();
            }
        });
        let endless =
            "INSERT INTO orders WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
                       SELECT i, 'x' FROM n";
        // Interrupted before its first write, it leaves the transaction open.
        while !conn.is_autocommit() {
            conn.execute(endless, []).unwrap_err();
        }
        done.store(true, Ordering::Release);
    });
    assert!(conn.is_autocommit());
    let error = world.outbox.enqueue(&conn, &pay("b")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoTransaction);
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 0);
}

#[test]
fn transact_commits_or_rolls_back_also_when_the_closure_panics() {
    let world = World::new();
    world.app();
    let outbox = &world.outbox;
    let write = |order: &str, tx: &sqlite_outbox::rusqlite::Transaction<'_>| {
        tx.execute("INSERT INTO orders VALUES (?1, 'paid')", [order]).unwrap();
        outbox.enqueue(tx, &pay(order)).unwrap().id()
    };
    let id = outbox.transact(|tx| Ok::<_, Error>(write("a", tx))).unwrap();
    assert_eq!(world.entry(id).status, Status::Pending);

    #[derive(Debug)]
    #[allow(dead_code)]
    enum AppError {
        Refused,
        Outbox(Error),
        Sql(SqlError),
    }
    impl From<Error> for AppError {
        fn from(error: Error) -> Self {
            Self::Outbox(error)
        }
    }
    let refused = outbox.transact(|tx| {
        write("b", tx);
        Err::<(), _>(AppError::Refused)
    });
    assert!(matches!(refused, Err(AppError::Refused)));

    // More panics than the pool has connections: each must come back without its transaction.
    for _ in 0..12 {
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            outbox.transact(|tx| {
                write("c", tx);
                tx.execute_batch("SAVEPOINT open").unwrap();
                if tx.is_autocommit() {
                    Ok::<_, Error>(())
                } else {
                    panic!("the application's bug")
                }
            })
        }));
        assert!(panicked.is_err());
    }
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 1);
    assert_eq!(world.number("SELECT count(*) FROM orders"), 1);
    outbox.transact(|tx| Ok::<_, Error>(write("d", tx))).unwrap();
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 2);
}

/// Each outer transaction needed a second connection for an inner call; as many outers as the
/// pool has connections then waited for each other.
#[test]
fn pool_smaller_than_the_open_transactions_does_not_deadlock() {
    let world = World::new();
    let (threads, began) = (20, Instant::now());
    let start = Barrier::new(threads);
    std::thread::scope(|scope| {
        for n in 0..threads {
            let (world, start) = (&world, &start);
            scope.spawn(move || {
                start.wait();
                world
                    .outbox
                    .transact(|tx| {
                        let new = world.outbox.enqueue(tx, &pay(&n.to_string()))?;
                        // Reads through the outbox inside the transaction, on another connection.
                        assert_eq!(world.outbox.entry(new.id())?, None, "not committed yet");
                        Ok::<_, Error>(())
                    })
                    .unwrap();
            });
        }
    });
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 20);
    assert!(began.elapsed() < Duration::from_secs(4), "took {:?}", began.elapsed());
}

/// Every relay keeps a connection for its life; that must not use up what callers need.
#[test]
fn pool_leaves_connections_for_callers_beside_many_relays() {
    let world = World::new();
    let relays: Vec<_> = (0..20).map(|_| world.relay(DEDUPLICATES)).collect();
    let (a, b) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
    assert_eq!(relays.iter().map(|relay| relay.drain().unwrap().succeeded).sum::<u64>(), 2);
    assert_eq!(world.entry(a).status, world.entry(b).status);
}

/// While another connection holds the write lock: a transaction that writes first waits, one
/// that has read an older state is refused at once, and nothing is half written.
#[test]
fn deferred_transaction_under_contention_waits_or_is_refused_at_once() {
    for (case, begin, reads) in [
        ("writes first", TransactionBehavior::Deferred, false),
        ("reads first", TransactionBehavior::Deferred, true),
        ("immediate", TransactionBehavior::Immediate, true),
    ] {
        let world = World::new();
        world.enqueue(&pay("other"));
        let holder = world.app();
        let mut conn = world.app();
        conn.busy_timeout(Duration::from_secs(5)).unwrap();
        holder.execute_batch("BEGIN IMMEDIATE; INSERT INTO orders VALUES ('h', 'x')").unwrap();
        let (reached, waits) = mpsc::channel();
        let outbox = &world.outbox;
        let result = std::thread::scope(|scope| {
            let caller = scope.spawn(move || {
                let ready = || reached.send(()).unwrap();
                if case == "immediate" {
                    ready();
                }
                let tx = conn.transaction_with_behavior(begin).unwrap();
                if reads {
                    tx.query_row("SELECT count(*) FROM orders", [], |_| Ok(())).unwrap();
                }
                if case != "immediate" {
                    ready();
                }
                let order = || tx.execute("INSERT INTO orders VALUES ('o', 'paid')", []);
                if !reads {
                    order()?;
                }
                outbox.enqueue(&tx, &pay("a"))?;
                if reads {
                    order()?;
                }
                tx.commit()?;
                Ok::<_, Error>(())
            });
            waits.recv().unwrap();
            if case == "reads first" {
                // Refused at once, while the lock is held.
                let result = caller.join().unwrap();
                holder.execute_batch("COMMIT").unwrap();
                return result;
            }
            holder.execute_batch("COMMIT").unwrap();
            caller.join().unwrap()
        });
        let rows = world.number("SELECT count(*) FROM outbox WHERE entity_id = 'a'");
        assert_eq!(rows, world.number("SELECT count(*) FROM orders WHERE id = 'o'"), "{case}");
        match result {
            Ok(()) => assert!(rows == 1 && case != "reads first", "{case}"),
            Err(error) => {
                assert_eq!((error.kind(), case), (ErrorKind::Busy, "reads first"), "{error}");
            }
        }
    }
}

/// Read, then write: the pattern of most applications, under load.
#[test]
fn check_then_enqueue_from_many_threads() {
    let world = World::new();
    world.app();
    let enqueued = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for n in 0..20 {
                    let order = n.to_string();
                    let new = world.outbox.transact(|tx| {
                        let paid = "SELECT count(*) FROM orders WHERE id = ?1";
                        let paid: i64 = tx.query_row(paid, [&order], |row| row.get(0)).unwrap();
                        if paid > 0 {
                            return Ok::<_, Error>(false);
                        }
                        tx.execute("INSERT INTO orders VALUES (?1, 'paid')", [&order]).unwrap();
                        Ok(world.outbox.enqueue(tx, &pay(&order))?.is_new())
                    });
                    enqueued.fetch_add(usize::from(new.unwrap()), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(enqueued.into_inner(), 20);
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 20);
}

#[test]
fn drain_inside_transact_says_so() {
    let world = World::new();
    let relay = world.relay(DEDUPLICATES);
    let error = world
        .outbox
        .transact(|tx| {
            world.outbox.enqueue(tx, &pay("a"))?;
            world.outbox.enqueue(tx, &pay("b"))?;
            relay.drain()
        })
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("transact"), "{error}");
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 0);
    assert_eq!(relay.drain().unwrap().attempts, 0);
}

/// The write lock is held by this very thread, so that waiting for it could only time out.
#[test]
fn transact_inside_transact_is_refused_at_once() {
    let world = World::new();
    let again = world.second();
    for inner in [&world.outbox, &again] {
        let error = world
            .outbox
            .transact(|tx| {
                world.outbox.enqueue(tx, &pay("a"))?;
                inner.transact(|tx| inner.enqueue(tx, &pay("b")))
            })
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().starts_with("transact was called inside transact"), "{error}");
    }
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 0);

    let other = World::new();
    let both = world.outbox.transact(|tx| {
        world.outbox.enqueue(tx, &pay("a"))?;
        other.outbox.transact(|tx| other.outbox.enqueue(tx, &pay("b")))
    });
    assert!(both.unwrap().is_new(), "another file has a lock of its own");
    let panics = std::panic::AssertUnwindSafe(|| {
        let _ = world.outbox.transact(|_| -> sqlite_outbox::Result<()> { panic!("on purpose") });
    });
    std::panic::catch_unwind(panics).unwrap_err();
    world.outbox.transact(|tx| world.outbox.enqueue(tx, &pay("c"))).unwrap();
}

/// A transaction that reads first looks at a snapshot; once another has committed it can never
/// write, however long it waits.
#[test]
fn stale_snapshot_is_told_from_a_busy_file() {
    let world = World::new();
    let mut conn = Connection::open(world.path()).unwrap();
    let tx = conn.transaction().unwrap();
    let _: i64 = tx.query_row("SELECT count(*) FROM outbox", [], |row| row.get(0)).unwrap();
    world.enqueue(&pay("a"));
    let error = world.outbox.enqueue(&tx, &pay("b")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StaleSnapshot);
    let text = error.to_string();
    assert!(text.contains("roll back and begin again (BEGIN IMMEDIATE)"), "{text}");
    tx.rollback().unwrap();

    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    assert!(world.outbox.enqueue(&tx, &pay("b")).unwrap().is_new());
    let other = Connection::open(world.path()).unwrap();
    other.busy_timeout(Duration::ZERO).unwrap();
    let busy = other.execute_batch("BEGIN IMMEDIATE").map_err(Error::from).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
}
