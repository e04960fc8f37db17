//! Retry: a pending intent does not wait for its time any longer.

use std::time::Duration;

use sqlite_outbox::{ErrorKind, Filter, Status};

use crate::support::world::{DEDUPLICATES, START, World, not_sent, pay, rejected, sent};

#[test]
fn a_backoff_and_a_delay_are_cut_short_by_a_named_person() {
    let world = World::new();
    let failed = world.enqueue(&pay("failed"));
    let delayed = world.enqueue(&pay("delayed").delay(Duration::from_secs(3600)));
    world.script.then(not_sent());
    let relay = world.relay(DEDUPLICATES);
    assert_eq!(relay.drain().unwrap().attempts, 1);
    assert_eq!(relay.drain().unwrap().attempts, 0);
    for id in [failed, delayed] {
        world.outbox.retry(id, "alice").unwrap();
        assert_eq!(world.entry(id).next_attempt_at, Some(START));
        let event = world.outbox.audit(id).unwrap().pop().unwrap();
        assert_eq!((event.kind.as_str(), event.actor.as_deref()), ("retried", Some("alice")));
    }
    assert_eq!(relay.drain().unwrap().succeeded, 2);
}

#[test]
fn a_held_row_tries_its_hold_and_the_others_wait() {
    let world = World::new();
    for path in ["1", "2", "3"] {
        world.enqueue(&pay(path).endpoint(format!("https://a.example/{path}")));
    }
    world.sql(&format!(
        "INSERT INTO outbox_hold (operation, domain, name, cause, since, until, reason)
         VALUES ('pay', 'origin', 'https://a.example', 'breaker', {START}, {}, 'refused')",
        START + 3_600_000
    ));
    let relay = world.relay(DEDUPLICATES);
    assert_eq!(relay.drain().unwrap().attempts, 0);
    world.outbox.retry(2, "alice").unwrap();
    relay.drain().unwrap();
    assert_eq!(sent(&world)[0], "2");
}

#[test]
fn only_what_waits_for_a_time_is_retried() {
    let world = World::new();
    let (first, queued) = (pay("a").ordering_key("k"), pay("b").ordering_key("k"));
    let (first, queued) = (world.enqueue(&first), world.enqueue(&queued));
    let refused = |id| world.outbox.retry(id, "alice").unwrap_err();
    assert_eq!(refused(queued).kind(), ErrorKind::Refused);
    assert_eq!(refused(99).kind(), ErrorKind::NotFound);
    world.script.then(rejected());
    world.drain(DEDUPLICATES);
    assert_eq!(world.entry(first).status, Status::Dead);
    assert_eq!(refused(first).kind(), ErrorKind::Refused);
}

#[test]
fn a_filter_retries_all_that_match() {
    let world = World::new();
    for entity in ["a", "b", "c"] {
        world.enqueue(&pay(entity).delay(Duration::from_secs(60)));
    }
    let some = Filter::default().status(Status::Pending).limit(2);
    assert_eq!(world.outbox.retry_all(&some, "alice", true).unwrap().len(), 2);
    assert_eq!(world.drain(DEDUPLICATES).attempts, 0);
    assert_eq!(world.outbox.retry_all(&some, "alice", false).unwrap().len(), 2);
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 2);
}
