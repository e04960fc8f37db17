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
fn endpoint_with_its_placeholders_filled_in_is_still_one() {
    let value = |name: &str| if name == "{entity_id}" { "ord\u{e9}r?#1" } else { "../{" }.into();
    let uri = expand("https://example.com/{entity_id}?k={idempotency_key}", value).unwrap();
    assert_eq!(uri.to_string(), "https://example.com/ord%C3%A9r%3F%231?k=..%2F%7B");
    let error = expand("https://example.com/{entity_id}/x", |_| String::new()).unwrap_err();
    assert!(error.to_string().starts_with("endpoint: the value for {entity_id} is empty"));
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
