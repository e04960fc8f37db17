use std::time::Duration;

use super::*;

pub(in crate::core) const NOW: i64 = 1_700_000_000_000;
pub(in crate::core) const DEDUP: Downstream =
    Downstream::DeduplicatesByKey { window: Duration::from_secs(86_400) };
pub(in crate::core) const UNPROTECTED: Downstream = Downstream::Unprotected;

pub(in crate::core) fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Answer {
    Answer {
        status,
        headers: headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
        left_out: 0,
        body: body.as_bytes().to_vec(),
        body_end: BodyEnd::Complete,
    }
}

/// The kind of the outcome and the class of its failure in one word.
pub(in crate::core) fn word(outcome: &Outcome) -> String {
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

/// The table of docs/http.md, status by status.
fn expected(status: u16, downstream: Downstream, first: bool) -> &'static str {
    match status {
        307 | 308 => "rejected/redirect",
        300..=399 => "maybe_sent/redirect",
        401 | 407 => "unauthorized/auth",
        403 => "transient/auth",
        408 | 421 | 423 | 425 => "transient/transient",
        409 if downstream == UNPROTECTED => "needs_review/conflict",
        409 => "maybe_sent/conflict",
        410 => "rejected/gone",
        422 if !first => "needs_review/key_reuse",
        429 => "limited/limited",
        400..=499 | 501 | 505 => "rejected/permanent",
        503 => "maybe_sent/unavailable",
        511 => "transient/not_reached",
        500..=599 => "maybe_sent/ambiguous",
        _ => "maybe_sent/protocol",
    }
}

#[test]
fn status_of_every_number_has_its_meaning() {
    for status in (0..200).chain(300..=1000).chain([u16::MAX]) {
        for downstream in [DEDUP, UNPROTECTED] {
            for first in [true, false] {
                let answer = answer(status, &[], "secret");
                let outcome = classify(&answer, downstream, first, NOW);
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
            let outcome = classify(&answer, DEDUP, true, NOW);
            let failure = outcome.failure().unwrap();
            let delay = u64::try_from(seconds).ok().map(Duration::from_secs);
            assert_eq!(failure.retry_after, delay, "{status} {text}");
            assert_eq!(failure.message.contains("Retry-After is malformed"), delay.is_none());
            assert_eq!(word(&outcome), if delay.is_some() { asked } else { plain });
            assert!(!failure.message.contains(text) || text == "0");
        }
    }
    let unprotected = answer(503, &[("retry-after", "1")], "");
    let outcome = classify(&unprotected, UNPROTECTED, true, NOW);
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
        let outcome = classify(&answer(403, &[(name, value)], ""), DEDUP, true, NOW);
        assert_eq!(word(&outcome), expected, "{name}: {value}");
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
        (400, ("idempotent-replayed", "true"), "rejected/permanent"),
    ] {
        let outcome = classify(&answer(status, &[header], ""), DEDUP, true, NOW);
        assert_eq!(word(&outcome), expected, "{status} {header:?}");
    }
}
