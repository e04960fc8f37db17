//! The meaning of an HTTP answer to a lookup.

use serde_json::Value;

use super::body::Answer;
use super::classify::{body_json, failure, receipt};
use super::outcome::Finding;

/// How the answer to a lookup is read.
#[derive(Debug, Clone)]
pub(crate) struct LookupRules {
    /// JSON pointer to the provider's id; default `/id`.
    pub downstream_id: String,
    /// JSON pointer into the body and the value there that means it was applied.
    pub when: Option<(String, Value)>,
}

/// Reads an answer. `now` is needed for dates in `Retry-After`.
pub(crate) fn classify_lookup(answer: &Answer, rules: &LookupRules, now: i64) -> Finding {
    let unsure = |meaning| Finding::Inconclusive(failure(answer, "lookup", meaning, now));
    match answer.status {
        200..=299 => {}
        404 => return Finding::NotApplied,
        _ => return unsure("the lookup was not answered"),
    }
    let receipt = receipt(answer, &rules.downstream_id);
    match (&rules.when, body_json(answer)) {
        (_, None) => unsure("the lookup was not answered with JSON"),
        (Some((pointer, equals)), Some(body)) if body.pointer(pointer) != Some(equals) => {
            unsure("the lookup found it, but not as it is when applied")
        }
        // An empty list of matches is answered with 200 as well.
        (None, Some(_)) if receipt.downstream_id.is_none() => {
            unsure("the lookup was answered without an id")
        }
        _ => Finding::Applied(receipt),
    }
}

#[cfg(test)]
mod tests;
