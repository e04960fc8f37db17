//! Lookups: asking a provider whether a request was applied.

use http::header::{self, HeaderValue};
use http::{Method, Request};
use ureq::tls::TlsConfig;

use super::exchange::{self, Prepared};
use super::resolve::Trust;
use super::{Http, check_pointer, renamed};
use crate::core::endpoint::{LOOKUP_PLACEHOLDERS, check_template, expand, origin};
use crate::core::lookup::classify_lookup;
use crate::core::{Failure, Finding, Outcome};
use crate::error::Error;
use crate::handler::Delivery;

/// Without one of these every intent would be answered alike.
const NAMES_IT: [&str; 3] = ["{idempotency_key}", "{entity_id}", "{downstream_id}"];

impl Http {
    /// Sets where to ask, with GET, what became of an intent that may have been applied:
    /// `{idempotency_key}`, `{entity_id}`, `{tenant_id}` and `{downstream_id}`, which is known
    /// where it was [bound up front](crate::Outbox::bind), are replaced in its path or query,
    /// percent-encoded. The configured headers are sent along: this URL is configuration too.
    ///
    /// A 2xx answer that names the provider's id means that it was applied, and **404 that it was
    /// not**, so that it is sent again: a URL that answers 404 for another reason, or a record
    /// that lags behind by more than the [lookup delay](crate::Operation::lookup_delay), would
    /// double the effect. Every other answer does not tell.
    ///
    /// Must be an `https` or `http` URL of at most 2048 bytes, without user name and fragment, in
    /// which the key, the entity or the provider's id stands.
    pub fn reconcile_by_get(self, url: &str) -> Self {
        self.set(|http| {
            check_template(url, LOOKUP_PLACEHOLDERS).map_err(|e| renamed(&e, "reconcile.get"))?;
            if !NAMES_IT.iter().any(|placeholder| url.contains(placeholder)) {
                let names = NAMES_IT.join(" or ");
                let why = format!("must say which intent is meant: put {names} into it");
                return Err(Error::invalid("reconcile.get", why));
            }
            http.lookup_url = Some(url.to_owned());
            Ok(())
        })
    }

    /// Sets where the provider's id stands in the answer to a lookup, as a JSON pointer. Defaults
    /// to `/id`.
    pub fn reconcile_id(self, pointer: &str) -> Self {
        self.set(|http| {
            http.lookup_rules.downstream_id = check_pointer("reconcile.downstream_id", pointer)?;
            Ok(())
        })
    }

    /// Takes what a lookup finds for applied only if the value at this JSON pointer equals `value`;
    /// its id may be missing then. Otherwise the lookup does not tell.
    pub fn reconcile_when(self, pointer: &str, value: impl Into<serde_json::Value>) -> Self {
        self.set(|http| {
            let pointer = check_pointer("reconcile.when", pointer)?;
            http.lookup_rules.when = Some((pointer, value.into()));
            Ok(())
        })
    }

    /// Asks once.
    pub(super) fn look_up(&self, delivery: &Delivery) -> Finding {
        let prepared = match self.prepare_lookup(delivery) {
            Ok(prepared) => prepared,
            Err(failure) => return Finding::Inconclusive(failure),
        };
        let agent = self.lookup_agent.get_or_init(|| {
            let trust = Trust { endpoint: Some(prepared.origin.clone()), ..Trust::default() };
            exchange::agent(&self.timeouts, trust, TlsConfig::default())
        });
        match exchange::exchange(agent, prepared, &self.timeouts) {
            Ok(answer) => {
                let mut finding =
                    classify_lookup(&answer, &self.lookup_rules, delivery.lease.now());
                self.keep(finding.failure_mut(), &answer, delivery);
                finding
            }
            Err(Outcome::NotSent(failure)) => Finding::NotAsked(failure),
            Err(outcome) => {
                let unknown = || Failure::new("lookup", "the lookup failed");
                Finding::Inconclusive(outcome.failure().cloned().unwrap_or_else(unknown))
            }
        }
    }

    fn prepare_lookup(&self, delivery: &Delivery) -> Result<Prepared<'static>, Failure> {
        let failed = |reason: String| Failure::new("lookup", reason);
        if let Some(fault) = &self.fault {
            return Err(failed(fault.clone()));
        }
        let Some(url) = &self.lookup_url else {
            return Err(failed("nothing is configured to look it up".into()));
        };
        let values = [
            &delivery.wire_key(),
            delivery.entity(),
            delivery.downstream_id().unwrap_or_default(),
            delivery.tenant(),
        ];
        let uri = expand(url, LOOKUP_PLACEHOLDERS, &values)
            .map_err(|error| failed(renamed(&error, "reconcile.get").to_string()))?;
        let mut request = Request::new(());
        let headers = request.headers_mut();
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        // A kept connection may be closed just as the question goes out, and lookups are few.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        let origin = origin(&uri);
        *request.method_mut() = Method::GET;
        *request.uri_mut() = uri;
        let answer_max = self.answer_max;
        Ok(Prepared { request, body: None, origin, answer_max, own_connection: false })
    }
}
