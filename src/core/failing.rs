//! Answers that were no success, as they are kept.

use serde_json::{Value, json};

/// The last answer to an intent that refused it, or did not tell.
///
/// Configured credentials are blanked (`***`) in it before it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct FailingAnswer {
    /// When it was recorded, in UTC milliseconds.
    pub at: i64,
    /// The HTTP status.
    pub status: u16,
    /// Selected response headers, in the order they were received.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::json::headers"))]
    pub headers: Vec<(String, String)>,
    /// The body as text, at most 16 KiB.
    pub body: String,
    /// The length of the body that was read, in bytes, before anything was cut or blanked.
    pub body_bytes: u64,
    /// The SHA-256 of that body, as 64 hexadecimal digits.
    pub body_sha256: String,
}

impl FailingAnswer {
    /// The answer as it is kept with an outcome that cannot be recorded yet.
    pub(super) fn to_json(&self) -> Value {
        let Self { at: _, status, headers, body, body_bytes, body_sha256 } = self;
        json!([status, headers, body, body_bytes, body_sha256])
    }

    /// Reads what [`to_json`](Self::to_json) wrote.
    pub(super) fn from_json(value: &Value) -> Option<Self> {
        let (status, headers, body, body_bytes, body_sha256) = (
            value[0].as_u64()?,
            value[1].as_array()?,
            value[2].as_str()?,
            value[3].as_u64()?,
            value[4].as_str()?,
        );
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some(Self {
            at: 0,
            status: u16::try_from(status).ok()?,
            headers: headers.iter().map(|pair| (text(&pair[0]), text(&pair[1]))).collect(),
            body: body.to_owned(),
            body_bytes,
            body_sha256: body_sha256.to_owned(),
        })
    }
}
