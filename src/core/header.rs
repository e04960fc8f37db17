//! Which headers an intent or a configuration may carry.
//!
//! No message here repeats a value: it may be a credential.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::error::{Error, Result};

/// The header the key is sent in unless the operation says otherwise.
pub(crate) const IDEMPOTENCY_HEADER: &str = "Idempotency-Key";

/// The most headers one list may hold.
const HEADERS_MAX: usize = 50;

/// The most bytes the names and values of one list may have together.
const HEADERS_BYTES_MAX: usize = 8 * 1024;

/// Headers that frame the message or steer the connection: one that could be set freely could
/// smuggle a second request.
const RESERVED: [&str; 9] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "expect",
    "te",
    "upgrade",
    "trailer",
    "keep-alive",
];

/// Reads the headers of a stored intent: a JSON object of strings, and of numbers and booleans,
/// which stand for their text as it is written.
pub(crate) fn read(json: &str) -> Result<Vec<(String, String)>, &'static str> {
    let object: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(json).map_err(|_| "outbox.headers is no JSON object")?;
    let pair = |(name, value): (String, Box<RawValue>)| match value.get() {
        text if text.starts_with('"') => Some((name, serde_json::from_str(text).ok()?)),
        text if text == "null" || text.starts_with(['{', '[']) => None,
        text => Some((name, text.to_owned())),
    };
    let read: Option<_> = object.into_iter().map(pair).collect();
    read.ok_or("outbox.headers holds a value that is no string, number or boolean")
}

/// Checks the headers of an intent, before it is known in which header its key will be sent.
pub(crate) fn check_headers(headers: &[(String, String)]) -> Result<()> {
    let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    check_headers_beside(headers, IDEMPOTENCY_HEADER)
}

/// Checks headers that go out beside the one that carries the key.
pub(crate) fn check_headers_beside<'a>(
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    idempotency_header: &str,
) -> Result<()> {
    let mut seen: Vec<&str> = Vec::new();
    let mut bytes = 0;
    for (name, value) in headers {
        check_header(name, value, idempotency_header)?;
        if seen.iter().any(|other| other.eq_ignore_ascii_case(name)) {
            return Err(invalid(name, "is given twice"));
        }
        seen.push(name);
        bytes += name.len() + value.len();
    }
    if seen.len() > HEADERS_MAX || bytes > HEADERS_BYTES_MAX {
        let why = format!("at most {HEADERS_MAX} of together at most {HEADERS_BYTES_MAX} bytes");
        return Err(Error::invalid("headers", why));
    }
    Ok(())
}

/// Checks one header.
pub(crate) fn check_header(name: &str, value: &str, idempotency_header: &str) -> Result<()> {
    check_name(name)?;
    if name.eq_ignore_ascii_case(idempotency_header)
        || name.eq_ignore_ascii_case(IDEMPOTENCY_HEADER)
    {
        return Err(invalid(name, "is set by the relay, from the intent's key"));
    }
    if !is_value(value) {
        let why = "its value must be visible ASCII, with spaces only inside, and not empty";
        return Err(invalid(name, why));
    }
    Ok(())
}

/// Checks a header's name alone: a token, and none that belongs to the transport.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_token_char = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || !name.bytes().all(is_token_char) {
        // Not repeated either: a whole line taken for a name holds its value.
        let why = "a name must consist of ASCII letters, digits and !#$%&'*+-.^_`|~";
        return Err(Error::invalid("headers", why));
    }
    let lower = name.to_ascii_lowercase();
    if RESERVED.contains(&lower.as_str()) || lower.starts_with("proxy-") {
        return Err(invalid(name, "belongs to the transport and cannot be set"));
    }
    Ok(())
}

/// Whether a text may be the value of a header. Transports take more than this, such as tabs and
/// raw UTF-8, and receivers disagree about what those mean.
pub(crate) fn is_value(value: &str) -> bool {
    !value.is_empty()
        && value.bytes().all(|b| b.is_ascii_graphic() || b == b' ')
        && !value.starts_with(' ')
        && !value.ends_with(' ')
}

fn invalid(name: &str, reason: &str) -> Error {
    Error::invalid("headers", format!("{name} {reason}"))
}

#[cfg(test)]
mod tests;
