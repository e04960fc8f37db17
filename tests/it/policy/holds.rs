//! Holds: what stops one origin of an operation stops no other, and its rows wait aside.

use sqlite_outbox::{Filter, Relay, Shard};

use crate::support::world::{DEDUPLICATES, START, World, pay, sent};

/// Enqueues an intent for each path of this host.
fn enqueue_to(world: &World, host: &str, paths: &[&str]) {
    for path in paths {
        world.enqueue(&pay(&format!("{host}/{path}")).endpoint(format!("https://{host}/{path}")));
    }
}

/// Holds this origin until then, as an open circuit breaker does.
fn hold(world: &World, origin: &str, until: i64) {
    world.sql(&format!(
        "INSERT INTO outbox_hold (operation, domain, name, cause, since, until, reason)
         VALUES ('pay', 'origin', '{origin}', 'breaker', {START}, {until}, 'refused')"
    ));
}

const WAITING: &str = "SELECT count(*) FROM outbox_lease WHERE held_by IS NOT NULL";

#[test]
fn held_rows_wait_aside_and_others_go_on() {
    let world = World::new();
    enqueue_to(&world, "a.example", &["1", "2", "3"]);
    enqueue_to(&world, "b.example", &["1", "2"]);
    hold(&world, "https://a.example", START + 60_000);
    let relay = world.relay(DEDUPLICATES);
    assert_eq!(relay.drain().unwrap().succeeded, 2);
    assert_eq!(sent(&world), ["b.example/1", "b.example/2"]);
    assert_eq!(world.number(WAITING), 3);
    let due = "SELECT count(*) FROM outbox_lease WHERE due_at IS NOT NULL";
    assert_eq!(world.number(due), 0);
    // Their own time is kept, and nothing is written while they wait.
    let kept = format!("SELECT count(*) FROM outbox_lease WHERE resume_at = {START}");
    assert_eq!(world.number(&kept), 3);
    world.advance(59);
    assert_eq!(relay.drain().unwrap().attempts, 0);
    assert_eq!(world.number(WAITING), 3);
}

#[test]
fn one_row_tries_a_hold_whose_time_has_come() {
    let world = World::new();
    enqueue_to(&world, "a.example", &["1", "2", "3"]);
    hold(&world, "https://a.example", START + 60_000);
    let relay = world.relay(DEDUPLICATES);
    relay.drain().unwrap();
    assert_eq!(world.number(WAITING), 3);
    world.advance(60);
    world.script.then(crate::support::world::succeeded("ok"));
    relay.drain().unwrap();
    assert_eq!(sent(&world)[0], "a.example/1");
}

/// However many holds have rows of a shard that no relay serves, those of the others are tried.
#[test]
fn holds_of_a_shard_that_nobody_serves_keep_no_other_from_being_tried() {
    let world = World::new();
    for n in 1..=150 {
        // The rows of the last ten hosts are of both shards, those of the others of one.
        enqueue_to(&world, &format!("h{n}.example"), &["1", "2"]);
        hold(&world, &format!("https://h{n}.example"), START + 60_000);
    }
    assert_eq!(world.drain(DEDUPLICATES).attempts, 0);
    assert_eq!(world.number(WAITING), 300);
    for id in (2..=280).step_by(2) {
        world.outbox.cancel_all(&Filter::default().ids([id]), "ann").unwrap();
    }
    let relay = Relay::builder(&world.outbox).operation("pay", world.operation(DEDUPLICATES));
    let relay = relay.workers(1).shard(Shard::new(0, 2).unwrap()).build().unwrap();
    world.advance(60);
    relay.drain().unwrap();
    assert_eq!(sent(&world).len(), 10);
}
