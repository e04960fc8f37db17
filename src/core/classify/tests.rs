use std::time::Duration;

use super::*;

const NOW: i64 = 1_700_000_000_000;
const DEDUP: Downstream = Downstream::DeduplicatesByKey { window: Duration::from_secs(86_400) };
const UNPROTECTED: Downstream = Downstream::Unprotected;

fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Answer {
    Answer {
        status,
        headers: headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
        left_out: 0,
        body: body.as_bytes().to_vec(),
        body_end: BodyEnd::Complete,
    }
}

fn rules() -> Rules {
    Rules { success_when: None, on_conflict: None, downstream_id: "/id".into() }
}

/// The kind of the outcome and the class of its failure in one word.
fn word(outcome: &Outcome) -> String {
    let kind = match outcome {
        Outcome::Succeeded(_) => "succeeded",
        Outcome::NotSent(_) => "not_sent",
        Outcome::MaybeSent(_) => "maybe_sent",
        Outcome::Transient(_) => "transient",
        Outcome::Limited(_) => "limited",
        Outcome::Unauthorized(_) => "unauthorized",
        Outcome::Rejected(_) => "rejected",
        Outcome::NeedsReview(_) => "needs_review",
    };
    outcome.failure().map_or(kind.to_owned(), |failure| format!("{kind}/{}", failure.class))
}

fn receipt_of(outcome: Outcome) -> Receipt {
    match outcome {
        Outcome::Succeeded(receipt) => receipt,
        other => panic!("not a success: {other:?}"),
    }
}

/// The table of docs/http.md, status by status.
fn expected(status: u16, downstream: Downstream, first: bool) -> &'static str {
    match status {
        200..=299 => "succeeded",
        307 | 308 => "rejected/redirect",
        300..=399 => "maybe_sent/redirect",
        401 | 407 => "unauthorized/auth",
        403 => "transient/auth",
        408 | 421 | 423 | 425 => "transient/transient",
        409 if downstream == UNPROTECTED => "needs_review/conflict",
        409 => "maybe_sent/conflict",
        422 if !first => "needs_review/key_reuse",
        429 => "limited/limited",
        400..=499 | 501 | 505 => "rejected/permanent",
        503 => "maybe_sent/unavailable",
        500..=599 => "maybe_sent/ambiguous",
        _ => "maybe_sent/protocol",
    }
}

#[test]
fn status_of_every_number_has_its_meaning() {
    for status in (0..=1000).chain([u16::MAX]) {
        for downstream in [DEDUP, UNPROTECTED] {
            for first in [true, false] {
                let answer = answer(status, &[], "secret");
                let outcome = classify(&answer, &rules(), downstream, first, NOW);
                assert_eq!(word(&outcome), expected(status, downstream, first), "{status}");
                let Some(failure) = outcome.failure() else { continue };
                assert_eq!(failure.status, Some(status));
                assert_eq!(failure.retry_after, None);
                assert!(failure.message.starts_with(&format!("HTTP {status}: ")));
                assert!(!failure.message.contains("secret"));
                assert!(failure.message.len() < 120, "{}", failure.message);
            }
        }
    }
}

#[test]
fn retry_after_is_handed_on_or_said_to_be_malformed() {
    for (status, plain, asked) in [
        (408, "transient/transient", "transient/transient"),
        (409, "maybe_sent/conflict", "maybe_sent/conflict"),
        (429, "limited/limited", "limited/limited"),
        (500, "maybe_sent/ambiguous", "maybe_sent/ambiguous"),
        (503, "maybe_sent/unavailable", "limited/unavailable"),
        (401, "unauthorized/auth", "unauthorized/auth"),
        (403, "transient/auth", "limited/limited"),
    ] {
        for (text, seconds) in [
            ("120", 120),
            ("0", 0),
            ("Tue, 14 Nov 2023 22:13:50 GMT", 30),
            ("-5", -1),
            ("soon", -1),
        ] {
            let answer = answer(status, &[("retry-after", text)], "");
            let outcome = classify(&answer, &rules(), DEDUP, true, NOW);
            let failure = outcome.failure().unwrap();
            let delay = u64::try_from(seconds).ok().map(Duration::from_secs);
            assert_eq!(failure.retry_after, delay, "{status} {text}");
            assert_eq!(failure.message.contains("Retry-After is malformed"), delay.is_none());
            assert_eq!(word(&outcome), if delay.is_some() { asked } else { plain });
            assert!(!failure.message.contains(text) || text == "0");
        }
    }
    let unprotected = answer(503, &[("retry-after", "1")], "");
    let outcome = classify(&unprotected, &rules(), UNPROTECTED, true, NOW);
    assert_eq!(word(&outcome), "limited/unavailable");
}

#[test]
fn status_403_is_a_limit_where_a_header_says_so() {
    for (name, value, expected) in [
        ("x-ratelimit-remaining", "0", "limited/limited"),
        ("ratelimit-remaining", " 0 ", "limited/limited"),
        ("ratelimit", "limit=100, remaining=0, reset=5", "limited/limited"),
        ("ratelimit", "\"default\";r=0;t=5", "limited/limited"),
        ("ratelimit", "\"default\";r=7;t=0", "transient/auth"),
        ("x-ratelimit-remaining", "10", "transient/auth"),
        ("x-ratelimit-remaining", "none", "transient/auth"),
        ("x-ratelimit-limit", "0", "transient/auth"),
    ] {
        let outcome = classify(&answer(403, &[(name, value)], ""), &rules(), DEDUP, true, NOW);
        assert_eq!(word(&outcome), expected, "{name}: {value}");
    }
}

#[test]
fn status_409_means_what_the_operation_says() {
    for (on_conflict, expected) in [
        (OnConflict::InProgress, "maybe_sent/conflict"),
        (OnConflict::Applied, "succeeded"),
        (OnConflict::Permanent, "rejected/conflict"),
    ] {
        for downstream in [DEDUP, UNPROTECTED] {
            let rules = Rules { on_conflict: Some(on_conflict), ..rules() };
            let outcome = classify(&answer(409, &[], ""), &rules, downstream, true, NOW);
            assert_eq!(word(&outcome), expected);
        }
    }
}

#[test]
fn status_5xx_with_idempotent_replayed_is_not_retried() {
    for (status, header, expected) in [
        (500, ("idempotent-replayed", "true"), "needs_review/replayed"),
        (502, ("idempotency-replayed", " TRUE"), "needs_review/replayed"),
        (503, ("idempotency-replayed", "true"), "needs_review/replayed"),
        (500, ("idempotent-replayed", "false"), "maybe_sent/ambiguous"),
        (501, ("idempotent-replayed", "true"), "rejected/permanent"),
        (200, ("idempotent-replayed", "true"), "succeeded"),
        (400, ("idempotent-replayed", "true"), "rejected/permanent"),
    ] {
        let outcome = classify(&answer(status, &[header], ""), &rules(), DEDUP, true, NOW);
        assert_eq!(word(&outcome), expected, "{status} {header:?}");
    }
}

#[test]
fn success_when_decides_on_what_was_read() {
    let slack = Rules { success_when: Some(Predicate::equals("/ok", true)), ..rules() };
    let broken = || BodyEnd::Broken("reset".into());
    for (body, end, expected) in [
        (r#"{"ok":true}"#, BodyEnd::Complete, "succeeded"),
        (r#"{"ok":true}"#, broken(), "succeeded"),
        (r#"{"ok":false}"#, BodyEnd::Complete, "needs_review/success_when"),
        (r#"{"ok":"true"}"#, BodyEnd::Complete, "needs_review/success_when"),
        ("{}", BodyEnd::Complete, "needs_review/success_when"),
        ("<html>", BodyEnd::Complete, "needs_review/success_when"),
        ("", BodyEnd::Complete, "needs_review/success_when"),
        (r#"{"ok":tr"#, broken(), "maybe_sent/body_unreadable"),
        (r#"{"ok":true,"x":""#, BodyEnd::Truncated, "maybe_sent/body_unreadable"),
        ("", broken(), "maybe_sent/body_unreadable"),
    ] {
        let answer = Answer { body_end: end, ..answer(200, &[("retry-after", "9")], body) };
        let outcome = classify(&answer, &slack, DEDUP, true, NOW);
        assert_eq!(word(&outcome), expected, "{body}");
        if let Some(failure) = outcome.failure() {
            assert_eq!((failure.status, failure.retry_after), (Some(200), None));
        }
    }
    let number = Rules { success_when: Some(Predicate::equals("", 1)), ..rules() };
    let cut = Answer { body_end: broken(), ..answer(200, &[], "1") };
    let outcome = classify(&cut, &number, DEDUP, true, NOW);
    assert_eq!(word(&outcome), "maybe_sent/body_unreadable");
    // Without the rule the status alone decides.
    assert_eq!(word(&classify(&cut, &rules(), DEDUP, true, NOW)), "succeeded");
}

#[test]
fn downstream_id_is_found_by_pointer() {
    for (pointer, body, expected) in [
        ("/id", r#"{"id":"ch_1"}"#, Some("ch_1")),
        ("/id", r#"{"id":18446744073709551615}"#, Some("18446744073709551615")),
        ("/id", r#"{"id":-7}"#, Some("-7")),
        ("/data/0/id", r#"{"data":[{"id":3}]}"#, Some("3")),
        ("/id", r#"{"id":123456789012345678901234567890}"#, None),
        ("/id", r#"{"id":null}"#, None),
        ("/id", r#"{"id":{"a":1}}"#, None),
        ("/id", r#"{"id":""}"#, None),
        ("/id", "[]", None),
        ("/id", "created", None),
        ("/id", "", None),
    ] {
        let rules = Rules { downstream_id: pointer.into(), ..rules() };
        let receipt = receipt_of(classify(&answer(201, &[], body), &rules, DEDUP, true, NOW));
        assert_eq!(receipt.downstream_id.as_deref(), expected, "{body}");
    }
}

#[test]
fn receipt_keeps_the_proof_and_no_secrets() {
    let headers = [
        ("content-type", "application/json"),
        ("set-cookie", "session=secret"),
        ("request-id", "req_1"),
        ("x-request-id", "req_2"),
        ("idempotent-replayed", "true"),
        ("location", "https://user:secret@api.example.com:8443/charges/1?token=secret"),
        ("authorization", "secret"),
        ("retry-after", "1"),
    ];
    let receipt = receipt_of(classify(&answer(201, &headers, "{}"), &rules(), DEDUP, true, NOW));
    let names: Vec<&str> = receipt.headers.iter().map(|(name, _)| name.as_str()).collect();
    let kept = "content-type request-id x-request-id idempotent-replayed location retry-after";
    assert_eq!(names.join(" "), kept);
    assert_eq!(receipt.headers[4].1, "https://api.example.com:8443");
    assert!(!receipt.to_json().contains("secret"));
    assert_eq!((receipt.status, receipt.body.as_deref()), (Some(201), Some("{}")));
    assert!(!receipt.truncated);
}

#[test]
fn body_that_was_cut_is_marked() {
    for end in [BodyEnd::Truncated, BodyEnd::Broken("reset".into())] {
        let mut answer = Answer { body_end: end, ..answer(200, &[], r#"{"id":"c"#) };
        answer.body.push(0xff);
        let receipt = receipt_of(classify(&answer, &rules(), DEDUP, true, NOW));
        assert!(receipt.truncated);
        assert_eq!(receipt.downstream_id, None);
        assert_eq!(receipt.body.as_deref(), Some("{\"id\":\"c\u{fffd}"));
    }
    let mut long = answer(200, &[], "");
    long.body = vec![0xff; 16 * 1024];
    let receipt = receipt_of(classify(&long, &rules(), DEDUP, true, NOW));
    assert!(receipt.truncated);
    assert!(receipt.body.unwrap().len() <= 16 * 1024);
    let empty = receipt_of(classify(&answer(204, &[], ""), &rules(), DEDUP, true, NOW));
    assert_eq!((empty.body, empty.truncated), (None, false));
}
