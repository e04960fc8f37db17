//! A bad operation beside good ones: it must cost them next to nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use sqlite_outbox::{Delivery, Intent, Operation, Outcome, Relay};

use crate::support::world::{DEDUPLICATES, World, not_sent, succeeded};

/// Holds handlers until it is opened.
#[derive(Clone, Default)]
struct Door(Arc<(Mutex<bool>, Condvar)>);

impl Door {
    fn wait(&self) {
        let guard = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(guard, |open| !*open).unwrap());
    }

    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

const ROWS: usize = 10_000;

fn enqueue(world: &World, operation: &str) {
    let intents: Vec<_> = (0..ROWS).map(|n| Intent::new(operation, n.to_string())).collect();
    world.outbox.transact(|tx| world.outbox.enqueue_all(tx, &intents)).unwrap();
}

/// How long 10,000 healthy intents take, beside these operations.
fn healthy(beside: &[&str]) -> Duration {
    let world = World::new();
    for operation in beside {
        enqueue(&world, operation);
    }
    enqueue(&world, "healthy");
    let (door, done) = (Door::default(), Arc::new((Mutex::new(0_usize), Condvar::new())));
    let (held, count, slow) = (door.clone(), Arc::clone(&done), Arc::new(AtomicUsize::new(0)));
    let slow_calls = Arc::clone(&slow);
    let relay = Relay::builder(&world.outbox)
        .operation("dead", Operation::new(DEDUPLICATES, |_: &Delivery| not_sent()))
        .operation(
            "slow",
            Operation::new(DEDUPLICATES, move |_: &Delivery| {
                slow_calls.fetch_add(1, Ordering::Relaxed);
                held.wait();
                succeeded("at last")
            }),
        )
        .operation(
            "healthy",
            Operation::new(DEDUPLICATES, move |_: &Delivery| -> Outcome {
                // A service that takes a while: what counts is how many workers it has.
                std::thread::sleep(Duration::from_micros(200)); // stands for the service
                *count.0.lock().unwrap() += 1;
                count.1.notify_all();
                succeeded("ok")
            }),
        )
        .workers(4)
        .build()
        .unwrap();
    let handle = relay.start().unwrap();
    let wait = |until: usize| {
        let guard = done.0.lock().unwrap();
        drop(done.1.wait_while(guard, |n| *n < until).unwrap());
    };
    // The first second belongs to finding out who is slow.
    wait(ROWS / 4);
    let began = Instant::now();
    wait(ROWS);
    let took = began.elapsed();
    if beside.contains(&"slow") {
        assert!(slow.load(Ordering::Relaxed) >= 1);
    }
    door.open();
    drop(handle);
    took
}

/// A customer's failing endpoint took all workers while everyone else's jobs crawled.
#[test]
fn healthy_operation_keeps_its_speed_beside_a_dead_and_a_slow_one() {
    // Of each side the quickest run counts: whatever else the machine does only slows a run down.
    let (mut alone, mut together) = (Duration::MAX, Duration::MAX);
    let mut ratio = 0.0;
    for round in 1..=12 {
        alone = alone.min(healthy(&[]));
        together = together.min(healthy(&["dead", "slow"]));
        ratio = alone.as_secs_f64() / together.as_secs_f64();
        if round >= 3 && ratio >= 0.8 {
            break;
        }
    }
    assert!(ratio >= 0.8, "{ratio:.2}: {together:?}, and {alone:?} alone");
}
