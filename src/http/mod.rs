//! Delivery over HTTP: all of ureq.

mod address;
mod exchange;
mod lookup;
mod request;
mod resolve;
#[cfg(test)]
mod tests;
mod timeouts;
mod transport;

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use http::header::{HeaderName, HeaderValue};
use serde_json::Value;
use ureq::tls::TlsConfig;

use self::lookup::Lookup;
use self::resolve::Trust;
pub use self::timeouts::Timeouts;
use crate::clock::{Clock, SystemClock};
use crate::core::classify::{Answer, OnConflict, Rules, classify};
use crate::core::endpoint::{check_endpoint, origin};
use crate::core::header::{check_headers_beside, check_name};
use crate::core::outcome::{Finding, Outcome};
use crate::error::{Error, Result};
use crate::handler::{Delivery, Handler};

/// The handler that sends intents over HTTP/1.1.
///
/// The request is the intent's method, endpoint, headers and payload, byte for byte as stored,
/// with the key in `Idempotency-Key`. Redirects are not followed, no proxy is taken from the
/// environment, answers are read up to 16 KiB, and certificates are always verified.
///
/// # Where it sends
///
/// An endpoint in the configuration is trusted. An endpoint that comes from an intent must be
/// `https` and lead to a public address, unless [`allow_addresses`](Self::allow_addresses) names
/// its range or it has the origin (scheme, host and port) of the configured endpoint or of
/// [`allow_origins`](Self::allow_origins). Headers from the configuration, which are credentials,
/// go to those origins only.
///
/// # Examples
///
/// ```
/// # fn main() -> sqlite_outbox::Result<()> {
/// use sqlite_outbox::Http;
///
/// let http = Http::new()
///     .endpoint("https://api.example.com/v1/charges")?
///     .header("authorization", "Bearer sk_test_1")?
///     .downstream_id("/charge/id")?;
/// # let _ = http;
/// # Ok(())
/// # }
/// ```
pub struct Http {
    endpoint: Option<String>,
    headers: Vec<(HeaderName, HeaderValue)>,
    timeouts: Timeouts,
    idempotency_header: HeaderName,
    quoted_key: bool,
    rules: Rules,
    trust: Trust,
    lookup: Lookup,
    /// Made from all of the above when the first intent is sent.
    agent: OnceLock<ureq::Agent>,
}

impl Default for Http {
    fn default() -> Self {
        Self::new()
    }
}

impl Http {
    /// A handler without an endpoint of its own: it serves intents that name theirs.
    pub fn new() -> Self {
        Self {
            endpoint: None,
            headers: Vec::new(),
            timeouts: Timeouts::default(),
            idempotency_header: HeaderName::from_static("idempotency-key"),
            quoted_key: false,
            rules: Rules { success_when: None, on_conflict: None, downstream_id: "/id".into() },
            trust: Trust::default(),
            lookup: Lookup::default(),
            agent: OnceLock::new(),
        }
    }

    /// Sets the endpoint for intents that name none. `{idempotency_key}` and `{entity_id}` in its
    /// path or query are replaced, percent-encoded.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) unless it is an `https` or `http` URL of at most
    /// 2048 bytes, without user name and fragment.
    pub fn endpoint(mut self, endpoint: &str) -> Result<Self> {
        let uri = check_endpoint(endpoint)?;
        self.endpoint = Some(endpoint.to_owned());
        self.trust.endpoint = Some(origin(&uri));
        Ok(self.changed())
    }

    /// Adds a header to every request that goes to the configured endpoint's origin or to one of
    /// [`allow_origins`](Self::allow_origins). It replaces a header of that name in the intent,
    /// and its value is never logged, stored or printed.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) if the name is not a token, belongs to the transport
    /// (such as `host` or `content-length`), carries the key, or was given before; if the value is
    /// empty or not visible ASCII; beyond 50 headers or 8 KiB.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self> {
        let earlier = self
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap_or_default()));
        check_headers_beside(earlier.chain([(name, value)]), self.idempotency_header.as_str())?;
        let malformed = |_| Error::invalid("headers", "not a header");
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| Error::invalid("headers", "not a header name"))?;
        let mut value = HeaderValue::from_str(value).map_err(malformed)?;
        value.set_sensitive(true);
        self.headers.push((name, value));
        Ok(self.changed())
    }

    /// Sets the time-outs of an attempt.
    #[must_use]
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts.at_least_a_moment();
        self.changed()
    }

    /// Sets the header that carries the key. Defaults to `Idempotency-Key`.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) if it is not a header name, belongs to the
    /// transport, has another meaning, or is also configured as a [`header`](Self::header).
    pub fn idempotency_header(mut self, name: &str) -> Result<Self> {
        let field = |reason: &str| Error::invalid("idempotency_header", reason);
        check_name(name).map_err(|error| renamed(&error, "idempotency_header"))?;
        let name =
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| field("is not a header name"))?;
        let meaningful = [
            http::header::CONTENT_TYPE,
            http::header::ACCEPT_ENCODING,
            http::header::AUTHORIZATION,
            http::header::COOKIE,
        ];
        if meaningful.contains(&name) {
            return Err(field("has another meaning; take a name of its own"));
        }
        if self.headers.iter().any(|(other, _)| *other == name) {
            return Err(field("is also given in headers"));
        }
        self.idempotency_header = name;
        Ok(self.changed())
    }

    /// Sends the key in quotes, as a structured-field string of RFC 8941. Providers that compare
    /// bytes take it for another key, so it must not change while intents are unsettled.
    #[must_use]
    pub fn quoted_key(mut self) -> Self {
        self.quoted_key = true;
        self.changed()
    }

    /// Sets where the provider's id stands in the answer, as a JSON pointer. Defaults to `/id`.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) if it is not a JSON pointer.
    pub fn downstream_id(mut self, pointer: &str) -> Result<Self> {
        self.rules.downstream_id = check_pointer("downstream_id", pointer)?;
        Ok(self.changed())
    }

    /// Takes a 2xx answer for success only if the value at this JSON pointer equals `value`, for
    /// providers that report failures with status 200.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) if it is not a JSON pointer.
    pub fn success_when(mut self, pointer: &str, value: impl Into<Value>) -> Result<Self> {
        self.rules.success_when = Some((check_pointer("success_when", pointer)?, value.into()));
        Ok(self.changed())
    }

    /// Sets what a 409 means. Defaults to [`OnConflict::InProgress`] for a downstream that
    /// deduplicates, and to a review by a person for others.
    #[must_use]
    pub fn on_conflict(mut self, meaning: OnConflict) -> Self {
        self.rules.on_conflict = Some(meaning);
        self.changed()
    }

    /// Lets endpoints that come from intents lead into these ranges, such as `127.0.0.0/8` or
    /// `fd00::/8`, and be plain `http` there. A range is taken as it is written: `0.0.0.0/0`
    /// includes the metadata services of clouds.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) if one is neither a range nor an address.
    pub fn allow_addresses<S: AsRef<str>>(
        mut self,
        ranges: impl IntoIterator<Item = S>,
    ) -> Result<Self> {
        for range in ranges {
            let range = range
                .as_ref()
                .parse()
                .map_err(|reason: String| Error::invalid("allow_addresses", reason))?;
            self.trust.ranges.push(range);
        }
        Ok(self.changed())
    }

    /// Trusts endpoints of these origins, such as `https://api.example.com`, as if they were
    /// configured: any address, and the configured headers are sent there.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) if one is more or less than scheme, host and port.
    pub fn allow_origins<S: AsRef<str>>(
        mut self,
        origins: impl IntoIterator<Item = S>,
    ) -> Result<Self> {
        for text in origins {
            let uri =
                check_endpoint(text.as_ref()).map_err(|error| renamed(&error, "allow_origins"))?;
            if uri.path() != "/" || uri.query().is_some() {
                return Err(Error::invalid(
                    "allow_origins",
                    format!("an origin has no path; write {}", origin(&uri)),
                ));
            }
            self.trust.origins.push(origin(&uri));
        }
        Ok(self.changed())
    }

    /// An agent made before a change does not know of it.
    fn changed(mut self) -> Self {
        self.agent = OnceLock::new();
        self.lookup.changed();
        self
    }

    fn attempt(&self, delivery: &Delivery) -> Outcome {
        let answer = match self.ask(delivery) {
            Ok(answer) => answer,
            Err(outcome) => return outcome,
        };
        let first = delivery.attempt() <= 1 && delivery.facts.in_doubt_since.is_none();
        let now = SystemClock.now();
        match classify(&answer, &self.rules, delivery.downstream(), first, now) {
            // No credentials went to an address of the intent's own, so nothing is wrong with
            // them, and the operation's other intents must not wait.
            Outcome::Unauthorized(failure) if !self.is_trusted(delivery) => {
                Outcome::Rejected(failure)
            }
            outcome => outcome,
        }
    }

    /// Whether a delivery goes where the configuration says.
    fn is_trusted(&self, delivery: &Delivery) -> bool {
        let Some(endpoint) = delivery.endpoint() else { return true };
        check_endpoint(endpoint).is_ok_and(|uri| self.trust.trusts(&origin(&uri)))
    }

    /// Sends the request and reads the answer without judging it.
    pub(crate) fn ask(&self, delivery: &Delivery) -> Result<Answer, Outcome> {
        let prepared = self.prepare(delivery)?;
        let agent = self.agent.get_or_init(|| {
            exchange::agent(&self.timeouts, self.trust.clone(), TlsConfig::default())
        });
        exchange::exchange(agent, prepared, &self.timeouts)
    }
}

impl Handler for Http {
    fn deliver(&self, delivery: &Delivery) -> Outcome {
        let started = Instant::now();
        let outcome = self.attempt(delivery);
        let result = match outcome.failure() {
            None => "succeeded",
            Some(failure) => failure.class.as_ref(),
        };
        log::debug!(
            "intent {} ({}): {result} after {} ms",
            delivery.id(),
            delivery.operation(),
            started.elapsed().as_millis()
        );
        outcome
    }

    /// The sum of the time-outs.
    fn time_limit(&self) -> Duration {
        self.timeouts.total()
    }

    fn reconciles(&self) -> bool {
        self.lookup.is_configured()
    }

    fn reconcile(&self, delivery: &Delivery) -> Finding {
        self.look_up(delivery)
    }
}

impl fmt::Debug for Http {
    /// Shows the origin of the endpoint and the names of the headers: a path or a value may be a
    /// credential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoint = self.endpoint.as_deref().and_then(|text| check_endpoint(text).ok());
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Http")
            .field("endpoint", &endpoint.map(|uri| origin(&uri)))
            .field("headers", &names)
            .field("timeouts", &self.timeouts)
            .field("idempotency_header", &self.idempotency_header)
            .field("quoted_key", &self.quoted_key)
            .field("rules", &self.rules)
            .field("trust", &self.trust)
            .finish_non_exhaustive()
    }
}

/// The same complaint about another field.
fn renamed(error: &Error, field: &str) -> Error {
    let text = error.to_string();
    let reason = text.split_once(": ").map_or(text.as_str(), |(_, reason)| reason);
    Error::invalid(field, reason)
}

fn check_pointer(field: &str, pointer: &str) -> Result<String> {
    let escapes_end_well =
        pointer.split('~').skip(1).all(|rest| rest.starts_with('0') || rest.starts_with('1'));
    if (pointer.is_empty() || pointer.starts_with('/')) && escapes_end_well {
        return Ok(pointer.to_owned());
    }
    Err(Error::invalid(field, format!("{pointer:?} is not a JSON pointer such as /data/id")))
}
