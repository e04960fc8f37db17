//! Secrets that must not be seen, and places to which nothing must be sent.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::Handler as _;
use sqlite_outbox::{ErrorKind, Http, Intent, Operation, Relay, Status};

use crate::support::wire::{Wire, hasty, http};
use crate::support::world::{DEDUPLICATES, pay};
use crate::support::{capture, child};

/// On each answer that was no success the full URL of a webhook, which is itself the credential,
/// went to the log. Here secrets stand in every place that may hold one, on every path of failure.
#[test]
fn secrets_are_never_logged_stored_or_told() {
    if !child::is_child() {
        return child::run(
            concat!(module_path!(), "::secrets_are_never_logged_stored_or_told"),
            &[],
        );
    }
    capture::begin();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let told = Arc::new(Mutex::new(String::new()));
    for path in [
        "/ok",
        "/status/403",
        "/status/500",
        "/status/429",
        "/silent",
        "/reset",
        "/garbage",
        "/redirect/302",
        "refused",
        "dns",
        "tls",
    ] {
        let wire = Wire::new();
        let origin = match path {
            "refused" => format!("http://{free}"),
            "dns" => "http://nothing.invalid".into(),
            "tls" => wire.server.url("").replace("http:", "https:"),
            path => wire.server.url(path),
        };
        let url = format!("{origin}/SENTINEL1?token=SENTINEL2");
        let configured = hasty()
            .endpoint(&url)
            .header("authorization", "Bearer SENTINEL3")
            .header("x-api-key", "SENTINEL4");
        let intent = |entity: &str| {
            let payload = r#"{"card":"SENTINEL5"}"#;
            Intent::new("pay", entity).payload(payload).header("x-trace", "SENTINEL6")
        };
        let ids = [
            wire.world.enqueue(&intent("order-1")),
            wire.world.enqueue(&intent("order-2").endpoint(&url)),
        ];
        let observer = Arc::clone(&told);
        let relay = Relay::builder(&wire.world.outbox)
            .operation("pay", Operation::new(DEDUPLICATES, configured))
            .workers(1)
            .observe(move |event| write!(observer.lock().unwrap(), "{event:?}").unwrap())
            .build()
            .unwrap();
        relay.drain().unwrap();
        write!(told.lock().unwrap(), "{:?}", wire.world.outbox.operations().unwrap()).unwrap();
        for id in ids {
            let mut entry = wire.world.entry(id);
            // Where the first stopped the whole operation, the second was not sent.
            let tried = entry.attempts > 0 || entry.last_error.is_some();
            let is_held = ["/status/403", "/status/429"].contains(&path);
            assert!(tried || is_held, "{path}: {entry:?}");
            // What the application wrote into the row itself is handed back to it.
            entry.endpoint = None;
            write!(told.lock().unwrap(), "{entry:?} {:?}", wire.world.outbox.audit(id)).unwrap();
        }
        let conflict = wire.world.try_enqueue(&intent("order-1").payload("{}")).unwrap_err();
        write!(told.lock().unwrap(), "{conflict} {conflict:?}").unwrap();
    }
    let logged = capture::logged();
    assert!(logged.contains("intent 1 (pay)"), "{logged}");
    assert!(!logged.contains("SENTINEL"), "{logged}");
    let told = told.lock().unwrap();
    assert!(told.contains("Attempt"));
    assert!(!told.contains("SENTINEL"), "{told}");
}

/// A URL with a user name and a password is refused wherever it is given, and not repeated.
#[test]
fn password_in_a_url_is_refused_without_repeating_it() {
    let wire = Wire::new();
    let url = "https://SENTINEL1:SENTINEL2@api.example.com/charges";
    for refused in [
        Http::new().endpoint(url).check().unwrap_err(),
        Http::new().allow_origins([url]).check().unwrap_err(),
        wire.world.try_enqueue(&pay("order-1").endpoint(url)).unwrap_err(),
    ] {
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(!format!("{refused} {refused:?}").contains("SENTINEL"), "{refused:?}");
    }
}

/// On a redirect the credentials and the body were sent to whatever host was named. Nothing is
/// followed here, so the other host hears nothing at all.
#[test]
fn redirect_to_another_host_takes_nothing_there() {
    for status in [301, 302, 303, 307, 308] {
        let (wire, other) = (Wire::new(), Wire::new());
        let id = wire.world.enqueue(&pay("order-1"));
        let path = format!("/redirect/{status}//{}/ok", other.server.address());
        let http = wire.to(&path).header("authorization", "Bearer secret");
        let relay = wire.relay(DEDUPLICATES, http);
        relay.drain().unwrap();
        assert!(matches!(wire.world.entry(id).status, Status::Pending | Status::Dead));
        wire.world.advance(10);
        relay.drain().unwrap();
        assert_eq!(other.server.connections(), 0, "{status}");
    }
}

/// The HTTP client took a proxy from the environment even for loopback, so the environment changed
/// where payloads went.
#[test]
fn proxy_from_the_environment_is_not_used() {
    const TARGET: &str = "OUTBOX_TEST_TARGET";
    const PROXIES: [&str; 6] =
        ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    let wire = Wire::new();
    if let (true, Ok(target)) = (child::is_child(), std::env::var(TARGET)) {
        let id = wire.world.enqueue(&pay("order-1"));
        wire.relay(Unprotected, http().endpoint(&target)).drain().unwrap();
        assert_eq!(wire.world.entry(id).status, Status::Succeeded);
        return;
    }
    let proxy = Wire::new();
    let (target, proxy_url) = (wire.server.url("/naive"), proxy.server.url(""));
    let mut variables = vec![(TARGET, target.as_str())];
    variables.extend(PROXIES.map(|name| (name, proxy_url.as_str())));
    child::run(concat!(module_path!(), "::proxy_from_the_environment_is_not_used"), &variables);
    assert_eq!((wire.server.requests().len(), proxy.server.connections()), (1, 0));
}

/// A server with a certificate that nobody signed; returns its port and what it was sent.
fn serve_self_signed() -> (u16, std::thread::JoinHandle<String>) {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap().der().clone();
    let private = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], private)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut connection = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream = rustls::Stream::new(&mut connection, &mut socket);
        let mut received = [0; 1024];
        match stream.read(&mut received) {
            Ok(n) => {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                String::from_utf8_lossy(&received[..n]).into_owned()
            }
            Err(_) => String::new(),
        }
    });
    (port, serving)
}

/// Problems with a certificate were met as any failed connection and retried without verifying it.
/// Nothing is sent, in plain text or otherwise, the error says why, and the intent waits, even
/// where nothing deduplicates.
#[test]
fn certificate_without_a_trusted_signer_gets_nothing() {
    for downstream in [Unprotected, DEDUPLICATES] {
        let wire = Wire::new();
        let id = wire.world.enqueue(&pay("order-1"));
        let (port, serving) = serve_self_signed();
        let https = http().endpoint(&format!("https://127.0.0.1:{port}/ok"));
        wire.relay(downstream, https).drain().unwrap();
        assert_eq!(serving.join().unwrap(), "");
        let entry = wire.world.entry(id);
        assert_eq!((entry.status, entry.attempts), (Status::Pending, 0));
        assert_eq!(wire.class(id).as_deref(), Some("tls"));
        assert!(entry.last_error.unwrap().contains("certificate"));

        wire.world.advance(10);
        wire.drain(downstream, "/naive");
        assert_eq!(wire.world.entry(id).status, Status::Succeeded);
        assert_eq!(wire.server.effects(&entry.idempotency_key), 1);
    }
}
