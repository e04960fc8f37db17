use super::*;
use crate::core::body::BodyEnd;

fn found(status: u16, body: &str, when: Option<(&str, Value)>) -> Finding {
    let answer = Answer {
        status,
        headers: vec![("retry-after".into(), "7".into())],
        left_out: 0,
        body: body.into(),
        body_end: BodyEnd::Complete,
    };
    let when = when.map(|(pointer, equals)| (pointer.to_owned(), equals));
    let rules = LookupRules { downstream_id: "/data/0/id".into(), when };
    classify_lookup(&answer, &rules, 1_800_000_000_000)
}

#[test]
fn lookup_status_200_means_applied_with_its_id() {
    let Finding::Applied(receipt) = found(200, r#"{"data":[{"id":"ch_1"}]}"#, None) else {
        panic!("it is there")
    };
    assert_eq!(receipt.downstream_id.as_deref(), Some("ch_1"));
    assert_eq!(receipt.status, Some(200));
}

#[test]
fn lookup_status_404_alone_means_not_applied() {
    assert_eq!(found(404, "", None), Finding::NotApplied);
    for status in [100, 204, 301, 302, 400, 401, 403, 405, 410, 429, 500, 503, 999] {
        let finding = found(status, "", None);
        assert!(matches!(finding, Finding::Inconclusive(_)), "{status}: {finding:?}");
    }
}

#[test]
fn lookup_answer_without_the_key_is_inconclusive() {
    let done = || Some(("/data/0/state", Value::from("done")));
    for (body, when) in [
        (r#"{"data":[]}"#, None),
        (r#"{"data":[{"id":null}]}"#, None),
        ("<html>", None),
        ("", done()),
        (r#"{"data":[{"id":"ch_1"}]}"#, done()),
        (r#"{"data":[{"id":"ch_1","state":"failed"}]}"#, done()),
    ] {
        let finding = found(200, body, when);
        assert!(matches!(finding, Finding::Inconclusive(_)), "{body}: {finding:?}");
    }
    let body = r#"{"data":[{"state":"done"}]}"#;
    assert!(matches!(found(200, body, done()), Finding::Applied(_)), "the state is enough");
}

#[test]
fn lookup_answer_says_when_to_ask_again() {
    let Finding::Inconclusive(failure) = found(429, "", None) else { panic!("not told") };
    assert_eq!(failure.retry_after, Some(std::time::Duration::from_secs(7)));
    assert_eq!(failure.class, "lookup");
}
