//! Dead hosts beside healthy ones of the same operation: they must cost those next to nothing.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sqlite_outbox::{Delivery, Operation, Outcome, Relay};

use crate::support::world::{
    DEDUPLICATES, World, exact_backoff, not_sent, pay, relay_on, succeeded, until,
};

const ROWS: usize = 10_000;

fn host(delivery: &Delivery) -> &str {
    delivery.endpoint().and_then(|endpoint| endpoint.split('/').nth(2)).unwrap_or_default()
}

fn enqueue(world: &World, host: impl Fn(usize) -> String) {
    let intents: Vec<_> = (0..ROWS)
        .map(|n| pay(&n.to_string()).endpoint(format!("https://{}/{n}", host(n))))
        .collect();
    world.outbox.transact(|tx| world.outbox.enqueue_all(tx, &intents)).unwrap();
}

#[test]
fn ten_thousand_hosts_are_served_and_the_dead_ones_of_them_tried() {
    let world = World::new();
    enqueue(&world, |n| format!("{}{n}", if n % 2 == 0 { "dead" } else { "well" }));
    let is_mended = Arc::new(Mutex::new(false));
    let mended = Arc::clone(&is_mended);
    let operation = Operation::new(DEDUPLICATES, move |delivery: &Delivery| {
        let is_dead = host(delivery).starts_with("dead") && !*mended.lock().unwrap();
        if is_dead { not_sent() } else { succeeded("ok") }
    });
    let relay = relay_on(&world.outbox, operation.backoff(exact_backoff()));
    relay.drain().unwrap();
    let done = "SELECT count(*) FROM outbox_receipt";
    assert_eq!(world.number(done), 5000);
    world.advance(60);
    relay.drain().unwrap();
    // Two failures are no reason to hold a host back.
    assert!(world.outbox.operations().unwrap()[0].holds.is_empty());
    *is_mended.lock().unwrap() = true;
    world.advance(60);
    relay.drain().unwrap();
    assert_eq!(world.number(done), 10_000);
    assert_eq!(world.number("SELECT count(*) FROM outbox_hold"), 0);
}

/// How long the slowest one in a hundred takes from its commit to its handler.
fn slowest(outbox: &sqlite_outbox::Outbox, sent: &Receiver<i64>) -> Duration {
    let mut took: Vec<Duration> = (0..200)
        .map(|n| {
            let intent = pay(&format!("well-{n}")).endpoint("https://well/x");
            let began = Instant::now();
            let id = outbox.transact(|tx| outbox.enqueue(tx, &intent)).unwrap().id();
            assert_eq!(sent.recv_timeout(Duration::from_secs(20)), Ok(id));
            began.elapsed()
        })
        .collect();
    took.sort();
    took[197]
}

/// The latency of healthy intents, alone or beside 10,000 due ones to a host that is gone.
fn latency(is_beside: bool) -> Duration {
    let world = World::new();
    let outbox = world.on_real_time();
    if is_beside {
        enqueue(&world, |_| "dead".into());
    }
    let (send, sent) = channel();
    let send = Mutex::new(send);
    let operation = Operation::new(DEDUPLICATES, move |delivery: &Delivery| -> Outcome {
        if host(delivery) == "dead" {
            // A host that does not answer takes a while to say so.
            std::thread::sleep(Duration::from_millis(100)); // stands for the network
            return not_sent();
        }
        send.lock().unwrap().send(delivery.id()).unwrap();
        succeeded("ok")
    });
    let relay = Relay::builder(&outbox).operation("pay", operation).workers(4).build().unwrap();
    let handle = relay.start().unwrap();
    if is_beside {
        let aside = "SELECT count(*) FROM outbox_lease WHERE held_by IS NOT NULL";
        until(|| world.number(aside) > 9900);
    }
    let took = slowest(&outbox, &sent);
    drop(handle);
    took
}

#[test]
fn healthy_hosts_keep_their_latency_beside_a_dead_one() {
    // Of each side the quickest run counts: whatever else the machine does only slows a run down.
    let (mut alone, mut beside) = (Duration::MAX, Duration::MAX);
    for round in 1..=12 {
        alone = alone.min(latency(false));
        beside = beside.min(latency(true));
        if round >= 3 && beside <= 2 * alone {
            break;
        }
    }
    assert!(beside <= 2 * alone, "{beside:?}, and {alone:?} alone");
}
