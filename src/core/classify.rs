//! What an HTTP answer means. One table, read by the transport; see the README for the picture.

use serde_json::Value;

use super::contract::Downstream;
use super::outcome::Outcome;

/// An HTTP answer as far as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub status: u16,
    /// All response headers; names in lower case, values as lossy text.
    pub headers: Vec<(String, String)>,
    /// At most 16 KiB of the body.
    pub body: Vec<u8>,
    pub body_end: BodyEnd,
}

/// How reading the body ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BodyEnd {
    /// The whole body was read and its end was marked by length or chunks.
    Complete,
    /// The body was longer than what is kept; reading stopped there.
    Truncated,
    /// The body ended with an error, or its end cannot be told from a cut.
    Broken(String),
}

/// What an operation says about its downstream's answers.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// JSON pointer into the body and the value there that means success.
    pub success_when: Option<(String, Value)>,
    /// What a 409 means; `None` takes the default for the downstream's contract.
    pub on_conflict: Option<OnConflict>,
    /// JSON pointer to the provider's id; default `/id`.
    pub downstream_id: String,
}

/// What a 409 from this downstream means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnConflict {
    /// A request with this key is being worked on: ask again shortly. The default where the
    /// downstream deduplicates by key.
    InProgress,
    /// The effect is there already, because the id was chosen by the client.
    Applied,
    /// Refused for good.
    Permanent,
}

/// Reads an answer. `first` says that no earlier attempt of this budget may have reached the
/// downstream; `now` is needed for dates in `Retry-After`.
pub(crate) fn classify(
    _answer: &Answer,
    _rules: &Rules,
    _downstream: Downstream,
    _first: bool,
    _now: i64,
) -> Outcome {
    unimplemented!()
}
