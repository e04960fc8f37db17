//! Many intents at once: what fails must not hold up the rest, nor overtake it.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{Backoff, Intent, Operation, Relay, Status};

use crate::support::wire::{Wire, http, short};
use crate::support::world::{DEDUPLICATES, LONG, exact_backoff, pay};

/// Requests that arrived, by the entity that stands in each body.
fn arrived(wire: &Wire) -> Vec<String> {
    wire.server.requests().into_iter().map(|request| request.body).collect()
}

/// The relay claimed A and B of one key together; A failed and was put off, and B went out in the
/// same cycle.
#[test]
fn ordering_key_follower_waits_for_a_failed_head() {
    let wire = Wire::new();
    let intent = |name: &str, path: &str| {
        let endpoint = wire.server.url(path);
        pay(name).args(serde_json::json!(name)).endpoint(endpoint).ordering_key("account-1")
    };
    let ids =
        [wire.world.enqueue(&intent("A", "/fail/2/500")), wire.world.enqueue(&intent("B", "/ok"))];
    let relay = Relay::builder(&wire.world.outbox)
        .operation("pay", Operation::new(DEDUPLICATES, http()).backoff(exact_backoff()))
        .workers(1)
        .batch(2)
        .build()
        .unwrap();
    for _ in 0..3 {
        relay.drain().unwrap();
        wire.world.advance(4);
    }
    assert_eq!(arrived(&wire), [r#""A""#, r#""A""#, r#""A""#, r#""B""#]);
    assert!(ids.iter().all(|&id| wire.world.entry(id).status == Status::Succeeded));
}

/// After an outage, rows that had failed and rows that were new were picked by separate rules, and
/// newer ones left before older ones.
#[test]
fn outage_does_not_change_the_order_within_a_key() {
    let wire = Wire::new();
    let intent = |i: i32| pay(&format!("order-{i}")).args(i).ordering_key("account-1");
    for i in 0..5 {
        wire.world.enqueue(&intent(i));
    }
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let off = http().endpoint(&format!("http://{free}/ok"));
    let off = wire.relay(DEDUPLICATES, off);
    off.drain().unwrap();
    wire.world.advance(1);
    for i in 5..10 {
        wire.world.enqueue(&intent(i));
    }
    off.drain().unwrap();
    assert_eq!(wire.server.connections(), 0);
    let on = wire.relay(DEDUPLICATES, wire.to("/ok"));
    on.drain().unwrap();
    assert_eq!(arrived(&wire), [""; 0], "the head of the key is not due yet");
    wire.world.advance(3);
    on.drain().unwrap();
    let expected: Vec<String> = (0..10).map(|i| i.to_string()).collect();
    assert_eq!(arrived(&wire), expected);
}

/// The oldest unsent rows were fetched each cycle; once as many failing ones as a batch holds had
/// piled up in front, no other was ever fetched. Without a breaker, which holds the origin back.
#[test]
fn batch_is_not_filled_by_failing_intents() {
    let wire = Wire::new();
    let enqueue = |path: &str, wave: usize| {
        let intents: Vec<_> = (0..100)
            .map(|i| pay(&format!("{path}-{wave}-{i}")).endpoint(wire.server.url(path)))
            .collect();
        wire.world.outbox.transact(|tx| wire.world.outbox.enqueue_all(tx, &intents)).unwrap();
    };
    let sent_to = |path: &str| wire.server.requests().iter().filter(|r| r.path == path).count();
    let operation = Operation::new(DEDUPLICATES, http()).backoff(exact_backoff()).breaker_after(0);
    let relay = Relay::builder(&wire.world.outbox)
        .operation("pay", operation)
        .workers(1)
        .batch(100)
        .build()
        .unwrap();
    enqueue("/status/500", 1);
    enqueue("/ok", 1);
    relay.drain().unwrap();
    assert_eq!((sent_to("/status/500"), sent_to("/ok")), (100, 100));
    wire.world.advance(1);
    enqueue("/ok", 2);
    relay.drain().unwrap();
    assert_eq!((sent_to("/status/500"), sent_to("/ok")), (200, 200));
}

/// Delays were slept through inside a pool of four threads, so four failing webhooks stopped
/// everything. Here all four workers meet a retry that is due in ten seconds, and go on.
#[test]
fn retry_delay_does_not_occupy_a_worker() {
    let wire = Wire::new();
    let mut failing = Vec::new();
    for i in 0..4 {
        let endpoint = wire.server.url("/after/5/503/10");
        // Of four operations: an endpoint that asks for time holds back the others of its own.
        let intent = Intent::new(format!("failing-{i}"), "order").endpoint(endpoint).payload("{}");
        failing.push(wire.world.enqueue(&intent));
    }
    for i in 0..100 {
        wire.world.enqueue(&pay(&format!("order-{i}")).endpoint(wire.server.url("/ok")));
    }
    let relay = Relay::builder(&wire.world.outbox)
        .default_operation(Operation::new(DEDUPLICATES, http()))
        .workers(4)
        .build()
        .unwrap();
    let began = Instant::now();
    let report = relay.drain().unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!((report.succeeded, report.retried), (100, 4));
    for id in failing {
        // What was asked for, and up to a quarter more.
        assert!((10_000..=12_500).contains(&wire.due_in(id)), "{}", wire.due_in(id));
    }
}

/// A client without time-outs let 32 jobs hang for more than ten minutes, with no error anywhere.
/// Every attempt ends by the configured time, and what is not stuck flows past.
#[test]
fn timeout_ends_a_silent_downstream_and_others_go_on() {
    for downstream in [Unprotected, DEDUPLICATES] {
        let wire = Wire::new();
        let mut silent = Vec::new();
        for i in 0..8 {
            silent.push(wire.world.enqueue(&pay(&format!("order-{i}"))));
        }
        for i in 0..100 {
            wire.world.enqueue(&sqlite_outbox::Intent::new("mail", format!("order-{i}")));
        }
        let relay = Relay::builder(&wire.world.outbox)
            .operation("pay", Operation::new(downstream, wire.to("/silent").timeouts(short())))
            .operation("mail", Operation::new(downstream, wire.to("/ok")))
            .workers(8)
            .build()
            .unwrap();
        let began = Instant::now();
        assert_eq!(relay.drain().unwrap().succeeded, 100);
        assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
        for id in silent {
            assert_eq!(wire.class(id).as_deref(), Some("timeout"));
            assert!(wire.world.entry(id).last_error.unwrap().contains("200ms"));
        }
    }
}

/// A client had a default of its own that was shorter than what was configured, and cut a request
/// that was slow but in order. Each phase has the time it was given, and no other.
#[test]
fn timeout_is_the_configured_one() {
    let wire = Wire::new();
    let id = wire.world.enqueue(&pay("order-1"));
    let patient = short().response(Duration::from_secs(20));
    let brief = Duration::from_millis(250);
    let patient = patient.resolve(brief).connect(brief).send(brief).body(brief);
    let relay = wire.relay(Unprotected, wire.to("/slow/700").timeouts(patient));
    relay.drain().unwrap();
    let entry = wire.world.entry(id);
    assert_eq!((entry.status, entry.attempts), (Status::Succeeded, 1));
    assert_eq!(wire.server.requests().len(), 1);

    let second = wire.world.enqueue(&pay("order-2"));
    wire.relay(Unprotected, wire.to("/slow/700").timeouts(short())).drain().unwrap();
    assert_eq!(wire.world.entry(second).status, Status::Unknown);
    assert_eq!(wire.class(second).as_deref(), Some("timeout"));
}

/// An outage failed many rows together, and a fixed delay brought all of them back together, wave
/// after wave. Jitter spreads them, and never before the time the downstream asked for.
#[test]
fn jitter_spreads_intents_that_failed_together() {
    let wire = Wire::new();
    let enqueue = |path: &str| {
        let intents: Vec<_> =
            (0..500).map(|i| pay(&format!("{path}-{i}")).endpoint(wire.server.url(path))).collect();
        let all = wire.world.outbox.transact(|tx| wire.world.outbox.enqueue_all(tx, &intents));
        all.unwrap().iter().map(sqlite_outbox::Enqueued::id).collect::<Vec<_>>()
    };
    let (free, asked) = (enqueue("/status/503"), enqueue("/after/1/503/5"));
    let operation = Operation::new(DEDUPLICATES, http()).backoff(Backoff::default());
    let relay = Relay::builder(&wire.world.outbox)
        .operation("pay", operation.breaker_after(0))
        .workers(1)
        .seed(7)
        .build()
        .unwrap();
    relay.drain().unwrap();
    let mut buckets = [0; 20];
    for id in free {
        buckets[usize::try_from(wire.due_in(id) / 100).unwrap()] += 1;
    }
    // The mean is 25.
    assert!(buckets.iter().all(|&rows| (1..=75).contains(&rows)), "{buckets:?}");
    // Of an endpoint that asked to be left alone, the others wait without a try.
    assert!(wire.due_in(asked[0]) >= 5000);
    let held = "SELECT count(*) FROM outbox_lease WHERE held_by IS NOT NULL";
    assert_eq!(wire.world.number(held), 499);
}
