//! Facts as JSON, under the names of the file's columns: times and durations are integers in
//! milliseconds.

// serde hands over a reference to the field.
#![allow(clippy::ref_option)]

use std::collections::BTreeMap;
use std::time::Duration;

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::millis;
use super::status::Status;

/// The two columns of a rate.
pub(crate) fn rate<S: Serializer>(
    rate: &Option<(u32, Duration)>,
    to: S,
) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(2))?;
    map.serialize_entry("rate_count", &rate.map(|(count, _)| count))?;
    map.serialize_entry("rate_ms", &rate.map(|(_, per)| millis(per)))?;
    map.end()
}

/// A budget: an amount in any stretch of time of a length.
pub(crate) fn budget<S: Serializer>(
    budget: &Option<(u64, Duration)>,
    to: S,
) -> Result<S::Ok, S::Error> {
    #[derive(serde::Serialize)]
    struct Budget {
        amount: u64,
        window_ms: i64,
    }
    let named = budget.map(|(amount, window)| Budget { amount, window_ms: millis(window) });
    named.serialize(to)
}

/// A number for each status, under its word.
pub(crate) fn counts<S: Serializer>(
    counts: &[u64; Status::ALL.len()],
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_map(Status::ALL.iter().map(|status| status.as_str()).zip(counts))
}

/// Headers as an object; of two with one name the last one stays.
pub(crate) fn headers<S: Serializer>(
    headers: &[(String, String)],
    to: S,
) -> Result<S::Ok, S::Error> {
    let by_name: BTreeMap<&str, &str> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    by_name.serialize(to)
}

#[cfg(test)]
mod tests {
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
            binds_ids: false,
            max_in_flight: Some(3),
            rate: Some((20, Duration::from_secs(1))),
            max_per: Some((100, Duration::from_secs(3600))),
            max_cost: None,
            max_per_tenant: None,
            max_cost_per_tenant: None,
            paused: Some(PauseKind::Auth),
            paused_until: Some(5),
            paused_since: Some(1),
            paused_by: Some("relay".into()),
            paused_reason: None,
        };
        let expected = json!({
            "operation": "pay", "downstream": "deduplicates", "window_ms": 7_200_000,
            "on_dead": "block", "provider": null, "owner": null, "key_recipe": null,
            "reconciles": true, "binds_ids": false, "max_in_flight": 3, "rate_count": 20,
            "rate_ms": 1000, "max_per": {"amount": 100, "window_ms": 3_600_000}, "max_cost": null,
            "max_per_tenant": null, "max_cost_per_tenant": null, "paused": "auth",
            "paused_since": 1, "paused_until": 5, "paused_by": "relay", "paused_reason": null,
        });
        assert_eq!(serde_json::to_value(&contract).unwrap(), expected);
        let unprotected =
            StoredContract { downstream: Downstream::Unprotected, rate: None, ..contract };
        let value = serde_json::to_value(&unprotected).unwrap();
        assert_eq!(
            (&value["downstream"], &value["window_ms"]),
            (&json!("unprotected"), &json!(null))
        );
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
        });
        assert_eq!(serde_json::to_value(&receipt).unwrap(), expected);
    }
}
