//! Where requests and credentials may go, and what may be said about them.

use super::*;

#[test]
fn endpoint_of_a_row_may_not_lead_inside() {
    let server = Server::start();
    let port = server.address().port();
    let http = Http::new().timeouts(short());
    for host in ["127.0.0.1", "127.1", "localhost", "2130706433", "[::ffff:127.0.0.1]"] {
        for scheme in ["http", "https"] {
            let outcome = http.deliver(&delivery_to("k", format!("{scheme}://{host}:{port}/ok")));
            let (kind, class) = kind(&outcome);
            // A system that does not know a spelling fails before the filter.
            let unknown = (kind, class) == ("not_sent", "dns");
            assert!(unknown || (kind, class) == ("rejected", "endpoint"), "{host}: {outcome:?}");
        }
    }
    let outcome = http.deliver(&delivery_to("k", format!("https://127.0.0.1:{port}/ok")));
    assert!(outcome.failure().unwrap().message.contains("allow_addresses"), "{outcome:?}");
    assert_eq!(server.connections(), 0);
}

#[test]
fn ranges_and_origins_open_the_way() {
    let server = Server::start();
    let other = Server::start();
    let ranged = Http::new().timeouts(short()).allow_addresses(["127.0.0.0/8"]);
    let named = Http::new().timeouts(short()).allow_origins([server.url("")]);
    let own = http(&server.url("/naive"));
    for (http, key) in [(&ranged, "ranged"), (&named, "named"), (&own, "own")] {
        let outcome = http.deliver(&delivery_to(key, server.url("/ok")));
        assert!(matches!(outcome, Outcome::Succeeded(_)), "{key}: {outcome:?}");
    }
    for http in [&named, &own] {
        let outcome = http.deliver(&delivery_to("k", other.url("/ok")));
        assert_eq!(kind(&outcome), ("rejected", "endpoint"));
    }
    assert_eq!(other.connections(), 0);
}

#[test]
fn credentials_go_only_where_the_configuration_points() {
    let configured = Server::start();
    let named = Server::start();
    let stranger = Server::start();
    let http = http(&configured.url("/ok"))
        .header("Authorization", "Bearer SECRET")
        .allow_origins([named.url("")])
        .allow_addresses(["127.0.0.0/8"]);
    http.deliver(&delivery("default"));
    http.deliver(&delivery_to("same", configured.url("/naive")));
    http.deliver(&delivery_to("named", named.url("/ok")));
    http.deliver(&delivery_to("stranger", stranger.url("/ok")));
    let sent = |server: &Server| -> Vec<Option<String>> {
        server.requests().iter().map(|r| r.header("authorization").map(str::to_owned)).collect()
    };
    let secret = Some("Bearer SECRET".to_owned());
    assert_eq!(sent(&configured), [secret.clone(), secret.clone()]);
    assert_eq!(sent(&named), [secret]);
    assert_eq!(sent(&stranger), [None]);
}

#[test]
fn endpoint_set_earlier_is_not_trusted_any_more() {
    let (old, new) = (Server::start(), Server::start());
    let http = http(&old.url("/ok")).endpoint(&new.url("/ok"));
    let outcome = http.deliver(&delivery_to("k", old.url("/ok")));
    assert_eq!(kind(&outcome), ("rejected", "endpoint"));
}

#[test]
fn endpoint_that_cannot_be_used_is_refused_for_good() {
    let http = Http::new();
    let outcome = http.deliver(&delivery("k"));
    assert_eq!(kind(&outcome), ("not_sent", "endpoint"));
    for endpoint in [
        "",
        "api.example.com/x",
        "ftp://example.com/",
        "https://user:SENTINEL@example.com/",
        "https://example.com/#SENTINEL",
        "https://example.com:0/SENTINEL",
        "https://example.com/SENTI NEL",
        "http://example.com/SENTINEL",
    ] {
        let outcome = http.deliver(&delivery_to("k", endpoint));
        assert_eq!(kind(&outcome), ("rejected", "endpoint"), "{endpoint}: {outcome:?}");
        assert!(!format!("{outcome:?}").contains("SENTINEL"), "{outcome:?}");
    }
}

#[test]
fn proxy_from_the_environment_is_not_used() {
    const TARGET: &str = "OUTBOX_TEST_PROXY_TARGET";
    if let Ok(target) = std::env::var(TARGET) {
        let outcome = http(&target).deliver(&delivery("k"));
        assert!(matches!(outcome, Outcome::Succeeded(_)), "{outcome:?}");
        return;
    }
    let (server, proxy) = (Server::start(), Server::start());
    let (target, proxy_url) = (server.url("/ok"), proxy.url(""));
    let mut variables = vec![(TARGET, target.as_str())];
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]
    {
        variables.push((name, proxy_url.as_str()));
    }
    child::run(concat!(module_path!(), "::proxy_from_the_environment_is_not_used"), &variables);
    assert_eq!((server.requests().len(), proxy.connections()), (1, 0));
}

#[test]
fn secrets_are_never_said_or_logged() {
    // A process has one logger, so this takes a process of its own.
    if !child::is_child() {
        return child::run(concat!(module_path!(), "::secrets_are_never_said_or_logged"), &[]);
    }
    capture::begin();
    let server = Server::start();
    let base = server.url("");
    let tls = base.replace("http://", "https://");
    for (origin, path) in [
        (base.as_str(), "/ok"),
        (&base, "/status/403"),
        (&base, "/status/500"),
        (&base, "/silent"),
        (&base, "/reset"),
        (&base, "/garbage"),
        (&base, "/redirect/302/x"),
        (&tls, "/ok"),
        ("http://nothing.invalid", "/ok"),
        ("http://127.0.0.1:1", "/ok"),
    ] {
        let endpoint = format!("{origin}{path}/SENTINEL1?token=SENTINEL2");
        let http = http(&endpoint).header("authorization", "Bearer SENTINEL3");
        let elsewhere = Http::new().allow_addresses(["127.0.0.0/8"]).timeouts(short());
        let secret = StoredIntent {
            payload: "SENTINEL4".into(),
            headers: vec![("x-own".into(), "SENTINEL5".into())],
            ..intent("k")
        };
        let from_row =
            delivery_of(StoredIntent { endpoint: Some(endpoint.clone()), ..secret.clone() });
        let malformed = delivery_of(StoredIntent {
            headers: vec![("x".into(), "SENTINEL5\r\n".into())],
            ..secret.clone()
        });
        for outcome in [
            http.deliver(&delivery_of(secret)),
            http.deliver(&malformed),
            elsewhere.deliver(&from_row),
        ] {
            let said = format!("{outcome:?} {http:?}");
            assert!(!said.contains("SENTINEL"), "{path}: {said}");
        }
    }
    let logged = capture::logged();
    assert!(logged.contains("intent 7 (charge)"), "{logged}");
    assert!(!logged.contains("SENTINEL"), "{logged}");
}
