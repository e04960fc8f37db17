//! Files of earlier builds: `tests/fixtures/schema_N.db` was made by the last build of version N,
//! with an intent in every status, ordering keys, budgets, a pause, and an application's own index,
//! triggers and view on the outbox's tables.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::testing::ManualClock;
use sqlite_outbox::{
    Delivery, Downstream, ErrorKind, EventKind, Finding, Operation, Outbox, Outcome, Receipt,
    Relay, Resolution, Status,
};
use tempfile::TempDir;

use crate::support::world::{DEDUPLICATES, START, World, until};

const DAY: u64 = 24 * 3600;

/// A copy of the fixture of this version.
fn fixture(version: i64) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let made = format!("{}/tests/fixtures/schema_{version}.db", env!("CARGO_MANIFEST_DIR"));
    fs::copy(made, &path).unwrap();
    (dir, path)
}

fn number(path: &Path, sql: &str) -> i64 {
    Connection::open(path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

fn version(path: &Path) -> i64 {
    number(path, "SELECT schema_version FROM outbox_meta")
}

fn sends(delivery: &Delivery) -> Outcome {
    Outcome::Succeeded(Receipt::new().downstream_id(format!("sent_{}", delivery.id())))
}

fn statuses(outbox: &Outbox) -> Vec<(i64, Status)> {
    let entries = outbox.list(&sqlite_outbox::Filter::default()).unwrap();
    entries.into_iter().map(|entry| (entry.id, entry.status)).collect()
}

#[test]
fn migration_keeps_every_status_and_the_applications_own_objects() {
    use Status::{Cancelled, Dead, InFlight, NeedsReview, Pending, Succeeded, Unknown};
    for made_by in 1..Outbox::SCHEMA_VERSION {
        let (_dir, path) = fixture(made_by);
        let events = number(&path, "SELECT count(*) FROM outbox_event");
        let outbox = Outbox::open(&path).unwrap();
        assert_eq!(version(&path), Outbox::SCHEMA_VERSION);
        let expected = [
            Succeeded,
            Succeeded,
            Succeeded,
            Cancelled,
            Dead,
            Pending,
            Unknown,
            NeedsReview,
            Pending,
            Pending,
            Pending,
            Pending,
            Pending,
            Cancelled,
            Pending,
            Pending,
            InFlight,
            Pending,
        ];
        let expected: Vec<_> = (1..).zip(expected).collect();
        assert_eq!(statuses(&outbox), expected);
        assert_eq!(number(&path, "SELECT count(*) FROM outbox_event"), events);
        let operations = outbox.operations().unwrap();
        let pay = operations.iter().find(|known| known.operation == "pay").unwrap();
        assert!(pay.binds_ids && pay.downstream == DEDUPLICATES);
        assert_eq!(pay.provider.as_deref(), Some("stripe"));
        assert_eq!(pay.max_per, [(1000, Duration::from_secs(DAY))]);
        for object in ["app_by_time", "app_by_owner", "app_settled", "app_registered", "app_open"] {
            let sql = format!("SELECT count(*) FROM sqlite_schema WHERE name = '{object}'");
            assert_eq!(number(&path, &sql), 1, "{object}");
        }
        assert_eq!(number(&path, "SELECT count(*) FROM app_open"), 13);
        // Once is enough.
        drop(outbox);
        Outbox::open(&path).unwrap();
    }
}

#[test]
fn migrated_file_moves_on_and_drains() {
    for made_by in 1..Outbox::SCHEMA_VERSION {
        let (_dir, path) = fixture(made_by);
        let clock = ManualClock::at(START);
        let outbox = Outbox::builder().clock(clock.clone()).open(&path).unwrap();
        // From version 3 on the file knows its machine's clock, by which its leases run out.
        clock.advance(Duration::from_secs(600));
        let logged = number(&path, "SELECT count(*) FROM app_log");
        let found = |_: &Delivery| Finding::Applied(Receipt::new().downstream_id("found"));
        let unprotected = || Operation::new(Downstream::Unprotected, sends);
        let relay = Relay::builder(&outbox)
            .operation("pay", Operation::new(DEDUPLICATES, sends))
            .operation("mail", unprotected().reconcile(found))
            .operation("post", unprotected())
            .workers(1)
            .build()
            .unwrap();
        relay.drain().unwrap();
        let trail = outbox.audit(17).unwrap();
        assert_eq!(trail[0].kind, EventKind::LeaseLost, "its relay is gone");
        outbox.replay(5, "ada").unwrap();
        outbox.resolve(8, &Resolution::Applied { downstream_id: None }, "ada").unwrap();
        outbox.resume("post", "ada").unwrap();
        for _ in 0..3 {
            clock.advance(Duration::from_secs(DAY));
            relay.drain().unwrap();
        }
        assert!(statuses(&outbox).iter().all(|(_, status)| status.is_settled()));
        let settled = number(&path, "SELECT count(*) FROM app_log WHERE line LIKE 'settled %'");
        assert_eq!(settled, 18, "the application's trigger has seen all of them");
        assert!(number(&path, "SELECT count(*) FROM app_log") > logged + 13, "and the operations");
        let intact = "SELECT integrity_check = 'ok' FROM pragma_integrity_check";
        assert_eq!(number(&path, intact), 1);
    }
}

/// An intent that a build without such a table has sent is found by the key that was sent.
#[test]
fn migration_keeps_the_keys_that_were_sent() {
    for made_by in 1..Outbox::SCHEMA_VERSION {
        let (_dir, path) = fixture(made_by);
        let sql = "INSERT INTO outbox (tenant_id, operation, entity_id, idempotency_key, payload)
                   VALUES ('acme', 'late', 'a', 'mine', '{}') RETURNING id";
        let id = number(&path, sql);
        let sent = sqlite_outbox::IdempotencyKey::wire_key("acme", "late", "mine").unwrap();
        let outbox = Outbox::open(&path).unwrap();
        let entry = outbox.entry_by_key("acme", &sent).unwrap().unwrap();
        assert_eq!((entry.id, entry.wire_key), (id, sent));
    }
}

/// SQLite reserves names that begin with `sqlite_`, and no others.
/// The guards of today are for rows of today: what an earlier build took is still there, can be
/// read, and comes to rest.
#[test]
fn migration_keeps_rows_that_the_guards_refuse_now() {
    let (_dir, path) = fixture(3);
    let conn = Connection::open(&path).unwrap();
    for (key, column, value) in [
        ("port", "endpoint", "https://h:99999/"),
        ("host", "headers", r#"{"Host":"h"}"#),
        ("type", "content_type", "text/plain "),
        ("nul", "operation", "post\0 x"),
    ] {
        let operation = if column == "operation" { "" } else { ", operation" };
        let pay = if column == "operation" { "" } else { ", 'post'" };
        let sql = format!(
            "INSERT INTO outbox (entity_id, idempotency_key, payload, {column}{operation})
             VALUES ('a', ?1, '{{}}', ?2{pay})"
        );
        conn.execute(&sql, [key, value]).unwrap();
    }
    drop(conn);
    let outbox = Outbox::open(&path).unwrap();
    for key in ["port", "host", "type", "nul"] {
        let entry = outbox.entry_by_key("", key).unwrap().unwrap();
        assert_eq!(entry.status, Status::Pending);
        outbox.transact(|tx| outbox.cancel(tx, entry.id, "ada")).unwrap();
        assert_eq!(outbox.entry(entry.id).unwrap().unwrap().status, Status::Cancelled);
    }
}

#[test]
fn migration_keeps_a_trigger_whose_name_begins_with_sqlite() {
    let (_dir, path) = fixture(1);
    let app = Connection::open(&path).unwrap();
    app.execute_batch(
        "CREATE TRIGGER sqlitesync AFTER INSERT ON outbox_operation
         BEGIN INSERT INTO app_log VALUES ('synced ' || NEW.operation); END",
    )
    .unwrap();
    Outbox::open(&path).unwrap();
    let synced = "SELECT count(*) FROM app_log WHERE line LIKE 'synced %'";
    assert_eq!(number(&path, synced), 0, "it is silent while rows are moved");
    app.execute(
        "INSERT INTO outbox_operation (operation, downstream, registered_at)
         VALUES ('new', 'unprotected', 1800000000000)",
        [],
    )
    .unwrap();
    assert_eq!(number(&path, synced), 1);
}

#[test]
fn older_file_is_refused_unless_it_may_be_migrated() {
    let (_dir, path) = fixture(1);
    let error = Outbox::builder().migrate(false).open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    let text = error.to_string();
    assert!(text.contains("version 1") && text.contains("outbox init"), "{text}");
    assert!(!text.contains("newer"), "{text}");
    assert_eq!(version(&path), 1, "looking changes nothing");
}

#[test]
fn migration_waits_for_a_living_relay_and_stops_its_claims() {
    let (dir, path) = fixture(1);
    let owner: String = Connection::open(&path)
        .unwrap()
        .query_row("SELECT owner FROM outbox_lease WHERE owner IS NOT NULL", [], |row| row.get(0))
        .unwrap();
    let folder = dir.path().join("app.db-outbox");
    fs::create_dir(&folder).unwrap();
    let alive = File::create(folder.join(owner)).unwrap();
    alive.lock().unwrap();
    let (opened, has_opened) = channel();
    let of = path.clone();
    let opener = std::thread::spawn(move || opened.send(Outbox::open(of).map(drop)).unwrap());
    // A relay of that build claims only while the version is its own.
    until(|| version(&path) == -1);
    assert!(has_opened.try_recv().is_err());
    drop(alive);
    has_opened.recv().unwrap().unwrap();
    opener.join().unwrap();
    assert_eq!(version(&path), Outbox::SCHEMA_VERSION);
}

#[test]
fn migration_that_has_begun_is_finished_by_the_next_who_opens() {
    let (_dir, path) = fixture(1);
    Connection::open(&path)
        .unwrap()
        .execute("UPDATE outbox_meta SET schema_version = -1", [])
        .unwrap();
    let error = Outbox::builder().migrate(false).open(&path).unwrap_err();
    assert!(error.to_string().contains("version 1"), "{error}");
    Outbox::open(&path).unwrap();
    assert_eq!(version(&path), Outbox::SCHEMA_VERSION);
}

#[test]
fn migration_by_two_processes_at_once_is_one() {
    let (_dir, path) = fixture(1);
    std::thread::scope(|scope| {
        let opens: Vec<_> = (0..4).map(|_| scope.spawn(|| Outbox::open(&path).map(drop))).collect();
        for open in opens {
            open.join().unwrap().unwrap();
        }
    });
    assert_eq!(version(&path), Outbox::SCHEMA_VERSION);
}

#[test]
fn migration_that_would_break_a_trigger_of_the_application_changes_nothing() {
    let (_dir, path) = fixture(1);
    let app = Connection::open(&path).unwrap();
    app.execute_batch(
        "CREATE TRIGGER app_binds AFTER UPDATE ON outbox_operation
         BEGIN INSERT INTO app_log VALUES (NEW.binds); END",
    )
    .unwrap();
    let before: Vec<String> = schema(&app);
    let error = Outbox::open(&path).unwrap_err().to_string();
    assert!(error.contains("trigger") && error.contains("outbox_operation"), "{error}");
    assert_eq!(version(&path), 1, "relays of the earlier build can go on");
    assert_eq!(schema(&app), before);
    app.execute_batch("DROP TRIGGER app_binds").unwrap();
    Outbox::open(&path).unwrap();
}

/// Rows that refer to an operation would go with its table, or keep it from going.
#[test]
fn migration_keeps_rows_that_refer_to_an_operation() {
    for action in ["CASCADE", "RESTRICT"] {
        let (_dir, path) = fixture(1);
        let app = Connection::open(&path).unwrap();
        app.execute_batch(&format!(
            "CREATE TABLE app_setting (operation TEXT
                 REFERENCES outbox_operation (operation) ON DELETE {action});
             INSERT INTO app_setting SELECT operation FROM outbox_operation"
        ))
        .unwrap();
        Outbox::open(&path).unwrap();
        assert_eq!(number(&path, "SELECT count(*) FROM app_setting"), 3, "{action}");
        assert_eq!(number(&path, "SELECT count(*) FROM pragma_foreign_key_check"), 0);
    }
}

/// SQLite keeps the name of a trigger's table as it was typed, and compares names without case.
#[test]
fn migration_keeps_a_trigger_that_names_its_table_in_another_case() {
    let (_dir, path) = fixture(1);
    let app = Connection::open(&path).unwrap();
    app.execute_batch(
        "CREATE TRIGGER app_case AFTER UPDATE ON Outbox_Operation
         BEGIN INSERT INTO app_log VALUES ('noted ' || NEW.operation); END;
         CREATE TRIGGER app_view INSTEAD OF DELETE ON OUTBOX_STATUS BEGIN SELECT 1; END",
    )
    .unwrap();
    Outbox::open(&path).unwrap();
    let kept = "SELECT count(*) FROM sqlite_schema WHERE name IN ('app_case', 'app_view')";
    assert_eq!(number(&path, kept), 2);
    let fired = "SELECT count(*) FROM app_log WHERE line LIKE 'noted %'";
    assert_eq!(number(&path, fired), 0, "a migration is no move of an operation");
}

/// The application's own functions are known on its connections alone.
#[test]
fn migration_keeps_a_trigger_that_calls_a_function_of_the_application() {
    let (_dir, path) = fixture(1);
    let app = Connection::open(&path).unwrap();
    app.execute_batch(
        "CREATE TRIGGER app_calls AFTER INSERT ON outbox BEGIN SELECT app_notify(NEW.id); END",
    )
    .unwrap();
    Outbox::open(&path).unwrap();
    assert_eq!(version(&path), Outbox::SCHEMA_VERSION);
    let kept = "SELECT count(*) FROM sqlite_schema WHERE name = 'app_calls'";
    assert_eq!(number(&path, kept), 1);
}

fn schema(conn: &Connection) -> Vec<String> {
    let mut statement =
        conn.prepare("SELECT name || sql FROM sqlite_schema WHERE sql <> ''").unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

/// The next build stops a relay of this one: the attempt on the way is recorded, and nothing more
/// is claimed, and the relay stops with the reason.
#[test]
fn migration_by_a_newer_build_stops_a_relay_after_its_attempt() {
    let world = World::new();
    let ids = [
        world.enqueue(&crate::support::world::pay("a")),
        world.enqueue(&crate::support::world::pay("b")),
    ];
    let newer = world.second();
    let path = world.path();
    let handler = crate::support::world::interrupted(
        move || {
            let conn = Connection::open(&path).unwrap();
            let announced =
                format!("UPDATE outbox_meta SET schema_version = -{}", Outbox::SCHEMA_VERSION);
            conn.execute(&announced, []).unwrap();
        },
        crate::support::world::succeeded("ch_1"),
    );
    let relay = Relay::builder(&world.outbox)
        .operation("pay", Operation::new(DEDUPLICATES, handler))
        .workers(1)
        .batch(1)
        .build()
        .unwrap();
    let error = relay.drain().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("another build"), "{error}");
    let stands = |id| newer.entry(id).unwrap().unwrap().status;
    assert_eq!(ids.map(stands), [Status::Succeeded, Status::Pending]);
    let error = Outbox::open(world.path()).unwrap_err().to_string();
    assert!(error.contains("newer build"), "{error}");
}

/// A success that comes after its lease was lost is recorded, although a migration has begun.
#[test]
fn migration_that_has_begun_leaves_room_for_a_late_success() {
    let world = World::new();
    let id = world.enqueue(&crate::support::world::pay("a"));
    let newer = world.second();
    let path = world.path();
    let handler = crate::support::world::interrupted(
        move || {
            let conn = Connection::open(&path).unwrap();
            conn.execute_batch(
                "INSERT INTO outbox_lost SELECT id, token, owner FROM outbox_lease;
                 UPDATE outbox_lease SET state = 'needs_review', due_at = NULL, token = NULL,
                     owner = NULL, in_doubt_since = claimed_at;
                 UPDATE outbox_meta SET schema_version = -schema_version",
            )
            .unwrap();
        },
        crate::support::world::succeeded("ch_1"),
    );
    let relay = Relay::builder(&world.outbox)
        .operation("pay", Operation::new(DEDUPLICATES, handler))
        .workers(1)
        .build()
        .unwrap();
    assert_eq!(relay.drain().unwrap_err().kind(), ErrorKind::Schema);
    assert_eq!(newer.entry(id).unwrap().unwrap().status, Status::Succeeded);
    assert_eq!(newer.audit(id).unwrap().pop().unwrap().kind, EventKind::Late);
}
