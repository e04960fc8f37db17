use super::*;

fn check(name: &str, value: &str) -> Result<()> {
    check_header(name, value, "X-Request-Key")
}

#[test]
fn names_are_tokens_and_values_are_visible() {
    for (name, value) in [
        ("traceparent", "00-ab-cd-01"),
        ("X-Schema", "2"),
        ("authorization", "Bearer a b c"),
        ("x!#$%&'*+-.^_`|~9", "~"),
    ] {
        assert!(check(name, value).is_ok(), "{name}");
    }
    for name in ["", "a b", "a:", "a\r\nb", "a\0", "cl\u{e9}", "(x)", "\"x\""] {
        assert!(check(name, "v").is_err(), "{name:?}");
    }
    for value in ["", " ", " a", "a ", "a\tb", "a\r\nb: c", "a\nb", "a\0", "cl\u{e9}", "\x7f"] {
        assert!(check("x", value).is_err(), "{value:?}");
    }
}

#[test]
fn the_transport_keeps_its_own_headers() {
    for name in RESERVED {
        assert!(check(name, "v").is_err(), "{name}");
        assert!(check(&name.to_ascii_uppercase(), "v").is_err(), "{name}");
    }
    for name in ["Proxy-Authorization", "proxy-x", "idempotency-key", "x-request-KEY"] {
        assert!(check(name, "v").is_err(), "{name}");
    }
    assert!(check("content-type", "text/plain").is_ok());
}

#[test]
fn values_are_never_repeated() {
    for (name, value) in [("x", "SENTINEL\r\n"), ("host", "SENTINEL"), ("x: SENTINEL", "SENTINEL")]
    {
        assert!(!check(name, value).unwrap_err().to_string().contains("SENTINEL"));
    }
}

#[test]
fn lists_are_bounded_and_name_nothing_twice() {
    let names: Vec<String> = (0..51).map(|i| format!("x-{i}")).collect();
    let list = |n: usize| names.iter().take(n).map(|name| (name.as_str(), "v"));
    assert!(check_headers_beside(list(50), IDEMPOTENCY_HEADER).is_ok());
    assert!(check_headers_beside(list(51), IDEMPOTENCY_HEADER).is_err());
    let long = "v".repeat(8192);
    assert!(check_headers_beside([("x", &long[1..])], IDEMPOTENCY_HEADER).is_ok());
    assert!(check_headers_beside([("x", long.as_str())], IDEMPOTENCY_HEADER).is_err());
    assert!(check_headers_beside([("x-a", "1"), ("X-A", "1")], IDEMPOTENCY_HEADER).is_err());
}
