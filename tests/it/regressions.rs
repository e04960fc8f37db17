//! Faults that were found by trying to break it, each as its kind.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{
    Delivery, Downstream, ErrorKind, Failure, Intent, OnDead, Operation, Outbox, Outcome, Relay,
    RelayHandle, Status,
};

use crate::world::{DEDUPLICATES, World, maybe_sent, pay, rejected, relay_on, succeeded};

/// A row that had lost its process waited to be alone, and another operation's backlog never let
/// it: the wish was forgotten by every step that was closed because of it.
#[test]
fn a_lost_row_gets_its_turn_beside_a_backlog() {
    let world = World::new();
    let lost = world.enqueue(&pay("lost"));
    world.sql("UPDATE outbox_lease SET lost = 1, attempts = 1, tries = 1 WHERE id = 1");
    for n in 0..20 {
        world.enqueue(&pay(&format!("{n}")));
    }
    let backlog: Vec<_> = (0..3000).map(|n| Intent::new("busy", n.to_string())).collect();
    world.outbox.transact(|tx| world.outbox.enqueue_all(tx, &backlog)).unwrap();
    let order: Arc<Mutex<Vec<i64>>> = Arc::default();
    let handler = || {
        let order = Arc::clone(&order);
        move |delivery: &Delivery| {
            order.lock().unwrap().push(delivery.id());
            // What takes no time at all never leaves a queue to wait for.
            let began = std::time::Instant::now();
            while began.elapsed() < Duration::from_micros(200) {
                std::hint::spin_loop();
            }
            succeeded("ok")
        }
    };
    let relay = Relay::builder(&world.outbox)
        .operation("busy", Operation::new(DEDUPLICATES, handler()))
        .operation("pay", Operation::new(DEDUPLICATES, handler()))
        .workers(2)
        .build()
        .unwrap();
    relay.drain().unwrap();
    let order = order.lock().unwrap();
    assert_eq!(order.len(), 3021);
    let place = order.iter().position(|&id| id == lost).unwrap();
    assert!(place < 2000, "sent as number {place}");
}

/// A row that gave its place to an earlier one forgot what the downstream had asked for.
#[test]
fn a_queued_row_keeps_its_time() {
    let world = World::new();
    let first = world.enqueue(&pay("a").ordering_key("k"));
    let second = world.enqueue(&pay("b").ordering_key("k"));
    let asked = Failure::new("limited", "answered 429").retry_after(Duration::from_secs(3600));
    world.script.then(rejected()).then(Outcome::Limited(asked));
    let operation = || world.operation(DEDUPLICATES).on_dead(OnDead::Continue);
    relay_on(&world.outbox, operation()).drain().unwrap();
    let due = world.entry(second).next_attempt_at.unwrap();
    assert!(due >= crate::world::START + 3_600_000);
    world.outbox.replay(first, "alice", None).unwrap();
    assert_eq!(world.entry(second).next_attempt_at, None, "it waits behind the first");
    world.outbox.transact(|tx| world.outbox.cancel(tx, first, "alice", None)).unwrap();
    assert_eq!(world.entry(second).next_attempt_at, Some(due));
    assert_eq!(relay_on(&world.outbox, operation()).drain().unwrap().attempts, 0);
}

/// A relay that says nothing of it, or says less, erased what was stored.
#[test]
fn what_is_stored_is_not_weakened_by_silence() {
    let world = World::new();
    let stored = || world.outbox.operations().unwrap().remove(0);
    let build = |operation: Operation| drop(relay_on(&world.outbox, operation));
    build(world.operation(DEDUPLICATES).on_dead(OnDead::Continue).provider("stripe"));
    build(world.operation(DEDUPLICATES));
    assert_eq!(
        (stored().on_dead, stored().provider.as_deref()),
        (OnDead::Continue, Some("stripe"))
    );
    build(world.operation(DEDUPLICATES).on_dead(OnDead::Block));
    build(world.operation(DEDUPLICATES).on_dead(OnDead::Continue));
    assert_eq!(stored().on_dead, OnDead::Block);
    build(world.operation(DEDUPLICATES).on_dead(OnDead::Continue).weaken_stored_contract());
    assert_eq!(stored().on_dead, OnDead::Continue);

    // And the relay itself obeys: a dead head blocks where another relay said so.
    build(world.operation(DEDUPLICATES).on_dead(OnDead::Block));
    let first = world.enqueue(&pay("a").ordering_key("k"));
    let second = world.enqueue(&pay("b").ordering_key("k"));
    world.script.then(rejected());
    let relay = relay_on(&world.outbox, world.operation(DEDUPLICATES).on_dead(OnDead::Continue));
    relay.drain().unwrap();
    assert_eq!(world.entry(first).status, Status::Dead);
    assert_eq!(world.entry(second).status, Status::Pending);
    assert_eq!(world.script.seen().len(), 1);
}

/// A clock that ran ahead and was set back made the key window longer than it is.
#[test]
fn a_clock_that_is_set_back_does_not_stretch_the_key_window() {
    for (back, status) in [(30, Status::Succeeded), (7200, Status::Unknown)] {
        let world = World::new();
        let id = world.enqueue(&pay("a"));
        world.enqueue(&pay("b"));
        world.script.then(maybe_sent());
        let downstream = Downstream::DeduplicatesByKey { window: Duration::from_secs(3600) };
        world.drain(downstream);
        let now = sqlite_outbox::Clock::now(&world.clock);
        world.clock.set(now - back * 1000);
        world.sql("UPDATE outbox_lease SET due_at = 1700000000000 WHERE due_at IS NOT NULL");
        world.drain(downstream);
        assert_eq!(world.entry(id).status, status, "{back} s back");
    }
}

/// One name that is no text stopped every operation.
#[test]
fn a_name_that_is_no_text_stops_nobody_else() {
    let world = World::new();
    world.enqueue(&pay("a"));
    let other = world.enqueue(&pay("b"));
    world.drain(DEDUPLICATES);
    let (id, third) = (world.enqueue(&pay("c")), world.enqueue(&pay("d")));
    world.sql(&format!("UPDATE outbox_lease SET operation = CAST(x'ff' AS TEXT) WHERE id = {id}"));
    world.sql("UPDATE outbox_operation SET provider = CAST(x'ff' AS TEXT)");
    let relay = Relay::builder(&world.outbox)
        .default_operation(world.operation(DEDUPLICATES))
        .workers(1)
        .build()
        .unwrap();
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    assert_eq!(world.entry(third).status, Status::Succeeded);
    assert_eq!(world.entry(other).status, Status::Succeeded);
    assert!(world.outbox.stats().is_ok() && world.outbox.operations().is_ok());
}

/// An observer that dropped the handle made the writer wait for itself.
#[test]
fn the_handle_may_be_dropped_by_an_observer() {
    let world = World::new();
    world.enqueue(&pay("a"));
    world.enqueue(&pay("b"));
    let handle: Arc<OnceLock<Mutex<Option<RelayHandle>>>> = Arc::default();
    let (inner, (tell, told)) = (Arc::clone(&handle), std::sync::mpsc::channel());
    let relay = Relay::builder(&world.outbox)
        .operation("pay", world.operation(DEDUPLICATES))
        .observe(move |event| {
            drop(inner.wait().lock().unwrap().take());
            let _ = tell.send(event.id);
        })
        .build()
        .unwrap();
    handle.get_or_init(|| Mutex::new(Some(relay.start().unwrap())));
    told.recv_timeout(Duration::from_secs(20)).expect("the observer returned");
}

/// The guards count bytes; a file in UTF-16 has twice as many.
#[test]
fn a_file_in_utf_16_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch("PRAGMA encoding = 'UTF-16'; CREATE TABLE orders (id TEXT)").unwrap();
    let refused = Outbox::open(&path).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Schema);
    assert!(refused.to_string().contains("UTF-8"), "{refused}");
}

/// A relay went on, silently, on a file that was deleted or replaced under it.
#[test]
fn a_relay_stops_when_its_file_is_replaced() {
    let world = World::new();
    world.enqueue(&pay("a"));
    let handle = world.relay(DEDUPLICATES).start().unwrap();
    let moved = world.dir.path().join("old.db");
    std::fs::rename(world.path(), &moved).unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while handle.is_running() {
        assert!(std::time::Instant::now() < deadline);
        std::thread::yield_now();
    }
    let error = handle.shutdown(Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("deleted or replaced"), "{error}");
}

/// Credentials in an address passed the guard, and stood in every list.
#[test]
fn plain_sql_cannot_store_credentials_in_an_address() {
    let world = World::new();
    let conn = Connection::open(world.path()).unwrap();
    let insert = |endpoint: &str| {
        conn.execute(
            "INSERT OR IGNORE INTO outbox (operation, entity_id, idempotency_key, payload, endpoint)
             VALUES ('pay', ?1, ?1, '{}', ?1)",
            [endpoint],
        )
    };
    for bad in ["https://user:word@example.com/", "https://token@example.com", "https://a.b/#c"] {
        let refused = insert(bad).unwrap_err().to_string();
        assert!(refused.contains("outbox.endpoint"), "{refused}");
    }
    for good in ["https://example.com/a@b", "https://example.com?q=a@b/", "http://[::1]:80/"] {
        assert_eq!(insert(good).unwrap_or_else(|error| panic!("{good}: {error}")), 1);
    }
}
