//! The last failing answer of an intent: what of it is kept, and for how long.

use std::fmt::Write as _;
use std::sync::Mutex;

use sha2::{Digest, Sha256};
use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::rusqlite::{Connection, Transaction};
use sqlite_outbox::{
    Clock as _, Delivery, FailingAnswer, Handler, Operation, Predicate, Receipt, Status,
};

use crate::support::downstream::Downstream as Server;
use crate::support::wire::{Wire, relay};
use crate::support::world::{DEDUPLICATES, pay};

/// The statement of docs/operations.md that strips a row.
const STRIP: &str = "UPDATE outbox SET payload = NULL, headers = '{}' WHERE entity_id = 'a'";

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn kept(wire: &Wire, id: i64) -> Option<FailingAnswer> {
    wire.world.entry(id).last_answer
}

/// Status and body of what is kept.
fn brief(wire: &Wire, id: i64) -> Option<(u16, String)> {
    kept(wire, id).map(|answer| (answer.status, answer.body))
}

/// A wire with an intent that is dead of an answer of its own, which the others must leave alone.
fn beside_another() -> (Wire, i64) {
    let wire = Wire::new();
    let other = wire.world.enqueue(&pay("other"));
    wire.drain(DEDUPLICATES, "/body/400/other");
    (wire, other)
}

fn assert_untouched(wire: &Wire, other: i64) {
    assert_eq!(brief(wire, other), Some((400, "other".into())));
}

#[test]
fn newest_failing_answer_takes_the_place_of_the_one_before() {
    let (wire, other) = beside_another();
    let id = wire.world.enqueue(&pay("a"));
    assert_eq!(kept(&wire, id), None);
    wire.world.advance(10);
    wire.drain(DEDUPLICATES, "/body/500/first");
    let first = kept(&wire, id).unwrap();
    assert_eq!((first.status, first.body.as_str(), first.body_bytes), (500, "first", 5));
    assert_eq!(first.body_sha256, sha256(b"first"));
    assert_eq!(first.headers, [("content-type".into(), "application/json".into())]);
    assert_eq!(first.at, wire.world.clock.now());

    // A failure without an answer leaves the last answer where it is.
    wire.world.advance(10);
    wire.drain(DEDUPLICATES, "/cut/9");
    assert_eq!(kept(&wire, id).as_ref(), Some(&first));
    wire.world.advance(10);
    wire.drain(DEDUPLICATES, "/body/422/second");
    let second = kept(&wire, id).unwrap();
    assert_eq!((second.status, second.body.as_str()), (422, "second"));
    assert_eq!(second.at, first.at + 20_000);
    assert_untouched(&wire, other);
    assert_eq!(wire.world.number("SELECT count(*) FROM outbox_answer"), 2);
}

#[test]
fn long_body_is_cut_and_known_by_its_length_and_hash() {
    let wire = Wire::new();
    for (size, read) in [(16 * 1024, 16 * 1024), (16 * 1024 + 1, 16 * 1024 + 1), (2 << 20, 1 << 20)]
    {
        let id = wire.world.enqueue(&pay(&format!("order-{size}")));
        let wanted = Predicate::equals("/ok", true);
        let http = wire.to(&format!("/big/{size}")).success_when(wanted);
        wire.relay(DEDUPLICATES, http).drain().unwrap();
        let answer = kept(&wire, id).unwrap();
        assert_eq!(answer.body, "x".repeat(16 * 1024));
        // Of a body that is longer than `answer_max`, what was read.
        assert_eq!(answer.body_bytes, read as u64);
        assert_eq!(answer.body_sha256, sha256(&vec![b'x'; read]));
    }
}

#[test]
fn answer_is_stripped_with_the_payload_and_deleted_with_the_row() {
    for (sql, is_there) in [(STRIP, true), ("DELETE FROM outbox WHERE entity_id = 'a'", false)] {
        let (wire, other) = beside_another();
        let id = wire.world.enqueue(&pay("a"));
        wire.drain(DEDUPLICATES, "/body/500/first");
        wire.world.advance(10);
        wire.drain(DEDUPLICATES, "/ok");
        assert_eq!(wire.world.entry(id).status, Status::Succeeded);
        assert_eq!(brief(&wire, id), Some((500, "first".into())), "what went before a success");
        assert_eq!(wire.world.sql(sql), 1);
        let entry = wire.world.outbox.entry(id).unwrap();
        assert_eq!(entry.is_some(), is_there, "{sql}");
        assert_eq!(entry.and_then(|entry| entry.last_answer), None, "{sql}");
        assert_untouched(&wire, other);
        assert_eq!(wire.world.number("SELECT count(*) FROM outbox_answer"), 1, "{sql}");
    }
}

/// The answer to an attempt that outlived its intent would have stayed behind a stripped row.
#[test]
fn answer_that_comes_after_the_row_was_stripped_is_not_kept() {
    let (wire, other) = beside_another();
    let id = wire.world.enqueue(&pay("a"));
    let http = wire.to("/body/500/late");
    let (second, path) = (wire.world.second(), wire.world.path());
    let key = wire.world.entry(id).idempotency_key;
    let settle = Mutex::new(Some(move || {
        let receipt = Receipt::new().downstream_id("ch_1");
        let confirm = |tx: &Transaction<'_>| second.confirm(tx, ("", &key), &receipt, "ann");
        second.transact(confirm).unwrap();
        Connection::open(&path).unwrap().execute(STRIP, []).unwrap();
    }));
    let handler = move |delivery: &Delivery| {
        let outcome = http.deliver(delivery);
        settle.lock().unwrap().take().unwrap()();
        outcome
    };
    relay(&wire.world.outbox, Operation::new(DEDUPLICATES, handler)).drain().unwrap();
    let entry = wire.world.entry(id);
    assert_eq!((entry.status, entry.last_answer), (Status::Succeeded, None));
    assert_untouched(&wire, other);
}

#[test]
fn answer_to_a_lookup_that_does_not_tell_is_kept() {
    let wire = Wire::new();
    let id = wire.world.enqueue(&pay("a"));
    let gone = Server::start();
    let nowhere = gone.url("/?k={idempotency_key}");
    drop(gone);
    let drain = |lookup: &str| {
        let http = wire.to("/lost/9").reconcile_by_get(lookup);
        relay(&wire.world.outbox, Operation::new(Unprotected, http)).drain().unwrap();
        wire.world.advance(3601);
    };
    let url = |path: &str| wire.server.url(&format!("{path}?k={{idempotency_key}}"));
    drain(&nowhere);
    assert_eq!(wire.world.entry(id).status, Status::Unknown);
    assert_eq!(kept(&wire, id), None, "no answer came");
    drain(&url("/body/503/busy"));
    assert_eq!(brief(&wire, id), Some((503, "busy".into())));
    drain(&nowhere);
    assert_eq!(brief(&wire, id), Some((503, "busy".into())));
    drain(&url("/body/200/%5B%5D"));
    assert_eq!(brief(&wire, id), Some((200, "[]".into())));
    drain(&url("/body/200/%7B%22id%22%3A%22ch_1%22%7D"));
    let entry = wire.world.entry(id);
    assert_eq!(entry.status, Status::Succeeded);
    assert_eq!(brief(&wire, id), Some((200, "[]".into())), "an answer that told is a receipt");
}

/// The answer waits with its outcome, in which nothing may be missing and nothing secret may stand.
#[test]
fn answer_of_an_outcome_that_cannot_be_recorded_is_kept_with_it() {
    for status in [400, 500, 429] {
        let (wire, other) = beside_another();
        let id = wire.world.enqueue(&pay("a"));
        wire.world.batch(
            "CREATE TRIGGER app BEFORE INSERT ON outbox_event
             WHEN (SELECT entity_id FROM outbox WHERE id = NEW.outbox_id) = 'a'
             BEGIN SELECT RAISE(ABORT, 'no'); END",
        );
        let http = wire.to(&format!("/body/{status}/SENTINEL,sent")).header("x-key", "SENTINEL");
        let relay = wire.relay(DEDUPLICATES, http);
        relay.drain().unwrap();
        assert_eq!(wire.world.outbox.why(id, None).unwrap().0, "unrecorded");
        let outcome = "SELECT outcome LIKE '%***,sent%' AND outcome NOT LIKE '%SENTINEL%'
                       FROM outbox_unrecorded";
        assert_eq!(wire.world.number(outcome), 1);
        wire.world.batch("DROP TRIGGER app");
        wire.world.advance(10);
        relay.drain().unwrap();
        assert_eq!(wire.world.number("SELECT count(*) FROM outbox_unrecorded"), 0);
        let answer = kept(&wire, id).unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (status, "***,sent"));
        assert_eq!(answer.body_sha256, sha256(b"SENTINEL,sent"));
        assert_eq!(wire.server.requests().len(), 2, "each was sent once");
        assert_untouched(&wire, other);
    }
}
