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

/// Budgets: amounts in any stretch of times of a length.
pub(crate) fn budgets<S: Serializer>(
    budgets: &[(u64, Duration)],
    to: S,
) -> Result<S::Ok, S::Error> {
    #[derive(serde::Serialize)]
    struct Budget {
        amount: u64,
        window_ms: i64,
    }
    to.collect_seq(
        budgets.iter().map(|&(amount, window)| Budget { amount, window_ms: millis(window) }),
    )
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
mod tests;
