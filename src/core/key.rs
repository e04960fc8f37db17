//! Deriving the idempotency key of an intent.

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

/// SHA-256 in hex of canonical arguments, or of a key that should not stand there itself.
pub(crate) fn sha256(text: &str) -> String {
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
pub(crate) fn wire_key(tenant: &str, operation: &str, key: &str) -> String {
    if tenant.is_empty() || has_derived_shape(operation, key) {
        return key.to_owned();
    }
    derived(operation, &format!(r#"{{"key":{},"tenant":{}}}"#, quoted(key), quoted(tenant)))
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
mod tests {
    use serde_json::Value;

    use super::*;

    fn lines(text: &str) -> Vec<Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn text<'a>(line: &'a Value, name: &str) -> &'a str {
        line[name].as_str().unwrap()
    }

    #[test]
    fn key_vectors_are_met_bit_by_bit() {
        let vectors = lines(include_str!("../../tests/vectors/idempotency_keys.jsonl"));
        assert!(vectors.len() > 300);
        for line in &vectors {
            let [tenant, operation, entity] =
                ["tenant_id", "operation", "entity_id"].map(|name| text(line, name));
            let version = line["intent_version"].as_i64().unwrap();
            let args_json = text(line, "args_json");
            let args = canonical_text("args", args_json).unwrap();
            assert_eq!(
                identity(tenant, operation, entity, version, &args),
                text(line, "canonical")
            );
            let derived =
                IdempotencyKey::derive(tenant, operation, entity, version, args_json).unwrap();
            assert_eq!(derived.key, text(line, "key"));
            assert_eq!(derived.args_hash, text(line, "args_hash"));
            assert!(has_derived_shape(operation, &derived.key));
        }
    }

    #[test]
    fn key_error_vectors_are_refused() {
        let vectors = lines(include_str!("../../tests/vectors/idempotency_key_errors.jsonl"));
        assert!(!vectors.is_empty());
        for line in &vectors {
            let error = IdempotencyKey::derive("t", "op", "e", 1, text(line, "args_json"))
                .expect_err(text(line, "why"));
            assert!(error.to_string().starts_with("args: "), "{error}");
        }
    }

    #[test]
    fn derived_key_is_the_operation_and_forty_lower_hex_digits() {
        let hex = "0123456789abcdef0123456789abcdef01234567";
        for (key, expected) in [
            (format!("op:{hex}"), true),
            (format!("other:{hex}"), false),
            (format!("op{hex}"), false),
            (format!("op:{}", hex.to_uppercase()), false),
            (format!("op:{hex}0"), false),
            (format!("op:{}", &hex[1..]), false),
            (format!("op:op:{hex}"), false),
            (String::new(), false),
        ] {
            assert_eq!(has_derived_shape("op", &key), expected, "{key}");
        }
    }

    #[test]
    fn brought_key_of_a_named_tenant_changes_on_the_wire() {
        let derived = derive("acme", "op", "e", 1, "{}");
        assert_eq!(wire_key("acme", "op", &derived), derived);
        assert_eq!(wire_key("", "op", "mine"), "mine");
        let sent = wire_key("acme", "op", "mine");
        let hash = sha256(r#"{"key":"mine","tenant":"acme"}"#);
        assert_eq!(sent, format!("op:{}", &hash[..40]));
        assert_ne!(sent, wire_key("other", "op", "mine"));
        // A key derived for another operation was brought as far as this one is concerned.
        assert_ne!(wire_key("acme", "other", &derived), derived);
    }

    #[test]
    fn brought_key_is_one_to_255_visible_ascii_characters_of_another_shape() {
        let refusal = |key: &str| check_brought("op", key).unwrap_err().to_string();
        for key in ["k", "!", "~", "a\"b\\c", &"k".repeat(255), "op:short"] {
            check_brought("op", key).unwrap();
        }
        assert!(refusal("").contains("is 0 bytes long"));
        assert!(refusal(&"k".repeat(256)).contains("is 256 bytes long"));
        assert!(refusal(&"ж".repeat(128)).contains("is 256 bytes long"));
        assert!(refusal(&"ж".repeat(127)).contains("at byte 0"));
        for key in ["ab c", "ab\tc", "ab\0c", "ab\u{7f}c", "abéc", "ab\r\nc"] {
            assert!(refusal(key).contains("at byte 2"), "{key:?}");
        }
        assert!(refusal(&derive("", "op", "e", 1, "{}")).contains("leave the key out"));
    }
}
