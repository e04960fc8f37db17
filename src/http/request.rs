//! Turns a delivery into a request: where it goes, with which headers, and all that is refused
//! before a byte is sent.

use http::header::{self, HeaderName, HeaderValue};
use http::{Method, Request, Uri};

use super::Http;
use super::exchange::{Prepared, refused};
use crate::core::endpoint::{check_endpoint, check_template, expand, origin};
use crate::core::header::{check_headers_beside, is_value};
use crate::core::key::sha256;
use crate::core::template;
use crate::core::{Downstream, Failure, Outcome};
use crate::handler::Delivery;

struct Target {
    uri: Uri,
    origin: String,
    /// The endpoint, or at least its origin, comes from the configuration.
    trusted: bool,
}

impl Http {
    /// Builds the request, or says why this delivery cannot be sent as it is.
    pub(super) fn prepare<'a>(&self, delivery: &'a Delivery) -> Result<Prepared<'a>, Outcome> {
        let Some(endpoint) = delivery.endpoint().or(self.endpoint.as_deref()) else {
            // The intent is not to blame: it waits for a relay that knows where it goes.
            let reason = "there is no endpoint: the intent names none and this relay has none \
                          configured for the operation";
            return Err(Outcome::NotSent(Failure::new("endpoint", reason)));
        };
        let target = self.target(delivery, endpoint).map_err(Outcome::Rejected)?;
        let reject = |class: &'static str, reason: String| {
            Outcome::Rejected(Failure::new(class, format!("{}: {reason}", target.origin)))
        };
        let method = Method::from_bytes(delivery.method().as_bytes())
            .ok()
            .filter(|method| *method != Method::CONNECT && *method != Method::TRACE)
            .ok_or_else(|| reject("method", "the method cannot be used".to_owned()))?;
        let body = body(&method, delivery).map_err(|reason| reject("method", reason.to_owned()))?;

        let mut request = Request::new(());
        self.set_headers(delivery, target.trusted, body.is_some(), request.headers_mut())
            .map_err(|reason| reject("header", reason))?;
        if !target.trusted && !self.headers.is_empty() {
            log::debug!(
                "intent {}: the configured headers are not for {}, which comes from the intent",
                delivery.id(),
                target.origin
            );
        }
        *request.method_mut() = method;
        *request.uri_mut() = target.uri;
        // Where a kept connection died without an answer, the next one may be dead as well.
        let own_connection = delivery.facts.in_doubt_since.is_some();
        let answer_max = self.answer_max;
        Ok(Prepared { request, body, origin: target.origin, answer_max, own_connection })
    }

    fn target(&self, delivery: &Delivery, endpoint: &str) -> Result<Target, Failure> {
        let checked = match delivery.endpoint() {
            Some(own) => check_endpoint(own),
            None => check_template(endpoint, template::CONFIGURED),
        };
        let uri = checked
            .and_then(|_| expand(endpoint, |name| placeholder(delivery, name)))
            .map_err(|error| Failure::new("endpoint", error.to_string()))?;
        let origin = origin(&uri);
        let trusted = delivery.endpoint().is_none() || self.trust.trusts(&origin);
        let secure = uri.scheme_str() == Some("https");
        // Without a range there is no address that would be let through; say so without asking
        // for the name.
        if !trusted && !secure && self.trust.ranges.is_empty() {
            return Err(refused(&origin, false));
        }
        Ok(Target { uri, origin, trusted })
    }

    /// Sets the headers, the ones that matter most last: what the row says, then the
    /// configuration, then the key.
    fn set_headers(
        &self,
        delivery: &Delivery,
        trusted: bool,
        has_body: bool,
        headers: &mut header::HeaderMap,
    ) -> Result<(), String> {
        let own = delivery.headers();
        check_headers_beside(
            own.iter().map(|(name, value)| (name.as_str(), value.as_str())),
            self.idempotency_header.as_str(),
        )
        .map_err(|error| error.to_string())?;
        if has_body {
            let media_type = delivery.content_type();
            if !is_value(media_type) {
                return Err("the content type is not a header value".to_owned());
            }
            headers.insert(header::CONTENT_TYPE, value(media_type)?);
        }
        for (name, text) in own {
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| "headers: one name is not a header name".to_owned())?;
            headers.insert(name, value(text)?);
        }
        if self.close_connections || delivery.downstream() == Downstream::Unprotected {
            // A kept connection may be closed by the peer just as the next request goes out, and
            // that request would be in doubt for good.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        // A compressed answer could not be read.
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if trusted {
            for (name, value) in &self.headers {
                headers.insert(name.clone(), value.clone());
            }
        }
        let key = delivery.wire_key();
        if !is_value(&key) {
            return Err("the idempotency key is not a header value".to_owned());
        }
        let key = if self.quoted_key { quoted(&key) } else { key };
        headers.insert(self.idempotency_header.clone(), value(&key)?);
        Ok(())
    }
}

/// The value that stands for a placeholder; empty where the intent has none.
pub(super) fn placeholder(delivery: &Delivery, name: &str) -> String {
    match name {
        "{idempotency_key}" => delivery.wire_key(),
        "{key_hash}" => sha256(delivery.wire_key()),
        "{entity_id}" => delivery.entity().to_owned(),
        "{tenant_id}" => delivery.tenant().to_owned(),
        "{ordering_key}" => delivery.ordering_key().unwrap_or_default().to_owned(),
        "{created_at}" => delivery.created_at().to_string(),
        "{downstream_id}" => delivery.downstream_id().unwrap_or_default().to_owned(),
        _ => String::new(),
    }
}

/// The body to send: the stored bytes, and none at all for an empty payload where the method
/// needs none.
fn body<'a>(method: &Method, delivery: &'a Delivery) -> Result<Option<&'a [u8]>, &'static str> {
    let payload = delivery.payload().as_bytes();
    let needs_body = [Method::POST, Method::PUT, Method::PATCH].contains(method);
    match (payload.is_empty(), needs_body) {
        (true, false) => Ok(None),
        (false, _) if *method == Method::HEAD => Err("a HEAD request cannot carry a payload"),
        _ => Ok(Some(payload)),
    }
}

/// A structured-field string, as RFC 8941 writes it.
fn quoted(key: &str) -> String {
    format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""))
}

fn value(text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_str(text).map_err(|_| "headers: one value is not a header value".to_owned())
}
