//! Thousands of operations under one default, of which few have anything to do.

use std::time::Duration;

use sqlite_outbox::{Intent, Relay, Status};

use crate::support::world::{DEDUPLICATES, START, World, sent, transient};

fn relay(world: &World) -> Relay {
    Relay::builder(&world.outbox)
        .default_operation(world.operation(DEDUPLICATES))
        .workers(1)
        .build()
        .unwrap()
}

fn of(operation: usize, entity: &str) -> Intent {
    Intent::new(format!("op{operation}"), entity)
}

/// More operations than a relay asks one by one, each with an intent that is due after a day.
fn crowd(world: &World) {
    for operation in 0..40 {
        let later = of(operation, "later").delay(Duration::from_secs(24 * 3600));
        world.enqueue(&later);
    }
}

#[test]
fn operations_without_anything_due_are_opened_when_it_is() {
    let world = World::new();
    crowd(&world);
    let relay = relay(&world);
    assert_eq!(relay.drain().unwrap().attempts, 0);
    assert_eq!(world.number("SELECT count(*) FROM outbox_operation"), 0);
    let id = world.enqueue(&of(7, "now"));
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    assert_eq!(world.entry(id).status, Status::Succeeded);
    assert_eq!(world.number("SELECT count(*) FROM outbox_operation"), 1);
    world.advance(24 * 3600);
    assert_eq!(relay.drain().unwrap().succeeded, 40);
}

#[test]
fn a_line_over_many_operations_goes_out_in_order() {
    let world = World::new();
    for operation in 0..40 {
        world.enqueue(&of(operation, &format!("e{operation}")).ordering_key("line"));
    }
    world.script.times(1, &transient());
    let relay = relay(&world);
    assert_eq!(relay.drain().unwrap().succeeded, 0);
    world.advance(1);
    assert_eq!(relay.drain().unwrap().succeeded, 40);
    let expected: Vec<String> = (0..40).map(|operation| format!("e{operation}")).collect();
    assert_eq!(sent(&world)[1..], expected);
}

#[test]
fn a_lease_that_ran_out_is_found_among_many_operations() {
    let world = World::new();
    for operation in 0..40 {
        world.enqueue(&of(operation, "now"));
    }
    let relay = relay(&world);
    assert_eq!(relay.drain().unwrap().succeeded, 40);
    let id = world.enqueue(&of(3, "lost"));
    world.batch(&format!(
        "UPDATE outbox_lease SET state = 'in_flight', due_at = {}, attempts = 1, tries = 1,
                                 token = 900, owner = 'gone', claimed_at = {START} WHERE id = {id}",
        START + 60_000
    ));
    assert_eq!(relay.drain().unwrap().attempts, 0);
    world.advance(3600);
    relay.drain().unwrap();
    world.advance(3600);
    relay.drain().unwrap();
    assert_eq!(world.entry(id).status, Status::Succeeded);
}

/// A relay that runs must not wait for its next walk over all operations.
#[test]
fn what_is_enqueued_to_a_running_relay_is_sent_among_many_operations() {
    let world = World::new();
    let outbox = world.on_real_time();
    for operation in 0..40 {
        world.enqueue(&of(operation, "now"));
    }
    let later = of(50, "later").delay(Duration::from_secs(24 * 3600));
    world.enqueue(&later);
    let running = Relay::builder(&outbox)
        .default_operation(world.operation(DEDUPLICATES))
        .build()
        .unwrap()
        .start()
        .unwrap();
    let long = Duration::from_secs(60);
    for operation in [3, 50, 60] {
        let id = outbox.transact(|tx| outbox.enqueue(tx, &of(operation, "new"))).unwrap().id();
        let settled = outbox.wait(id, long).unwrap();
        assert_eq!(settled.status, Status::Succeeded);
    }
    running.shutdown(long).unwrap();
}
