//! The proof in each failure of the transport.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use super::*;
use crate::core::BodyEnd;
use crate::core::outcome::RECEIPT_BODY_MAX;
use crate::http::exchange::{agent, exchange};
use crate::http::resolve::Trust;

#[test]
fn request_that_left_without_an_answer_is_in_doubt() {
    for (path, class) in [
        ("/lost/9", "reset"),
        ("/cut/9", "reset"),
        ("/reset", "reset"),
        ("/partial_status", "reset"),
        ("/partial_headers", "reset"),
        ("/garbage", "protocol"),
        ("/silent", "timeout"),
        ("/hang/60", "timeout"),
        ("/drip_head/20", "timeout"),
    ] {
        let (outcome, server) = deliver(path);
        assert_eq!(kind(&outcome), ("maybe_sent", class), "{path}: {outcome:?}");
        assert_eq!(server.requests().len(), 1, "{path} is sent once");
    }
}

#[test]
fn connection_closed_before_the_request_was_read_is_in_doubt() {
    let (outcome, server) = deliver("/close");
    assert_eq!(kind(&outcome), ("maybe_sent", "reset"), "{outcome:?}");
    assert_eq!((server.connections(), server.requests().len()), (1, 0));
}

#[test]
fn status_counts_whatever_becomes_of_the_body() {
    for path in ["/truncated", "/drip/20", "/big/100000", "/endless", "/unmarked", "/ok"] {
        let (outcome, server) = deliver(path);
        let Outcome::Succeeded(receipt) = outcome else { panic!("{path}: {outcome:?}") };
        assert_eq!(receipt.status, Some(200), "{path}");
        assert!(receipt.body.unwrap_or_default().len() <= RECEIPT_BODY_MAX, "{path}");
        assert_eq!(server.requests().len(), 1, "{path}");
    }
}

#[test]
fn body_ends_are_told_apart() {
    let end = |path: &str| {
        let server = Server::start();
        let http = http(&server.url(path)).answer_max(RECEIPT_BODY_MAX);
        let delivery = delivery("k");
        let prepared = http.prepare(&delivery).unwrap();
        let trust = Trust { endpoint: Some(server.url("")), ..Trust::default() };
        let agent = agent(&short(), trust, ureq::tls::TlsConfig::default());
        let answer = exchange(&agent, prepared, &short()).unwrap();
        (answer.body.len(), answer.body_end)
    };
    let exact = format!("/big/{RECEIPT_BODY_MAX}");
    let longer = format!("/big/{}", RECEIPT_BODY_MAX + 1);
    assert_eq!(end(&exact), (RECEIPT_BODY_MAX, BodyEnd::Complete));
    assert_eq!(end(&longer), (RECEIPT_BODY_MAX, BodyEnd::Truncated));
    assert_eq!(end("/endless"), (RECEIPT_BODY_MAX, BodyEnd::Truncated));
    assert_eq!(end("/body/200/%7B%7D"), (2, BodyEnd::Complete));
    assert_eq!(end("/status/204"), (0, BodyEnd::Complete));
    for path in ["/truncated", "/drip/20", "/unmarked"] {
        let (_, end) = end(path);
        assert!(matches!(end, BodyEnd::Broken(_)), "{path}: {end:?}");
    }
}

/// No route leads there on any machine: the failure is the machine's own, and not the host's.
#[test]
fn address_without_a_route_is_no_fault_of_the_host() {
    let outcome = http("http://255.255.255.255:9/").deliver(&delivery("k"));
    let Outcome::NotSent(failure) = outcome else { panic!("{outcome:?}") };
    assert!(failure.is_offline() && !failure.proves_network(), "{failure:?}");
}

#[test]
fn redirect_is_an_answer_and_is_not_followed() {
    for status in [301, 302, 303, 307, 308] {
        let (outcome, server) = deliver(&format!("/redirect/{status}/ok"));
        assert!(outcome.failure().is_some(), "{status}: {outcome:?}");
        assert_eq!(server.requests().len(), 1, "{status}");
        assert_eq!(server.effects("k"), 0, "{status}");
    }
}

#[test]
fn status_that_is_final_is_an_answer() {
    let server = Server::start();
    for status in [101, 300, 301, 302, 303, 304, 307, 400, 404, 429, 500, 503, 600, 999] {
        let key = status.to_string();
        let outcome = http(&server.url(&format!("/status/{status}"))).deliver(&delivery(&key));
        let answered = outcome.failure().and_then(|failure| failure.status);
        assert_eq!(answered, Some(status), "{outcome:?}");
        assert_eq!(server.requests_for(&key).len(), 1);
    }
    for status in [200, 201, 202, 204, 205, 299] {
        let key = status.to_string();
        let outcome = http(&server.url(&format!("/status/{status}"))).deliver(&delivery(&key));
        assert!(matches!(outcome, Outcome::Succeeded(_)), "{status}: {outcome:?}");
    }
}

#[test]
fn request_that_never_left_is_not_sent() {
    let server = Server::start();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (endpoint, class) in [
        (format!("http://{free}/ok"), "connect"),
        (format!("https://{free}/ok"), "connect"),
        (server.url("/ok").replace("http://", "https://"), "tls"),
        ("http://nothing.invalid/ok".to_owned(), "dns"),
    ] {
        let outcome = http(&endpoint).deliver(&delivery("k"));
        assert_eq!(kind(&outcome), ("not_sent", class), "{endpoint}: {outcome:?}");
    }
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn bytes_of_an_earlier_attempt_of_the_thread_prove_nothing() {
    let server = Server::start();
    assert_eq!(kind(&http(&server.url("/lost/1")).deliver(&delivery("k"))).0, "maybe_sent");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let outcome = http(&format!("http://{free}/ok")).deliver(&delivery("k"));
    assert_eq!(kind(&outcome), ("not_sent", "connect"), "{outcome:?}");
}

#[test]
fn tls_handshake_that_hangs_or_is_cut_is_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("https://{}/ok", listener.local_addr().unwrap());
    let quick = Timeouts { connect: Duration::from_millis(150), ..short() };
    // Nobody accepts: the system completes the connection, and no handshake is answered.
    let outcome = http(&endpoint).timeouts(quick).deliver(&delivery("k"));
    assert_eq!(kind(&outcome), ("not_sent", "timeout"), "{outcome:?}");

    let cutting = std::thread::spawn(move || {
        let _hanging = listener.accept().unwrap();
        drop(listener.accept().unwrap());
    });
    let outcome = http(&endpoint).deliver(&delivery("k"));
    assert_eq!(kind(&outcome), ("not_sent", "tls"), "{outcome:?}");
    cutting.join().unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn connection_that_is_never_made_is_not_sent() {
    use socket2::{Domain, Socket, Type};
    use std::net::TcpStream;
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    // Once the queue is full, the system drops what else comes in.
    let mut queue = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
        queue.push(stream);
        assert!(queue.len() < 64, "the queue never fills");
    }
    let quick = Timeouts { connect: Duration::from_millis(150), ..short() };
    let outcome = http(&format!("http://{address}/ok")).timeouts(quick).deliver(&delivery("k"));
    assert_eq!(kind(&outcome), ("not_sent", "timeout"), "{outcome:?}");
}

#[test]
fn timeout_of_sending_ends_a_peer_that_never_reads() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let quick = Timeouts { send: Duration::from_millis(300), ..short() };
    let http = http(&format!("http://{}/ok", listener.local_addr().unwrap())).timeouts(quick);
    let delivery =
        delivery_of(StoredIntent { payload: "x".repeat(48 << 20).into(), ..intent("k") });
    let started = Instant::now();
    let outcome = http.deliver(&delivery);
    assert_eq!(kind(&outcome), ("maybe_sent", "timeout"), "{outcome:?}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn connection_kept_and_closed_is_replaced_and_nothing_is_sent_twice() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let http = http(&format!("http://{}/ok", listener.local_addr().unwrap()));
    let serving = std::thread::spawn(move || {
        let mut requests = 0;
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 4096];
            let mut seen = String::new();
            while !seen.ends_with(r#"{"amount":1}"#) {
                let n = stream.read(&mut buffer).unwrap();
                seen.push_str(&String::from_utf8_lossy(&buffer[..n]));
            }
            requests += seen.matches("POST ").count();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        }
        requests
    });
    for _ in 0..2 {
        let outcome = http.deliver(&delivery("k"));
        // Whether the close is seen in time is a race; a request in doubt is not repeated here.
        if kind(&outcome).0 == "maybe_sent" {
            assert!(matches!(http.deliver(&delivery("k")), Outcome::Succeeded(_)));
        }
    }
    assert_eq!(serving.join().unwrap(), 2);
}

#[test]
fn time_limit_is_the_sum_of_the_phases() {
    assert_eq!(Http::new().time_limit(), Duration::from_secs(60));
    let ms = Duration::from_millis;
    let timeouts =
        Timeouts { resolve: ms(1), connect: ms(2), send: ms(31), response: ms(4), body: ms(5) };
    assert_eq!(Http::new().timeouts(timeouts).time_limit(), ms(43));
    let (head, body) = timeouts.send_parts();
    assert_eq!(head + body, ms(31));
}
