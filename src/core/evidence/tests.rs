use super::*;
use crate::core::classify::receipt;

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
        ("cut sk/\"1%2", "cut ***"),
        (r#"{"cut":"sk/\"1\u00"#, r#"{"cut":"***"#),
        ("é /hooks/T0000000A quiet", "é /hooks/*** ***"),
        ("application/json, charge, v=1, sk", "application/json, charge, v=1, sk"),
    ] {
        assert_eq!(secrets().blank(text), blanked);
    }
}

/// A value that is configured percent-encoded was known in that spelling alone, a body of a form
/// was taken apart at its percent signs, and one in JSON at every sign.
#[test]
fn secrets_are_known_however_they_are_configured() {
    let blanked = |secrets: &Secrets, text: &str| secrets.blank(text);
    let mut url = Secrets::default();
    url.url("https://h/a%2Fb%2F12345/{entity_id}-T00000000?k=x%2Fy%3D+z&r=7{entity_id}&on=true");
    for (text, left) in
        [("a/b/12345 x/y= z x%2fy%3D+z", "*** *** ***"), ("e-T00000000 true 7e", "e*** true 7e")]
    {
        assert_eq!(blanked(&url, text), left);
    }
    let post = |form, body: &str| {
        let mut secrets = Secrets::default();
        secrets.post(&Post { form, body: body.to_owned() });
        secrets
    };
    let form = post(Form::Url, "pw=pa%24%24wd&ref={idempotency_key}");
    assert_eq!(blanked(&form, "pa$$wd pa%24%24wd ref key"), "*** *** ref key");
    let json = post(
        Form::Json,
        r#"{"auth":["pa$$w0rd!\n"],"at":{created_at},"q":"x {entity_id} key=K0000001 y"}"#,
    );
    assert_eq!(blanked(&json, r"pa$$w0rd!\n auth K0000001 at y"), "*** auth *** at y");
    let mut cookie = Secrets::default();
    cookie.header("cookie", "sid=S00000001; theme=dark");
    assert_eq!(blanked(&cookie, "sid S00000001 theme dark"), "sid *** theme dark");
}

/// A header of an intent for another handler may hold any text, and its lookup may go over HTTP:
/// comparing byte by byte ended within a character.
#[test]
fn secret_beyond_ascii_is_blanked_at_its_own_ends() {
    let mut secrets = Secrets::default();
    secrets.header("x-name", "Zoë Grün");
    for (text, left) in [("by Zoë Grün.", "by ***."), ("Zoë", "***"), ("Zoé Gr", "Zoé Gr")] {
        assert_eq!(secrets.blank(text), left);
    }
}

#[test]
fn receipt_loses_secrets_and_keeps_the_length_and_hash_of_what_came() {
    let hidden = |body: &str, body_end| {
        let answer = Answer { status: 200, body_end, ..answer("a/quiet", body) };
        let mut receipt = receipt(&answer, "/id");
        hide_id(&mut receipt, &secrets());
        hide(&mut receipt, &answer, &secrets());
        receipt
    };
    let body = r#"{"id":"ch_1","sent":"quiet"}"#;
    let receipt = hidden(body, BodyEnd::Complete);
    assert_eq!(receipt.body.as_deref(), Some(r#"{"id":"ch_1","sent":"***"}"#));
    assert_eq!(receipt.downstream_id.as_deref(), Some("ch_1"));
    assert_eq!(receipt.headers[0].1, "a/***");
    assert_eq!((receipt.truncated, receipt.body_bytes), (false, Some(body.len() as u64)));
    assert_eq!(receipt.body_sha256, Some(sha256(body)));

    // Across the cut, and in an answer of which the whole is not known.
    let long = "x".repeat(RECEIPT_BODY_MAX - 4) + "quiet" + &"y".repeat(100);
    let receipt = hidden(&long, BodyEnd::Complete);
    assert!(receipt.body.as_ref().is_some_and(|body| body.ends_with("x***y")));
    assert_eq!(receipt.body_sha256, Some(sha256(&long)));
    let receipt = hidden("a quiet", BodyEnd::Broken(String::new()));
    assert_eq!((receipt.body.as_deref(), receipt.body_sha256), (Some("a ***"), None));

    let receipt = hidden(r#"{"id":"for quiet"}"#, BodyEnd::Complete);
    assert_eq!(receipt.downstream_id, None);
    assert!(receipt.note.is_some_and(|note| note.contains("repeats a configured header")));
    let receipt = hidden(r#"{"id":"ch_2"}"#, BodyEnd::Complete);
    assert_eq!((receipt.body_bytes, receipt.body_sha256, receipt.note), (None, None, None));
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
        (
            "it's 'https://h/a' or https://h/a'b?c', or x",
            "it's 'https://h/…' or https://h/…', or x",
        ),
        ("http://[::1] \"amqp://u:p/w@h/v\"", "http://[::1] \"amqp:///…\""),
    ] {
        assert_eq!(without_paths(text), left);
    }
}
