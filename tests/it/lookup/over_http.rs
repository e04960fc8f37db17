//! Look-ups over real connections: what became of a request whose answer was lost.

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::Handler as _;
use sqlite_outbox::{ErrorKind, Http, Intent, Operation, Predicate, Relay, Status};

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
            .reconcile_when(Predicate::equals("/c/s", "done"));
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

/// A record that is searched: by POST, and the answer is a list.
#[test]
fn lookup_by_search_finds_the_effect_or_leads_to_one_more_attempt() {
    let list = |reference: &str| {
        let id = "%22id%22%3A%22ch_1%22";
        format!("%7B%22data%22%3A%5B%7B{id}%2C%22ref%22%3A%22{reference}%22%7D%5D%7D")
    };
    let (own, other) = (list("{idempotency_key}"), list("other"));
    for (answer, path, status, attempts) in [
        (own.as_str(), "/lost/1", Status::Succeeded, 1),
        ("%7B%22data%22%3A%5B%5D%7D", "/cut/1", Status::Succeeded, 2),
        ("%7B%22data%22%3A%5B%5D%2C%22errors%22%3A%5B1%5D%7D", "/cut/1", Status::Unknown, 1),
        (other.as_str(), "/lost/1", Status::Unknown, 1),
    ] {
        let wire = Wire::new();
        let id = wire.world.enqueue(&pay("a"));
        let body = r#"{"where": {"ref": "{idempotency_key}"}, "limit": 2}"#;
        let http = wire
            .to(path)
            .reconcile_by_post(
                &wire.server.url(&format!("/body/200/{answer}")),
                "application/json",
                body,
            )
            .reconcile_list("/data")
            .reconcile_match("/ref", "{idempotency_key}");
        let operation = Operation::new(Unprotected, http).backoff(exact_backoff());
        let relay = relay_on(&wire.world.outbox, operation);
        relay.drain().unwrap();
        wire.world.advance(SETTLE);
        relay.drain().unwrap();
        let entry = wire.world.entry(id);
        assert_eq!((entry.status, entry.attempts), (status, attempts), "{answer}");
        let requests = wire.server.requests();
        assert_eq!(requests.iter().filter(|r| r.path == path).count(), attempts as usize);
        let question = requests.iter().find(|r| r.path.starts_with("/body")).unwrap();
        let key = &entry.idempotency_key;
        assert_eq!(question.body, body.replace("{idempotency_key}", key));
        assert_eq!(question.header("idempotency-key"), None);
    }
}

#[test]
fn lookup_by_post_is_escaped_for_its_content_type() {
    for (content_type, template, expected) in [
        (
            "application/json",
            r#"{"e":"{entity_id}","o":"{ordering_key}","at":{created_at}}"#,
            r#"{"e":"a\"b\\","o":"{entity_id}","at":AT}"#,
        ),
        (
            "application/x-www-form-urlencoded",
            "e={entity_id}&o={ordering_key}&at={created_at}",
            "e=a%22b%5C&o=%7Bentity_id%7D&at=AT",
        ),
    ] {
        let wire = Wire::new();
        let intent = Intent::new("pay", r#"a"b\"#).ordering_key("{entity_id}").args(1);
        let id = wire.world.enqueue(&intent);
        let url = wire.server.url("/status/500");
        let http = hasty()
            .endpoint(&wire.server.url("/lost/1"))
            .header("authorization", "Bearer sk_1")
            .reconcile_by_post(&url, content_type, template);
        let relay = relay_on(&wire.world.outbox, Operation::new(Unprotected, http));
        relay.drain().unwrap();
        wire.world.advance(SETTLE);
        relay.drain().unwrap();
        let question = wire.server.requests().pop().unwrap();
        let created_at = wire.world.entry(id).created_at.to_string();
        assert_eq!(question.body, expected.replace("AT", &created_at));
        assert_eq!(question.method, "POST");
        assert_eq!(
            (question.header("content-type"), question.count("content-type")),
            (Some(content_type), 1)
        );
        assert_eq!(question.header("authorization"), Some("Bearer sk_1"));
    }
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
    assert!(
        refused(http().reconcile_when(Predicate::equals("id", 1))).starts_with("reconcile.when: ")
    );
    let post = |kind: &str, body: &str| {
        refused(http().reconcile_by_post("https://api.example.com/search", kind, body))
    };
    let (json, form) = ("application/json", "application/x-www-form-urlencoded");
    let error = post(json, r#"{"tenant":"{tenant_id}"}"#);
    assert!(error.starts_with("reconcile.post: must say which intent is meant"), "{error}");
    assert!(post("text/xml", "<a>{key_hash}</a>").starts_with("reconcile.content_type: must be"));
    for (kind, body) in [
        (json, r#"{"key":{idempotency_key}}"#),
        (json, r#"{"key":"{idempotency_key}","a":"{secret}"}"#),
        (form, "key={idempotency_key}&a={secret}"),
        (form, "key={idempotency_key} secret"),
    ] {
        let error = post(kind, body);
        assert!(error.starts_with("reconcile.body: ") && !error.contains("secret"), "{error}");
    }
    let same = refused(http().reconcile_match("/key", "k"));
    assert!(same.starts_with("reconcile.match: must say which intent is meant"), "{same}");
    assert!(refused(http().reconcile_list("data")).starts_with("reconcile.list: "));
    let test = Predicate::one_of::<i32>("/state", []);
    let error = refused(http().reconcile_not_applied_when(test));
    assert!(error.starts_with("reconcile.not_applied_when: one_of names no value"), "{error}");
}
