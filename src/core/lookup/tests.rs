use serde_json::Value;

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
    let when = when.map(|(pointer, equals)| Predicate::equals(pointer, equals));
    let rules = LookupRules { when, ..LookupRules::new("/data/0/id") };
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

fn read(answer: &Answer, rules: &LookupRules) -> &'static str {
    match classify_lookup(answer, rules, 1_800_000_000_000) {
        Finding::Applied(_) => "applied",
        Finding::NotApplied => "not applied",
        Finding::Inconclusive(_) => "does not tell",
        finding => panic!("{finding:?}"),
    }
}

fn whole(status: u16, body: &str) -> Answer {
    Answer {
        status,
        headers: Vec::new(),
        body: body.into(),
        body_end: BodyEnd::Complete,
        left_out: 0,
    }
}

fn listed() -> LookupRules {
    LookupRules { list: Some("/data".into()), ..LookupRules::new("/id") }
}

#[test]
fn lookup_by_a_list_finds_its_only_element_or_nothing() {
    for (body, expected) in [
        (r#"{"data":[{"id":"ch_1","error":null,"next_action":"x","status":"failed"}]}"#, "applied"),
        (r#"{"data":[{"id":7}],"has_more":false,"next_page":null,"total":1}"#, "applied"),
        (r#"{"data":[]}"#, "not applied"),
        (r#"{"data":[],"errors":[],"error":null,"has_more":false,"total":0}"#, "not applied"),
        (r#"{"data":[],"status":"success","code":200,"ok":true,"url":"/next"}"#, "not applied"),
        (r#"{"data":[{"id":"ch_1"},{"id":"ch_2"}]}"#, "does not tell"),
        (r#"{"data":[{}]}"#, "does not tell"),
        (r#"{"data":[null]}"#, "does not tell"),
        (r#"{"data":[[]]}"#, "does not tell"),
        (r#"{"data":null}"#, "does not tell"),
        (r#"{"data":{}}"#, "does not tell"),
        (r#"{"data":""}"#, "does not tell"),
        (r#"{"result":{"data":[]}}"#, "does not tell"),
        ("[]", "does not tell"),
        ("{}", "does not tell"),
        ("", "does not tell"),
        (r#"{"data":[]"#, "does not tell"),
    ] {
        assert_eq!(read(&whole(200, body), &listed()), expected, "{body}");
    }
    let bare = LookupRules { list: Some(String::new()), ..LookupRules::new("/id") };
    assert_eq!(read(&whole(200, "[]"), &bare), "not applied");
    assert_eq!(read(&whole(200, r#"[{"id":"ch_1"}]"#), &bare), "applied");
}

/// A list that is empty for another reason than that nothing was applied would double the effect.
#[test]
fn lookup_with_a_sign_beside_its_list_does_not_tell() {
    for beside in [
        r#""errors":[{"message":"timed out"}]"#,
        r#""error":"index unavailable""#,
        r#""error_code":7"#,
        r#""status":"error""#,
        r#""status":503"#,
        r#""ok":false"#,
        r#""has_more":true"#,
        r#""nextPageToken":"a""#,
        r#""@odata.nextLink":"https://a.example""#,
        r#""meta":{"next_cursor":"a"}"#,
        r#""links":[{"rel":"next","href":"/2"}]"#,
        r#""pageInfo":{"hasNextPage":true}"#,
        r#""LastEvaluatedKey":{"id":"1"}"#,
        r#""incomplete_results":true"#,
        r#""IsTruncated":true"#,
        r#""timed_out":true"#,
        r#""_shards":{"failed":1}"#,
        r#""total":3"#,
        r#""offset":"itr""#,
    ] {
        for list in ["[]", r#"[{"id":"ch_1"}]"#] {
            let body = format!(r#"{{"data":{list},{beside}}}"#);
            assert_eq!(read(&whole(200, &body), &listed()), "does not tell", "{body}");
        }
    }
    let link = |text: &str| Answer {
        headers: vec![("link".into(), text.into())],
        ..whole(200, r#"{"data":[]}"#)
    };
    assert_eq!(read(&link("</2>; rel=\"next\""), &listed()), "does not tell");
    assert_eq!(read(&link("</1>; rel=first"), &listed()), "not applied");
}

#[test]
fn lookup_answer_that_is_only_a_part_never_says_not_applied() {
    let said = LookupRules {
        not_applied_when: Some(Predicate::equals("/state", "none")),
        ..LookupRules::new("/id")
    };
    for (rules, body) in [(listed(), r#"{"data":[]}"#), (said, r#"{"state":"none"}"#)] {
        assert_eq!(read(&whole(200, body), &rules), "not applied");
        for status in [202, 206, 207, 301, 400, 410, 500] {
            assert_eq!(read(&whole(status, body), &rules), "does not tell", "{status}");
        }
        for body_end in [BodyEnd::Truncated, BodyEnd::Broken("cut".into())] {
            let answer = Answer { body_end, ..whole(200, body) };
            assert_eq!(read(&answer, &rules), "does not tell");
        }
    }
}

#[test]
fn lookup_says_not_applied_by_a_value_that_is_there() {
    let rules = |not_applied_when| LookupRules {
        not_applied_when: Some(not_applied_when),
        ..LookupRules::new("/data/0/id")
    };
    let (none, null) = (serde_json::json!([]), Predicate::absent("/data/charge"));
    let none = Predicate::equals("/data", none);
    let state = Predicate::one_of("/state", ["failed", "none"]);
    for (test, body, expected) in [
        (&none, r#"{"data":[]}"#, "not applied"),
        (&none, r#"{"data":[],"has_more":true}"#, "does not tell"),
        (&none, r#"{"data":[{"id":"ch_1"}]}"#, "applied"),
        (&none, r#"{"data":null}"#, "does not tell"),
        (&null, r#"{"data":{"charge":null}}"#, "not applied"),
        (&null, r#"{"data":{"charge":null},"errors":[{"message":"late"}]}"#, "does not tell"),
        (&null, r#"{"data":null}"#, "does not tell"),
        (&null, "{}", "does not tell"),
        (&state, r#"{"state":"failed","last_error":"declined"}"#, "not applied"),
        (&state, r#"{"state":"pending"}"#, "does not tell"),
        (&state, r#"{"state":"none","data":[{"id":"ch_1"}]}"#, "does not tell"),
    ] {
        assert_eq!(read(&whole(200, body), &rules(test.clone())), expected, "{body}");
    }
}

#[test]
fn lookup_result_that_is_not_the_intents_own_does_not_tell() {
    let rules = LookupRules { matching: Some(Predicate::equals("/meta/key", "k")), ..listed() };
    for (body, expected) in [
        (r#"{"data":[{"id":"ch_1","meta":{"key":"k"}}]}"#, "applied"),
        (r#"{"data":[{"meta":{"key":"k"}}]}"#, "applied"),
        (r#"{"data":[{"id":"ch_1","meta":{"key":"k2"}}]}"#, "does not tell"),
        (r#"{"data":[{"id":"ch_1"}],"meta":{"key":"k"}}"#, "does not tell"),
        (r#"{"data":[]}"#, "not applied"),
    ] {
        assert_eq!(read(&whole(200, body), &rules), expected, "{body}");
    }
    let Finding::Applied(receipt) =
        classify_lookup(&whole(200, r#"{"data":[{"id":"ch_1"}]}"#), &listed(), 0)
    else {
        panic!("it is there")
    };
    assert_eq!(receipt.downstream_id.as_deref(), Some("ch_1"), "the id is taken within the list");
}
