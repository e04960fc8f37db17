//! Deriving the idempotency key of an intent.
pub(crate) fn wire_key(_tenant: &str, _operation: &str, _key: &str) -> String {
    unimplemented!()
}
