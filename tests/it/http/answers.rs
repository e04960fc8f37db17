//! Answers of a downstream, from the wire to the file: one test for each row of the table "What
//! an answer means", each under three contracts.

use std::ops::RangeInclusive;

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::Status::{Dead, NeedsReview, Pending, Succeeded, Unknown};
use sqlite_outbox::{Actor, Http, Meaning, Operation, PauseKind, Predicate, Status};

use crate::support::wire::{Contract, Wire, http, relay};
use crate::support::world::{DEDUPLICATES, pay};

/// Where the intent stands after the first answer, where it ends, and after how many requests.
type Course = (Status, Status, usize);

const DONE: [Course; 3] = [(Succeeded, Succeeded, 1); 3];
const DEAD: [Course; 3] = [(Dead, Dead, 1); 3];
const REVIEW: [Course; 3] = [(NeedsReview, NeedsReview, 1); 3];
/// Not applied, so that a second request is safe everywhere.
const RETRIED: [Course; 3] = [(Pending, Succeeded, 2); 3];
/// May have been applied: nowhere a second request but where the key is still remembered.
const IN_DOUBT: [Course; 3] =
    [(Unknown, Unknown, 1), (Pending, Succeeded, 2), (Pending, Unknown, 1)];

/// Answers that mean the same.
struct Row<'a> {
    /// Paths of the scripted server. Those under `/fail/1` and `/after/1` succeed the second time.
    paths: &'a [&'a str],
    /// The class of the failure, or nothing where it is a success.
    class: &'a str,
    /// Without protection, inside the window, outside the window.
    courses: [Course; 3],
    /// How many attempts the first answer uses.
    attempts: u32,
    /// When the second attempt is due, where there is one.
    due_in: RangeInclusive<i64>,
    configure: fn(Http) -> Http,
}

fn row<'a>(paths: &'a [&'a str], class: &'a str, courses: [Course; 3]) -> Row<'a> {
    Row { paths, class, courses, attempts: 1, due_in: 1000..=1000, configure: |http| http }
}

impl Row<'_> {
    fn holds(&self) {
        for (contract, course) in Contract::ALL.into_iter().zip(self.courses) {
            self.holds_under(contract, course);
        }
    }

    fn holds_under(&self, contract: Contract, (first, last, requests): Course) {
        let wire = Wire::new();
        let intent = |path: &str| pay(path).endpoint(wire.server.url(path));
        let ids: Vec<i64> =
            self.paths.iter().map(|path| wire.world.enqueue(&intent(path))).collect();
        let relay = wire.relay(contract.downstream(), (self.configure)(http()));

        relay.drain().unwrap();
        for (&id, path) in ids.iter().zip(self.paths) {
            let entry = wire.world.entry(id);
            let case = format!("{path}, {contract:?}: {entry:?}");
            assert_eq!(entry.status, first, "{case}");
            assert_eq!(entry.attempts, self.attempts, "{case}");
            assert_eq!(wire.class(id).unwrap_or_default(), self.class, "{case}");
            assert_eq!(wire.server.requests_for(&entry.idempotency_key).len(), 1, "{case}");
            if first == Pending {
                assert!(self.due_in.contains(&wire.due_in(id)), "{case}");
            }
        }
        wire.world.advance(contract.seconds_between());
        relay.drain().unwrap();
        wire.world.advance(3600);
        relay.drain().unwrap();
        if contract == Contract::Unprotected && matches!(last, Unknown | NeedsReview) {
            wire.provoke("/naive");
        }
        for (&id, path) in ids.iter().zip(self.paths) {
            let entry = wire.world.entry(id);
            let case = format!("{path}, {contract:?}: {entry:?}");
            assert_eq!(entry.status, last, "{case}");
            assert_eq!(wire.server.requests_for(&entry.idempotency_key).len(), requests, "{case}");
        }
    }
}

#[test]
fn status_2xx_is_success() {
    let paths =
        ["/status/200", "/status/201", "/status/202", "/status/204", "/status/205", "/status/299"];
    row(&paths, "", DONE).holds();
}

#[test]
fn status_2xx_counts_whatever_becomes_of_its_body() {
    row(&["/truncated", "/unmarked", "/big/20000", "/body/200/no%20json"], "", DONE).holds();
}

fn when_ok(http: Http) -> Http {
    http.success_when(Predicate::equals("/ok", true))
}

#[test]
fn success_when_met_is_success() {
    let paths = ["/body/200/%7B%22ok%22%3Atrue%7D"];
    Row { configure: when_ok, ..row(&paths, "", DONE) }.holds();
}

#[test]
fn success_when_not_met_needs_review() {
    let paths = ["/body/200/%7B%22ok%22%3Afalse%7D", "/body/200/%7B%7D", "/body/202/no%20json"];
    Row { configure: when_ok, ..row(&paths, "success_when", REVIEW) }.holds();
}

#[test]
fn success_when_with_unread_body_is_in_doubt() {
    let courses = [(Unknown, Unknown, 1), (Pending, Pending, 3), (Pending, Unknown, 1)];
    let paths = ["/truncated", "/big/1100000"];
    Row { configure: when_ok, ..row(&paths, "body_unreadable", courses) }.holds();
}

#[test]
fn status_3xx_is_in_doubt_except_307_and_308() {
    let paths =
        ["/fail/1/300", "/fail/1/301", "/fail/1/302", "/fail/1/303", "/fail/1/304", "/fail/1/399"];
    row(&paths, "redirect", IN_DOUBT).holds();
}

#[test]
fn status_307_and_308_are_dead() {
    row(&["/redirect/307/ok", "/redirect/308/ok"], "redirect", DEAD).holds();
}

#[test]
fn status_1xx_and_from_600_is_in_doubt() {
    row(&["/fail/1/101", "/fail/1/600", "/fail/1/999"], "protocol", IN_DOUBT).holds();
}

#[test]
fn status_408_421_423_425_is_tried_again() {
    let paths = ["/fail/1/408", "/fail/1/421", "/fail/1/423", "/fail/1/425"];
    row(&paths, "transient", RETRIED).holds();
    let paths = ["/after/1/408/20", "/after/1/423/20"];
    Row { due_in: 20_000..=20_000, ..row(&paths, "transient", RETRIED) }.holds();
}

#[test]
fn status_409_is_in_progress_where_keys_deduplicate_and_a_review_elsewhere() {
    let courses = [(NeedsReview, NeedsReview, 1), (Pending, Succeeded, 2), (Pending, Unknown, 1)];
    Row { due_in: 1000..=5000, ..row(&["/fail/1/409"], "conflict", courses) }.holds();
    Row { due_in: 20_000..=20_000, ..row(&["/after/1/409/20"], "conflict", courses) }.holds();
}

#[test]
fn status_409_as_in_doubt_is_repeated_soon_or_not_at_all() {
    let configure = |http: Http| http.on_status(409, Meaning::InDoubt);
    Row { configure, due_in: 1000..=5000, ..row(&["/fail/1/409"], "conflict", IN_DOUBT) }.holds();
}

#[test]
fn status_409_as_applied_is_success() {
    let configure = |http: Http| http.on_status(409, Meaning::Applied);
    Row { configure, ..row(&["/status/409"], "", DONE) }.holds();
}

#[test]
fn status_409_as_rejected_is_dead() {
    let configure = |http: Http| http.on_status(409, Meaning::Rejected);
    Row { configure, ..row(&["/status/409"], "permanent", DEAD) }.holds();
}

#[test]
fn status_429_waits_and_uses_no_attempt() {
    Row { attempts: 0, ..row(&["/fail/1/429", "/after/1/429/0"], "limited", RETRIED) }.holds();
    let paths = ["/after/1/429/20"];
    Row { attempts: 0, due_in: 20_000..=20_000, ..row(&paths, "limited", RETRIED) }.holds();
}

#[test]
fn status_503_with_retry_after_waits_and_uses_no_attempt() {
    let paths = ["/after/1/503/20"];
    Row { attempts: 0, due_in: 20_000..=20_000, ..row(&paths, "unavailable", RETRIED) }.holds();
}

#[test]
fn status_503_without_a_usable_retry_after_is_in_doubt() {
    row(&["/fail/1/503", "/after/1/503/soon"], "unavailable", IN_DOUBT).holds();
}

#[test]
fn status_5xx_is_in_doubt_except_501_503_and_505() {
    let paths = ["/fail/1/500", "/fail/1/502", "/fail/1/504", "/fail/1/520", "/fail/1/599"];
    row(&paths, "ambiguous", IN_DOUBT).holds();
}

#[test]
fn status_5xx_with_idempotent_replayed_needs_review() {
    row(&["/replayed/500", "/replayed/502", "/replayed/503"], "replayed", REVIEW).holds();
}

#[test]
fn status_501_and_505_are_dead() {
    row(&["/status/501", "/status/505"], "permanent", DEAD).holds();
}

/// Refused credentials are nobody's fault but the configuration's: the intent waits, and so does
/// the whole operation.
#[test]
fn status_401_407_pause_the_operation() {
    for downstream in [Unprotected, DEDUPLICATES] {
        for path in ["/status/401", "/status/407"] {
            let wire = Wire::new();
            let (id, other) = (wire.world.enqueue(&pay("a")), wire.world.enqueue(&pay("b")));
            let relay = wire.relay(downstream, wire.to(path));
            relay.drain().unwrap();
            relay.drain().unwrap();
            assert_eq!(wire.server.requests().len(), 1, "{path}");
            for id in [id, other] {
                assert_eq!(wire.world.entry(id).status, Pending, "{path}");
                assert_eq!(wire.world.entry(id).attempts, 0, "{path}");
            }
            assert_eq!(wire.class(id).as_deref(), Some("auth"));
            wire.world.outbox.resume("pay", Actor::new("alice").reason("new credentials")).unwrap();
            wire.drain(downstream, "/naive");
            assert_eq!(wire.world.entry(id).status, Succeeded);
            assert_eq!(wire.world.entry(other).status, Succeeded);
            assert_eq!(wire.server.requests().len(), 3, "{path}");
            assert_eq!(wire.server.distinct_keys().len(), 2);
        }
    }
}

/// A 403 is said to credentials and to what one intent asks for: it takes several intents to tell.
#[test]
fn status_403_pauses_the_operation_once_three_intents_got_it_in_a_row() {
    let wire = Wire::new();
    let ids = ["a", "b", "c", "d"].map(|entity| wire.world.enqueue(&pay(entity)));
    let relay = wire.relay(Unprotected, wire.to("/status/403"));
    relay.drain().unwrap();
    relay.drain().unwrap();
    assert_eq!(wire.server.requests().len(), 3);
    let stored = wire.world.outbox.operations().unwrap().remove(0);
    assert_eq!((stored.paused, stored.paused_culprit), (Some(PauseKind::Auth), Some(ids[2])));
    assert!(stored.paused_reason.unwrap().contains("HTTP 403"));
    wire.world.outbox.resume("pay", Actor::new("alice").reason("new credentials")).unwrap();
    wire.world.advance(60);
    for _ in 0..20 {
        wire.drain(Unprotected, "/naive");
        wire.world.advance(1);
    }
    assert!(ids.iter().all(|&id| wire.world.entry(id).status == Succeeded));
}

#[test]
fn status_4xx_is_dead_otherwise() {
    let named = [401, 403, 407, 408, 409, 410, 421, 423, 425, 429];
    let paths: Vec<String> = (400..500)
        .filter(|status| !named.contains(status))
        .map(|status| format!("/status/{status}"))
        .collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    row(&paths, "permanent", DEAD).holds();
    row(&["/status/410"], "gone", DEAD).holds();
}

/// The downstream knows the key with other content, or says so: another key would be a second
/// effect, and the same key is refused for ever.
#[test]
fn status_422_after_an_earlier_attempt_needs_review() {
    for earlier in ["/status/500", "/status/408"] {
        let wire = Wire::new();
        let id = wire.world.enqueue(&pay("order-1"));
        for path in [earlier, "/status/422", "/ok"] {
            wire.drain(DEDUPLICATES, path);
            wire.world.advance(3600);
        }
        assert_eq!(wire.world.entry(id).status, NeedsReview, "{earlier}");
        assert_eq!(wire.class(id).as_deref(), Some("key_reuse"), "{earlier}");
        assert_eq!(wire.server.requests().len(), 2, "{earlier}");
        assert_eq!(wire.server.distinct_keys().len(), 1, "{earlier}");
    }
    // An attempt that was only put off taught the downstream nothing.
    let wire = Wire::new();
    let id = wire.world.enqueue(&pay("order-1"));
    for path in ["/status/429", "/status/422"] {
        wire.drain(DEDUPLICATES, path);
        wire.world.advance(3600);
    }
    assert_eq!(wire.world.entry(id).status, Dead);
}

/// The refusal is about the second request; the first may have been carried out all the same.
#[test]
fn rejection_after_an_attempt_in_doubt_needs_review() {
    for refusal in ["/status/400", "/status/404", "/status/501", "/redirect/307/x"] {
        let wire = Wire::new();
        let id = wire.world.enqueue(&pay("order-1"));
        for path in ["/lostdedupe/1", refusal, "/ok"] {
            wire.blind_relay(DEDUPLICATES, path).drain().unwrap();
            wire.world.advance(3600);
        }
        assert_eq!(wire.world.entry(id).status, NeedsReview, "{refusal}");
        assert_eq!(wire.server.requests().len(), 2, "{refusal}");
    }
}

/// An intent in doubt is never dead, not even once its attempts are used up.
#[test]
fn attempts_used_up_in_doubt_need_review() {
    let wire = Wire::new();
    let id = wire.world.enqueue(&pay("order-1"));
    let blind = Operation::new(DEDUPLICATES, wire.to("/status/500")).max_attempts(10);
    let relay = relay(&wire.world.outbox, blind);
    for _ in 0..12 {
        relay.drain().unwrap();
        wire.world.advance(3600);
    }
    assert_eq!(wire.world.entry(id).status, NeedsReview);
    assert_eq!(wire.server.requests().len(), 10);
}
