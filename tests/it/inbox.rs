//! A message is handled exactly once, together with what it makes the consumer do.

use std::cell::Cell;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::time::Duration;

use sqlite_outbox::rusqlite::{Connection, TransactionBehavior};
use sqlite_outbox::{Error, ErrorKind, Inbox, Result};

use crate::support::needs;
use crate::support::world::{DEDUPLICATES, START, World, immediate, pay};

const ORDERS: &str = "SELECT count(*) FROM orders";
const MESSAGES: &str = "SELECT count(*) FROM outbox_inbox";

fn inbox(world: &World) -> Inbox {
    drop(world.app());
    Inbox::new(&world.outbox)
}

/// Work of a consumer for a message: an order of a new name, so that a second one shows.
fn order(conn: &Connection, state: &str) -> Result<String> {
    conn.execute("INSERT INTO orders VALUES (hex(randomblob(8)), ?1)", [state])?;
    Ok(format!("ordered {state}"))
}

/// Handles a message in a transaction of its own; says which turn this is.
fn consume(world: &World, source: &str, message: &str, turn: &str) -> Result<String> {
    let inbox = Inbox::new(&world.outbox);
    world.outbox.transact(|tx| inbox.once(tx, source, message, |tx| order(tx, turn)))
}

fn never(_: &Connection) -> Result<String> {
    panic!("it is not run")
}

#[test]
fn message_that_comes_again_gets_the_first_result() {
    let world = World::new();
    let inbox = inbox(&world);
    assert_eq!(inbox.seen("stripe", "evt_1").unwrap(), None);
    assert_eq!(consume(&world, "stripe", "evt_1", "first").unwrap(), "ordered first");
    assert_eq!(consume(&world, "stripe", "evt_1", "second").unwrap(), "ordered first");
    assert_eq!(inbox.seen("stripe", "evt_1").unwrap().as_deref(), Some("ordered first"));
    assert_eq!(world.number("SELECT handled_at FROM outbox_inbox"), START);
    assert_eq!(world.number(ORDERS), 1);

    // Another source may use the same id, and a source another.
    assert_eq!(consume(&world, "github", "evt_1", "third").unwrap(), "ordered third");
    assert_eq!(consume(&world, "stripe", "evt_2", "fourth").unwrap(), "ordered fourth");
    assert_eq!(consume(&world, "stripe", "evt_1", "fifth").unwrap(), "ordered first");
    assert_eq!((world.number(ORDERS), world.number(MESSAGES)), (3, 3));
}

#[test]
fn message_twice_in_one_transaction_is_handled_once() {
    let world = World::new();
    let (inbox, mut conn) = (inbox(&world), world.app());
    let tx = immediate(&mut conn);
    assert_eq!(inbox.once(&tx, "s", "m", |tx| order(tx, "a")).unwrap(), "ordered a");
    assert_eq!(inbox.once(&tx, "s", "m", never).unwrap(), "ordered a");
    assert_eq!(inbox.seen("s", "m").unwrap(), None, "it is not committed");
    tx.commit().unwrap();
    assert_eq!(world.number(ORDERS), 1);
}

#[test]
fn rollback_forgets_the_message_and_its_effect() {
    let world = World::new();
    let (inbox, mut conn) = (inbox(&world), world.app());
    let tx = immediate(&mut conn);
    inbox.once(&tx, "s", "m", |tx| order(tx, "a")).unwrap();
    tx.rollback().unwrap();
    assert_eq!((world.number(ORDERS), world.number(MESSAGES)), (0, 0));
    let tx = immediate(&mut conn);
    tx.execute_batch("SAVEPOINT mine").unwrap();
    inbox.once(&tx, "s", "m", |tx| order(tx, "b")).unwrap();
    tx.execute_batch("ROLLBACK TO mine").unwrap();
    assert_eq!(inbox.once(&tx, "s", "m", |tx| order(tx, "c")).unwrap(), "ordered c");
    tx.commit().unwrap();
    assert_eq!((world.number(ORDERS), world.number(MESSAGES)), (1, 1));
}

/// An error of the application's own.
#[derive(Debug)]
enum Failure {
    OutOfStock,
    Outbox,
}

impl From<Error> for Failure {
    fn from(_: Error) -> Self {
        Self::Outbox
    }
}

#[test]
fn failure_is_undone_and_the_callers_writes_stay() {
    let world = World::new();
    let (inbox, mut conn) = (inbox(&world), world.app());
    let tx = immediate(&mut conn);
    order(&tx, "before").unwrap();
    let failed = inbox.once(&tx, "s", "m", |tx| {
        order(tx, "within")?;
        world.outbox.enqueue(tx, &pay("a"))?;
        Err(Failure::OutOfStock)
    });
    assert!(matches!(failed, Err(Failure::OutOfStock)), "{failed:?}");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        inbox.once(&tx, "s", "m", |tx| -> Result<String> {
            order(tx, "within").unwrap();
            panic!("a bug")
        })
    }));
    assert!(panicked.is_err());
    let error = tx.execute_batch("RELEASE outbox_all_or_nothing").unwrap_err().to_string();
    assert!(error.contains("no such savepoint"), "{error}");
    order(&tx, "after").unwrap();
    tx.commit().unwrap();
    let states = "SELECT count(*) FROM orders WHERE state IN ('before', 'after')";
    assert_eq!((world.number(states), world.number(ORDERS)), (2, 2));
    assert_eq!((world.number(MESSAGES), world.number("SELECT count(*) FROM outbox")), (0, 0));
    assert_eq!(consume(&world, "s", "m", "at last").unwrap(), "ordered at last");
}

#[test]
fn message_being_handled_is_not_handled_within() {
    let world = World::new();
    let (inbox, mut conn) = (inbox(&world), world.app());
    let tx = immediate(&mut conn);
    let refused = inbox.once(&tx, "s", "m", |tx| inbox.once(tx, "s", "m", never)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert!(refused.to_string().contains("being handled"), "{refused}");

    // Another one may be, and may fail alone.
    let result = inbox.once(&tx, "s", "outer", |tx| {
        let inner = inbox.once(tx, "s", "inner", |tx| {
            order(tx, "inner")?;
            Err(Failure::OutOfStock)
        });
        assert!(matches!(inner, Err(Failure::OutOfStock)), "{inner:?}");
        order(tx, "outer")
    });
    assert_eq!(result.unwrap(), "ordered outer");
    tx.commit().unwrap();
    assert_eq!((world.number(ORDERS), world.number(MESSAGES)), (1, 1));
}

#[test]
fn closure_that_ends_the_transaction_is_an_error() {
    for (end, handled) in [("ROLLBACK", 0), ("ROLLBACK; BEGIN", 0), ("COMMIT", 1)] {
        let world = World::new();
        let (inbox, conn) = (inbox(&world), world.app());
        conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        let ended = inbox.once(&conn, "s", "m", |tx| {
            tx.execute_batch(end)?;
            Ok("done".to_owned())
        });
        let error: Error = ended.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoTransaction, "{error}");
        assert!(error.to_string().contains("leave COMMIT and ROLLBACK"), "{error}");
        assert_eq!(
            world.number("SELECT count(*) FROM outbox_inbox WHERE result = 'done'"),
            handled
        );
        assert_eq!(world.number(MESSAGES), handled);
    }
}

#[test]
fn intent_of_a_message_exists_once() {
    let world = World::new();
    let (inbox, turns) = (inbox(&world), Cell::new(0));
    for _ in 0..3 {
        turns.set(turns.get() + 1);
        // A key of each turn, so that it is not the outbox that keeps it single.
        let intent = pay("a").key(format!("turn-{}", turns.get()));
        let key = world.outbox.transact(|tx| {
            inbox.once(tx, "s", "m", |tx| Ok(world.outbox.enqueue(tx, &intent)?.key().to_owned()))
        });
        assert_eq!(Result::<_>::unwrap(key), "turn-1");
    }
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 1);
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 1);
}

#[test]
fn connection_that_could_not_keep_the_promise_is_refused() {
    let world = World::new();
    let (inbox, conn) = (inbox(&world), world.app());
    let refused = |conn: &Connection| inbox.once(conn, "s", "m", never).unwrap_err().kind();
    assert_eq!(refused(&conn), ErrorKind::NoTransaction);
    let elsewhere = Connection::open(world.dir.path().join("other.db")).unwrap();
    for other in [elsewhere, Connection::open_in_memory().unwrap()] {
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        assert_eq!(refused(&other), ErrorKind::WrongFile);
    }
    conn.execute_batch("PRAGMA synchronous = OFF; BEGIN IMMEDIATE").unwrap();
    assert_eq!(refused(&conn), ErrorKind::NotDurable);
    assert_eq!(world.number(MESSAGES), 0);
}

#[test]
fn name_out_of_range_is_refused_by_the_library_and_by_the_file() {
    let world = World::new();
    let inbox = inbox(&world);
    let (long, longer) = ("é".repeat(256), "é".repeat(1025));
    for (source, message, field) in [
        ("", "m", "source"),
        (&*long, "m", "source"),
        ("a\0b", "m", "source"),
        ("s", "", "message_id"),
        ("s", &*longer, "message_id"),
        ("s", "a\0b", "message_id"),
    ] {
        let refused = world.outbox.transact(|tx| inbox.once(tx, source, message, never));
        for error in [refused.unwrap_err(), inbox.seen(source, message).unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().starts_with(field), "{error}");
        }
        // OR IGNORE would pass a constraint over, and the message would be taken for a repeated
        // one.
        let insert = "INSERT OR IGNORE INTO outbox_inbox (source, message_id) VALUES (?1, ?2)";
        let error = world.app().execute(insert, [source, message]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("outbox_inbox.{field}")), "{error}");
    }
    for handled_at in ["1800000000", "NULL"] {
        let insert = format!(
            "INSERT OR IGNORE INTO outbox_inbox (source, message_id, handled_at)
             VALUES ('s', 'm', {handled_at})"
        );
        let error = world.app().execute(&insert, []).unwrap_err().to_string();
        assert!(error.starts_with("outbox_inbox.handled_at"), "{error}");
    }
    consume(&world, &"é".repeat(255), &"é".repeat(1024), "a").unwrap();
}

/// As many messages as this, each handled the given number of milliseconds after the start.
fn add(world: &World, count: usize, prefix: &str, after: i64) {
    world.sql(&format!(
        "INSERT INTO outbox_inbox (source, message_id, handled_at)
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
         SELECT 's', '{prefix}' || i, {} FROM n",
        START + after
    ));
}

#[test]
fn forget_deletes_old_messages_and_leaves_younger_ones() {
    let world = World::new();
    let inbox = inbox(&world);
    add(&world, 1203, "old", 0);
    add(&world, 7, "young", 1);
    world.clock.advance(Inbox::RETENTION);
    assert_eq!(inbox.prune(Inbox::RETENTION).unwrap(), 0, "no longer ago than that");
    world.clock.advance(Duration::from_millis(1));
    assert_eq!(inbox.prune(Duration::MAX).unwrap(), 0);
    assert_eq!(consume(&world, "s", "old1", "again").unwrap(), "", "its result is the default");
    assert_eq!(inbox.prune(Inbox::RETENTION).unwrap(), 1203);
    assert_eq!(inbox.prune(Inbox::RETENTION).unwrap(), 0);
    assert_eq!(world.number("SELECT count(*) FROM outbox_inbox WHERE message_id GLOB 'young*'"), 7);
    // What is forgotten is handled again.
    assert_eq!(consume(&world, "s", "old1", "again").unwrap(), "ordered again");
}

/// A guard of this test's stops the second transaction in its middle.
#[test]
fn forget_deletes_in_transactions_of_500() {
    let world = World::new();
    let inbox = inbox(&world);
    add(&world, 1203, "old", 0);
    world.batch(
        "CREATE TRIGGER stop BEFORE DELETE ON outbox_inbox
         WHEN (SELECT count(*) FROM outbox_inbox) < 400 BEGIN SELECT RAISE(ABORT, 'stop'); END",
    );
    world.clock.advance(Duration::from_secs(1));
    inbox.prune(Duration::ZERO).unwrap_err();
    assert_eq!(world.number(MESSAGES), 703);
    world.batch("DROP TRIGGER stop");
    assert_eq!(inbox.prune(Duration::ZERO).unwrap(), 703);
}

#[test]
fn consumers_that_race_for_a_message_handle_it_once() {
    const MESSAGES: usize = 30;
    let world = World::new();
    let (inbox, start) = (inbox(&world), Barrier::new(4));
    let race = |n: usize| -> Vec<String> {
        let mut conn = Connection::open(world.path()).unwrap();
        let behaviors = [TransactionBehavior::Immediate, TransactionBehavior::Deferred];
        let consume = |message: usize| {
            start.wait();
            let tx = conn.transaction_with_behavior(behaviors[n % 2]).unwrap();
            let handle = |tx: &Connection| order(tx, &n.to_string());
            let result = inbox.once(&tx, "s", &message.to_string(), handle).unwrap();
            tx.commit().unwrap();
            result
        };
        (0..MESSAGES).map(consume).collect()
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let race = &race;
        let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || race(n))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(results.iter().all(|other| *other == results[0]));
    assert_eq!(world.number(ORDERS), i64::try_from(MESSAGES).unwrap());
}

/// The client that consumes by the recipe of docs/inbox.md, in a process of its own.
fn python(world: &World, message: &str) -> Command {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/consume.py");
    let mut command = Command::new("python3");
    command.arg(client).arg(world.path()).args(["s", message]).stdout(Stdio::piped());
    command
}

fn said(output: &std::process::Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

#[test]
fn processes_that_race_for_a_message_handle_it_once() {
    if !needs::has("python3") {
        return;
    }
    let world = World::new();
    drop(inbox(&world));
    let mut clients: Vec<_> = (0..4).map(|_| python(&world, "m").spawn().unwrap()).collect();
    let mut results = vec![consume(&world, "s", "m", "here").unwrap()];
    results.extend(clients.drain(..).map(|client| said(&client.wait_with_output().unwrap())));
    assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
    assert_eq!((world.number(ORDERS), world.number(MESSAGES)), (1, 1));
}

#[test]
fn recipe_of_the_guide_and_the_library_agree() {
    if !needs::has("python3") {
        return;
    }
    let world = World::new();
    let inbox = inbox(&world);
    let python = |message| said(&python(&world, message).output().unwrap());
    assert_eq!(python("a"), "python handled a");
    assert_eq!(python("a"), "python handled a");
    assert_eq!(consume(&world, "s", "a", "here").unwrap(), "python handled a");
    assert_eq!(consume(&world, "s", "b", "here").unwrap(), "ordered here");
    assert_eq!(python("b"), "ordered here");
    assert_eq!(inbox.seen("s", "a").unwrap().as_deref(), Some("python handled a"));
    assert_eq!((world.number(ORDERS), world.number(MESSAGES)), (2, 2));
    // Its time is SQLite's own, before the clock of this test.
    assert_eq!(inbox.prune(Duration::from_secs(1)).unwrap(), 1);

    // The client runs what docs/inbox.md says.
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let client = words(include_str!("../clients/consume.py"));
    let guide = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/inbox.md"));
    let mut blocks = guide.split("```");
    let recipe = blocks.find(|block| block.contains("INSERT INTO outbox_inbox")).unwrap();
    let lines = recipe.lines().skip(1).filter(|line| !line.starts_with("--"));
    let recipe = lines.collect::<Vec<_>>().join(" ");
    let statements: Vec<_> = recipe.split(';').map(words).filter(|sql| !sql.is_empty()).collect();
    assert_eq!(statements.len(), 5);
    for sql in statements {
        assert!(client.contains(&sql), "{sql}");
    }
}
