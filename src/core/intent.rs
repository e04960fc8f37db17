//! An intent as the caller builds it, and whether it can be accepted.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Map, Value};

use super::setters::setters;
use super::{canonical, endpoint, header, key, millis};
use crate::error::{Error, ErrorKind, Result};

/// An action that the caller wants done: one row of `outbox`, frozen once it is written.
///
/// Only the operation and the entity are required. Nothing is checked until the intent is
/// enqueued; the error then names the field.
///
/// ```
/// use sqlite_outbox::Intent;
/// let intent = Intent::new("stripe.charge", "order-42")
///     .tenant("acme")
///     .endpoint("https://api.example.com/charges")
///     .args(serde_json::json!({"amount": 4200}));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "an intent does nothing until it is enqueued"]
pub struct Intent {
    pub(crate) operation: String,
    pub(crate) entity_id: String,
    pub(crate) tenant_id: String,
    pub(crate) version: i64,
    pub(crate) brought_key: Option<String>,
    args: Option<String>,
    payload: Option<String>,
    pub(crate) content_type: String,
    pub(crate) method: String,
    pub(crate) endpoint: Option<String>,
    headers: Vec<(String, String)>,
    pub(crate) ordering_key: Option<String>,
    delay: Duration,
    expires_in: Option<Duration>,
    cost: u64,
}

impl Intent {
    /// An intent of this kind of action on this business object.
    ///
    /// ```
    /// use sqlite_outbox::Intent;
    ///
    /// let mail = Intent::new("mail.send", "order-42").args(serde_json::json!({"to": "ada"}));
    /// ```
    pub fn new(operation: impl Into<String>, entity: impl Into<String>) -> Self {
        Self {
            operation: operation.into(),
            entity_id: entity.into(),
            tenant_id: String::new(),
            version: 1,
            brought_key: None,
            args: None,
            payload: None,
            content_type: "application/json".into(),
            method: "POST".into(),
            endpoint: None,
            headers: Vec::new(),
            ordering_key: None,
            delay: Duration::ZERO,
            expires_in: None,
            cost: 0,
        }
    }

    /// The approved arguments, which enter the key. Defaults to the payload.
    pub fn args(self, args: impl Into<Value>) -> Self {
        let text = args.into().to_string();
        self.args_json(text)
    }

    /// Adds a header that is stored and sent, such as a trace id. Not for credentials: those
    /// belong into the relay's configuration.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

setters! {
    Intent:
    /// Whose intent it is. Keys of different tenants never collide. Defaults to no tenant.
    pub fn tenant(tenant: impl Into<String>) => tenant_id = tenant.into();

    /// The version of this action on this entity, from 1. The same action with other arguments
    /// needs the next version; without it, enqueueing is refused as a conflict. Defaults to 1.
    ///
    /// ```
    /// use sqlite_outbox::Intent;
    ///
    /// let corrected = Intent::new("mail.send", "order-42")
    ///     .version(2)
    ///     .args(serde_json::json!({"to": "grace"}));
    /// ```
    pub fn version(version: i64) => version = version;

    /// Brings a key instead of deriving one: 1 to 255 visible ASCII characters. The caller then
    /// answers for its being the same whenever the action is the same.
    pub fn key(key: impl Into<String>) => brought_key = Some(key.into());

    /// The approved arguments as JSON text, for numbers that must stay as they are written.
    pub fn args_json(args: impl Into<String>) => args = Some(args.into());

    /// The body that is sent, byte for byte. Defaults to the arguments.
    ///
    /// ```
    /// use sqlite_outbox::Intent;
    ///
    /// let form = Intent::new("sms.send", "text-7")
    ///     .args(serde_json::json!({"to": "+15550100"})) // makes the key
    ///     .content_type("application/x-www-form-urlencoded")
    ///     .payload("to=%2B15550100&text=hello");
    /// ```
    pub fn payload(payload: impl Into<String>) => payload = Some(payload.into());

    /// The payload's media type. Defaults to `application/json`.
    pub fn content_type(content_type: impl Into<String>) => content_type = content_type.into();

    /// The HTTP method: POST (the default), PUT, PATCH, DELETE or GET.
    pub fn method(method: impl Into<String>) => method = method.into();

    /// Where to send it. Defaults to the endpoint the relay has configured for the operation.
    /// `{idempotency_key}` and `{entity_id}` may stand in it.
    pub fn endpoint(endpoint: impl Into<String>) => endpoint = Some(endpoint.into());

    /// Intents of one tenant with the same ordering key go out one after the other, in the
    /// order they were enqueued. Defaults to none: no order.
    ///
    /// ```
    /// use sqlite_outbox::Intent;
    ///
    /// let [first, second] = ["open", "close"].map(|step| {
    ///     Intent::new("account.sync", step).ordering_key("account-7")
    /// });
    /// ```
    pub fn ordering_key(key: impl Into<String>) => ordering_key = Some(key.into());

    /// How long to wait before the first attempt. Defaults to not at all.
    pub fn delay(delay: Duration) => delay = delay;

    /// How long from now the intent is of use; nothing is sent after that. Defaults to forever.
    pub fn expires_in(expires_in: Duration) => expires_in = Some(expires_in);

    /// The cost of the action, in whole units of the caller's choice, such as cents or tokens. It
    /// counts against the operation's [`max_cost`](crate::Operation::max_cost) and
    /// [`max_cost_per_tenant`](crate::Operation::max_cost_per_tenant), and is not part of the
    /// key. At most `i64::MAX`. Defaults to 0.
    pub fn cost(cost: u64) => cost = cost;
}

impl Intent {
    /// Checks every field and derives what is stored.
    pub(crate) fn prepare(&self, now: i64, payload_max: usize) -> Result<Prepared<'_>> {
        check_operation(&self.operation)?;
        key::check_text("entity", &self.entity_id, 1, 1024)?;
        key::check_text("tenant", &self.tenant_id, 0, 255)?;
        if self.version < 1 {
            return Err(Error::invalid("version", "must be 1 or more"));
        }
        if !["POST", "PUT", "PATCH", "DELETE", "GET"].contains(&self.method.as_str()) {
            let why = format!("{:?} is not one of POST, PUT, PATCH, DELETE, GET", self.method);
            return Err(Error::invalid("method", why));
        }
        if let Some(ordering_key) = &self.ordering_key {
            key::check_text("ordering_key", ordering_key, 1, 255)?;
        }
        if let Some(endpoint) = &self.endpoint {
            endpoint::check_endpoint(endpoint)?;
        }
        let is_json = self.check_content_type()?;
        let (canonical_args, payload) = self.args_and_payload(is_json)?;
        if payload.len() > payload_max {
            let why = format!("{} bytes, but at most {payload_max} are accepted", payload.len());
            return Err(Error::invalid("payload", why));
        }
        let key = match &self.brought_key {
            Some(key) => {
                key::check_brought(&self.operation, key)?;
                Cow::Borrowed(key.as_str())
            }
            None => Cow::Owned(key::derive(
                &self.tenant_id,
                &self.operation,
                &self.entity_id,
                self.version,
                &canonical_args,
            )),
        };
        // The values of placeholders are checked as they will be sent.
        if let Some(endpoint) = self.endpoint.as_deref().filter(|text| text.contains('{')) {
            let wire_key = key::wire_key(&self.tenant_id, &self.operation, &key);
            endpoint::expand(endpoint, |name| match name {
                "{idempotency_key}" => wire_key.to_string(),
                _ => self.entity_id.clone(),
            })?;
        }
        let available_at = later(now, "delay", self.delay)?;
        let expires_at =
            self.expires_in.map(|after| later(now, "expires_in", after)).transpose()?;
        if expires_at.is_some_and(|at| at <= available_at) {
            return Err(Error::invalid("expires_in", "must be longer than the delay"));
        }
        let cost = i64::try_from(self.cost)
            .map_err(|_| Error::invalid("cost", format!("must be at most {}", i64::MAX)))?;
        Ok(Prepared {
            intent: self,
            cost,
            key,
            args_hash: key::sha256(&canonical_args),
            payload,
            headers: self.headers_json()?,
            created_at: now,
            available_at,
            expires_at,
        })
    }

    /// Whether the payload is JSON.
    fn check_content_type(&self) -> Result<bool> {
        let text = self.content_type.as_str();
        let parts = text.split_once('/');
        let is_media_type = parts.is_some_and(|(kind, rest)| !kind.is_empty() && !rest.is_empty());
        if !is_media_type || text.len() > 255 || !header::is_value(text) {
            let why = format!("{text:?} is not a media type such as application/json");
            return Err(Error::invalid("content_type", why));
        }
        let lower = text.to_ascii_lowercase();
        Ok(lower.starts_with("application/json") || lower.contains("+json"))
    }

    /// The canonical arguments and the payload, each standing in for the other.
    fn args_and_payload(&self, is_json: bool) -> Result<(String, Cow<'_, str>)> {
        let bodiless = matches!(self.method.as_str(), "GET" | "DELETE");
        let payload = match (&self.payload, &self.args) {
            (Some(payload), _) => Cow::Borrowed(payload.as_str()),
            (None, Some(_)) if bodiless => Cow::Borrowed(""),
            (None, Some(_)) if !is_json => {
                return Err(Error::invalid("payload", "must be given where it is not JSON"));
            }
            (None, Some(args)) => Cow::Borrowed(args.as_str()),
            (None, None) if bodiless || !is_json => Cow::Borrowed(""),
            (None, None) => Cow::Borrowed("{}"),
        };
        if self.payload.is_some() && payload.contains('\0') {
            return Err(Error::invalid("payload", "must not contain the NUL character"));
        }
        let canonical_payload = match payload.as_ref() {
            // What was given as arguments is read, and named, as arguments.
            _ if self.payload.is_none() && self.args.is_some() => None,
            "" if bodiless => None,
            text if is_json => Some(canonical::canonical_text("payload", text)?),
            _ => None,
        };
        let args = match (&self.args, canonical_payload) {
            (Some(args), _) => canonical::canonical_text("args", args)?,
            (None, Some(payload)) => payload,
            (None, None) if payload.is_empty() => "{}".to_owned(),
            (None, None) => {
                let why = "must be given where the payload is not JSON, because they make the key";
                return Err(Error::invalid("args", why));
            }
        };
        Ok((args, payload))
    }

    fn headers_json(&self) -> Result<Cow<'static, str>> {
        if self.headers.is_empty() {
            return Ok(Cow::Borrowed("{}"));
        }
        header::check_headers(&self.headers)?;
        let mut object = Map::new();
        for (name, value) in &self.headers {
            let name = name.to_ascii_lowercase();
            if object.insert(name.clone(), Value::String(value.clone())).is_some() {
                return Err(Error::invalid("header", format!("{name:?} is given twice")));
            }
        }
        Ok(Cow::Owned(Value::Object(object).to_string()))
    }
}

/// An intent that was accepted, with everything that is stored.
#[derive(Debug)]
pub(crate) struct Prepared<'a> {
    pub intent: &'a Intent,
    pub key: Cow<'a, str>,
    pub args_hash: String,
    pub payload: Cow<'a, str>,
    pub headers: Cow<'static, str>,
    pub created_at: i64,
    pub available_at: i64,
    pub expires_at: Option<i64>,
    pub cost: i64,
}

/// Checks the name of an operation, which begins every derived key.
pub(crate) fn check_operation(operation: &str) -> Result<()> {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b"_./-".contains(&b);
    if (1..=128).contains(&operation.len()) && operation.bytes().all(is_word) {
        return Ok(());
    }
    let why = format!("{operation:?} must be 1 to 128 letters, digits or any of _ . / -");
    Err(Error::invalid("operation", why))
}

/// `now` plus a duration, within the range of times the file accepts.
fn later(now: i64, field: &str, after: Duration) -> Result<i64> {
    let at = now.saturating_add(millis(after));
    if at > TIME_MAX {
        return Err(Error::new(ErrorKind::Invalid, format!("{field}: is beyond the year 5138")));
    }
    Ok(at)
}

/// The last time the file accepts, in UTC milliseconds; what is beyond is a mistaken unit.
const TIME_MAX: i64 = 99_999_999_999_999;
