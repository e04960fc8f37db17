use serde_json::json;

use super::*;
use crate::core::contract::{Downstream, OnDead, StoredContract};
use crate::core::entry::OperationStats;
use crate::core::outcome::Receipt;
use crate::core::pause::PauseKind;

#[test]
fn contract_is_flat_and_in_milliseconds() {
    let contract = StoredContract {
        operation: "pay".into(),
        downstream: Downstream::DeduplicatesByKey { window: Duration::from_secs(7200) },
        on_dead: OnDead::Block,
        provider: None,
        owner: None,
        key_recipe: None,
        reconciles: true,
        repeat_safe: true,
        repeat_rules: vec![],
        binds_ids: false,
        max_in_flight: Some(3),
        rate: Some((20, Duration::from_secs(1))),
        max_per: vec![(100, Duration::from_secs(3600))],
        max_cost: Vec::new(),
        max_per_tenant: Vec::new(),
        max_cost_per_tenant: Vec::new(),
        max_per_run: Vec::new(),
        max_cost_per_run: Vec::new(),
        paused: Some(PauseKind::Auth),
        paused_until: Some(5),
        paused_since: Some(1),
        paused_by: Some("relay".into()),
        paused_reason: None,
        paused_culprit: Some(7),
        throttled_until: None,
        throttled_since: None,
        throttled_by: None,
        holds: vec![],
    };
    let expected = json!({
        "operation": "pay", "downstream": "deduplicates", "window_ms": 7_200_000,
        "on_dead": "block", "provider": null, "owner": null, "key_recipe": null,
        "reconciles": true, "repeat_safe": true, "repeat_rules": [],
        "binds_ids": false, "max_in_flight": 3, "rate_count": 20,
        "rate_ms": 1000, "max_per": [{"amount": 100, "window_ms": 3_600_000}], "max_cost": [],
        "max_per_tenant": [], "max_cost_per_tenant": [],
        "max_per_run": [], "max_cost_per_run": [], "paused": "auth",
        "paused_since": 1, "paused_until": 5, "paused_by": "relay", "paused_reason": null,
        "paused_culprit": 7, "throttled_until": null, "throttled_since": null,
        "throttled_by": null, "holds": [],
    });
    assert_eq!(serde_json::to_value(&contract).unwrap(), expected);
    let unprotected =
        StoredContract { downstream: Downstream::Unprotected, rate: None, ..contract };
    let value = serde_json::to_value(&unprotected).unwrap();
    assert_eq!((&value["downstream"], &value["window_ms"]), (&json!("unprotected"), &json!(null)));
    assert_eq!(value["rate_count"], json!(null));
}

#[test]
fn stats_have_a_number_for_every_status() {
    let mut counts = [0; Status::ALL.len()];
    counts[Status::Dead as usize] = 4;
    let stats = OperationStats {
        operation: "pay".into(),
        registered: true,
        counts,
        oldest_due_at: None,
        duplicate_effects: 1,
    };
    let expected = json!({
        "operation": "pay", "registered": true, "pending": 0, "in_flight": 0, "unknown": 0,
        "needs_review": 0, "dead": 4, "succeeded": 0, "cancelled": 0, "oldest_due_at": null,
        "duplicate_effects": 1,
    });
    assert_eq!(serde_json::to_value(&stats).unwrap(), expected);
}

#[test]
fn receipt_has_its_headers_as_an_object() {
    let mut receipt = Receipt::new().downstream_id("ch_1").body("ok");
    receipt.headers = vec![("b".into(), "1".into()), ("a".into(), "2".into())];
    let expected = json!({
        "downstream_id": "ch_1", "status": null, "headers": {"a": "2", "b": "1"},
        "body": "ok", "truncated": false,
        "body_bytes": null, "body_sha256": null, "note": null,
    });
    assert_eq!(serde_json::to_value(&receipt).unwrap(), expected);
}
