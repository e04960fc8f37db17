//! The form of an endpoint, and the values of its placeholders.
//!
//! No message here repeats any part of an endpoint: its path or query may be a credential.

use std::fmt::Write;

use http::Uri;

use crate::error::{Error, Result};

/// The longest endpoint, in bytes, before its placeholders are filled in.
pub(crate) const ENDPOINT_MAX: usize = 2048;

/// Placeholders in an endpoint's path or query; each is replaced percent-encoded.
pub(crate) const PLACEHOLDERS: &[&str] = &["{idempotency_key}", "{entity_id}"];

/// Placeholders in the URL of a lookup.
pub(crate) const LOOKUP_PLACEHOLDERS: &[&str] =
    &["{idempotency_key}", "{entity_id}", "{downstream_id}", "{tenant_id}"];

/// Reads an endpoint, with or without placeholders: an absolute `http` or `https` URL with a
/// host, without user name and fragment.
pub(crate) fn check_endpoint(text: &str) -> Result<Uri> {
    check_template(text, PLACEHOLDERS)
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

/// Fills in the placeholders of a checked endpoint, with a value for each.
pub(crate) fn expand(endpoint: &str, placeholders: &[&str], values: &[&str]) -> Result<Uri> {
    let mut text = endpoint.to_owned();
    for (&placeholder, &value) in placeholders.iter().zip(values) {
        if endpoint.contains(placeholder) {
            // An empty or dotted segment would name another resource than the one meant.
            if matches!(value, "" | "." | "..") {
                let why = format!("the value for {placeholder} is empty or a dot segment");
                return Err(invalid(why));
            }
            text = text.replace(placeholder, &percent_encode(value));
        }
    }
    parse(&text)
}

fn check_placeholders(text: &str, placeholders: &[&str]) -> Result<()> {
    let mut rest = text.to_owned();
    for placeholder in placeholders {
        rest = rest.replace(placeholder, "x");
    }
    if rest.contains(['{', '}']) {
        let why = format!(
            "only {} may stand in braces; write others as %7B, %7D",
            placeholders.join(" and ")
        );
        return Err(invalid(why));
    }
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
    if host.is_empty() || host == "[]" {
        return Err(invalid("has no host"));
    }
    // A port that is empty or too large would silently become the scheme's default.
    let port = authority.as_str().get(host.len()..).unwrap_or_default();
    if !port.is_empty() && authority.port_u16().is_none_or(|port| port == 0) {
        return Err(invalid("has a port that is not in 1..65535"));
    }
    Ok(uri)
}

fn percent_encode(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

fn invalid(reason: impl std::fmt::Display) -> Error {
    Error::invalid("endpoint", reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_is_an_absolute_http_url() {
        for text in [
            "https://api.example.com",
            "https://api.example.com/v1/charges?a=b",
            "HTTPS://API.example.com:8443/x",
            "http://127.0.0.1:1/",
            "http://[::1]:8080/x",
            "https://api.example.com/c/{idempotency_key}?e={entity_id}",
        ] {
            assert!(check_endpoint(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn endpoint_otherwise_is_refused_without_repeating_it() {
        let long = format!("https://secret.example/{}", "a".repeat(ENDPOINT_MAX));
        for text in [
            "",
            long.as_str(),
            "/secret",
            "secret.example/path",
            "ftp://secret.example/",
            "https://",
            "https:///secret",
            "https://user:secret@example.com/",
            "https://secret@example.com/",
            "https://example.com/#secret",
            "https://example.com/sec ret",
            "https://example.com/sec\r\nret",
            "https://example.com/secr\u{e9}t",
            "https://secr\u{e9}t.example/",
            "https://example.com:/secret",
            "https://example.com:0/secret",
            "https://example.com:99999/secret",
            "https://example.com/{secret}",
            "https://example.com/secret{",
            "https://{entity_id}.example.com/secret",
            "https://example.com:{entity_id}/secret",
        ] {
            let error = check_endpoint(text).unwrap_err().to_string();
            assert!(error.starts_with("endpoint: "), "{error}");
            assert!(!error.contains("secret"), "{text}: {error}");
        }
    }

    #[test]
    fn origins_are_normalised() {
        for (text, expected) in [
            ("HTTPS://API.Example.com:443/x?y", "https://api.example.com"),
            ("https://api.example.com", "https://api.example.com"),
            ("http://api.example.com:443/", "http://api.example.com:443"),
            ("http://Api.example.com:80/", "http://api.example.com"),
            ("http://[::1]:8080/", "http://[::1]:8080"),
        ] {
            assert_eq!(origin(&check_endpoint(text).unwrap()), expected);
        }
    }

    #[test]
    fn placeholders_are_percent_encoded() {
        let endpoint = "https://example.com/{entity_id}/x?k={idempotency_key}";
        let uri = expand(endpoint, PLACEHOLDERS, &["a:b/c", "ord\u{e9}r ?#&1"]).unwrap();
        assert_eq!(uri.to_string(), "https://example.com/ord%C3%A9r%20%3F%23%261/x?k=a%3Ab%2Fc");
    }

    #[test]
    fn placeholder_value_is_not_expanded_again() {
        let endpoint = "https://example.com/{idempotency_key}";
        let uri = expand(endpoint, PLACEHOLDERS, &["{entity_id}", "other"]).unwrap();
        assert_eq!(uri.path(), "/%7Bentity_id%7D");
    }

    #[test]
    fn placeholder_value_cannot_leave_its_segment() {
        for value in ["", ".", ".."] {
            let endpoint = "https://example.com/a/{entity_id}";
            assert!(expand(endpoint, PLACEHOLDERS, &["k", value]).is_err());
        }
        let endpoint = "https://example.com/a/{entity_id}";
        let uri = expand(endpoint, PLACEHOLDERS, &["k", "../b"]).unwrap();
        assert_eq!(uri.path(), "/a/..%2Fb");
    }

    #[test]
    fn origin_is_all_that_is_kept_of_a_url() {
        for (url, expected) in [
            ("https://a.example/x", Some("https://a.example")),
            ("http://[::1]:80?q", Some("http://[::1]")),
            ("http://[::1]:8080?q", Some("http://[::1]:8080")),
            ("HTTPS://A.Example/{idempotency_key}", Some("https://a.example")),
            ("https://u:p@a.example#f", Some("https://a.example")),
            (r"https://a.example\@b.example/", None),
            ("/charges/1", None),
            ("//a.example/x", None),
            ("https:///x", None),
            ("/x?next=https://a.example", None),
            ("https://a b/", None),
            ("", None),
        ] {
            assert_eq!(origin_of(url).as_deref(), expected, "{url}");
        }
    }
}
