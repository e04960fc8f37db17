//! The tables: made, found, refused, and written by others.

use std::process::Command;
use std::sync::{Arc, Barrier};

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{Delivery, ErrorKind, Operation, Outbox, Relay, Status};

use crate::support::folder::folder;
use crate::support::needs;
use crate::support::world::{DEDUPLICATES, LONG, World, pay, succeeded, until};

#[test]
fn schema_of_a_new_file_is_made_and_found_again() {
    let world = World::new();
    let (a, b) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
    assert_eq!(world.number("PRAGMA auto_vacuum"), 2, "incremental");
    assert_eq!(world.number("PRAGMA user_version"), 0, "that is the application's");
    let journal = "SELECT journal_mode = 'wal' FROM pragma_journal_mode";
    assert_eq!(world.number(journal), 1);
    let again = world.second();
    assert_eq!(again.database_id(), world.outbox.database_id());
    assert_eq!(again.database_id().len(), 32);
    assert_eq!(again.entry(a).unwrap(), world.outbox.entry(a).unwrap());
    assert_eq!(again.entry(b).unwrap().unwrap().status, Status::Pending);
    let without = Outbox::builder().create(false).open(world.dir.path().join("none.db"));
    let error = without.unwrap_err();
    assert!(error.to_string().contains("no such file"), "{error}");
    assert!(!world.dir.path().join("none.db").exists());
}

#[test]
fn application_file_in_another_journal_mode_keeps_its_rows() {
    let dir = folder();
    let path = dir.path().join("app.db");
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch(
        "PRAGMA journal_mode = DELETE; PRAGMA user_version = 42; PRAGMA application_id = 7;
         CREATE TABLE orders (id TEXT); INSERT INTO orders VALUES ('a'), ('b');",
    )
    .unwrap();
    let outbox = Outbox::open(&path).unwrap();
    let id = outbox.transact(|tx| outbox.enqueue(tx, &pay("a"))).unwrap().id();
    assert_eq!(outbox.entry(id).unwrap().unwrap().status, Status::Pending);
    let number = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(number("SELECT count(*) FROM orders"), 2);
    assert_eq!(number("PRAGMA user_version"), 42);
    assert_eq!(number("PRAGMA application_id"), 7);
    assert_eq!(number("PRAGMA auto_vacuum"), 0, "a file that is there is left as it is");
}

#[test]
fn schema_newer_or_damaged_is_refused_by_name() {
    for (damage, words) in [
        ("UPDATE outbox_meta SET schema_version = 99", &["99", "newer"][..]),
        ("DELETE FROM outbox_meta", &["outbox_meta"]),
        ("DROP INDEX outbox_lease_due", &["index", "outbox_lease_due", "missing"]),
        ("DROP TRIGGER outbox_insert_guard", &["trigger", "outbox_insert_guard", "missing"]),
        ("DROP VIEW outbox_status", &["view", "outbox_status", "missing"]),
        ("ALTER TABLE outbox_lease DROP COLUMN late_id", &["table", "outbox_lease", "schema.sql"]),
        ("ALTER TABLE outbox_receipt ADD COLUMN more TEXT", &["table", "outbox_receipt"]),
        ("DROP TABLE outbox_event", &["outbox_event", "missing"]),
    ] {
        let world = World::new();
        world.batch(&format!("PRAGMA legacy_alter_table = ON; {damage}"));
        let error = Outbox::open(world.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "{damage}: {error}");
        for word in words {
            assert!(error.to_string().contains(word), "{damage}: {error}");
        }
        assert!(error.to_string().contains("app.db"), "{error}");
    }
}

#[test]
fn application_table_is_not_touched() {
    for name in ["outbox", "outbox_event", "OUTBOX", "outbox_meta"] {
        let dir = folder();
        let path = dir.path().join("app.db");
        let conn = Connection::open(&path).unwrap();
        conn.execute_batch(&format!(
            "CREATE TABLE {name} (mine TEXT); INSERT INTO {name} VALUES ('x')"
        ))
        .unwrap();
        let error = Outbox::open(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        assert!(error.to_string().to_lowercase().contains(&name.to_lowercase()), "{error}");
        let tables: i64 =
            conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
        assert_eq!(tables, 1);
    }
}

#[test]
fn open_says_that_a_file_is_not_a_database() {
    let dir = folder();
    let text = dir.path().join("notes.txt");
    std::fs::write(&text, "just some notes, long enough to be no header of a database at all")
        .unwrap();
    for (path, word) in [
        (text, "not an SQLite database"),
        (dir.path().to_owned(), "folder"),
        (dir.path().join("no").join("app.db"), "does not exist"),
        (":memory:".into(), "not in memory"),
    ] {
        let error = Outbox::open(&path).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

/// First opens race for the journal mode, the tables and the first row.
#[test]
fn open_of_a_new_file_by_many_at_once() {
    for _ in 0..10 {
        let dir = folder();
        let (path, start) = (dir.path().join("app.db"), Barrier::new(6));
        let ids: Vec<String> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6)
                .map(|n: i32| {
                    let (path, start) = (&path, &start);
                    scope.spawn(move || {
                        start.wait();
                        let outbox = Outbox::open(path).unwrap();
                        outbox.transact(|tx| outbox.enqueue(tx, &pay(&n.to_string()))).unwrap();
                        outbox.database_id().to_owned()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]));
        let conn = Connection::open(&path).unwrap();
        let rows: i64 =
            conn.query_row("SELECT count(*) FROM outbox", [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 6);
    }
}

/// A plain INSERT from another language and an older SQLite is a full enqueue.
#[test]
fn python_program_enqueues_with_plain_sql() {
    if !needs::has("python3") {
        return;
    }
    let world = World::new();
    let program = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("CREATE TABLE orders (id TEXT)")
with db:
    db.execute("INSERT INTO orders VALUES ('o1')")
    db.execute("INSERT INTO outbox (operation, entity_id, idempotency_key, payload) "
               "VALUES (?, ?, ?, ?)",
               ("pay", "o1", "k1", '{"amount": 1}'))
    db.execute("INSERT INTO outbox (operation, entity_id, idempotency_key, payload, "
               "ordering_key) VALUES (?, ?, ?, ?, ?)",
               ("pay", "o2", "k2", '{"text": "é"}', "o"))
try:
    with db:
        db.execute("INSERT INTO orders VALUES ('o3')")
        db.execute("INSERT OR IGNORE INTO outbox (operation, entity_id, idempotency_key, "
                   "payload) VALUES ('pay', 'o3', 'k1', '{}')")
except sqlite3.IntegrityError as error:
    print(error)
"#;
    let output = Command::new("python3").args(["-c", program]).arg(world.path()).output().unwrap();
    let (said, errors) = (output.stdout, output.stderr);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&errors));
    assert!(String::from_utf8_lossy(&said).contains("outbox.idempotency_key: already used"));
    assert_eq!(world.number("SELECT count(*) FROM orders"), 1);
    // Its times are SQLite's own, before the clock of this test.
    assert!(world.number("SELECT min(available_at) FROM outbox") > 1_700_000_000_000);
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 2);
    let bodies: Vec<String> = world.script.seen().iter().map(|d| d.payload().to_owned()).collect();
    assert_eq!(bodies, [r#"{"amount": 1}"#, r#"{"text": "é"}"#]);
}

/// An old relay must not go on in a file that a newer build has migrated.
#[test]
fn schema_change_stops_an_older_relay() {
    let world = World::new();
    world.enqueue(&pay("a"));
    let (relay, started) = (world.relay(DEDUPLICATES), world.relay(DEDUPLICATES));
    relay.drain().unwrap();
    world.sql("UPDATE outbox_meta SET schema_version = schema_version + 1");
    world.enqueue(&pay("b"));
    world.enqueue(&pay("c"));
    let error = relay.drain().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("migrated"), "{error}");
    let handle = started.start().unwrap();
    until(|| !handle.is_running());
    let error = handle.shutdown(LONG).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert_eq!(world.script.seen().len(), 1);
    assert_eq!(world.number("SELECT count(*) FROM outbox_lease WHERE state = 'pending'"), 2);
}

/// An outcome that is known when the schema moves on is written down all the same, under its
/// claim: otherwise a migration would put every delivery on the way in doubt.
#[test]
fn schema_change_still_records_known_outcomes() {
    for workers in [1, 2] {
        let world = Arc::new(World::new());
        for n in 0..50 {
            world.enqueue(&pay(&n.to_string()));
        }
        let inner = Arc::clone(&world);
        let moved = std::sync::OnceLock::new();
        let operation = Operation::new(DEDUPLICATES, move |delivery: &Delivery| {
            if delivery.id() == 1 {
                inner.sql("UPDATE outbox_meta SET schema_version = schema_version + 1");
                moved.set(()).unwrap();
            }
            moved.wait();
            succeeded("ok")
        });
        let relay = Relay::builder(&world.outbox).operation("pay", operation).workers(workers);
        let relay = relay.batch(1).build().unwrap();
        assert_eq!(relay.drain().unwrap_err().kind(), ErrorKind::Schema);
        assert_eq!(world.entry(1).status, Status::Succeeded);
        assert_eq!(world.number("SELECT count(*) FROM outbox_lease WHERE state = 'in_flight'"), 0);
    }
}
