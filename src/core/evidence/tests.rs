use super::*;
use crate::core::body::BodyEnd;

fn secrets() -> Secrets {
    let mut secrets = Secrets::default();
    secrets.header("authorization", "Bearer sk/\"1 \\x");
    secrets.header("accept", "application/json");
    secrets.url("https://h/hooks/T0000000A/charge?token=quiet&v=1");
    secrets
}

fn answer(kind: &str, body: &str) -> Answer {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Answer {
        left_out: 0,
        status: 400,
        headers: vec![
            pair("content-type", kind),
            pair("set-cookie", "a=b"),
            pair("x-request-id", "r1"),
        ],
        body: body.into(),
        body_end: BodyEnd::Complete,
    }
}

#[test]
fn secrets_are_blanked_in_every_spelling() {
    for (text, blanked) in [
        ("a Bearer sk/\"1 \\x b", "a *** b"),
        (r#"{"key":"sk\/\"1 \\x"}"#, r#"{"key":"***"}"#),
        (r"sk\u002f\u00221\u0020\u005Cx!", "***!"),
        ("k=sk%2F%221+%5cx&b", "k=***&b"),
        ("cut sk/\"1", "cut ***"),
        ("é /hooks/T0000000A quiet", "é /hooks/*** ***"),
        ("application/json, charge, v=1, sk", "application/json, charge, v=1, sk"),
    ] {
        assert_eq!(secrets().blank(text), blanked);
    }
}

#[test]
fn answer_is_kept_and_the_message_has_a_problems_type_and_title_alone() {
    let body = r#"{"type":"https://e.com/p/funds?t=quiet","title":"No\u202e\u001bfunds quiet",
                   "detail":"DETAIL"}"#;
    let mut failure = Failure::new("permanent", "HTTP 400: refused");
    attach(&mut failure, &answer("application/problem+json; charset=utf-8", body), &secrets());
    let said = r"HTTP 400: refused (problem e.com/p/funds: No\u{202e}\u{1b}funds ***)";
    assert_eq!(failure.message, said);
    let kept = failure.answer.clone().unwrap();
    assert!(kept.body.contains("DETAIL") && !kept.body.contains("quiet"), "{kept:?}");
    assert_eq!((kept.body_bytes, kept.headers.len()), (body.len() as u64, 2));
    assert_eq!(kept.body_sha256, sha256(body));
    assert_eq!(FailingAnswer::from_json(&kept.to_json()), Some(*kept));

    let mut failure = Failure::new("permanent", "HTTP 400: refused");
    let long = "é".repeat(20_000) + "quiet";
    attach(&mut failure, &answer("application/json", &long), &secrets());
    assert_eq!(failure.message, "HTTP 400: refused");
    let kept = failure.answer.unwrap();
    assert_eq!((kept.body.len(), kept.body_bytes), (RECEIPT_BODY_MAX, 40_005));
}

#[test]
fn urls_lose_all_but_scheme_host_and_port() {
    for (text, left) in [
        ("no URL: a/b?c", "no URL: a/b?c"),
        ("https://h:443: refused", "https://h:443: refused"),
        ("for url (https://u:p@h/x?k=1): closed", "for url (https://h/…): closed"),
        ("at https://h?k=1, then http://[::1]:80/a.", "at https://h/…, then http://[::1]:80/…."),
        ("http://[::1] \"amqp://u:p/w@h/v\"", "http://[::1] \"amqp:///…\""),
    ] {
        assert_eq!(without_paths(text), left);
    }
}
