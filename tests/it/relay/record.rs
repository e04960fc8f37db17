//! Outcomes that are recorded, and what each does to its row.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{Actor, Delivery, ErrorKind, Handler, Operation, Outcome, Relay, Status};

use crate::support::world::{
    DEDUPLICATES, START, World, exact_backoff, limited, maybe_sent, needs_review, not_sent, pay,
    rejected, relay_on, succeeded, transient, until,
};

#[test]
fn success_settles_with_its_receipt() {
    let world = World::new();
    let (id, other) = (world.enqueue(&pay("a")), world.enqueue(&pay("b").delay_hours(1)));
    let report = world.drain(DEDUPLICATES);
    assert_eq!((report.attempts, report.succeeded), (1, 1));
    let entry = world.entry(id);
    assert_eq!(entry.status, Status::Succeeded);
    assert_eq!(entry.attempts, 1);
    assert_eq!(entry.finished_at, Some(START));
    assert_eq!(entry.downstream_id.as_deref(), Some("eff_1"));
    assert_eq!(entry.receipt.unwrap().downstream_id.as_deref(), Some("eff_1"));
    assert_eq!(world.story(id), ["attempt:in_flight>succeeded"]);
    assert_eq!(world.entry(other).status, Status::Pending);
    assert_eq!(world.story(other), [""; 0]);
}

/// A count that was read too early made a good record look lost, and a lost one good; and one bad
/// row in a batch left the others looking outstanding. Each claim and each record is counted by the
/// rows it changed, however many are written together.
#[test]
fn report_of_a_batch_is_what_the_file_holds() {
    for (size, is_stolen) in [(0, false), (1, false), (1, true), (500, false), (500, true)] {
        let world = Arc::new(World::new());
        let intents: Vec<_> = (0..size).map(|n| pay(&n.to_string())).collect();
        world.outbox.transact(|tx| world.outbox.enqueue_all(tx, &intents)).unwrap();
        let (inside, told) = (Arc::clone(&world), Arc::new(Mutex::new(Vec::new())));
        let (tells, last) = (Arc::clone(&told), size - 1);
        let handler = move |delivery: &Delivery| {
            if is_stolen && delivery.entity() == (last / 2).to_string() {
                // As if its lease had been lost and somebody else had claimed it since.
                inside.sql(&format!(
                    "UPDATE outbox_lease SET token = token + 1000 WHERE id = {}",
                    delivery.id()
                ));
            }
            succeeded("ok")
        };
        let relay = Relay::builder(&world.outbox)
            .operation("pay", Operation::new(DEDUPLICATES, handler))
            .workers(1)
            .batch(500)
            .observe(move |event| tells.lock().unwrap().push((event.outbox_id, event.status)))
            .build()
            .unwrap();
        let report = relay.drain().unwrap();
        let stolen = i64::from(is_stolen);
        let succeeded = size - stolen;
        let expected = u64::try_from(succeeded).unwrap();
        assert_eq!((report.attempts, report.succeeded), (expected, expected));
        let told = told.lock().unwrap();
        let settled = told.iter().filter(|(_, to)| *to == Status::Succeeded).count();
        assert_eq!(i64::try_from(settled).unwrap(), succeeded);
        for table in ["outbox_receipt", "outbox_event WHERE kind = 'attempt'"] {
            assert_eq!(world.number(&format!("SELECT count(*) FROM {table}")), succeeded);
        }
        assert_eq!(world.number("SELECT count(*) FROM outbox_lease"), stolen, "outstanding");
        let late = "SELECT count(*) FROM outbox_event WHERE kind = 'late'";
        assert_eq!(world.number(late), stolen, "what was lost is not taken for good");
        let stats = world.outbox.stats().unwrap();
        let [pay] = stats.as_slice() else { panic!("{stats:?}") };
        for &status in Status::ALL {
            let expected = match status {
                Status::InFlight => u64::from(is_stolen),
                Status::Succeeded => report.succeeded,
                _ => 0,
            };
            assert_eq!(pay.count(status), expected, "{size} {status}");
        }
    }
}

trait DelayHours {
    fn delay_hours(self, hours: u64) -> Self;
}

impl DelayHours for sqlite_outbox::Intent {
    fn delay_hours(self, hours: u64) -> Self {
        self.delay(std::time::Duration::from_secs(hours * 3600))
    }
}

#[test]
fn ambiguous_failures_five_times_then_success() {
    let world = World::new();
    let id = world.enqueue(&pay("a"));
    world.script.times(5, &maybe_sent());
    let relay = world.relay(DEDUPLICATES);
    let mut due = Vec::new();
    for _ in 0..5 {
        relay.drain().unwrap();
        let entry = world.entry(id);
        assert_eq!(entry.status, Status::Pending);
        due.push(entry.next_attempt_at.unwrap() - sqlite_outbox::Clock::now(&world.clock));
        world.advance(u64::try_from(due.last().unwrap() / 1000).unwrap());
    }
    assert_eq!(due, [1000, 2000, 4000, 8000, 16000]);
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    assert_eq!(world.entry(id).attempts, 6);
    let keys: Vec<_> = world.script.seen().iter().map(Delivery::wire_key).collect();
    assert_eq!(keys.len(), 6);
    assert!(keys.iter().all(|key| *key == keys[0]));
}

#[test]
fn unprotected_is_sent_once_whatever_happens() {
    for outcome in [maybe_sent(), needs_review()] {
        let world = World::new();
        let id = world.enqueue(&pay("a"));
        world.script.then(outcome);
        world.drain(Unprotected);
        world.advance(1_000_000);
        world.drain(Unprotected);
        let entry = world.entry(id);
        assert!(matches!(entry.status, Status::Unknown | Status::NeedsReview), "{entry:?}");
        assert_eq!(world.outbox.replay(id, "test").unwrap_err().kind(), ErrorKind::Refused);
        // Another relay with another configuration obeys the stored contract.
        world.drain(DEDUPLICATES);
        assert_eq!(world.script.seen().len(), 1);
    }
}

#[test]
fn not_sent_costs_no_attempt() {
    let world = World::new();
    let id = world.enqueue(&pay("a"));
    world.script.times(40, &not_sent());
    // Without the breaker, under which most of these would be probes, which cost nothing at all.
    let operation = world.operation(DEDUPLICATES).breaker_after(0);
    let relay = relay_on(&world.outbox, operation);
    for _ in 0..40 {
        assert_eq!(relay.drain().unwrap().retried, 1);
        world.advance(3600);
    }
    assert_eq!(world.entry(id).attempts, 0);
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    assert_eq!(world.entry(id).attempts, 1);
}

#[test]
fn limited_costs_no_attempt_but_transient_does() {
    let world = World::new();
    let id = world.enqueue(&pay("a"));
    world.script.then(limited()).then(transient());
    let relay = world.relay(DEDUPLICATES);
    relay.drain().unwrap();
    assert_eq!(world.entry(id).attempts, 0);
    world.advance(10);
    relay.drain().unwrap();
    assert_eq!(world.entry(id).attempts, 1);
}

#[test]
fn rejection_buries_at_once_and_replay_gives_a_fresh_budget() {
    let world = World::new();
    let (id, other) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
    world.script.then(rejected());
    world.drain(DEDUPLICATES);
    let entry = world.entry(id);
    assert_eq!((entry.status, entry.attempts), (Status::Dead, 1));
    assert_eq!(world.entry(other).status, Status::Succeeded);
    world.outbox.replay(id, Actor::new("alice").reason("fixed the account")).unwrap();
    assert_eq!(world.entry(id).attempts, 0);
    world.drain(DEDUPLICATES);
    assert_eq!(world.entry(id).status, Status::Succeeded);
    let keys: Vec<_> =
        world.script.seen().iter().filter(|d| d.id() == id).map(Delivery::wire_key).collect();
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[0], keys[1]);
    assert_eq!(
        world.story(id),
        ["attempt:in_flight>dead", "replayed:dead>pending", "attempt:in_flight>succeeded"]
    );
}

#[test]
fn doubt_turns_a_later_rejection_into_a_review() {
    let world = World::new();
    let id = world.enqueue(&pay("a"));
    world.script.then(maybe_sent()).then(rejected());
    let relay = relay_on(&world.outbox, world.operation_without_look_up(DEDUPLICATES));
    relay.drain().unwrap();
    world.advance(10);
    relay.drain().unwrap();
    assert_eq!(world.entry(id).status, Status::NeedsReview);
}

/// A write that failed after a successful send was handled like a failed send. The success is
/// known here: the write is tried again, never the request.
#[test]
fn outcome_that_cannot_be_written_is_kept() {
    struct Quick(Box<dyn Fn(&Delivery) -> Outcome + Send + Sync>);
    impl Handler for Quick {
        fn deliver(&self, delivery: &Delivery) -> Outcome {
            (self.0)(delivery)
        }
        fn time_limit(&self) -> Duration {
            Duration::from_millis(1)
        }
    }
    for (outcome, status) in [(succeeded("ok"), Status::Succeeded), (transient(), Status::Pending)]
    {
        for workers in [1, 2] {
            let world = World::new();
            let ids = [world.enqueue(&pay("a")), world.enqueue(&pay("b"))];
            // Another connection takes the file's lock while the first request is on its way.
            let locked = Arc::new(Mutex::new(Some(world.app())));
            let may_return = Arc::new(AtomicBool::new(false));
            let sent: Arc<Mutex<Vec<i64>>> = Arc::default();
            let (sends, says) = (Arc::clone(&sent), outcome.clone());
            let (lock, returns) = (Arc::clone(&locked), Arc::clone(&may_return));
            let handler = Quick(Box::new(move |delivery| {
                if let Some(app) = lock.lock().unwrap().as_ref().filter(|app| app.is_autocommit()) {
                    app.execute_batch("BEGIN IMMEDIATE").unwrap();
                }
                sends.lock().unwrap().push(delivery.id());
                until(|| returns.load(Ordering::Acquire));
                says.clone()
            }));
            let pay = Operation::new(DEDUPLICATES, handler).backoff(exact_backoff());
            let relay = Relay::builder(&world.outbox)
                .operation("pay", pay)
                .workers(workers)
                .lease(Duration::from_millis(2));
            let relay = relay.build().unwrap();
            // It waits for as long as it takes, unless it is told to stop; and then it keeps what
            // it knows.
            std::thread::scope(|scope| {
                let drain = scope.spawn(|| relay.drain());
                until(|| !sent.lock().unwrap().is_empty());
                relay.stop_drain();
                may_return.store(true, Ordering::Release);
                let error = drain.join().unwrap().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                drop(locked.lock().unwrap().take());
                relay.drain().unwrap();
            });
            let mut sent = sent.lock().unwrap().clone();
            sent.sort_unstable();
            assert_eq!(sent, ids, "each once");
            for id in ids {
                let entry = world.entry(id);
                assert_eq!((entry.status, entry.attempts), (status, 1));
                assert_eq!(world.story(id).len(), 1);
            }
        }
    }
}
