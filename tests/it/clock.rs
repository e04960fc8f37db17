//! Clocks that are wrong, are set, or begin anew: nothing stands still for it, and nothing is sent
//! early or twice.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::testing::ManualClock;
use sqlite_outbox::{
    Boot, Clock, Delivery, Downstream, Failure, Operation, Outbox, Outcome, Part, Receipt, Status,
};

use crate::support::folder::folder;
use crate::support::needs::skipped;
use crate::support::world::{
    DEDUPLICATES, START, World, interrupted, maybe_sent, not_sent, pay, relay_on, sent,
};

/// The command with a wall clock that stands elsewhere, as libfaketime spells it.
fn at(time: &str) -> Option<Command> {
    let found = ["/usr/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"]
        .map(|folder| std::path::Path::new(folder).join("faketime/libfaketime.so.1"))
        .into_iter()
        .find(|file| file.exists());
    let Some(library) = found else {
        skipped("libfaketime is not installed");
        return None;
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
    command.env("LD_PRELOAD", library).env("FAKETIME", time).env("FAKETIME_NO_CACHE", "1");
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
    Some(command)
}

#[test]
fn an_enqueue_in_1970_is_accepted_and_a_mistaken_unit_is_not() {
    let Some(mut early) = at("1970-01-01 01:00:00") else { return };
    let dir = folder();
    let path = dir.path().join("app.db");
    let outbox = Outbox::open(&path).unwrap();
    early.arg("--db").arg(&path).args(["enqueue", "pay", "--entity", "a", "--delay", "1h"]);
    early.args(["--expires-in", "2h"]);
    let ran = early.output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let entry = outbox.entry(1).unwrap().unwrap();
    assert!(entry.created_at < 1_000_000_000_000, "{entry:?}");
    let sql = "INSERT INTO outbox (operation, entity_id, idempotency_key, payload, created_at)
               VALUES ('pay', 'b', 'b', '{}', 1800000000)";
    let conn = Connection::open(&path).unwrap();
    let refused = conn.execute(sql, []).unwrap_err().to_string();
    assert!(refused.contains("milliseconds"), "{refused}");
    let send = |_: &Delivery| Outcome::Succeeded(Receipt::new());
    let relay = relay_on(&outbox, Operation::new(DEDUPLICATES, send));
    assert_eq!(relay.drain().unwrap().attempts, 0, "its delay counts from now");
    outbox.retry(1, "ann").unwrap();
    assert_eq!(relay.drain().unwrap().succeeded, 1, "and so does the time that it is of use");
}

const YEAR_MS: i64 = 365 * 86_400_000;

/// An operation with a breaker and with a budget that one send uses up for an hour.
fn limited(world: &World) -> Operation {
    world.operation(DEDUPLICATES).max_per(1, Duration::from_secs(3600))
}

#[test]
fn waits_of_a_running_relay_end_when_they_would_have() {
    for by in [YEAR_MS, -YEAR_MS] {
        let world = World::new();
        let id = world.enqueue(&pay("a"));
        world.script.then(not_sent());
        let relay = world.relay(DEDUPLICATES);
        assert_eq!(relay.drain().unwrap().attempts, 1);
        world.clock.set(START + by);
        assert_eq!(relay.drain().unwrap().attempts, 0, "none is freed early");
        assert_eq!(world.entry(id).next_attempt_at, Some(START + by + 1000));
        world.advance(1);
        assert_eq!(relay.drain().unwrap().succeeded, 1);
    }
}

#[test]
fn throttles_holds_pauses_and_budgets_keep_the_rest_of_their_time() {
    for by in [YEAR_MS, -YEAR_MS] {
        let world = World::new();
        world.enqueue(&pay("a"));
        let relay = relay_on(&world.outbox, limited(&world));
        assert_eq!(relay.drain().unwrap().succeeded, 1);
        world.batch(&format!(
            "UPDATE outbox_operation SET throttled_until = {START} + 60000;
             INSERT INTO outbox_hold (operation, domain, name, cause, since, until)
             VALUES ('pay', 'tenant', 'x', 'budget', {START}, {START} + 60000)"
        ));
        world.outbox.pause("pay", Some(Duration::from_secs(60)), "ann").unwrap();
        world.clock.set(START + by);
        world.enqueue(&pay("b"));
        assert_eq!(relay.drain().unwrap().attempts, 0);
        let until = START + by + 60_000;
        assert_eq!(world.number("SELECT until FROM outbox_hold"), until);
        assert_eq!(world.number("SELECT paused_until FROM outbox_operation"), until);
        assert_eq!(world.number("SELECT at FROM outbox_spend"), START + by);
        world.advance(3599);
        assert_eq!(relay.drain().unwrap().attempts, 0, "the budget holds for its hour");
        world.advance(1);
        assert_eq!(relay.drain().unwrap().succeeded, 1);
    }
}

/// A machine that was stopped as a whole, as a virtual one may be, has an uptime that stood still.
#[test]
fn a_step_forward_that_nobody_watched_may_be_time_that_passed() {
    let world = World::new();
    for name in ["a", "b"] {
        world.enqueue(&pay(name));
    }
    let operation = || world.operation(DEDUPLICATES).max_per(1, Duration::from_secs(3600));
    let failure = Failure::new("limited", "answered 429").retry_after(Duration::from_secs(60));
    world.script.then(Outcome::Limited(failure));
    relay_on(&world.outbox, operation()).drain().unwrap();
    world.clock.set(START + 120_000);
    let report = relay_on(&world.outbox, operation()).drain().unwrap();
    assert_eq!(report.succeeded, 1, "the throttle is over");
    world.clock.set(START + YEAR_MS);
    let report = relay_on(&world.outbox, operation()).drain().unwrap();
    assert_eq!(report.attempts, 0, "a budget is no matter of patience");
}

#[test]
fn a_lease_of_a_clock_that_was_ahead_lasts_as_long_as_any() {
    let world = World::new();
    world.clock.set(START + YEAR_MS);
    let id = world.enqueue(&pay("a"));
    drop(world.relay(DEDUPLICATES));
    let claimed = START + YEAR_MS;
    world.batch(&format!(
        "UPDATE outbox_lease SET state = 'in_flight', owner = 'gone', token = 9, attempts = 1,
             tries = 1, claimed_at = {claimed}, due_at = {claimed} + 90000, doubt_boot = 0"
    ));
    world.clock.set(START);
    let relay = world.relay(DEDUPLICATES);
    assert_eq!(relay.drain().unwrap().attempts, 0);
    world.advance(90);
    assert_eq!(relay.drain().unwrap().succeeded, 1, "the doubt is a minute old, and not a year");
    assert_eq!(world.entry(id).status, Status::Succeeded);
}

#[test]
fn an_intent_of_a_clock_that_was_ahead_counts_from_now() {
    let world = World::new();
    world.clock.set(START + YEAR_MS);
    world.enqueue(&pay("now"));
    world.enqueue(&pay("later").delay(Duration::from_secs(60)));
    world.clock.set(START);
    let relay = world.relay(DEDUPLICATES);
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    world.advance(59);
    assert_eq!(relay.drain().unwrap().attempts, 0, "not before the delay that was asked for");
    world.advance(1);
    assert_eq!(relay.drain().unwrap().succeeded, 1);
}

#[test]
fn a_running_relay_sees_to_what_another_clock_enqueues() {
    let world = World::new();
    let relay = world.relay(DEDUPLICATES);
    assert_eq!(relay.drain().unwrap().attempts, 0);
    let at = START + YEAR_MS;
    world.batch(&format!(
        "INSERT INTO outbox (operation, entity_id, idempotency_key, payload, created_at,
                             available_at)
         VALUES ('pay', 'a', 'a', '{{}}', {at}, {at})"
    ));
    assert_eq!(relay.drain().unwrap().succeeded, 1);
}

#[test]
fn a_doubt_from_before_a_restart_of_the_machine_is_not_repeated() {
    let world = World::new();
    let id = world.enqueue(&pay("a"));
    world.script.then(maybe_sent());
    world.drain(DEDUPLICATES);
    assert_eq!(world.entry(id).status, Status::Pending);
    world.clock.reboot(START + 60_000);
    world.drain(DEDUPLICATES);
    assert_eq!((world.entry(id).status, world.script.seen().len()), (Status::Unknown, 1));
}

/// A clock that is set once, while a relay waits for the write lock: after so many looks at it.
#[derive(Debug, Clone)]
struct SetMeanwhile {
    clock: ManualClock,
    looks_left: Arc<AtomicI64>,
    by: i64,
}

impl Clock for SetMeanwhile {
    fn now(&self) -> i64 {
        if self.looks_left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.clock.set(self.clock.now() + self.by);
        }
        self.clock.now()
    }

    fn boot(&self) -> Option<Boot> {
        self.clock.boot()
    }
}

#[test]
fn a_clock_that_is_set_while_a_relay_waits_for_the_lock_ends_no_lease_of_another() {
    for (by, looks) in (1..9).flat_map(|looks| [(YEAR_MS, looks), (-YEAR_MS, looks)]) {
        let world = World::new();
        world.enqueue(&pay("a"));
        let clock = SetMeanwhile {
            clock: world.clock.clone(),
            looks_left: Arc::new(AtomicI64::new(i64::MAX)),
            by,
        };
        let second = Outbox::builder().clock(clock.clone()).open(world.path()).unwrap();
        let send = |_: &Delivery| Outcome::Succeeded(Receipt::new());
        let other = relay_on(&second, Operation::new(Downstream::Unprotected, send));
        other.drain().unwrap();
        let waits = world.enqueue(&pay("b"));
        let application = world.second();
        let handler = interrupted(
            move || {
                application.transact(|tx| application.enqueue(tx, &pay("c"))).unwrap();
                clock.looks_left.store(looks, Ordering::SeqCst);
                other.drain().unwrap();
                assert_eq!(application.entry(waits).unwrap().unwrap().status, Status::InFlight);
            },
            not_sent(),
        );
        let relay = world.other_relay(Downstream::Unprotected, handler);
        relay.drain().unwrap();
        assert_eq!(world.entry(waits).status, Status::Pending, "{by} {looks}: it was in doubt");
        let due = world.entry(waits).next_attempt_at.unwrap() - world.clock.now();
        assert!((0..=1000).contains(&due), "{by} {looks}: {due}");
    }
}

/// How long a person pauses a part of an operation is no wait of the product's own.
#[test]
fn a_pause_of_a_tenant_outlasts_a_restart_of_the_machine() {
    let world = World::new();
    world.enqueue(&pay("a").tenant("t"));
    let relay = world.relay(DEDUPLICATES);
    let (tenant, month) = (Part::Tenant("t".into()), Duration::from_secs(30 * 86_400));
    world.outbox.pause_part(&tenant, None, Some(month), "ann").unwrap();
    assert_eq!(relay.drain().unwrap().attempts, 0);
    drop(relay);
    world.clock.reboot(START + 60_000);
    let relay = world.relay(DEDUPLICATES);
    for _ in 0..29 {
        assert_eq!(relay.drain().unwrap().attempts, 0);
        world.advance(86_400);
    }
    assert_eq!(world.number("SELECT until FROM outbox_hold"), START + 30 * 86_400_000);
}

#[test]
fn waits_from_before_a_restart_of_the_machine_have_an_end() {
    let world = World::new();
    world.clock.set(START + YEAR_MS);
    let id = world.enqueue(&pay("a"));
    world.script.then(not_sent());
    world.drain(DEDUPLICATES);
    world.clock.reboot(START);
    world.drain(DEDUPLICATES);
    assert_eq!(world.entry(id).next_attempt_at, Some(START + 30 * 3_600_000));
    world.outbox.retry(id, "ann").unwrap();
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 1);
}

#[test]
fn a_week_of_sleep_is_time_that_passes() {
    let world = World::new();
    let id = world.enqueue(&pay("a"));
    world.script.then(maybe_sent());
    let relay = world.relay(DEDUPLICATES);
    relay.drain().unwrap();
    world.advance(7 * 86_400);
    relay.drain().unwrap();
    assert_eq!(world.entry(id).status, Status::Unknown, "the key may be forgotten");
}

#[test]
fn a_clock_that_is_not_set_costs_no_write() {
    let world = World::new();
    let relay = world.relay(DEDUPLICATES);
    relay.drain().unwrap();
    let other = Connection::open(world.path()).unwrap();
    let version =
        || other.query_row("PRAGMA data_version", [], |row| row.get::<_, i64>(0)).unwrap();
    let before = version();
    world.advance(3600);
    relay.drain().unwrap();
    world.clock.set(sqlite_outbox::Clock::now(&world.clock) + 4000);
    relay.drain().unwrap();
    assert_eq!(version(), before);
}

#[test]
fn a_line_of_a_clock_that_was_ahead_is_sent_in_its_order() {
    let world = World::new();
    world.clock.set(START + YEAR_MS);
    for entity in ["1", "2", "3"] {
        world.enqueue(&pay(entity).ordering_key("k"));
    }
    world.enqueue(&pay("4").ordering_key("k").delay(Duration::from_secs(60)));
    world.clock.set(START);
    let relay = world.relay(DEDUPLICATES);
    let (rule, text) = world.outbox.why(1, None).unwrap();
    assert_eq!(rule, "next", "{text}");
    assert_eq!(relay.drain().unwrap().succeeded, 3);
    assert_eq!(sent(&world), ["1", "2", "3"]);
    let (rule, text) = world.outbox.why(4, None).unwrap();
    assert_eq!(rule, "not_due");
    assert!(text.contains("the clock was ahead when it was made"), "{text}");
    world.advance(60);
    assert_eq!(relay.drain().unwrap().succeeded, 1);
}
