//! Deriving the idempotency key of an intent.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use super::canonical::{canonical_text, push_hex, push_string};
use crate::error::{Error, Result};

/// How many hex digits of the hash a derived key shows.
const DIGITS: usize = 40;

/// The longest key a caller may bring, in bytes.
const BROUGHT_MAX: usize = 255;

/// The idempotency key that an outbox gives to a business action, with the hash of its arguments.
///
/// `key` is `"{operation}:"` and the first 40 hex digits of the SHA-256 of
/// `{"args":…,"entity":…,"op":…,"tenant":…,"v":…}` in canonical JSON; `args_hash` is the SHA-256
/// of the canonical arguments alone. Canonical is what Python's
/// `json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))` prints, so order of
/// members, white space and spelling of numbers do not matter, and any language can derive the
/// same key.
///
/// ```
/// use sqlite_outbox::IdempotencyKey;
///
/// # fn main() -> sqlite_outbox::Result<()> {
/// let args = r#"{"currency": "eur", "amount": 4200}"#;
/// let derived = IdempotencyKey::derive("acme", "stripe.charge", "order-42", 1, args)?;
/// assert_eq!(derived.key, "stripe.charge:04ce3c5f8696d7736c9b5fc694cbe55ef78e226b");
///
/// let same = r#"{"amount":4200,"currency":"eur"}"#;
/// assert_eq!(derived, IdempotencyKey::derive("acme", "stripe.charge", "order-42", 1, same)?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct IdempotencyKey {
    /// The key.
    pub key: String,
    /// SHA-256 of the canonical arguments in hex.
    pub args_hash: String,
}

impl IdempotencyKey {
    /// Derives the key of an action from its arguments as JSON text.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where `args_json` is not JSON, or holds
    /// what not every language reads alike: an integer beyond 64 bits, a number too large for a
    /// double, a lone surrogate, more than 127 levels of nesting.
    pub fn derive(
        tenant: &str,
        operation: &str,
        entity: &str,
        version: i64,
        args_json: &str,
    ) -> Result<Self> {
        let args = canonical_text("args", args_json)?;
        let key = derive(tenant, operation, entity, version, &args);
        Ok(Self { key, args_hash: sha256(&args) })
    }

    /// The key under which the intent of a tenant (empty for none) with this stored key is sent.
    ///
    /// A derived key, and every key of an intent without a tenant, is sent as it is stored. A key
    /// that a tenant brought along is sent as `"{operation}:"` and the first 40 hex digits of the
    /// SHA-256 of `{"key":…,"tenant":…}` in canonical JSON, so that no two tenants can meet at a
    /// shared account.
    ///
    /// ```
    /// use sqlite_outbox::IdempotencyKey;
    ///
    /// # fn main() -> sqlite_outbox::Result<()> {
    /// assert_eq!(IdempotencyKey::wire_key("", "pay", "order-42")?, "order-42");
    /// let sent = IdempotencyKey::wire_key("acme", "pay", "order-42")?;
    /// assert_eq!(sent, "pay:50fad5f62b4027f528ff1c9f055bd671a72bab00");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where `key` cannot be stored: it is not 1
    /// to 255 visible ASCII characters.
    pub fn wire_key(tenant: &str, operation: &str, key: &str) -> Result<String> {
        if !has_derived_shape(operation, key) {
            check_brought(operation, key)?;
        }
        Ok(wire_key(tenant, operation, key).into_owned())
    }
}

/// The key of an action whose arguments are canonical already.
pub(crate) fn derive(
    tenant: &str,
    operation: &str,
    entity: &str,
    version: i64,
    canonical_args: &str,
) -> String {
    derived(operation, &identity(tenant, operation, entity, version, canonical_args))
}

/// SHA-256 in hex of arguments, of a body, or of a key that should not stand there itself.
pub(crate) fn sha256(text: impl AsRef<[u8]>) -> String {
    let mut hash = String::with_capacity(64);
    push_hex(&mut hash, &Sha256::digest(text));
    hash
}

/// Whether a key looks like one derived for this operation.
pub(crate) fn has_derived_shape(operation: &str, key: &str) -> bool {
    let digits = key.strip_prefix(operation).and_then(|rest| rest.strip_prefix(':'));
    digits.is_some_and(|digits| {
        digits.len() == DIGITS && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// The key as it is sent: the stored one, except where a named tenant brought its own. Two
/// tenants may bring the same key, and behind one account at the provider one of them would be
/// answered with the other's effect.
pub(crate) fn wire_key<'k>(tenant: &str, operation: &str, key: &'k str) -> Cow<'k, str> {
    if tenant.is_empty() || has_derived_shape(operation, key) {
        return key.into();
    }
    let identity = format!(r#"{{"key":{},"tenant":{}}}"#, quoted(key), quoted(tenant));
    derived(operation, &identity).into()
}

/// The key as it is sent, where that is not the stored one.
pub(crate) fn other_wire_key(tenant: &str, operation: &str, key: &str) -> Option<String> {
    match wire_key(tenant, operation, key) {
        Cow::Owned(sent) => Some(sent),
        Cow::Borrowed(_) => None,
    }
}

/// Checks a text that is part of a key: its length in characters, and that it has no NUL.
pub(crate) fn check_text(field: &str, text: &str, min: usize, max: usize) -> Result<()> {
    let length = if text.len() <= max { text.len() } else { text.chars().count() };
    if length < min || length > max {
        let why = format!("must have {min} to {max} characters, but has {length}");
        return Err(Error::invalid(field, why));
    }
    if text.contains('\0') {
        return Err(Error::invalid(field, "must not contain the NUL character"));
    }
    Ok(())
}

/// Whether a caller may bring this key.
pub(crate) fn check_brought(operation: &str, key: &str) -> Result<()> {
    let refuse = |reason: String| Err(Error::invalid("idempotency_key", reason));
    if key.is_empty() || key.len() > BROUGHT_MAX {
        let length = key.len();
        return refuse(format!(
            "is {length} bytes long; 1 to {BROUGHT_MAX} visible ASCII characters are accepted"
        ));
    }
    if let Some(at) = key.bytes().position(|byte| !byte.is_ascii_graphic()) {
        return refuse(format!(
            "has a character at byte {at} that is not visible ASCII; 1 to {BROUGHT_MAX} of those \
             are accepted"
        ));
    }
    // Such a key would pass for a derived one and escape the rules for brought keys.
    if has_derived_shape(operation, key) {
        return refuse(format!(
            "has the shape of a derived key of {operation}; leave the key out and it is derived"
        ));
    }
    Ok(())
}

/// The text whose hash the key shows. The members stand in their canonical order.
fn identity(
    tenant: &str,
    operation: &str,
    entity: &str,
    version: i64,
    canonical_args: &str,
) -> String {
    let [entity, operation, tenant] = [entity, operation, tenant].map(quoted);
    let scope = format!(r#""entity":{entity},"op":{operation},"tenant":{tenant},"v":{version}"#);
    format!(r#"{{"args":{canonical_args},{scope}}}"#)
}

fn quoted(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    push_string(&mut literal, text);
    literal
}

fn derived(operation: &str, text: &str) -> String {
    format!("{operation}:{}", &sha256(text)[..DIGITS])
}

#[cfg(test)]
mod tests;
