use super::*;
use crate::core::classify::tests::{DEDUP, NOW, UNPROTECTED, answer, word};
use crate::core::outcome::Receipt;

const ASKED: Asked<'_> = Asked { downstream: DEDUP, first: true, stored: &[], now: NOW };

fn rules() -> Rules {
    Rules { downstream_id: "/id".into(), ..Rules::default() }
}

fn receipt_of(outcome: Outcome) -> Receipt {
    match outcome {
        Outcome::Succeeded(receipt) => receipt,
        other => panic!("not a success: {other:?}"),
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
        let outcome = judge(&answer, &slack, &ASKED);
        assert_eq!(word(&outcome), expected, "{body}");
        if let Some(failure) = outcome.failure() {
            assert_eq!((failure.status, failure.retry_after), (Some(200), None));
        }
    }
    let number = Rules { success_when: Some(Predicate::equals("", 1)), ..rules() };
    let cut = Answer { body_end: broken(), ..answer(200, &[], "1") };
    let outcome = judge(&cut, &number, &ASKED);
    assert_eq!(word(&outcome), "maybe_sent/body_unreadable");
    // Without the rule the status alone decides.
    assert_eq!(word(&judge(&cut, &rules(), &ASKED)), "succeeded");
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
        let receipt = receipt_of(judge(&answer(201, &[], body), &rules, &ASKED));
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
    let receipt = receipt_of(judge(&answer(201, &headers, "{}"), &rules(), &ASKED));
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
        let receipt = receipt_of(judge(&answer, &rules(), &ASKED));
        assert!(receipt.truncated);
        assert_eq!(receipt.downstream_id, None);
        assert_eq!(receipt.body.as_deref(), Some("{\"id\":\"c\u{fffd}"));
    }
    let mut long = answer(200, &[], "");
    long.body = vec![0xff; 16 * 1024];
    let receipt = receipt_of(judge(&long, &rules(), &ASKED));
    assert!(receipt.truncated);
    assert!(receipt.body.unwrap().len() <= 16 * 1024);
    let empty = receipt_of(judge(&answer(204, &[], ""), &rules(), &ASKED));
    assert_eq!((empty.body, empty.truncated), (None, false));
}

fn unprotected(stored: &[String]) -> Asked<'_> {
    Asked { downstream: UNPROTECTED, stored, ..ASKED }
}

#[test]
fn body_decides_before_the_status() {
    let at = |value: &str| Predicate::equals("/state", value);
    let rules = Rules {
        success_when: Some(at("done")),
        rejected_when: Some(at("refused")),
        transient_when: Some(at("busy")),
        limited_when: Some(at("slow down")),
        ..rules()
    };
    for (state, expected) in [
        ("done", "succeeded"),
        ("refused", "rejected/permanent"),
        ("busy", "transient/transient"),
        ("slow down", "limited/limited"),
    ] {
        let body = format!(r#"{{"id":"a","state":"{state}"}}"#);
        for status in [200, 202, 400, 401, 403, 404, 409, 422, 429, 500, 503] {
            // Stored, every rule holds at every status.
            let stored = rules.repeat_rules();
            let outcome = judge(&answer(status, &[], &body), &rules, &unprotected(&stored));
            assert_eq!(word(&outcome), expected, "{status} {state}");
        }
    }
    for (status, body, expected) in [
        (200, r#"{"state":"else"}"#, "needs_review/success_when"),
        (404, r#"{"state":"else"}"#, "rejected/permanent"),
        (404, "not JSON", "rejected/permanent"),
        (500, "not JSON", "maybe_sent/ambiguous"),
        (204, "", "needs_review/success_when"),
    ] {
        let outcome = judge(&answer(status, &[], body), &rules, &unprotected(&[]));
        assert_eq!(word(&outcome), expected, "{status} {body}");
    }
}

#[test]
fn value_that_is_missing_or_there_makes_no_failure_a_success() {
    for test in [Predicate::absent("/error"), Predicate::exists("/x"), Predicate::non_null("/x")] {
        let rules = Rules { success_when: Some(test.clone()), ..rules() };
        for (status, expected) in
            [(200, "succeeded"), (404, "rejected/permanent"), (500, "maybe_sent/ambiguous")]
        {
            let outcome = judge(&answer(status, &[], r#"{"x":1}"#), &rules, &ASKED);
            assert_eq!(word(&outcome), expected, "{test} {status}");
        }
    }
}

#[test]
fn body_that_cannot_be_read_is_never_a_success_where_a_test_is_set() {
    let test = || Some(Predicate::equals("/state", "x"));
    let each = [
        Rules { success_when: test(), ..rules() },
        Rules { rejected_when: test(), ..rules() },
        Rules { transient_when: test(), ..rules() },
        Rules { limited_when: test(), ..rules() },
        Rules { not_applied_when: test(), ..rules() },
    ];
    for mut rules in each {
        rules.set_status(404, Meaning::Applied).unwrap();
        for status in [200, 204, 404] {
            for body in ["", "<html>", "{"] {
                let whole = answer(status, &[], body);
                let cut = Answer { body_end: BodyEnd::Broken("reset".into()), ..whole.clone() };
                let words = [&whole, &cut].map(|answer| word(&judge(answer, &rules, &ASKED)));
                let expected = ["needs_review/success_when", "maybe_sent/body_unreadable"];
                assert_eq!(words, expected, "{status} {body}");
            }
        }
        // A body that can be read and says nothing else leaves it to the status.
        let said = word(&judge(&answer(404, &[], "{}"), &rules, &ASKED));
        assert_eq!(said, "succeeded");
    }
}

#[test]
fn body_that_says_two_things_needs_review() {
    let rules = Rules {
        success_when: Some(Predicate::non_null("/id")),
        rejected_when: Some(Predicate::non_null("/error")),
        transient_when: Some(Predicate::equals("/error", "busy")),
        not_applied_when: Some(Predicate::equals("/error", "busy")),
        ..rules()
    };
    for (status, body, expected) in [
        (200, r#"{"id":1,"error":"no"}"#, "needs_review/contradictory"),
        (503, r#"{"error":"busy"}"#, "needs_review/contradictory"),
        (400, r#"{"id":1,"error":"no"}"#, "rejected/permanent"),
        (200, r#"{"id":1,"error":null}"#, "succeeded"),
    ] {
        let outcome = judge(&answer(status, &[], body), &rules, &ASKED);
        assert_eq!(word(&outcome), expected, "{body}");
    }
    // Two tests with one meaning are no contradiction.
    let rules = Rules { rejected_when: None, ..rules };
    let stored = rules.repeat_rules();
    let outcome = judge(&answer(503, &[], r#"{"error":"busy"}"#), &rules, &unprotected(&stored));
    assert_eq!(word(&outcome), "transient/transient");
}

/// The property that protects from a second effect: whatever the rules, an answer that leaves open
/// whether the request was applied proves that it was not only by a rule in the stored contract.
#[test]
fn answer_that_may_have_been_applied_is_repeated_by_stored_rules_alone() {
    let busy = || Some(Predicate::equals("/e", "busy"));
    let tests = Rules { transient_when: busy(), not_applied_when: busy(), ..rules() };
    let limited = Rules { limited_when: busy(), ..rules() };
    for status in (200..=599).filter(|status| !matches!(status, 400..=499)) {
        let mut all = vec![tests.clone(), limited.clone()];
        for meaning in Meaning::ALL {
            let mut mapped = rules();
            if mapped.set_status(status, *meaning).is_ok() {
                all.push(mapped);
            }
        }
        for rules in all {
            for body_end in [BodyEnd::Complete, BodyEnd::Broken("reset".into())] {
                let is_whole_success = status < 300 && body_end == BodyEnd::Complete;
                for headers in [&[][..], &[("stripe-should-retry", "true")]] {
                    let body_end = body_end.clone();
                    let answer = Answer { body_end, ..answer(status, headers, r#"{"e":"busy"}"#) };
                    let outcome = judge(&answer, &rules, &unprotected(&[]));
                    let plain = judge(&answer, &self::rules(), &unprotected(&[]));
                    let repeats = |outcome: &Outcome| {
                        matches!(
                            outcome,
                            Outcome::NotSent(_)
                                | Outcome::Transient(_)
                                | Outcome::Limited(_)
                                | Outcome::Unauthorized(_)
                        )
                    };
                    let is_safe = !repeats(&outcome) || repeats(&plain) || is_whole_success;
                    assert!(is_safe, "{status} {rules:?}: {outcome:?}");
                    let stored = rules.repeat_rules();
                    let believed = judge(&answer, &rules, &unprotected(&stored));
                    if rules.transient_when.is_some() {
                        assert!(repeats(&believed), "{status}: {believed:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn status_map_has_the_last_word_on_a_body_that_says_nothing() {
    let mut rules = rules();
    for (status, meaning, expected) in [
        (403, Meaning::Rejected, "rejected/permanent"),
        (404, Meaning::Applied, "succeeded"),
        (409, Meaning::InDoubt, "maybe_sent/conflict"),
        (410, Meaning::Transient, "transient/transient"),
        (422, Meaning::Limited, "limited/limited"),
        (402, Meaning::Unauthorized, "unauthorized/auth"),
        (207, Meaning::NeedsReview, "needs_review/on_status"),
        (202, Meaning::InDoubt, "maybe_sent/ambiguous"),
        (529, Meaning::Transient, "maybe_sent/ambiguous"),
        (521, Meaning::NotReached, "maybe_sent/ambiguous"),
        (500, Meaning::Rejected, "rejected/permanent"),
    ] {
        rules.set_status(status, meaning).unwrap();
        let outcome = judge(&answer(status, &[], "text"), &rules, &unprotected(&[]));
        assert_eq!(word(&outcome), expected, "{status}");
    }
    let stored = ["on_status 521 = not_reached", "on_status 529 = transient"];
    assert_eq!(rules.repeat_rules(), stored);
    let stored = stored.map(str::to_owned);
    for (status, expected) in [(521, "transient/not_reached"), (529, "transient/transient")] {
        let outcome = judge(&answer(status, &[], "text"), &rules, &unprotected(&stored));
        assert_eq!(word(&outcome), expected, "{status}");
    }
}

#[test]
fn status_map_refuses_what_a_status_cannot_mean() {
    for status in [0, 100, 199, 600, 999] {
        assert!(rules().set_status(status, Meaning::NeedsReview).is_err(), "{status}");
    }
    for meaning in Meaning::ALL {
        let is_doubt = matches!(meaning, Meaning::InDoubt | Meaning::NeedsReview);
        assert_eq!(rules().set_status(200, *meaning).is_ok(), is_doubt, "{meaning}");
    }
    for status in 300..=599 {
        let can = rules().set_status(status, Meaning::NotReached).is_ok();
        assert_eq!(can, matches!(status, 521 | 523 | 525 | 526 | 530), "{status}");
    }
}

#[test]
fn advice_to_try_again_is_heeded_where_it_is_safe() {
    for (status, advice, expected) in [
        (400, "true", "transient/transient"),
        (400, "false", "rejected/permanent"),
        (401, "true", "unauthorized/auth"),
        (408, "false", "rejected/permanent"),
        (409, "true", "needs_review/conflict"),
        (410, "true", "rejected/gone"),
        (429, "true", "limited/limited"),
        (500, "true", "maybe_sent/ambiguous"),
        (500, "false", "needs_review/ambiguous"),
        (501, "true", "rejected/permanent"),
        (308, "true", "rejected/redirect"),
        (200, "false", "succeeded"),
        (400, "perhaps", "rejected/permanent"),
    ] {
        for name in ["stripe-should-retry", "x-should-retry"] {
            let answer = answer(status, &[(name, advice)], "");
            let outcome = judge(&answer, &rules(), &unprotected(&[]));
            assert_eq!(word(&outcome), expected, "{status} {advice}");
        }
    }
}
