use serde_json::{Value, json};

use super::*;

fn body(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn each_test_reads_null_missing_and_present() {
    for (text, [exists, non_null, absent, equals, one_of]) in [
        (r#"{"a":1}"#, [true, true, false, true, true]),
        (r#"{"a":2}"#, [true, true, false, false, true]),
        (r#"{"a":"1"}"#, [true, true, false, false, false]),
        (r#"{"a":null}"#, [true, false, true, false, false]),
        (r#"{"b":1}"#, [false, false, true, false, false]),
        ("[]", [false, false, true, false, false]),
        ("3", [false, false, true, false, false]),
    ] {
        let held = [
            Predicate::exists("/a"),
            Predicate::non_null("/a"),
            Predicate::absent("/a"),
            Predicate::equals("/a", 1),
            Predicate::one_of("/a", [1, 2]),
        ]
        .map(|predicate| predicate.holds(&body(text)));
        assert_eq!(held, [exists, non_null, absent, equals, one_of], "{text}");
    }
    assert!(Predicate::equals("/a", Value::Null).holds(&body(r#"{"a":null}"#)));
    assert!(!Predicate::equals("/a", Value::Null).holds(&body("{}")));
    assert!(Predicate::equals("", "ok").holds(&json!("ok")));
}

#[test]
fn numbers_are_compared_by_value() {
    for (wanted, written, same) in [
        ("1", "1", true),
        ("1", "1.0", true),
        ("1.0", "1e0", true),
        ("100", "1E+2", true),
        ("2.5", "2.50", true),
        ("0", "-0.0", true),
        ("-3", "-3.0", true),
        ("1", "2", false),
        ("1", "1.5", false),
        ("1", "true", false),
        ("1", "\"1\"", false),
        ("9007199254740993", "9007199254740993", true),
        ("9007199254740993", "9007199254740992", false),
        ("9007199254740993", "9007199254740992.0", false),
        ("18446744073709551615", "18446744073709551615", true),
        ("18446744073709551615", "1.8446744073709551616e19", false),
        ("-1", "18446744073709551615", false),
        ("1e300", "1e300", true),
        (r#"{"a":[1,{"b":2}]}"#, r#"{"a":[1.0,{"b":2e0}]}"#, true),
        ("[1]", "[1,1]", false),
        (r#"{"a":1}"#, r#"{"b":1}"#, false),
    ] {
        let predicate = Predicate::equals("/v", body(wanted));
        assert_eq!(predicate.holds(&json!({ "v": body(written) })), same, "{wanted} {written}");
        let turned = Predicate::equals("/v", body(written));
        assert_eq!(turned.holds(&json!({ "v": body(wanted) })), same, "{written} {wanted}");
    }
}

#[test]
fn what_cannot_be_asked_is_refused_by_the_name_of_its_field() {
    for wrong in ["a", "/a~2", "/a~"] {
        let error = Predicate::exists(wrong).checked("success_when").unwrap_err().to_string();
        assert!(error.starts_with("success_when: "), "{error}");
    }
    let none = Predicate::one_of("/a", Vec::<Value>::new());
    assert!(none.checked("limited_when").is_err());
    assert!(Predicate::absent("").checked("success_when").is_ok());
}
