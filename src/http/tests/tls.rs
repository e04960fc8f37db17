//! Certificates are verified, and a refused one proves that nothing was sent.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::*;
use crate::core::BodyEnd;
use crate::http::exchange::{agent, exchange};

/// A server's configuration with a certificate for this name.
fn config(name: &str, expired: bool) -> (Arc<ServerConfig>, CertificateDer<'static>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    if expired {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    }
    let certificate = params.self_signed(&key).unwrap().der().clone();
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], private)
        .unwrap();
    (Arc::new(config), certificate)
}

fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("https://127.0.0.1:{}/ok", listener.local_addr().unwrap().port());
    (listener, endpoint)
}

type Tls = StreamOwned<ServerConnection, TcpStream>;

fn accept(listener: &TcpListener, config: &Arc<ServerConfig>) -> Tls {
    let (socket, _) = listener.accept().unwrap();
    // What is written must not wait for a confirmation of what was written before.
    socket.set_nodelay(true).unwrap();
    StreamOwned::new(ServerConnection::new(Arc::clone(config)).unwrap(), socket)
}

/// Reads a request with a JSON object as its body, or what comes of it.
fn receive(stream: &mut Tls) -> String {
    let mut received = String::new();
    let mut buffer = [0; 4096];
    while !received.ends_with('}') {
        match stream.read(&mut buffer) {
            Ok(n) if n > 0 => received.push_str(&String::from_utf8_lossy(&buffer[..n])),
            _ => break,
        }
    }
    received
}

/// Serves one connection with a certificate for this name; returns what was received.
fn serve(
    name: &str,
    expired: bool,
    answer: &'static [u8],
) -> (String, CertificateDer<'static>, JoinHandle<String>) {
    let ((config, certificate), (listener, endpoint)) = (config(name, expired), listen());
    let serving = std::thread::spawn(move || {
        let mut stream = accept(&listener, &config);
        let received = receive(&mut stream);
        if received.ends_with('}') {
            // The socket is then closed without the alert that marks the end.
            stream.write_all(answer).unwrap();
        }
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

/// The server answers by the head alone and resets the connection with the body unread: the answer
/// is there, below a write that breaks.
#[test]
fn early_refusal_over_tls_decides_and_an_early_success_does_not() {
    for status in ["413 Content Too Large", "200 OK"] {
        let ((config, certificate), (listener, endpoint)) = (config("127.0.0.1", false), listen());
        let serving = std::thread::spawn(move || {
            let mut stream = accept(&listener, &config);
            stream.read_exact(&mut [0; 64]).unwrap();
            let text = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}");
            stream.write_all(text.as_bytes()).unwrap();
        });
        let payload = "x".repeat(32 << 20).into();
        let large = delivery_of(StoredIntent { payload, ..intent("k") });
        let outcome = trusting(&endpoint, &certificate).deliver(&large);
        serving.join().unwrap();
        let refused = status.starts_with('4') && kind(&outcome) == ("rejected", "permanent");
        // A system other than Linux may drop the answer with the connection.
        let is_certain = status.starts_with('4') && cfg!(target_os = "linux");
        let in_doubt = kind(&outcome) == ("maybe_sent", "reset");
        assert!(refused || in_doubt && !is_certain, "{status}: {outcome:?}");
    }
}

/// Bytes that follow an answer wait in the layers of TLS, where the socket does not show them, or
/// come in a record of their own.
#[test]
fn stray_bytes_on_a_kept_tls_connection_answer_no_request() {
    const SECOND: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{\"id\":\"ch_2\"}";
    let stray = |size: usize| {
        let body = format!(r#"{{"id":"stray","pad":"{}"}}"#, "x".repeat(size));
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    };
    // Records, and whether they are sent together. Of a long one a part is read along.
    for (records, together, connections) in [
        (vec![OK.to_vec()], true, 1),
        (vec![[OK, b"\r\n"].concat()], true, 2),
        (vec![[OK, &stray(0)].concat()], true, 2),
        (vec![OK.to_vec(), stray(0)], true, 2),
        (vec![OK.to_vec(), stray(12_000)], true, 2),
        (vec![OK.to_vec(), stray(0)], false, 2),
    ] {
        let case = format!("{} records, together: {together}", records.len());
        let ((config, certificate), (listener, endpoint)) = (config("127.0.0.1", false), listen());
        let (written, is_written) = channel();
        let serving = std::thread::spawn(move || {
            let mut stream = accept(&listener, &config);
            receive(&mut stream);
            for record in records {
                stream.conn.writer().write_all(&record).unwrap();
                if !together {
                    stream.flush().unwrap();
                }
            }
            stream.flush().unwrap();
            written.send(()).unwrap();
            if connections > 1 {
                // Kept open, so that nothing but the bytes tells the client.
                let mut second = accept(&listener, &config);
                receive(&mut second);
                second.write_all(SECOND).unwrap();
            } else {
                receive(&mut stream);
                stream.write_all(SECOND).unwrap();
            }
        });
        let http = trusting(&endpoint, &certificate);
        http.deliver(&delivery("a"));
        is_written.recv().unwrap();
        let outcome = http.deliver(&delivery("b"));
        let Outcome::Succeeded(receipt) = outcome else { panic!("{outcome:?}") };
        assert_eq!(receipt.downstream_id.as_deref(), Some("ch_2"), "{case}");
        serving.join().unwrap();
    }
}
