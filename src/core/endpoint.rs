//! The form of an endpoint.
//!
//! No message here repeats any part of an endpoint: its path or query may be a credential.

use http::Uri;

use super::key::sha256;
use super::template::{self, Form};
use crate::error::{Error, Result};

/// The longest endpoint, in bytes, before its placeholders are filled in.
pub(crate) const ENDPOINT_MAX: usize = 2048;

/// Reads an endpoint, with or without placeholders: an absolute `http` or `https` URL with a
/// host, without user name and fragment.
pub(crate) fn check_endpoint(text: &str) -> Result<Uri> {
    check_template(text, template::OWN)
}

/// Reads an endpoint that may have these placeholders.
pub(crate) fn check_template(text: &str, placeholders: &[&str]) -> Result<Uri> {
    if text.is_empty() || text.len() > ENDPOINT_MAX {
        return Err(invalid("must be a URL of 1 to 2048 bytes"));
    }
    check_placeholders(text, placeholders)?;
    parse(text)
}

/// The scheme, host and port, in lower case and without the scheme's default port: two endpoints
/// of the same origin give the same text.
pub(crate) fn origin(uri: &Uri) -> String {
    let scheme = uri.scheme_str().unwrap_or_default().to_ascii_lowercase();
    let host = uri.host().unwrap_or_default().to_ascii_lowercase();
    let usual = if scheme == "https" { 443 } else { 80 };
    match uri.port_u16() {
        Some(port) if port != usual => format!("{scheme}://{host}:{port}"),
        _ => format!("{scheme}://{host}"),
    }
}

/// The [`origin`] of a text that may be a URL; `None` where it has no scheme or no host.
pub(crate) fn origin_of(text: &str) -> Option<String> {
    let uri: Uri = text.parse().ok()?;
    (uri.scheme().is_some() && uri.host().is_some_and(|host| !host.is_empty()))
        .then(|| origin(&uri))
}

/// The name of an endpoint under which it may be shown: its origin, and a hash for the rest.
pub(crate) fn endpoint_name(endpoint: &str) -> Option<String> {
    let hash = sha256(endpoint);
    Some(format!("{} #{}", origin_of(endpoint)?, &hash[..16]))
}

/// Fills in the placeholders of a checked endpoint, each with the value that `value` has for it.
pub(crate) fn expand(endpoint: &str, value: impl Fn(&str) -> String) -> Result<Uri> {
    parse(&template::fill(endpoint, Form::Url, value).map_err(invalid)?)
}

fn check_placeholders(text: &str, placeholders: &[&str]) -> Result<()> {
    template::check_braces(text, placeholders).map_err(invalid)?;
    let after_scheme = text.split_once("://").map_or(text, |(_, rest)| rest);
    let authority = after_scheme.split(['/', '?']).next().unwrap_or_default();
    if authority.contains('{') {
        return Err(invalid("a placeholder may stand in the path or query, not in the host"));
    }
    Ok(())
}

fn parse(text: &str) -> Result<Uri> {
    // The URI parser lets raw UTF-8 through to the wire and drops fragments without a word.
    if !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(invalid("has a space, a control or a non-ASCII character; percent-encode it"));
    }
    if text.contains('#') {
        return Err(invalid("has a fragment, which is never sent; leave it out"));
    }
    // The parser's own text is not repeated: it may quote the URL.
    let uri: Uri = text.parse().map_err(|_| invalid("is not a URL"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(invalid("must begin with https:// or http://"));
    }
    let Some(authority) = uri.authority() else { return Err(invalid("has no host")) };
    if authority.as_str().contains('@') {
        return Err(invalid("has a user name or password; configure an authorization header"));
    }
    let host = authority.host();
    if !is_host(host) {
        return Err(invalid("has no host, or one that is neither a name nor an address"));
    }
    // A port that is empty or too large would silently become the scheme's default.
    let port = authority.as_str().get(host.len()..).unwrap_or_default();
    let is_number = port.starts_with(':') && port.bytes().skip(1).all(|b| b.is_ascii_digit());
    if !port.is_empty() && (!is_number || authority.port_u16().is_none_or(|port| port == 0)) {
        return Err(invalid("has a port that is not in 1..65535"));
    }
    Ok(uri)
}

/// Whether a text has the form of a host's name, or of an IPv6 address in brackets. The guard of
/// schema.sql decides in the same way.
fn is_host(host: &str) -> bool {
    if let Some(inner) = host.strip_prefix('[') {
        let inner = inner.strip_suffix(']').unwrap_or_default();
        let is_address = |b: u8| b.is_ascii_hexdigit() || b == b':' || b == b'.';
        return inner.matches(':').count() >= 2 && inner.bytes().all(is_address);
    }
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    !host.is_empty() && host.bytes().all(is_name)
}

fn invalid(reason: impl std::fmt::Display) -> Error {
    Error::invalid("endpoint", reason)
}

#[cfg(test)]
mod tests;
