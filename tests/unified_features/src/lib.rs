//! Keys do not depend on the features that a build's other crates ask of `serde_json`.
#![cfg(test)]

use serde_json::Value;
use sqlite_outbox::{ErrorKind, IdempotencyKey};

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text<'a>(line: &'a Value, name: &str) -> &'a str {
    line[name].as_str().unwrap()
}

#[test]
fn features_of_serde_json_are_on() {
    let value: Value = serde_json::from_str(r#"{"b":1e2,"a":-0}"#).unwrap();
    assert!(["1e2", "1e+2"].iter().any(|n| value.to_string() == format!(r#"{{"b":{n},"a":-0}}"#)));
}

#[test]
fn key_vectors_are_met_bit_by_bit() {
    let vectors = lines(include_str!("../../vectors/idempotency_keys.jsonl"));
    assert!(vectors.len() > 300);
    for line in &vectors {
        let derived = IdempotencyKey::derive(
            text(line, "tenant_id"),
            text(line, "operation"),
            text(line, "entity_id"),
            line["intent_version"].as_i64().unwrap(),
            text(line, "args_json"),
        )
        .unwrap();
        assert_eq!(derived.key, text(line, "key"), "{line}");
        assert_eq!(derived.args_hash, text(line, "args_hash"), "{line}");
    }
}

#[test]
fn key_error_vectors_are_refused() {
    for line in lines(include_str!("../../vectors/idempotency_key_errors.jsonl")) {
        let error = IdempotencyKey::derive("t", "op", "e", 1, text(&line, "args_json"))
            .expect_err(text(&line, "why"));
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}
