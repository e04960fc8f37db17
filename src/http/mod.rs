//! Delivery over HTTP: all of ureq.

mod address;
mod exchange;
mod head;
mod judge;
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
use ureq::tls::TlsConfig;

use self::address::parse_range;
use self::resolve::Trust;
pub use self::timeouts::Timeouts;
use crate::core::endpoint::{check_endpoint, check_template, origin, origin_of};
use crate::core::evidence::{Secrets, attach, hide, hide_id};
use crate::core::header::{check_headers_beside, check_name};
use crate::core::judge::judge;
use crate::core::lookup::Question;
use crate::core::predicate::check_pointer;
use crate::core::setters::setters;
use crate::core::template;
use crate::core::{Answer, Asked, Failure, Finding, LookupRules, Outcome, Receipt, Rules};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Delivery, Handler};

/// The largest bound of an answer's body, in bytes.
const ANSWER_MAX: usize = 64 * 1024 * 1024;

/// The handler that sends intents over HTTP/1.1.
///
/// The request is the intent's method, endpoint, headers and payload, byte for byte as stored,
/// with the key in `Idempotency-Key`. Redirects are not followed, no proxy is taken from the
/// environment, answers are read up to 1 MiB, and certificates are always verified.
///
/// # Where it sends
///
/// An endpoint in the configuration is trusted. An endpoint that comes from an intent must be
/// `https` and lead to a public address, unless [`allow_addresses`](Self::allow_addresses) names
/// its range or it has the origin (scheme, host and port) of the configured endpoint or of
/// [`allow_origins`](Self::allow_origins). Headers from the configuration, which are credentials,
/// go to those origins only.
///
/// # Mistakes
///
/// A value that cannot be accepted is reported when the relay is built, by
/// [`check`](Handler::check): the error is [`Invalid`](crate::ErrorKind::Invalid) and its text
/// begins with the name of the field. A handler with such a value sends nothing.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use sqlite_outbox::{Downstream, Http, Operation};
///
/// let http = Http::new()
///     .endpoint("https://api.example.com/v1/charges")
///     .header("authorization", "Bearer sk_test_1")
///     .downstream_id("/charge/id");
/// let window = Duration::from_secs(24 * 3600);
/// let charges = Operation::new(Downstream::DeduplicatesByKey { window }, http);
/// ```
#[must_use = "a handler does nothing until an operation is given it"]
pub struct Http {
    endpoint: Option<String>,
    headers: Vec<(HeaderName, HeaderValue)>,
    timeouts: Timeouts,
    idempotency_header: HeaderName,
    quoted_key: bool,
    close_connections: bool,
    answer_max: usize,
    rules: Rules,
    trust: Trust,
    /// `None` where nothing can be asked.
    question: Option<Question>,
    /// JSON pointer to a value in what a lookup finds, and the template of the text there.
    lookup_match: Option<(String, String)>,
    lookup_rules: LookupRules,
    /// The first value that cannot be accepted.
    fault: Option<String>,
    /// Made from all of the above when first used.
    agent: OnceLock<ureq::Agent>,
    lookup_agent: OnceLock<ureq::Agent>,
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
            close_connections: false,
            answer_max: 1024 * 1024,
            rules: Rules { downstream_id: "/id".into(), ..Rules::default() },
            trust: Trust::default(),
            question: None,
            lookup_match: None,
            lookup_rules: LookupRules::new("/id"),
            fault: None,
            agent: OnceLock::new(),
            lookup_agent: OnceLock::new(),
        }
    }

    /// Sets the endpoint for intents that name none. `{idempotency_key}`, `{entity_id}`,
    /// `{tenant_id}`, `{ordering_key}`, `{key_hash}` (SHA-256 of the key as sent, in hex) and
    /// `{created_at}` (UTC milliseconds) in its path or query are replaced, percent-encoded. An
    /// intent that lacks a value for one of them is refused.
    /// Must be an `https` or `http` URL of at most 2048 bytes, without user name and fragment.
    ///
    /// ```
    /// use sqlite_outbox::Http;
    ///
    /// let http = Http::new().endpoint("https://api.example.com/charges/{idempotency_key}");
    /// ```
    pub fn endpoint(self, endpoint: &str) -> Self {
        self.set(|http| {
            let uri = check_template(endpoint, template::CONFIGURED)?;
            http.endpoint = Some(endpoint.to_owned());
            http.trust.endpoint = Some(origin(&uri));
            Ok(())
        })
    }

    /// Adds a header to every request that goes to the configured endpoint's origin or to one of
    /// [`allow_origins`](Self::allow_origins). It replaces a header of that name in the intent,
    /// and its value is never logged, stored or printed. Where an answer repeats it, it is blanked
    /// before the answer is stored, unless it is shorter than four characters.
    ///
    /// The name must be a token that neither belongs to the transport (such as `host` or
    /// `content-length`) nor carries the key, and is given once; the value must be visible ASCII
    /// and not empty. At most 50 headers and 8 KiB.
    ///
    /// ```
    /// use sqlite_outbox::Http;
    ///
    /// let http = Http::new()
    ///     .endpoint("https://api.example.com/charges")
    ///     .header("authorization", "Bearer sk_test_1");
    /// ```
    pub fn header(self, name: &str, value: &str) -> Self {
        self.set(|http| {
            let earlier = http
                .headers
                .iter()
                .map(|(name, value)| (name.as_str(), value.to_str().unwrap_or_default()));
            let key_header = http.idempotency_header.as_str();
            check_headers_beside(earlier.chain([(name, value)]), key_header)?;
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| Error::invalid("headers", "not a header name"))?;
            let mut value = HeaderValue::from_str(value)
                .map_err(|_| Error::invalid("headers", "not a header"))?;
            value.set_sensitive(true);
            http.headers.push((name, value));
            Ok(())
        })
    }

    /// Sets the timeouts of an attempt, each longer than zero.
    pub fn timeouts(self, timeouts: Timeouts) -> Self {
        self.set(|http| {
            http.timeouts = timeouts.checked()?;
            Ok(())
        })
    }

    /// Sets the header that carries the key: a name that neither belongs to the transport, nor has
    /// another meaning, nor is configured as a [`header`](Self::header). Defaults to
    /// `Idempotency-Key`.
    pub fn idempotency_header(self, name: &str) -> Self {
        self.set(|http| {
            let name = check_key_header(name)?;
            if http.headers.iter().any(|(other, _)| *other == name) {
                return Err(Error::invalid("idempotency_header", "is also given in headers"));
            }
            http.idempotency_header = name;
            Ok(())
        })
    }

    /// Sets where the provider's id stands in the answer, as a JSON pointer. Defaults to `/id`.
    pub fn downstream_id(self, pointer: &str) -> Self {
        self.set(|http| {
            http.rules.downstream_id = check_pointer("downstream_id", pointer)?;
            Ok(())
        })
    }

    /// Sets how much of an answer's body is read, in bytes: what stands beyond has no say in what
    /// the answer means. Receipts keep 16 KiB of it. Defaults to 1 MiB; at most 64 MiB.
    pub fn answer_max(self, bytes: usize) -> Self {
        self.set(|http| {
            if bytes == 0 || bytes > ANSWER_MAX {
                return Err(Error::invalid("answer_max", "must be 1 byte to 64 MiB"));
            }
            http.answer_max = bytes;
            Ok(())
        })
    }

    /// Lets endpoints that come from intents lead into these ranges, such as `127.0.0.0/8` or
    /// `fd00::/8`, and be plain `http` there. A range is taken as it is written: `0.0.0.0/0`
    /// includes the metadata services of clouds.
    pub fn allow_addresses<S: AsRef<str>>(self, ranges: impl IntoIterator<Item = S>) -> Self {
        self.set(|http| {
            for range in ranges {
                http.trust.ranges.push(parse_range(range.as_ref())?);
            }
            Ok(())
        })
    }

    /// Trusts endpoints of these origins, such as `https://api.example.com`, as if they were
    /// configured: any address, and the configured headers are sent there. An origin is exactly
    /// scheme, host and port.
    pub fn allow_origins<S: AsRef<str>>(self, origins: impl IntoIterator<Item = S>) -> Self {
        self.set(|http| {
            for text in origins {
                http.trust.origins.push(check_origin(text.as_ref())?);
            }
            Ok(())
        })
    }

    /// Makes one change, unless an earlier one could not be accepted. An agent that was made before
    /// does not know of the change.
    fn set(mut self, change: impl FnOnce(&mut Self) -> Result<()>) -> Self {
        if self.fault.is_none()
            && let Err(error) = change(&mut self)
        {
            self.fault = Some(error.to_string());
        }
        self.agent = OnceLock::new();
        self.lookup_agent = OnceLock::new();
        self
    }

    fn attempt(&self, delivery: &Delivery) -> Outcome {
        let answer = match self.ask(delivery) {
            Ok(answer) => answer,
            Err(outcome) => return outcome,
        };
        let first = delivery.attempt() <= 1 && delivery.facts.in_doubt_since.is_none();
        let asked = Asked {
            downstream: delivery.downstream(),
            first,
            stored: delivery.repeat_rules(),
            now: delivery.lease.now(),
        };
        let mut outcome = judge(&answer, &self.rules, &asked);
        match &mut outcome {
            Outcome::Succeeded(receipt) => self.hide(receipt, &answer, delivery),
            outcome => self.keep(outcome.failure_mut(), &answer, delivery),
        }
        match outcome {
            // No credentials went to an address of the intent's own, so nothing is wrong with
            // them, and the operation's other intents must not wait.
            Outcome::Unauthorized(failure) | Outcome::Transient(failure)
                if failure.class == "auth" && !self.is_trusted(delivery) =>
            {
                Outcome::Rejected(failure)
            }
            outcome => outcome,
        }
    }

    /// Keeps an answer with the failure that it is, without what was sent in confidence.
    fn keep(&self, failure: Option<&mut Failure>, answer: &Answer, delivery: &Delivery) {
        if let Some(failure) = failure {
            attach(failure, answer, &self.secrets(delivery));
        }
    }

    /// Takes out of a receipt what was sent in confidence.
    fn hide(&self, receipt: &mut Receipt, answer: &Answer, delivery: &Delivery) {
        hide_id(receipt, &self.credentials());
        hide(receipt, answer, &self.secrets(delivery));
    }

    /// The values of the configured headers.
    fn credentials(&self) -> Secrets {
        let mut secrets = Secrets::default();
        for (name, value) in &self.headers {
            secrets.header(name.as_str(), value.to_str().unwrap_or_default());
        }
        secrets
    }

    /// The values that are sent along with a delivery or its lookup, and may be credentials.
    fn secrets(&self, delivery: &Delivery) -> Secrets {
        let mut secrets = self.credentials();
        for (name, value) in delivery.headers() {
            secrets.header(&name.to_ascii_lowercase(), value);
        }
        let question = self.question.as_ref();
        let lookup_url = question.map(|question| question.url.as_str());
        for url in [self.endpoint.as_deref(), delivery.endpoint(), lookup_url] {
            secrets.url(url.unwrap_or_default());
        }
        if let Some(post) = question.and_then(|question| question.post.as_ref()) {
            secrets.post(post);
        }
        secrets
    }

    /// Whether a delivery goes where the configuration says.
    fn is_trusted(&self, delivery: &Delivery) -> bool {
        let Some(endpoint) = delivery.endpoint() else { return true };
        check_endpoint(endpoint).is_ok_and(|uri| self.trust.trusts(&origin(&uri)))
    }

    /// Sends the request and reads the answer without judging it.
    pub(crate) fn ask(&self, delivery: &Delivery) -> Result<Answer, Outcome> {
        if let Some(fault) = &self.fault {
            return Err(Outcome::NotSent(Failure::new("request", fault.clone())));
        }
        let prepared = self.prepare(delivery)?;
        let agent = self.agent.get_or_init(|| {
            exchange::agent(&self.timeouts, self.trust.clone(), TlsConfig::default())
        });
        exchange::exchange(agent, prepared, &self.timeouts)
    }
}

setters! {
    Http:
    /// Sends the key in quotes, as a structured-field string of RFC 8941. Providers that compare
    /// bytes take it for another key, so it must not change while intents are unsettled.
    pub fn quoted_key() => quoted_key = true;

    /// Asks the downstream to close the connection after each answer, as is always done where it is
    /// unprotected. On a connection that is kept, an answer too many can be taken for the answer to
    /// the next request, and a request can meet the downstream's close, which leaves it in doubt.
    /// Defaults to keeping connections, which is faster.
    pub fn close_connections() => close_connections = true;
}

impl Handler for Http {
    fn deliver(&self, delivery: &Delivery) -> Outcome {
        let started = Instant::now();
        let mut outcome = self.attempt(delivery);
        if let Some(failure) = outcome.failure_mut() {
            failure.is_of_read = delivery.method() == "GET" && delivery.payload().is_empty();
        }
        let result = outcome.failure().map_or("succeeded", |failure| failure.class.as_ref());
        log::debug!(
            "intent {} ({}): {result} after {} ms",
            delivery.id(),
            delivery.operation(),
            started.elapsed().as_millis()
        );
        outcome
    }

    fn check(&self) -> Result<()> {
        self.fault.as_ref().map_or(Ok(()), |fault| Err(Error::new(ErrorKind::Invalid, fault)))
    }

    /// The sum of the timeouts.
    fn time_limit(&self) -> Duration {
        self.timeouts.total()
    }

    fn runs_in_process(&self) -> bool {
        false
    }

    fn network(&self) -> Option<String> {
        Some(self.trust.endpoint.clone().unwrap_or_default())
    }

    fn repeat_rules(&self) -> Vec<String> {
        self.rules.repeat_rules()
    }

    fn reconciles(&self) -> bool {
        self.question.is_some()
    }

    fn reconcile(&self, delivery: &Delivery) -> Finding {
        self.look_up(delivery)
    }
}

impl fmt::Debug for Http {
    /// Shows the origin of the endpoint and the names of the headers: a path or a value may be a
    /// credential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoint = self.endpoint.as_deref().and_then(origin_of);
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Http")
            .field("endpoint", &endpoint)
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

/// The name of a header that may carry the key.
fn check_key_header(name: &str) -> Result<HeaderName> {
    const FIELD: &str = "idempotency_header";
    check_name(name).map_err(|error| renamed(&error, FIELD))?;
    let name = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| Error::invalid(FIELD, "is not a header name"))?;
    let meaningful = [
        http::header::CONTENT_TYPE,
        http::header::ACCEPT_ENCODING,
        http::header::AUTHORIZATION,
        http::header::COOKIE,
    ];
    if meaningful.contains(&name) {
        return Err(Error::invalid(FIELD, "has another meaning; take a name of its own"));
    }
    Ok(name)
}

/// The origin that a text spells out.
fn check_origin(text: &str) -> Result<String> {
    let uri = check_endpoint(text).map_err(|error| renamed(&error, "allow_origins"))?;
    if uri.path() != "/" || uri.query().is_some() {
        let why = format!("an origin has no path; write {}", origin(&uri));
        return Err(Error::invalid("allow_origins", why));
    }
    Ok(origin(&uri))
}
