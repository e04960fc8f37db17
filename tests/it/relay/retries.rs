//! When an intent is tried again, how often, and with what.

use std::time::{Duration, SystemTime};

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{Operation, Outbox, Status};

use crate::support::downstream::Request;
use crate::support::wire::{Wire, http, relay};
use crate::support::world::{DEDUPLICATES, START, World, pay};

/// The longest that a downstream may put an intent off.
const RETRY_AFTER_MAX: i64 = 24 * 3600 * 1000;

/// When the second attempt is due after a 429 with each of these in `Retry-After`, in
/// milliseconds, and what the audit trail says.
fn due_after(values: &[&str]) -> Vec<(i64, String)> {
    // Each at an origin of its own: an answer holds back the others of its origin.
    values.iter().map(|value| due_after_one(value)).collect()
}

fn due_after_one(value: &str) -> (i64, String) {
    let wire = Wire::new();
    let escaped = value.bytes().fold(String::new(), |text, byte| text + &format!("%{byte:02X}"));
    let endpoint = wire.server.url(&format!("/after/1/429/{escaped}"));
    let id = wire.world.enqueue(&pay(value).endpoint(endpoint));
    let relay = wire.relay(Unprotected, http());
    relay.drain().unwrap();
    let reason = wire.world.outbox.audit(id).unwrap()[0].reason.clone().unwrap();
    let due = (wire.due_in(id), reason);
    // Whatever the header said, the relay is alive and the intent comes through.
    wire.world.clock.advance(Duration::from_secs(24 * 3600));
    relay.drain().unwrap();
    assert_eq!(wire.world.entry(id).status, Status::Succeeded);
    due
}

/// A registry answered 9999999999 seconds; sleeping that long raised an overflow error.
#[test]
fn retry_after_huge_is_capped_and_zero_keeps_the_backoff() {
    let huge = [
        "9999999999",
        "2147483648",
        "9223372036854775808",
        "18446744073709551616",
        "1000000000000000000000000000000",
    ];
    for (value, (due, reason)) in huge.iter().zip(due_after(&huge)) {
        assert_eq!(due, RETRY_AFTER_MAX, "{value}");
        assert!(reason.contains("asked for a longer wait than is obeyed"), "{value}: {reason}");
    }
    for (due, reason) in due_after(&["0", "1"]) {
        assert_eq!(due, 1000);
        assert!(reason.ends_with("too many requests"), "{reason}");
    }
    assert_eq!(due_after(&["60"])[0].0, 60_000);
}

/// A date was taken for no delay at all, and so was garbage: a downstream that asked for rest was
/// called again at once.
#[test]
fn retry_after_date_is_obeyed_and_garbage_keeps_the_backoff() {
    let now = Duration::from_millis(START.unsigned_abs());
    let later = SystemTime::UNIX_EPOCH + now + Duration::from_secs(3000);
    let date = httpdate::fmt_http_date(later);
    let words: Vec<&str> = date.split([',', ' ']).filter(|word| !word.is_empty()).collect();
    let &[weekday, day, month, year, time, _] = words.as_slice() else { panic!("{date}") };
    let long = match weekday {
        "Tue" => "Tuesday".to_owned(),
        "Wed" => "Wednesday".to_owned(),
        "Thu" => "Thursday".to_owned(),
        "Sat" => "Saturday".to_owned(),
        short => format!("{short}day"),
    };
    let rfc_850 = format!("{long}, {day}-{month}-{} {time} GMT", &year[2..]);
    let day = day.trim_start_matches('0');
    let asctime = format!("{weekday} {month} {day:>2} {time} {year}");
    for (due, reason) in due_after(&[&date, &rfc_850, &asctime]) {
        assert_eq!(due, 3_000_000, "counted from the clock of the outbox");
        assert!(!reason.contains("Retry-After"), "{reason}");
    }
    assert_eq!(due_after(&["Sun, 06 Nov 1994 08:49:37 GMT"])[0].0, 1000);
    for (due, reason) in due_after(&["Mon, 06 Nov 1994 08:49:37 GMT", "soon", "-5", "1.5", "5s"]) {
        assert_eq!(due, 1000);
        assert!(reason.contains("its Retry-After is malformed and was ignored"), "{reason}");
    }
}

/// A date with an extreme year raised a conversion error that escaped the code for retries.
#[test]
fn retry_after_extreme_date_is_capped_or_ignored() {
    assert_eq!(due_after(&["Fri, 31 Dec 9999 23:59:59 GMT"])[0].0, RETRY_AFTER_MAX);
    let ignored = [
        "Mon, 01 Jan 0001 00:00:00 GMT",
        "Wed, 31 Dec 1969 23:59:59 GMT",
        "Sat, 01 Jan 10000 00:00:00 GMT",
        "Sat, 01 Jan 99999 00:00:00 GMT",
        "Fri, 30 Jun 2034 23:59:60 GMT",
        "Fri, 31 Feb 2034 00:00:00 GMT",
    ];
    for (value, (due, reason)) in ignored.iter().zip(due_after(&ignored)) {
        assert_eq!(due, 1000, "{value}");
        assert!(reason.contains("malformed"), "{value}: {reason}");
    }
}

/// Permanent refusals were taken for passing ones: 462 attempts and no success.
#[test]
fn rejection_is_requested_once() {
    let wire = Wire::new();
    let ids = [400, 401, 403, 404, 405, 410, 413, 422, 501].map(|status| {
        let endpoint = wire.server.url(&format!("/status/{status}"));
        wire.world.enqueue(&pay(&format!("order-{status}")).endpoint(endpoint))
    });
    let relay = wire.relay(DEDUPLICATES, http());
    for _ in 0..3 {
        relay.drain().unwrap();
        wire.world.advance(3600);
    }
    for id in ids {
        let entry = wire.world.entry(id);
        assert_eq!((entry.status, entry.attempts), (Status::Dead, 1));
        assert_eq!(entry.finished_at, None);
        assert_eq!(wire.server.requests_for(&entry.idempotency_key).len(), 1);
    }
    assert_eq!(wire.world.number("SELECT count(*) FROM outbox_receipt"), 0);
}

/// "All 4xx but 429 are final" dropped time-outs for good.
#[test]
fn status_408_is_not_final() {
    let wire = Wire::new();
    let enqueue = |status: u16| {
        let endpoint = wire.server.url(&format!("/fail/1/{status}"));
        wire.world.enqueue(&pay(&format!("order-{status}")).endpoint(endpoint))
    };
    let passing = [408, 425, 429].map(enqueue);
    let other = enqueue(499);
    let relay = wire.relay(DEDUPLICATES, http());
    relay.drain().unwrap();
    wire.world.advance(1);
    relay.drain().unwrap();
    for id in passing {
        let entry = wire.world.entry(id);
        assert_eq!(entry.status, Status::Succeeded);
        assert_eq!(wire.server.requests_for(&entry.idempotency_key).len(), 2);
    }
    assert_eq!(wire.world.entry(other).status, Status::Dead);
}

/// Rows that had been deferred often, without failing, counted as having failed often: the first
/// real failure then waited for days.
#[test]
fn limited_does_not_count_as_failing() {
    let wire = Wire::new();
    let id = wire.world.enqueue(&pay("order-1"));
    let limited = wire.relay(DEDUPLICATES, wire.to("/after/1000/429/1"));
    for _ in 0..40 {
        limited.drain().unwrap();
        wire.world.advance(3600);
    }
    assert_eq!(wire.server.requests().len(), 40);
    assert_eq!(wire.world.entry(id).attempts, 0);
    wire.drain(DEDUPLICATES, "/status/500");
    assert_eq!(wire.due_in(id), 1000);
    wire.world.advance(1);
    wire.drain(DEDUPLICATES, "/ok");
    let entry = wire.world.entry(id);
    assert_eq!((entry.status, entry.attempts), (Status::Succeeded, 2));
}

/// Each attempt built its body anew, with another time in it, and sent no id that stayed: nobody
/// could tell a retry from a new event.
#[test]
fn attempts_send_the_same_bytes_over_restarts_and_replay() {
    let Wire { world, server } = Wire::new();
    let payload =
        r#"{"z":1.50,"ü":"ß\u00e9😀","y":{"b":{},"a":[]},"x":1e2, "a":-0.0,"n":9007199254740993}"#;
    let intent = pay("order-1").payload(payload).args_json(payload).header("traceparent", "00-1-2");
    let id = world.enqueue(&intent);
    let World { dir, clock, outbox, .. } = world;
    let path = dir.path().join("app.db");
    drop(outbox);
    // Three attempts, each by an outbox that was opened for it, use up the budget.
    let attempt = || {
        let outbox = Outbox::builder().clock(clock.clone()).open(&path).unwrap();
        let http = http().endpoint(&server.url("/fail/4/500"));
        let operation = Operation::new(DEDUPLICATES, http).max_attempts(3);
        relay(&outbox, operation).drain().unwrap();
        clock.advance(Duration::from_secs(60));
        outbox
    };
    attempt();
    attempt();
    let outbox = attempt();
    assert_eq!(outbox.entry(id).unwrap().unwrap().status, Status::NeedsReview);
    outbox.replay(id, "alice").unwrap();
    drop(outbox);
    attempt();
    let entry = attempt().entry(id).unwrap().unwrap();
    assert_eq!(entry.status, Status::Succeeded);

    let requests = server.requests();
    assert_eq!(requests.len(), 5);
    let sent =
        |request: &Request| (request.key.clone(), request.body.clone(), request.headers.clone());
    assert!(requests.iter().all(|request| sent(request) == sent(&requests[0])));
    assert_eq!(
        (requests[0].key.as_str(), requests[0].body.as_str()),
        (&*entry.idempotency_key, payload)
    );
    assert_eq!(server.effects(&entry.idempotency_key), 1);
}

/// The client library repeated a request up to three times by itself whenever the answer failed,
/// so that one mail could be four.
#[test]
fn attempt_is_one_request() {
    for path in ["/lost/2", "/fail/2/503", "/cut/2", "/reset", "/close"] {
        let wire = Wire::new();
        let id = wire.world.enqueue(&pay("order-1"));
        wire.drain(Unprotected, path);
        let entry = wire.world.entry(id);
        assert_eq!((entry.status, entry.attempts), (Status::Unknown, 1), "{path}");
        assert_eq!(wire.server.connections(), 1, "{path}");
        assert!(wire.server.requests().len() <= 1, "{path}");
    }
}

/// Retries inside retries made six calls of two attempts.
#[test]
fn attempts_max_is_the_number_of_requests() {
    for (path, status) in [("/status/500", Status::NeedsReview), ("/status/408", Status::Dead)] {
        let wire = Wire::new();
        let id = wire.world.enqueue(&pay("order-1"));
        let operation = Operation::new(DEDUPLICATES, wire.to(path)).max_attempts(2);
        let relay = relay(&wire.world.outbox, operation);
        for _ in 0..5 {
            relay.drain().unwrap();
            wire.world.advance(3600);
        }
        let entry = wire.world.entry(id);
        assert_eq!((entry.status, entry.attempts), (status, 2), "{path}");
        assert_eq!(wire.server.requests().len(), 2, "{path}");
    }
}
