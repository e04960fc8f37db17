//! Faults that were found by trying to break it, each as its kind.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{
    Delivery, Downstream, ErrorKind, Failure, Intent, OnDead, Operation, Outbox, Outcome,
    PauseKind, Relay, RelayHandle, Status,
};

use crate::support::folder::folder;
use crate::support::world::{
    DEDUPLICATES, LONG, START, World, maybe_sent, not_sent, pay, rejected, relay_on, succeeded,
    until,
};

/// A row that had lost its process waited to be alone, and another operation's backlog never let
/// it: the wish was forgotten by every step that was closed because of it.
#[test]
fn lost_row_gets_its_turn_beside_a_backlog() {
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
fn retry_after_outlives_giving_way_to_an_earlier_row() {
    let world = World::new();
    let first = world.enqueue(&pay("a").ordering_key("k"));
    let second = world.enqueue(&pay("b").ordering_key("k"));
    let asked = Failure::new("limited", "answered 429").retry_after(Duration::from_secs(3600));
    world.script.then(rejected()).then(Outcome::Limited(asked));
    let operation = || world.operation(DEDUPLICATES).on_dead(OnDead::Continue);
    relay_on(&world.outbox, operation()).drain().unwrap();
    let due = world.entry(second).next_attempt_at.unwrap();
    assert!(due >= crate::support::world::START + 3_600_000);
    world.outbox.replay(first, "alice").unwrap();
    assert_eq!(world.entry(second).next_attempt_at, None, "it waits behind the first");
    world.outbox.transact(|tx| world.outbox.cancel(tx, first, "alice")).unwrap();
    assert_eq!(world.entry(second).next_attempt_at, Some(due));
    assert_eq!(relay_on(&world.outbox, operation()).drain().unwrap().attempts, 0);
}

/// A relay that says nothing of it, or says less, erased what was stored.
#[test]
fn contract_is_not_weakened_by_silence() {
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

/// A clock that ran ahead and was set back made the key window longer than it is: it ends after an
/// hour by the clock that nobody sets.
#[test]
fn clock_that_is_set_back_does_not_stretch_the_key_window() {
    for (back, passed, status) in
        [(30, 0, Status::Succeeded), (7200, 0, Status::Succeeded), (7200, 3600, Status::Unknown)]
    {
        let world = World::new();
        let id = world.enqueue(&pay("a"));
        world.enqueue(&pay("b"));
        world.script.then(maybe_sent());
        let downstream = Downstream::DeduplicatesByKey { window: Duration::from_secs(3600) };
        world.drain(downstream);
        let now = sqlite_outbox::Clock::now(&world.clock);
        world.clock.set(now - back * 1000);
        world.advance(passed);
        world.sql("UPDATE outbox_lease SET due_at = 1700000000000 WHERE due_at IS NOT NULL");
        world.drain(downstream);
        assert_eq!(world.entry(id).status, status, "{back} s back");
    }
}

/// A single name that is not text stopped every operation.
#[test]
fn name_that_is_not_text_stops_no_other_operation() {
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
fn relay_handle_may_be_dropped_by_an_observer() {
    let world = World::new();
    world.enqueue(&pay("a"));
    world.enqueue(&pay("b"));
    let handle: Arc<OnceLock<Mutex<Option<RelayHandle>>>> = Arc::default();
    let (inner, (tell, told)) = (Arc::clone(&handle), std::sync::mpsc::channel());
    let relay = Relay::builder(&world.outbox)
        .operation("pay", world.operation(DEDUPLICATES))
        .observe(move |event| {
            drop(inner.wait().lock().unwrap().take());
            let _ = tell.send(event.outbox_id);
        })
        .build()
        .unwrap();
    handle.get_or_init(|| Mutex::new(Some(relay.start().unwrap())));
    told.recv_timeout(Duration::from_secs(20)).expect("the observer returned");
}

/// The guards count bytes; a file in UTF-16 has twice as many.
#[test]
fn utf_16_file_is_refused() {
    let dir = folder();
    let path = dir.path().join("app.db");
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch("PRAGMA encoding = 'UTF-16'; CREATE TABLE orders (id TEXT)").unwrap();
    let refused = Outbox::open(&path).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Schema);
    assert!(refused.to_string().contains("UTF-8"), "{refused}");
}

/// A relay went on, silently, on a file that was deleted or replaced under it.
#[test]
fn relay_stops_when_its_file_is_replaced() {
    let world = World::new();
    world.enqueue(&pay("a"));
    let handle = world.relay(DEDUPLICATES).start().unwrap();
    let moved = world.dir.path().join("old.db");
    std::fs::rename(world.path(), &moved).unwrap();
    until(|| !handle.is_running());
    let error = handle.shutdown(Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("deleted or replaced"), "{error}");
}

/// Credentials in an address passed the guard, and stood in every list.
#[test]
fn credentials_in_an_endpoint_are_refused_by_the_guard() {
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

/// A relay that lacked an endpoint buried the backlog that another one would have sent.
#[cfg(feature = "http")]
#[test]
fn endpoint_missing_from_a_relay_makes_nothing_dead() {
    use sqlite_outbox::Http;

    let (world, server) = (World::new(), crate::support::downstream::Downstream::start());
    let id = world.enqueue(&pay("a"));
    let without = relay_on(&world.outbox, Operation::new(DEDUPLICATES, Http::new()));
    assert_eq!(without.drain().unwrap().retried, 1);
    let entry = world.entry(id);
    assert_eq!((entry.status, entry.attempts), (Status::Pending, 0));
    assert!(entry.last_error.unwrap().contains("no endpoint"));
    world.advance(3600);
    let with = Http::new().endpoint(&server.url("/ok"));
    let with = relay_on(&world.outbox, Operation::new(DEDUPLICATES, with));
    assert_eq!(with.drain().unwrap().succeeded, 1);
}

/// A drain that was told to stop while the file could not be written gave up an answer it had.
#[test]
fn drain_that_is_stopped_still_writes_what_it_knows() {
    for workers in [1, 2] {
        let world = Arc::new(World::new());
        let id = world.enqueue(&pay("a"));
        let sent: Arc<OnceLock<()>> = Arc::default();
        let app = Arc::new(Mutex::new(world.app()));
        let (locks, sends) = (Arc::clone(&app), Arc::clone(&sent));
        let operation = Operation::new(Downstream::Unprotected, move |_: &Delivery| {
            locks.lock().unwrap().execute_batch("BEGIN IMMEDIATE").unwrap();
            sends.set(()).unwrap();
            succeeded("ok")
        });
        let relay = Relay::builder(&world.outbox).operation("pay", operation).workers(workers);
        let relay = relay.build().unwrap();
        std::thread::scope(|scope| {
            let drain = scope.spawn(|| relay.drain());
            sent.wait();
            relay.stop_drain();
            let began = std::time::Instant::now();
            until(|| began.elapsed() > Duration::from_millis(400));
            assert!(!drain.is_finished());
            app.lock().unwrap().execute_batch("ROLLBACK").unwrap();
            assert_eq!(drain.join().unwrap().unwrap().succeeded, 1);
        });
        assert_eq!(world.entry(id).status, Status::Succeeded);
    }
}

/// Rows that a claim only moved out of the way were taken for the end of what is due, and the
/// relay went to sleep in front of the next one.
#[test]
fn deferred_rows_hold_up_no_other_row() {
    let world = World::new();
    let outbox = world.on_real_time();
    let mut intents: Vec<_> =
        (0..2000).map(|n| pay(&format!("old{n}")).expires_in(Duration::from_millis(1))).collect();
    intents.extend((0..2000).map(|n| pay(&format!("t{n}")).tenant("t")));
    intents.push(pay("live").tenant("other"));
    outbox.transact(|tx| outbox.enqueue_all(tx, &intents)).unwrap();
    world.advance(1);
    let operation = world.operation(DEDUPLICATES).max_per_tenant(1, Duration::from_secs(3600));
    let handle = relay_on(&world.outbox, operation).start().unwrap();
    // At a look every 250 ms this takes a minute, and `until` waits for a third of one.
    until(|| world.entry(4001).status == Status::Succeeded);
    handle.shutdown(LONG).unwrap();
}

/// A row that had been tried for days made the whole operation wait as long as itself.
#[test]
fn limited_operation_waits_as_long_as_it_was_asked_to() {
    for (asked, expected) in [(Some(1), 1000), (None, 60_000)] {
        let world = World::new();
        world.enqueue(&pay("a"));
        world.sql("UPDATE outbox_lease SET tries = 14");
        let mut failure = Failure::new("limited", "answered 429");
        failure.retry_after = asked.map(Duration::from_secs);
        world.script.then(Outcome::Limited(failure));
        world.drain(DEDUPLICATES);
        let until = world.number("SELECT throttled_until FROM outbox_operation");
        assert!((START + 1000..=START + expected).contains(&until), "{}", until - START);
    }
}

/// An address of a row's own that answered badly ended a pause of the configured one's.
#[test]
fn endpoint_of_a_row_ends_no_pause_by_a_bad_answer() {
    for outcome in [maybe_sent(), rejected()] {
        let world = World::new();
        world.enqueue(&pay("a"));
        let refused = Outcome::Unauthorized(Failure::new("auth", "answered 401"));
        world.script.then(refused);
        world.drain(DEDUPLICATES);
        world.sql("UPDATE outbox_lease SET due_at = due_at + 1000000000");
        world.enqueue(&pay("b").endpoint("https://example.com/"));
        world.advance(3600);
        world.script.then(outcome);
        world.drain(DEDUPLICATES);
        assert_eq!(world.script.seen().len(), 2);
        let paused = world.outbox.operations().unwrap().remove(0).paused;
        assert_eq!(paused, Some(PauseKind::Auth));
    }
}

/// Times that were written while the clock was a year ahead held for that year.
#[test]
fn clock_that_was_ahead_closes_nothing() {
    let year = 365 * 86_400_000;
    for outcome in [not_sent(), succeeded("ok")] {
        let world = World::new();
        world.clock.set(START + year);
        let operation = || {
            let budget = world.operation(DEDUPLICATES).max_per(1, Duration::from_secs(60));
            budget.breaker_after(1)
        };
        let id = world.enqueue(&pay("a"));
        world.script.then(outcome);
        relay_on(&world.outbox, operation()).drain().unwrap();
        world.clock.set(START);
        let id = if world.entry(id).status == Status::Succeeded {
            world.enqueue(&pay("b"))
        } else {
            world.sql("UPDATE outbox_lease SET due_at = 0");
            id
        };
        let relay = relay_on(&world.outbox, operation());
        relay.drain().unwrap();
        world.advance(60);
        relay.drain().unwrap();
        assert_eq!(world.entry(id).status, Status::Succeeded);
    }
}

/// Rows that were deferred stayed so for the old window, whatever became of the budget.
#[test]
fn deferred_row_is_tried_again_when_the_budget_changes() {
    let world = World::new();
    for entity in ["a", "b"] {
        world.enqueue(&pay(entity).tenant("t"));
    }
    let day = Duration::from_secs(86_400);
    let budget = |sends| world.operation(DEDUPLICATES).max_per_tenant(sends, day);
    assert_eq!(relay_on(&world.outbox, budget(1)).drain().unwrap().succeeded, 1);
    let (rule, text) = world.outbox.why(2, None).unwrap();
    assert!(rule == "held" && text.contains("max_per_tenant (1 in"), "{rule} {text}");
    assert!(!world.outbox.resume("pay", "ann").unwrap());
    assert_eq!(relay_on(&world.outbox, budget(1)).drain().unwrap().succeeded, 0);
    let lifted = budget(2).weaken_stored_contract();
    assert_eq!(relay_on(&world.outbox, lifted).drain().unwrap().succeeded, 1);
}
