//! Real processes, killed with SIGKILL at the worst moment. Their leases of 30 s have not run out
//! when the next relay takes them back.

use sqlite_outbox::{Actor, Filter, Status};

use crate::support::scene::Scene;

impl Scene {
    fn status(&self, id: i64) -> Status {
        self.outbox.entry(id).unwrap().unwrap().status
    }
}

/// A process that was killed half-way used to lose or double its effect: here the request is
/// sent again with the same key, and the downstream applies it once.
#[test]
fn crash_in_flight_sends_again_with_the_same_key() {
    let scene = Scene::new();
    let (id, other) = (scene.enqueue("a"), scene.enqueue("b"));
    let mut relay = scene.relay_process("/gate", "deduplicates");
    scene.downstream.wait_for_requests(2);
    scene.kill_in_flight(&mut relay);
    assert_eq!(scene.status(id), Status::InFlight);

    let mut relay = scene.relay_process("/gate", "deduplicates");
    relay.waits_until_it_says(&format!("{id} succeeded"));
    relay.waits_until_it_says(&format!("{other} succeeded"));
    assert_eq!(scene.downstream.distinct_keys().len(), 2);
    for id in [id, other] {
        let entry = scene.outbox.entry(id).unwrap().unwrap();
        assert_eq!(scene.downstream.requests_for(&entry.idempotency_key).len(), 2);
        assert_eq!(scene.downstream.effects(&entry.idempotency_key), 1);
        assert_eq!(entry.attempts, 2);
        assert!(entry.downstream_id.is_some());
    }
}

/// A downstream that does not deduplicate has one request after the crash as before it.
#[test]
fn crash_in_flight_unprotected_never_sends_again() {
    let scene = Scene::new();
    let (id, other) = (scene.enqueue("a"), scene.enqueue("b"));
    let mut relay = scene.relay_process("/gate", "unprotected");
    scene.downstream.wait_for_requests(2);
    scene.kill_in_flight(&mut relay);

    let mut relay = scene.relay_process("/gate", "unprotected");
    relay.waits_until_it_says(&format!("{id} needs_review"));
    let matched = scene.outbox.replay_all(&Filter::default(), "test", false).unwrap();
    assert!(matched.iter().all(|(_, done)| done.is_err()), "{matched:?}");
    // Another relay that claims to know better obeys the stored contract, and works all the same.
    drop(relay);
    let mut relay = scene.relay_process("/ok", "deduplicates");
    let fresh = scene.enqueue("c");
    relay.waits_until_it_says(&format!("{fresh} succeeded"));
    assert_eq!(scene.downstream.requests().len(), 3);
    let both = (scene.status(id), scene.status(other));
    assert_eq!(both, (Status::NeedsReview, Status::NeedsReview));
}

/// A row that kills its process every time goes to a person: after two losses, which are free, it
/// is the suspect, and dies three times as that. Its neighbours keep their budget.
#[test]
fn crash_loop_row_needs_review_after_three_strikes() {
    let scene = Scene::new();
    let killer = scene.enqueue("killer");
    for kill in 1..=5 {
        let mut relay = scene.relay_process("/gate", "deduplicates");
        scene.downstream.wait_for_requests(kill);
        assert_eq!(scene.status(killer), Status::InFlight);
        relay.kill();
    }
    scene.downstream.release();
    let neighbour = scene.enqueue("neighbour");
    let mut relay = scene.relay_process("/gate", "deduplicates");
    relay.waits_until_it_says(&format!("{neighbour} succeeded"));
    assert_eq!(scene.status(killer), Status::NeedsReview);
    assert_eq!(scene.outbox.entry(neighbour).unwrap().unwrap().attempts, 1);
    assert_eq!(scene.downstream.requests().len(), 6);
}

/// The row an operator most wants to stop is always leased or about to be: cancelled while its dead
/// process still holds it, it is not started again. A send was possible, so that a person must
/// look.
#[test]
fn crash_loop_row_can_be_cancelled() {
    let scene = Scene::new();
    let killer = scene.enqueue("killer");
    let mut relay = scene.relay_process("/gate", "deduplicates");
    scene.downstream.wait_for_requests(1);
    relay.kill();
    let requested = scene
        .outbox
        .transact(|tx| {
            scene.outbox.request_cancel(tx, killer, Actor::new("ann").reason("it kills"))
        })
        .unwrap();
    assert_eq!(requested, Status::InFlight, "its owner is dead, its lease is not");
    scene.downstream.release();
    let mut relay = scene.relay_process("/gate", "deduplicates");
    relay.waits_until_it_says(&format!("{killer} needs_review"));
    let neighbour = scene.enqueue("neighbour");
    relay.waits_until_it_says(&format!("{neighbour} succeeded"));
    assert_eq!(scene.downstream.requests().len(), 2, "one of each");
    assert_eq!(scene.status(killer), Status::NeedsReview);
}
