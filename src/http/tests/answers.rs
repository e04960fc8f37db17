//! Answers as gateways and services send them: odd heads, odd bodies, and answers out of turn.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};

use super::*;
use crate::core::Receipt;

/// Serves connections one after the other: each answers as many requests as it has answers.
fn scripted(script: Vec<Vec<Vec<u8>>>) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/ok", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let mut open = Vec::new();
        for answers in script {
            let (mut stream, _) = listener.accept().unwrap();
            for answer in answers {
                let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
                while !seen.ends_with(b"}") {
                    let n = stream.read(&mut buffer).unwrap();
                    assert!(n > 0, "a request was expected");
                    seen.extend_from_slice(&buffer[..n]);
                }
                stream.write_all(&answer).unwrap();
            }
            open.push(stream);
        }
    });
    (endpoint, serving)
}

fn answer(fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn receipt(answer: Vec<u8>) -> Receipt {
    let (endpoint, serving) = scripted(vec![vec![answer]]);
    let outcome = http(&endpoint).deliver(&delivery("k"));
    serving.join().unwrap();
    let Outcome::Succeeded(receipt) = outcome else { panic!("{outcome:?}") };
    receipt
}

const BODY: &[u8] = br#"{"id":"ch_1"}"#;

#[test]
fn head_that_is_odd_takes_nothing_from_a_200() {
    let many = "X-Many: v\r\n".repeat(1500);
    let large = format!("Set-Cookie: {}\r\n", "c".repeat(200_000));
    for (fields, left_out) in [
        (many.as_str(), Some("500 of its header lines")),
        (large.as_str(), Some("1 of its header lines")),
        ("X Y: v\r\nno colon\r\n: v\r\nX: \u{1}\r\n", Some("4 of its header lines")),
        ("X-A: one\r\n  two\r\n\tthree\r\nX-B : v\r\n", None),
    ] {
        let receipt = receipt(answer(fields, BODY));
        assert_eq!(receipt.downstream_id.as_deref(), Some("ch_1"));
        let note = receipt.note.unwrap_or_default();
        assert!(note.starts_with(left_out.unwrap_or("")), "{note}");
        assert_eq!(note.is_empty(), left_out.is_none(), "{note}");
    }
    let folded = receipt(answer("Request-Id: a\r\n b\r\n", BODY));
    assert_eq!(folded.headers, [("request-id".to_owned(), "a b".to_owned())]);
}

#[test]
fn interim_answers_are_skipped_with_their_fields() {
    let interim = b"HTTP/1.1 100 Continue\r\nVia: x\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n";
    let receipt = receipt([&interim[..], &answer("", BODY)].concat());
    assert_eq!((receipt.status, receipt.downstream_id.as_deref()), (Some(200), Some("ch_1")));
}

#[test]
fn id_is_found_in_odd_bodies_or_its_loss_is_said() {
    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!(r#"{{"id":"ch_1","x":{open}{close}}}"#).into_bytes()
    };
    let marked = [b"\xef\xbb\xbf", BODY].concat();
    for (body, note) in [
        (marked, None),
        (nested(999), None),
        (nested(1000), Some("the body is nested deeper than 1,000")),
        (b"\x1f\x8b\x08\x00".to_vec(), Some("the body is compressed, which was not asked for")),
        (br#"{"id":" ch_1"}"#.to_vec(), Some("its id has blanks around it")),
        (br#"{"id":"ch\u0007"}"#.to_vec(), Some("its id has blanks around it")),
    ] {
        let receipt = receipt(answer("", &body));
        assert_eq!(receipt.downstream_id.is_some(), note.is_none());
        assert!(receipt.note.unwrap_or_default().starts_with(note.unwrap_or("")));
    }
}

#[test]
fn large_body_gives_its_id_its_length_and_its_hash() {
    let body = format!(r#"{{"pad":"{}","id":"ch_1"}}"#, "x".repeat(20_000));
    let receipt = receipt(answer("", body.as_bytes()));
    assert_eq!(receipt.downstream_id.as_deref(), Some("ch_1"));
    assert_eq!(receipt.body_bytes, Some(body.len() as u64));
    assert_eq!(receipt.body_sha256, Some(crate::core::key::sha256(&body)));
    assert!(receipt.truncated && receipt.body.as_ref().unwrap().len() <= 16 * 1024);
    assert_eq!(Receipt::from_json(receipt.downstream_id.clone(), &receipt.to_json()), receipt);
}

/// The server answers by the head alone and closes with the body unread.
fn early(status: &'static str) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/ok", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 64]).unwrap();
        let text = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}");
        stream.write_all(text.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    });
    let payload = "x".repeat(32 << 20).into();
    let outcome = http(&endpoint).deliver(&delivery_of(StoredIntent { payload, ..intent("k") }));
    serving.join().unwrap();
    outcome
}

#[test]
fn early_refusal_decides_and_an_early_success_does_not() {
    let refused = early("413 Content Too Large");
    // A system may drop the answer with the connection, and then nothing is known.
    let known = [("rejected", "permanent"), ("maybe_sent", "reset")];
    assert!(known.contains(&kind(&refused)), "{refused:?}");
    assert_eq!(kind(&early("200 OK")), ("maybe_sent", "reset"));
}

#[test]
fn connection_is_not_used_again_where_that_could_mislead() {
    let stray = [answer("", BODY), answer("", br#"{"id":"stray"}"#)].concat();
    for first in [stray, answer("Keep-Alive: timeout=0\r\n", BODY)] {
        let second = answer("", br#"{"id":"ch_2"}"#);
        let (endpoint, serving) = scripted(vec![vec![first], vec![second]]);
        let http = http(&endpoint);
        http.deliver(&delivery("a"));
        let Outcome::Succeeded(receipt) = http.deliver(&delivery("b")) else { panic!("failed") };
        assert_eq!(receipt.downstream_id.as_deref(), Some("ch_2"));
        serving.join().unwrap();
    }
}

#[test]
fn attempt_in_doubt_and_close_connections_open_one_of_their_own() {
    let server = Server::start();
    let kept = http(&server.url("/ok"));
    kept.deliver(&delivery("a"));
    let mut doubted = delivery("b");
    doubted.facts.in_doubt_since = Some(1);
    kept.deliver(&doubted);
    assert_eq!(server.connections(), 2);
    let closing = http(&server.url("/ok")).close_connections();
    closing.deliver(&delivery("c"));
    closing.deliver(&delivery("d"));
    assert_eq!(server.requests_for("d")[0].header("connection"), Some("close"));
}
