//! Outcomes of attempts and lookups, as handlers and persons report them.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Value, json};

use super::failing::FailingAnswer;
use super::key::sha256;
use super::millis;
use super::setters::setters;

/// Stored proof that an intent was carried out: what the downstream answered.
///
/// Built by the HTTP handler from the response, or by a custom handler with the methods here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Receipt {
    /// The id the provider gave to the effect.
    pub downstream_id: Option<String>,
    /// The HTTP status, where there was one.
    pub status: Option<u16>,
    /// Selected response headers, in the order they were received.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::json::headers"))]
    pub headers: Vec<(String, String)>,
    /// The response body as text, at most 16 KiB.
    pub body: Option<String>,
    /// Whether the body was longer than what was kept, or could not be read to its end.
    pub truncated: bool,
    /// How long a body that was not kept as it came is as a whole, in bytes, where that is known.
    /// Configured credentials are blanked (`***`) in what is kept of an HTTP answer.
    pub body_bytes: Option<u64>,
    /// The SHA-256 of a body that was not kept as it came, in hexadecimal, where all of it was
    /// read.
    pub body_sha256: Option<String>,
    /// The parts of the answer that could not be read or used, in words for people.
    pub note: Option<String>,
}

impl Receipt {
    /// An empty receipt: the effect happened, and nothing more is known about it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the id the provider gave to the effect.
    #[must_use]
    pub fn downstream_id(mut self, id: impl Into<String>) -> Self {
        self.downstream_id = Some(id.into());
        self
    }

    /// Sets the proof itself as text. Of more than 16 KiB only the length and the SHA-256 of the
    /// whole are stored beside the beginning.
    #[must_use]
    pub fn body(self, body: impl Into<String>) -> Self {
        self.keep(body.into().as_bytes())
    }

    /// Sets the body that was read.
    pub(crate) fn keep(mut self, whole: &[u8]) -> Self {
        let is_long = whole.len() > RECEIPT_BODY_MAX;
        let part = &whole[..whole.len().min(RECEIPT_BODY_MAX)];
        let mut text = String::from_utf8_lossy(part).into_owned();
        if is_long || text.len() > RECEIPT_BODY_MAX {
            let end = (0..=RECEIPT_BODY_MAX).rev().find(|&end| text.is_char_boundary(end));
            text.truncate(end.unwrap_or(0));
            // The part may end within a character.
            if is_long && text.ends_with(char::REPLACEMENT_CHARACTER) {
                text.pop();
            }
            self.truncated = true;
            self.body_bytes = Some(whole.len() as u64);
            self.body_sha256 = Some(sha256(whole));
        }
        self.body = Some(text);
        self
    }

    /// The receipt as it is stored, without the id, which has a column of its own.
    pub(crate) fn to_json(&self) -> String {
        let headers = self.headers.iter().map(|(k, v)| (k.clone(), v.as_str().into())).collect();
        let members = [
            ("status", self.status.map(Value::from)),
            ("headers", (!self.headers.is_empty()).then_some(Value::Object(headers))),
            ("body", self.body.as_deref().map(Value::from)),
            ("truncated", self.truncated.then_some(true.into())),
            ("body_bytes", self.body_bytes.map(Value::from)),
            ("body_sha256", self.body_sha256.as_deref().map(Value::from)),
            ("note", self.note.as_deref().map(Value::from)),
        ];
        let present = members.into_iter().filter_map(|(name, value)| Some((name.into(), value?)));
        Value::Object(present.collect()).to_string()
    }

    /// Reads what [`to_json`](Self::to_json) wrote; a text of another shape becomes the body.
    pub(crate) fn from_json(downstream_id: Option<String>, text: &str) -> Self {
        let Ok(Value::Object(object)) = serde_json::from_str::<Value>(text) else {
            return Self { downstream_id, ..Self::new().body(text) };
        };
        let headers = object.get("headers").and_then(Value::as_object).into_iter().flatten();
        let status = object.get("status").and_then(Value::as_u64);
        let text = |name: &str| object.get(name).and_then(Value::as_str).map(str::to_owned);
        Self {
            downstream_id,
            status: status.and_then(|status| u16::try_from(status).ok()),
            headers: headers
                .map(|(k, v)| (k.clone(), v.as_str().unwrap_or_default().to_owned()))
                .collect(),
            body: text("body"),
            truncated: object.get("truncated").and_then(Value::as_bool).unwrap_or(false),
            body_bytes: object.get("body_bytes").and_then(Value::as_u64),
            body_sha256: text("body_sha256"),
            note: text("note"),
        }
    }
}

/// How much of a response body a receipt keeps, in bytes.
pub(crate) const RECEIPT_BODY_MAX: usize = 16 * 1024;

/// Why an attempt did not succeed.
///
/// # Classes
///
/// The class is a short, stable word. Handlers of your own may use others; these are used here:
///
/// | Class | What it says |
/// |---|---|
/// | `dns` `connect` `tls` | the host was not found, not reached, or is not who it says |
/// | `offline` | the machine itself has no route, no resolver or no interface |
/// | `not_reached` | 511; or a proxy says so, and `on_status` believes it |
/// | `timeout` `reset` `transport` | the exchange took too long, was cut, or failed otherwise |
/// | `protocol` | the answer is not HTTP, or of a status that means nothing to us |
/// | `endpoint` `header` `method` `request` | the request cannot or may not be sent as it stands |
/// | `transient` `limited` `unavailable` | 408, 421, 423, 425; 429; 503 |
/// | `ambiguous` | 500, 502, 504 and other 5xx: it may have been applied |
/// | `conflict` `key_reuse` | 409; 422 after an earlier attempt |
/// | `auth` `gone` `permanent` | 401, 403, 407; 410; other refusals for good |
/// | `redirect` | an answer that points elsewhere, which is not followed |
/// | `success_when` `body_unreadable` | a 2xx whose body does not say success, or was not read |
/// | `contradictory` `on_status` | a body that passes two tests; a status that needs review |
/// | `replayed` | a stored failure that the provider would repeat forever |
/// | `panic` | the handler panicked |
/// | `lease_lost` | the lease ran out before an outcome was recorded |
/// | `expired` `in_doubt` | not sent: past its use, or an earlier attempt may have been applied |
/// | `cancelled` | not tried again, because its cancellation was requested |
/// | `unreadable` | the row was edited into something that cannot be read |
/// | `unrecorded` | the outcome is kept: an object of the application makes recording it fail |
/// | `not_applied` `lookups` `lookup` | a lookup found nothing; all are used up; it did not tell |
/// | `duplicate_id` | the provider's id belongs to another intent |
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct Failure {
    /// A short, stable word for machines, such as `timeout`, `connect`, `permanent` or `auth`.
    pub class: Cow<'static, str>,
    /// A description for people. Must not hold secrets: it is stored, logged and listed.
    pub message: String,
    /// The HTTP status, where there was one.
    pub status: Option<u16>,
    /// How long the downstream asked to be left alone.
    pub retry_after: Option<Duration>,
    /// The answer of the downstream, without secrets.
    pub(crate) answer: Option<Box<FailingAnswer>>,
    /// Whether the request was a read, which applies nothing however often it is sent.
    pub(crate) is_of_read: bool,
}

impl Failure {
    /// A failure of this class with a message for people.
    pub fn new(class: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        let (class, message) = (class.into(), message.into());
        Self { class, message, status: None, retry_after: None, answer: None, is_of_read: false }
    }

    /// Whether the machine itself could not begin, as it has no route, no resolver or no interface.
    pub(crate) fn is_offline(&self) -> bool {
        self.class == "offline"
    }

    /// Whether the answer came from something on the way that did not reach the service.
    pub(crate) fn is_not_reached(&self) -> bool {
        self.class == "not_reached"
    }

    /// Whether something beyond the machine was heard: an answer, or a name that does not exist, a
    /// refusal or a failed handshake, which are answers too.
    pub(crate) fn proves_network(&self) -> bool {
        self.status.is_some()
            || matches!(self.class.as_ref(), "dns" | "connect" | "tls" | "reset" | "protocol")
    }
}

setters! {
    Failure:
    /// Sets the HTTP status the downstream answered.
    pub fn status(status: u16) => status = Some(status);

    /// Sets how long the downstream asked to be left alone.
    pub fn retry_after(delay: Duration) => retry_after = Some(delay);
}

/// The result of one attempt, as its handler knows it. An outcome says what happened, never what to
/// do about it: that is decided in one place, from the stored contract of the operation.
///
/// # Examples
///
/// ```
/// use std::io::ErrorKind;
/// use sqlite_outbox::{Failure, Outcome, Receipt};
///
/// fn outcome(answer: std::io::Result<String>) -> Outcome {
///     match answer {
///         Ok(id) => Outcome::Succeeded(Receipt::new().downstream_id(id)),
///         // No connection, so nothing can have left.
///         Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
///             Outcome::NotSent(Failure::new("connect", error.to_string()))
///         }
///         // Where it is not certain, it is not a failure.
///         Err(error) => Outcome::MaybeSent(Failure::new("reset", error.to_string())),
///     }
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The effect happened.
    Succeeded(Receipt),
    /// The request provably never left: no name, no connection, no handshake. Tried again with
    /// backoff for as long as it takes; uses no attempt.
    NotSent(Failure),
    /// The request may have been applied: it left, and no trustworthy answer came. Tried again
    /// only where the downstream deduplicates and still remembers the key, else `unknown`.
    MaybeSent(Failure),
    /// The downstream answered that it did not apply the request and that it may be repeated. With
    /// the class `auth` it says that this intent was refused, and perhaps because of the
    /// credentials: several different intents in a row pause the operation.
    Transient(Failure),
    /// The downstream asked to slow down and did not apply the request; uses no attempt. The
    /// operation waits, or the endpoint that the intent names; at most for 24 h.
    Limited(Failure),
    /// The downstream refused the credentials and did not apply the request. The row waits, uses
    /// no attempt, and the operation is paused, or the origin that the intent names.
    Unauthorized(Failure),
    /// The downstream refused for good and did not apply the request.
    Rejected(Failure),
    /// The answer cannot be acted on by a machine: a person must look.
    NeedsReview(Failure),
}

impl Outcome {
    /// The failure, unless the attempt succeeded.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Succeeded(_) => None,
            Self::NotSent(f)
            | Self::MaybeSent(f)
            | Self::Transient(f)
            | Self::Limited(f)
            | Self::Unauthorized(f)
            | Self::Rejected(f)
            | Self::NeedsReview(f) => Some(f),
        }
    }

    pub(crate) fn failure_mut(&mut self) -> Option<&mut Failure> {
        match self {
            Self::Succeeded(_) => None,
            Self::NotSent(f)
            | Self::MaybeSent(f)
            | Self::Transient(f)
            | Self::Limited(f)
            | Self::Unauthorized(f)
            | Self::Rejected(f)
            | Self::NeedsReview(f) => Some(f),
        }
    }

    /// The outcome as it is kept while it cannot be recorded.
    pub(crate) fn to_json(&self) -> String {
        let (kind, failure) = match self {
            Self::Succeeded(receipt) => {
                let (id, receipt) = (&receipt.downstream_id, receipt.to_json());
                return json!({ "kind": "succeeded", "id": id, "receipt": receipt }).to_string();
            }
            Self::NotSent(failure) => ("not_sent", failure),
            Self::MaybeSent(failure) => ("maybe_sent", failure),
            Self::Transient(failure) => ("transient", failure),
            Self::Limited(failure) => ("limited", failure),
            Self::Unauthorized(failure) => ("unauthorized", failure),
            Self::Rejected(failure) => ("rejected", failure),
            Self::NeedsReview(failure) => ("needs_review", failure),
        };
        let Failure { class, message, status, retry_after, answer, is_of_read } = failure;
        let answer = answer.as_deref().map(FailingAnswer::to_json);
        let retry_after_ms = retry_after.map(millis);
        json!({ "kind": kind, "class": class, "message": message, "status": status,
                "retry_after_ms": retry_after_ms, "answer": answer, "is_of_read": is_of_read })
        .to_string()
    }

    /// Reads what [`to_json`](Self::to_json) wrote; of a text of another shape a person must look.
    pub(crate) fn from_json(text: &str) -> Self {
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        let word = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let failure = Failure {
            class: word("class").into(),
            message: word("message"),
            status: value["status"].as_u64().and_then(|status| u16::try_from(status).ok()),
            retry_after: value["retry_after_ms"].as_u64().map(Duration::from_millis),
            answer: FailingAnswer::from_json(&value["answer"]).map(Box::new),
            is_of_read: value["is_of_read"] == true,
        };
        match word("kind").as_str() {
            "succeeded" => {
                let id = value["id"].as_str().map(str::to_owned);
                Self::Succeeded(Receipt::from_json(id, &word("receipt")))
            }
            "not_sent" => Self::NotSent(failure),
            "maybe_sent" => Self::MaybeSent(failure),
            "transient" => Self::Transient(failure),
            "limited" => Self::Limited(failure),
            "unauthorized" => Self::Unauthorized(failure),
            "rejected" => Self::Rejected(failure),
            "needs_review" => Self::NeedsReview(failure),
            _ => Self::NeedsReview(Failure::new("unreadable", "its kept outcome was edited")),
        }
    }

    /// Whether it is proven that this attempt did not apply the request.
    pub(crate) fn is_not_applied(&self) -> bool {
        matches!(
            self,
            Self::NotSent(_)
                | Self::Transient(_)
                | Self::Limited(_)
                | Self::Unauthorized(_)
                | Self::Rejected(_)
        )
    }
}

/// The result of a lookup of an intent that may have been applied. A finding says what was found,
/// never what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// The effect is there. The intent is settled with this receipt.
    Applied(Receipt),
    /// The system of record answered that there is no such effect. The intent is sent once more,
    /// under the same key, if this relay has known of the doubt for the settle delay and no other
    /// can still be sending it; otherwise it is asked about again.
    NotApplied,
    /// The answer does not tell. Asked again with growing waits, until the lookups are used up.
    Inconclusive(Failure),
    /// The question provably never left: no name, no connection. Asked again for as long as it
    /// takes; uses no lookup.
    NotAsked(Failure),
}

impl Finding {
    /// The failure of a lookup that did not tell.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Inconclusive(failure) | Self::NotAsked(failure) => Some(failure),
            Self::Applied(_) | Self::NotApplied => None,
        }
    }

    pub(crate) fn failure_mut(&mut self) -> Option<&mut Failure> {
        match self {
            Self::Inconclusive(failure) | Self::NotAsked(failure) => Some(failure),
            Self::Applied(_) | Self::NotApplied => None,
        }
    }
}

/// A person's finding about an intent that may have been applied.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resolution {
    /// The intent was applied: it is settled as succeeded.
    Applied {
        /// The id the provider gave to the effect, where it is known.
        downstream_id: Option<String>,
    },
    /// The intent was not applied, and cannot be any more: it is sent again under the same key,
    /// with a fresh budget; or it is cancelled, where that had been requested.
    NotApplied,
    /// The intent is given up, whether it was applied or not.
    Dead,
}
