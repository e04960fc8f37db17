use serde_json::Value;

use super::*;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text<'a>(line: &'a Value, name: &str) -> &'a str {
    line[name].as_str().unwrap()
}

#[test]
fn key_vectors_are_met_bit_by_bit() {
    let vectors = lines(include_str!("../../../tests/vectors/idempotency_keys.jsonl"));
    assert!(vectors.len() > 300);
    for line in &vectors {
        let [tenant, operation, entity] =
            ["tenant_id", "operation", "entity_id"].map(|name| text(line, name));
        let version = line["intent_version"].as_i64().unwrap();
        let args_json = text(line, "args_json");
        let args = canonical_text("args", args_json).unwrap();
        assert_eq!(identity(tenant, operation, entity, version, &args), text(line, "canonical"));
        let derived =
            IdempotencyKey::derive(tenant, operation, entity, version, args_json).unwrap();
        assert_eq!(derived.key, text(line, "key"));
        assert_eq!(derived.args_hash, text(line, "args_hash"));
        assert!(has_derived_shape(operation, &derived.key));
    }
}

#[test]
fn key_error_vectors_are_refused() {
    let vectors = lines(include_str!("../../../tests/vectors/idempotency_key_errors.jsonl"));
    assert!(!vectors.is_empty());
    for line in &vectors {
        let error = IdempotencyKey::derive("t", "op", "e", 1, text(line, "args_json"))
            .expect_err(text(line, "why"));
        assert!(error.to_string().starts_with("args: "), "{error}");
    }
}

#[test]
fn derived_key_is_the_operation_and_forty_lower_hex_digits() {
    let hex = "0123456789abcdef0123456789abcdef01234567";
    for (key, expected) in [
        (format!("op:{hex}"), true),
        (format!("other:{hex}"), false),
        (format!("op{hex}"), false),
        (format!("op:{}", hex.to_uppercase()), false),
        (format!("op:{hex}0"), false),
        (format!("op:{}", &hex[1..]), false),
        (format!("op:op:{hex}"), false),
        (String::new(), false),
    ] {
        assert_eq!(has_derived_shape("op", &key), expected, "{key}");
    }
}

#[test]
fn brought_key_of_a_named_tenant_changes_on_the_wire() {
    let derived = derive("acme", "op", "e", 1, "{}");
    assert_eq!(wire_key("acme", "op", &derived), derived);
    assert_eq!(wire_key("", "op", "mine"), "mine");
    let sent = wire_key("acme", "op", "mine");
    let hash = sha256(r#"{"key":"mine","tenant":"acme"}"#);
    assert_eq!(sent, format!("op:{}", &hash[..40]));
    assert_ne!(sent, wire_key("other", "op", "mine"));
    // A key derived for another operation was brought as far as this one is concerned.
    assert_ne!(wire_key("acme", "other", &derived), derived);
}

#[test]
fn brought_key_is_one_to_255_visible_ascii_characters_of_another_shape() {
    let refusal = |key: &str| check_brought("op", key).unwrap_err().to_string();
    for key in ["k", "!", "~", "a\"b\\c", &"k".repeat(255), "op:short"] {
        check_brought("op", key).unwrap();
    }
    assert!(refusal("").contains("is 0 bytes long"));
    assert!(refusal(&"k".repeat(256)).contains("is 256 bytes long"));
    assert!(refusal(&"ж".repeat(128)).contains("is 256 bytes long"));
    assert!(refusal(&"ж".repeat(127)).contains("at byte 0"));
    for key in ["ab c", "ab\tc", "ab\0c", "ab\u{7f}c", "abéc", "ab\r\nc"] {
        assert!(refusal(key).contains("at byte 2"), "{key:?}");
    }
    assert!(refusal(&derive("", "op", "e", 1, "{}")).contains("leave the key out"));
}
