//! Certificates are verified, and a refused one proves that nothing was sent.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::*;
use crate::core::BodyEnd;
use crate::http::exchange::{agent, exchange};

/// Serves one connection with a certificate for this name; returns what was received.
fn serve(
    name: &str,
    expired: bool,
    answer: &'static [u8],
) -> (String, CertificateDer<'static>, JoinHandle<String>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    if expired {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    }
    let certificate = params.self_signed(&key).unwrap().der().clone();
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], private)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("https://127.0.0.1:{}/ok", listener.local_addr().unwrap().port());
    let serving = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut connection = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream = rustls::Stream::new(&mut connection, &mut socket);
        let mut received = String::new();
        let mut buffer = [0; 4096];
        while !received.ends_with('}') {
            match stream.read(&mut buffer) {
                Ok(n) if n > 0 => received.push_str(&String::from_utf8_lossy(&buffer[..n])),
                _ => return received,
            }
        }
        // The socket is then closed without the alert that marks the end.
        stream.write_all(answer).unwrap();
        received
    });
    (endpoint, certificate, serving)
}

/// A handler that takes this certificate for an authority.
fn trusting(endpoint: &str, certificate: &CertificateDer<'_>) -> Http {
    let http = http(endpoint);
    let root = Certificate::from_der(certificate).to_owned();
    let tls = TlsConfig::builder().root_certs(RootCerts::from(vec![root])).build();
    http.agent.set(agent(&http.timeouts, http.trust.clone(), tls)).unwrap();
    http
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

#[test]
fn certificate_that_fits_is_accepted() {
    let (endpoint, certificate, serving) = serve("127.0.0.1", false, OK);
    let outcome = trusting(&endpoint, &certificate).deliver(&delivery("k"));
    assert!(matches!(outcome, Outcome::Succeeded(_)), "{outcome:?}");
    assert!(serving.join().unwrap().starts_with("POST /ok HTTP/1.1\r\n"));
}

#[test]
fn certificate_that_does_not_fit_is_named_and_nothing_is_sent() {
    for (name, expired, known, problem) in [
        ("127.0.0.1", false, false, "issuer is not known"),
        ("127.0.0.1", true, true, "expired"),
        ("other.example", false, true, "another host name"),
    ] {
        let (endpoint, certificate, serving) = serve(name, expired, OK);
        let http = if known { trusting(&endpoint, &certificate) } else { http(&endpoint) };
        let outcome = http.deliver(&delivery("k"));
        assert_eq!(kind(&outcome), ("not_sent", "tls"), "{outcome:?}");
        let message = &outcome.failure().unwrap().message;
        assert!(message.contains("certificate") && message.contains(problem), "{message}");
        assert_eq!(serving.join().unwrap(), "", "{problem}");
    }
}

#[test]
fn tls_body_whose_end_is_not_marked_is_not_taken_for_whole() {
    let unmarked = b"HTTP/1.1 200 OK\r\n\r\n{\"ok\":true";
    let (endpoint, certificate, serving) = serve("127.0.0.1", false, unmarked);
    let http = trusting(&endpoint, &certificate);
    let delivery = delivery("k");
    let prepared = http.prepare(&delivery).unwrap();
    let answer = exchange(http.agent.get().unwrap(), prepared, &http.timeouts).unwrap();
    assert_eq!(answer.status, 200);
    assert!(matches!(answer.body_end, BodyEnd::Broken(_)), "{:?}", answer.body_end);
    serving.join().unwrap();
}
