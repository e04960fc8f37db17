//! Look-ups over real connections: what became of a request whose answer was lost.

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::Handler as _;
use sqlite_outbox::{ErrorKind, Http, Intent, Operation, Relay, Status};

use crate::support::downstream::{Downstream as Server, Request};
use crate::support::wire::{Wire, hasty, http};
use crate::support::world::{exact_backoff, pay, relay_on};

/// Past the default settle delay.
const SETTLE: u64 = 121;

/// A relay that sends to this path and looks up at that one.
fn relay(wire: &Wire, path: &str, lookup: &str) -> Relay {
    let http = wire.to(path).reconcile_by_get(&wire.server.url(lookup));
    relay_on(&wire.world.outbox, Operation::new(Unprotected, http).backoff(exact_backoff()))
}

fn sent(wire: &Wire) -> usize {
    wire.server.requests().iter().filter(|request| request.method == "POST").count()
}

fn asked(wire: &Wire) -> Vec<Request> {
    wire.server.requests().into_iter().filter(|request| request.method == "GET").collect()
}

#[test]
fn lookup_finds_an_effect_whose_answer_was_lost() {
    let wire = Wire::new();
    let id = wire.world.enqueue(&pay("a"));
    let relay = relay(&wire, "/lost/1", "/effects/{idempotency_key}");
    assert_eq!(relay.drain().unwrap().unknown, 1);
    wire.world.advance(SETTLE);
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    let entry = wire.world.entry(id);
    assert_eq!(
        (entry.status, entry.downstream_id.as_deref()),
        (Status::Succeeded, Some("eff_1_1"))
    );
    assert_eq!(wire.server.effects(&entry.idempotency_key), 1);
    assert_eq!(sent(&wire), 1);
    assert_eq!(wire.world.story(id), ["attempt:in_flight>unknown", "reconciled:unknown>succeeded"]);
}

#[test]
fn lookup_that_answers_404_leads_to_one_more_attempt() {
    let wire = Wire::new();
    let id = wire.world.enqueue(&pay("a"));
    let relay = relay(&wire, "/cut/1", "/effects/{idempotency_key}");
    assert_eq!(relay.drain().unwrap().unknown, 1);
    wire.world.advance(SETTLE);
    assert_eq!(relay.drain().unwrap().succeeded, 1, "looked up, and sent once more");
    let entry = wire.world.entry(id);
    assert_eq!((entry.status, entry.attempts), (Status::Succeeded, 2));
    assert_eq!(wire.server.effects(&entry.idempotency_key), 1);
    assert_eq!(sent(&wire), 2);
}

#[test]
fn lookup_that_fails_forever_needs_review() {
    let wire = Wire::new();
    let id = wire.world.enqueue(&pay("a"));
    let relay = relay(&wire, "/lost/1", "/status/500?k={idempotency_key}");
    for _ in 0..20 {
        relay.drain().unwrap();
        wire.world.advance(3601);
    }
    assert_eq!(wire.world.entry(id).status, Status::NeedsReview);
    assert_eq!((asked(&wire).len(), sent(&wire)), (8, 1));
    assert!(wire.world.entry(id).last_error.unwrap().contains("HTTP 500"));
}

#[test]
fn lookup_answers_other_than_200_and_404_are_inconclusive() {
    for path in ["/status/403", "/redirect/302/effects/x", "/garbage", "/body/200/%5B%5D", "/close"]
    {
        let wire = Wire::new();
        let id = wire.world.enqueue(&pay("a"));
        let relay = relay(&wire, "/lost/1", &format!("{path}?k={{idempotency_key}}"));
        relay.drain().unwrap();
        wire.world.advance(SETTLE);
        relay.drain().unwrap();
        assert_eq!(wire.world.entry(id).status, Status::Unknown, "{path}");
        assert_eq!(sent(&wire), 1, "{path}");
        let event = wire.world.outbox.audit(id).unwrap().pop().unwrap();
        let reason = event.reason.unwrap();
        assert!(!reason.contains(path), "the URL's path may be a secret: {reason}");
    }
}

/// A configured value says what an applied effect looks like; any other is inconclusive.
#[test]
fn lookup_when_a_value_is_wanted_only_that_value_counts() {
    for (state, status) in [("done", Status::Succeeded), ("failed", Status::Unknown)] {
        let wire = Wire::new();
        let id = wire.world.enqueue(&pay("a"));
        let body = format!(
            "/body/200/%7B%22c%22%3A%7B%22id%22%3A%22ch_1%22%2C\
             %22s%22%3A%22{state}%22%7D%7D?k={{idempotency_key}}"
        );
        let http = wire
            .to("/lost/1")
            .reconcile_by_get(&wire.server.url(&body))
            .reconcile_id("/c/id")
            .reconcile_when("/c/s", "done");
        let relay = relay_on(&wire.world.outbox, Operation::new(Unprotected, http));
        relay.drain().unwrap();
        wire.world.advance(SETTLE);
        relay.drain().unwrap();
        assert_eq!(wire.world.entry(id).status, status);
    }
}

#[test]
fn lookup_that_cannot_connect_uses_up_nothing() {
    let (wire, gone) = (Wire::new(), Server::start());
    let nowhere = gone.url("/effects/{idempotency_key}");
    drop(gone);
    let id = wire.world.enqueue(&pay("a"));
    let http = wire.to("/lost/1").reconcile_by_get(&nowhere);
    let relay = relay_on(&wire.world.outbox, Operation::new(Unprotected, http));
    relay.drain().unwrap();
    for _ in 0..20 {
        wire.world.advance(3601);
        relay.drain().unwrap();
    }
    assert_eq!(wire.world.entry(id).status, Status::Unknown, "it was never asked");
    assert_eq!(wire.world.story(id).len(), 1);
}

/// The question carries the configured credentials, and every value is escaped.
#[test]
fn lookup_request_is_escaped_and_carries_the_credentials() {
    let wire = Wire::new();
    let charge = Intent::new("pay", "order 4/2?").tenant("ac me").args(1).key("k#1");
    let id = wire.world.enqueue(&charge);
    let bind = |id| wire.world.outbox.transact(|tx| wire.world.outbox.bind(tx, id, "ch/1", "app"));
    bind(id).unwrap();
    let lookup = "/status/500?k={idempotency_key}&e={entity_id}&d={downstream_id}&t={tenant_id}";
    let http = hasty()
        .endpoint(&wire.server.url("/lost/1"))
        .header("authorization", "Bearer sk_1")
        .reconcile_by_get(&wire.server.url(lookup));
    let relay = relay_on(&wire.world.outbox, Operation::new(Unprotected, http));
    relay.drain().unwrap();
    wire.world.advance(SETTLE);
    relay.drain().unwrap();
    let asked = asked(&wire);
    let sent_key = wire.server.requests()[0].key.clone();
    assert!(sent_key.starts_with("pay:"), "a tenant's own key is not sent bare: {sent_key}");
    let expected = format!(
        "/status/500?k={}&e=order%204%2F2%3F&d=ch%2F1&t=ac%20me",
        sent_key.replace(':', "%3A")
    );
    assert_eq!(asked[0].path, expected);
    assert_eq!(asked[0].header("authorization"), Some("Bearer sk_1"));
    assert_eq!((asked[0].header("idempotency-key"), asked[0].body.as_str()), (None, ""));
}

/// Without the id that the question needs, nothing is asked.
#[test]
fn lookup_by_an_unknown_downstream_id_is_not_sent() {
    let wire = Wire::new();
    let id = wire.world.enqueue(&pay("a"));
    let relay = relay(&wire, "/lost/1", "/effects/{downstream_id}");
    relay.drain().unwrap();
    wire.world.advance(SETTLE);
    relay.drain().unwrap();
    assert_eq!(asked(&wire).len(), 0);
    let error = wire.world.entry(id).last_error.unwrap();
    assert!(error.contains("reconcile.get: the value for {downstream_id} is empty"), "{error}");
}

#[test]
fn lookup_configuration_is_refused_by_name() {
    let refused = |http: Http| {
        let error = http.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        error.to_string()
    };
    let url = refused(http().reconcile_by_get("https://api.example.com/{secret}"));
    assert!(url.starts_with("reconcile.get: only {idempotency_key} and"), "{url}");
    assert!(!url.contains("secret"));
    for same_for_all in ["https://api.example.com/charges", "https://api.example.com/{tenant_id}"] {
        let url = refused(http().reconcile_by_get(same_for_all));
        assert!(url.starts_with("reconcile.get: must say which intent is meant"), "{url}");
    }
    assert!(refused(http().reconcile_id("id")).starts_with("reconcile.downstream_id: "));
    assert!(refused(http().reconcile_when("id", 1)).starts_with("reconcile.when: "));
}
