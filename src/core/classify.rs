//! The meaning of a status of HTTP that is no success, as one table; docs/http.md shows it.

use serde_json::Value;

use super::body::{Answer, BodyEnd, header, read_id, read_json};
use super::contract::Downstream;
use super::endpoint::origin_of;
use super::outcome::{Failure, Outcome, Receipt};
use super::retry_after::RetryAfter;

/// Reads an answer that is no 2xx. `first` says that no earlier attempt of this budget may have
/// reached the downstream; `now` is needed for dates in `Retry-After`.
pub(crate) fn classify(answer: &Answer, downstream: Downstream, first: bool, now: i64) -> Outcome {
    let fail = |class, meaning| failure(answer, class, meaning, now);
    match answer.status {
        307 | 308 => Outcome::Rejected(fail("redirect", "moved; redirects are not followed")),
        // Also 301 to 303: an application may act and then point to a page about it.
        300..=399 => Outcome::MaybeSent(fail("redirect", "redirects are not followed")),
        401 | 407 => Outcome::Unauthorized(fail("auth", "credentials were not accepted")),
        403 => forbidden(answer, now),
        408 | 421 | 423 | 425 => {
            Outcome::Transient(fail("transient", "not processed and may be repeated"))
        }
        409 => conflict(answer, downstream, now),
        410 => Outcome::Rejected(fail("gone", "the endpoint is gone for good")),
        422 if !first => {
            Outcome::NeedsReview(fail("key_reuse", "refused a request it may have seen before"))
        }
        429 => Outcome::Limited(fail("limited", "too many requests")),
        400..=499 => Outcome::Rejected(fail("permanent", "refused for good")),
        501 | 505 => Outcome::Rejected(fail("permanent", "not supported by the downstream")),
        511 => Outcome::Transient(fail("not_reached", "the network here asks to be logged in to")),
        500..=599 if is_replayed(answer) => {
            Outcome::NeedsReview(fail("replayed", "a stored answer that will repeat forever"))
        }
        503 => unavailable(answer, now),
        500..=599 => Outcome::MaybeSent(fail("ambiguous", "failed; may have been applied")),
        _ => Outcome::MaybeSent(fail("protocol", "no final status of HTTP")),
    }
}

/// Where keys are remembered, the request with this one is being worked on.
fn conflict(answer: &Answer, downstream: Downstream, now: i64) -> Outcome {
    let fail = |meaning| failure(answer, "conflict", meaning, now);
    match downstream {
        Downstream::DeduplicatesByKey { .. } => {
            Outcome::MaybeSent(fail("a request with this key is in progress"))
        }
        Downstream::Unprotected => {
            Outcome::NeedsReview(fail("it may exist already; on_status does not say"))
        }
    }
}

fn unavailable(answer: &Answer, now: i64) -> Outcome {
    let failure = failure(answer, "unavailable", "unavailable", now);
    // A proxy says 503 also after it has forwarded the request; a downstream that names a time
    // speaks for itself.
    if failure.retry_after.is_some() {
        Outcome::Limited(failure)
    } else {
        Outcome::MaybeSent(failure)
    }
}

/// A 403 is said to a client that was too fast, to credentials that are not accepted, and to one
/// request because of what is in it.
fn forbidden(answer: &Answer, now: i64) -> Outcome {
    let limited = failure(answer, "limited", "forbidden for now", now);
    if limited.retry_after.is_some() || is_used_up(answer) {
        return Outcome::Limited(limited);
    }
    Outcome::Transient(failure(answer, "auth", "forbidden", now))
}

/// Whether a header says that none are left of a rate limit.
fn is_used_up(answer: &Answer) -> bool {
    let is_zero = |text: &str| text.trim_ascii().parse() == Ok(0);
    ["x-ratelimit-remaining", "ratelimit-remaining", "x-rate-limit-remaining"]
        .into_iter()
        .any(|name| header(answer, name).is_some_and(is_zero))
        || header(answer, "ratelimit").is_some_and(|value| {
            value.split([';', ',']).any(|part| {
                let (name, left) = part.split_once('=').unwrap_or_default();
                matches!(name.trim_ascii(), "r" | "remaining") && is_zero(left)
            })
        })
}

/// Whether the downstream marks the answer as the stored one to an earlier request.
fn is_replayed(answer: &Answer) -> bool {
    ["idempotent-replayed", "idempotency-replayed"].into_iter().any(|name| {
        header(answer, name).is_some_and(|value| value.trim_ascii().eq_ignore_ascii_case("true"))
    })
}

/// A failure in words that hold nothing the downstream chose: they are stored, logged and listed.
pub(super) fn failure(answer: &Answer, class: &'static str, meaning: &str, now: i64) -> Failure {
    let retry_after = header(answer, "retry-after").map(|text| RetryAfter::parse(text, now));
    let mut text = message(answer.status, meaning);
    if retry_after == Some(RetryAfter::Malformed) {
        text.push_str(" (its Retry-After is malformed and was ignored)");
    }
    let failure = Failure::new(class, text).status(answer.status);
    match retry_after {
        Some(RetryAfter::Delay(delay)) => failure.retry_after(delay),
        _ => failure,
    }
}

pub(super) fn message(status: u16, meaning: &str) -> String {
    format!("HTTP {status}: {meaning}")
}

/// The receipt that an answer makes, with the provider's id at this pointer.
pub(super) fn receipt(answer: &Answer, id_pointer: &str) -> Receipt {
    let mut receipt = Receipt::new();
    if !answer.body.is_empty() {
        receipt = receipt.keep(&answer.body);
    }
    if answer.body_end != BodyEnd::Complete {
        receipt.truncated = true;
        receipt.body_bytes = header(answer, "content-length").and_then(|text| text.parse().ok());
        receipt.body_sha256 = None;
    }
    receipt.status = Some(answer.status);
    receipt.headers = answer.headers.iter().filter_map(kept).collect();
    (receipt.downstream_id, receipt.note) = read_id(answer, id_pointer);
    receipt
}

/// A header as a receipt keeps it. Others may hold secrets, such as cookies.
fn kept((name, value): &(String, String)) -> Option<(String, String)> {
    let value = match name.as_str() {
        "content-type"
        | "idempotency-replayed"
        | "idempotent-replayed"
        | "request-id"
        | "retry-after"
        | "x-request-id" => value.clone(),
        "location" => origin_of(value.trim_ascii())?,
        _ => return None,
    };
    Some((name.clone(), value))
}

/// The body as JSON, if what came of it is whole.
pub(super) fn body_json(answer: &Answer) -> Option<Value> {
    read_json(answer).ok()
}

#[cfg(test)]
pub(super) mod tests;
