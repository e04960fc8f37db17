//! The form of a request when it arrives.

use super::*;
use crate::Predicate;

fn header(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

#[test]
fn intent_arrives_unchanged() {
    let server = Server::start();
    let payload = "{\"b\": 1,\n \"a\":\"\u{e9}\u{1f600}\\u0000\"}";
    let delivery = delivery_of(StoredIntent {
        payload: payload.into(),
        method: "PUT".to_owned(),
        content_type: "application/vnd.x+json; charset=utf-8".to_owned(),
        headers: vec![header("traceparent", "00-1-2-01"), header("X-Schema", "v 2")],
        ..intent("charge:0a1b")
    });
    let outcome = http(&server.url("/ok?x=1&y=%20")).deliver(&delivery);
    assert!(matches!(outcome, Outcome::Succeeded(_)), "{outcome:?}");
    let request = server.requests().remove(0);
    assert_eq!((request.method.as_str(), request.path.as_str()), ("PUT", "/ok?x=1&y=%20"));
    assert_eq!(request.body, payload);
    for (name, value) in [
        ("content-type", "application/vnd.x+json; charset=utf-8"),
        ("idempotency-key", "charge:0a1b"),
        ("traceparent", "00-1-2-01"),
        ("x-schema", "v 2"),
        ("accept-encoding", "identity"),
        ("user-agent", concat!("sqlite-outbox/", env!("CARGO_PKG_VERSION"))),
    ] {
        assert_eq!(request.header(name), Some(value));
        assert_eq!(request.count(name), 1, "{name}");
    }
}

#[test]
fn payload_that_is_empty_sends_no_body_where_the_method_needs_none() {
    let server = Server::start();
    let http = http(&server.url("/ok"));
    for (method, length) in [
        ("GET", None),
        ("DELETE", None),
        ("HEAD", None),
        ("POST", Some("0")),
        ("PUT", Some("0")),
        ("PATCH", Some("0")),
    ] {
        let empty = delivery_of(StoredIntent {
            method: method.into(),
            payload: "".into(),
            ..intent(method)
        });
        http.deliver(&empty);
        let request = server.requests_for(method).remove(0);
        assert_eq!(request.header("content-length"), length, "{method}");
        assert_eq!(request.header("content-type").is_some(), length.is_some(), "{method}");
        assert_eq!(request.header("transfer-encoding"), None, "{method}");
    }
    http.deliver(&delivery_of(StoredIntent { method: "DELETE".into(), ..intent("with-body") }));
    assert_eq!(server.requests_for("with-body")[0].body, r#"{"amount":1}"#);
}

#[test]
fn methods_that_cannot_be_used_are_refused_before_anything_is_sent() {
    let server = Server::start();
    for method in ["", "PO ST", "POST\r\n", "CONNECT", "TRACE", "HEAD", "P\u{d6}ST"] {
        let outcome = http(&server.url("/ok"))
            .deliver(&delivery_of(StoredIntent { method: method.into(), ..intent("k") }));
        assert_eq!(kind(&outcome), ("rejected", "method"), "{method:?}: {outcome:?}");
    }
    assert_eq!(server.connections(), 0);
}

#[test]
fn headers_of_the_configuration_win_over_the_row() {
    let server = Server::start();
    let http = http(&server.url("/ok")).header("X-Version", "configured");
    let headers = vec![header("x-version", "row"), header("Content-Type", "text/plain")];
    http.deliver(&delivery_of(StoredIntent { headers, ..intent("k") }));
    let request = server.requests().remove(0);
    assert_eq!(request.header("x-version"), Some("configured"));
    assert_eq!(request.count("x-version"), 1);
    assert_eq!(request.header("content-type"), Some("text/plain"));
    assert_eq!(request.count("content-type"), 1);
}

#[test]
fn headers_of_a_row_that_are_bad_are_refused_before_anything_is_sent() {
    let server = Server::start();
    for (name, value) in [
        ("Host", "evil.example"),
        ("Content-Length", "0"),
        ("Transfer-Encoding", "chunked"),
        ("Connection", "close"),
        ("Expect", "100-continue"),
        ("Proxy-Authorization", "x"),
        ("Idempotency-Key", "other"),
        ("x", "a\r\nb: c"),
        ("x", ""),
        ("x", "a\tb"),
        ("x", "cl\u{e9}"),
        ("x y", "a"),
    ] {
        let delivery =
            delivery_of(StoredIntent { headers: vec![header(name, value)], ..intent("k") });
        let outcome = http(&server.url("/ok")).deliver(&delivery);
        assert_eq!(kind(&outcome), ("rejected", "header"), "{name}: {outcome:?}");
    }
    let delivery =
        delivery_of(StoredIntent { content_type: "text/plain\r\nx: y".into(), ..intent("k") });
    assert_eq!(kind(&http(&server.url("/ok")).deliver(&delivery)), ("rejected", "header"));
    assert_eq!(server.connections(), 0);
}

#[test]
fn key_is_sent_once_bare_or_quoted_in_the_header_of_choice() {
    let server = Server::start();
    let plain = http(&server.url("/ok"));
    plain.deliver(&delivery("a:1"));
    plain.quoted_key().deliver(&delivery("q\"\\"));
    let own = http(&server.url("/ok")).idempotency_header("X-Request-Id");
    own.deliver(&delivery("b"));
    let refused =
        delivery_of(StoredIntent { headers: vec![header("x-request-id", "z")], ..intent("c") });
    assert_eq!(kind(&own.deliver(&refused)), ("rejected", "header"));

    let requests = server.requests();
    assert_eq!(requests[0].header("idempotency-key"), Some("a:1"));
    assert_eq!(requests[1].header("idempotency-key"), Some(r#""q\"\\""#));
    assert_eq!(requests[2].header("x-request-id"), Some("b"));
    assert_eq!(requests[2].count("idempotency-key"), 0);
    assert_eq!(requests.len(), 3);
    for request in &requests[..2] {
        assert_eq!(request.count("idempotency-key"), 1);
    }
}

#[test]
fn placeholders_are_filled_in_both_kinds_of_endpoint() {
    let server = Server::start();
    let http = http(&server.url("/ok/{idempotency_key}?e={entity_id}"));
    http.deliver(&delivery_of(StoredIntent { entity_id: "a/b c".into(), ..intent("k:1") }));
    http.deliver(&delivery_to("k:2", server.url("/ok/{entity_id}")));
    let paths: Vec<String> = server.requests().into_iter().map(|r| r.path).collect();
    assert_eq!(paths, ["/ok/k%3A1?e=a%2Fb%20c", "/ok/order-1"]);
    let dotted = delivery_of(StoredIntent { entity_id: "..".into(), ..intent("k:3") });
    assert_eq!(kind(&http.deliver(&dotted)), ("rejected", "endpoint"));
}

#[test]
fn placeholders_of_a_configured_endpoint_name_tenant_order_and_time() {
    let server = Server::start();
    let path = "/ok/{tenant_id}/{ordering_key}?at={created_at}&h={key_hash}";
    let http = http(&server.url(path));
    let own = "charge:0123456789012345678901234567890123456789";
    let ordered = StoredIntent {
        tenant_id: "ac/me".into(),
        ordering_key: Some("acc 1".into()),
        created_at: 1_700_000_000_123,
        ..intent(own)
    };
    http.deliver(&delivery_of(ordered.clone()));
    let hash = crate::core::key::sha256(own);
    let expected = format!("/ok/ac%2Fme/acc%201?at=1700000000123&h={hash}");
    assert_eq!(server.requests()[0].path, expected);
    let unordered = StoredIntent { ordering_key: None, ..ordered.clone() };
    assert_eq!(kind(&http.deliver(&delivery_of(unordered))), ("rejected", "endpoint"));
    let own_endpoint = StoredIntent { endpoint: Some(server.url(path)), ..ordered };
    assert_eq!(kind(&http.deliver(&delivery_of(own_endpoint))), ("rejected", "endpoint"));
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn connections_are_used_again() {
    let server = Server::start();
    let http = http(&server.url("/ok"));
    for key in ["a", "b", "c"] {
        assert!(matches!(http.deliver(&delivery(key)), Outcome::Succeeded(_)));
    }
    assert_eq!((server.connections(), server.requests().len()), (1, 3));
}

#[test]
fn gate_of_the_test_server_answers_once_released() {
    let server = Server::start();
    let long = Timeouts { response: Duration::from_secs(20), ..short() };
    let http = http(&server.url("/gate")).timeouts(long);
    std::thread::scope(|scope| {
        let delivering = scope.spawn(|| http.deliver(&delivery("k")));
        server.wait_for_requests(1);
        assert_eq!(server.effects("k"), 0);
        server.release();
        assert!(matches!(delivering.join().unwrap(), Outcome::Succeeded(_)));
    });
}

#[test]
fn options_that_make_no_sense_are_refused_by_name() {
    let field = |http: Http| {
        http.check().unwrap_err().to_string().split(':').next().unwrap_or_default().to_owned()
    };
    let new = Http::new;
    assert_eq!(field(new().endpoint("api.example.com")), "endpoint");
    assert_eq!(field(new().header("host", "x")), "headers");
    assert_eq!(field(new().header("authorization", "")), "headers");
    assert_eq!(field(new().header("x-a", "1").header("X-A", "2")), "headers");
    assert_eq!(field(new().idempotency_header("a b")), "idempotency_header");
    assert_eq!(field(new().idempotency_header("Authorization")), "idempotency_header");
    assert_eq!(field(new().header("x-key", "1").idempotency_header("X-Key")), "idempotency_header");
    assert_eq!(field(new().downstream_id("id")), "downstream_id");
    assert_eq!(field(new().success_when(Predicate::equals("/a~2", true))), "success_when");
    assert_eq!(field(new().allow_addresses(["10.0.0.0/99"])), "allow_addresses");
    assert_eq!(field(new().allow_origins(["https://a.example/x"])), "allow_origins");
    assert!(
        new().success_when(Predicate::equals("", true)).downstream_id("/a~1b/0").check().is_ok()
    );

    let two = new().endpoint("api.example.com").header("host", "x").allow_addresses(["no"]);
    assert_eq!(field(two), "endpoint", "the first mistake");
    assert_eq!(field(new().endpoint("no").endpoint("https://api.example.com")), "endpoint");
}

/// A handler that was never checked by a relay must not send a request without what was refused.
#[test]
fn a_refused_option_keeps_everything_from_being_sent() {
    let server = Server::start();
    let http = http(&server.url("/ok")).header("authorization", "");
    let outcome = http.deliver(&delivery("k"));
    assert_eq!(kind(&outcome), ("not_sent", "request"));
    let http = http.reconcile_by_get(&server.url("/ok?k={idempotency_key}"));
    assert!(matches!(http.reconcile(&delivery("k")), Finding::Inconclusive(_)));
    assert!(server.requests().is_empty());
}

/// A date is counted from the outbox's clock: with the machine's own, a test that moves its clock
/// would wait for years.
#[test]
fn retry_after_date_is_counted_by_the_clock_of_the_outbox() {
    let server = Server::start();
    let clock = ManualClock::at(1_800_000_000_000); // 2027-01-15 08:00:00
    let date = "Fri%2C%2015%20Jan%202027%2008%3A10%3A00%20GMT";
    let http = http(&server.url(&format!("/after/9/429/{date}")));
    let http =
        http.reconcile_by_get(&server.url(&format!("/after/9/429/{date}?k={{idempotency_key}}")));
    let lease = Arc::new(Lease::new(i64::MAX, Arc::new(clock.clone())));
    let delivery = Delivery { lease, ..delivery("k") };
    for minutes in [10, 9, 0, 0] {
        let wait = Some(Duration::from_secs(60 * minutes));
        let outcome = http.deliver(&delivery);
        assert_eq!(outcome.failure().unwrap().retry_after, wait, "{outcome:?}");
        let Finding::Inconclusive(failure) = http.reconcile(&delivery) else { panic!("it told") };
        assert_eq!(failure.retry_after, wait, "{failure:?}");
        clock.advance(Duration::from_secs(if minutes == 10 { 60 } else { 600 }));
    }
}
