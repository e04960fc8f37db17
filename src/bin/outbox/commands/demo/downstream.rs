//! A payment service on loopback that fails on purpose, for the demo.
//!
//! The service charges once per idempotency key and answers a repeat with the first answer, as
//! providers with such keys do. Mails and text messages have no key: each request sends another
//! one. The mails stand in a list that can be looked up. The order's number decides which failure
//! happens, so that every run of the demo has the same story.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;

/// The failure that the service plays for an order or a message.
pub struct Failure {
    /// The failure in words.
    pub description: &'static str,
    /// Number of requests that fail; later ones are charged and answered.
    times: usize,
    /// Whether a request that fails is carried out all the same.
    acts: bool,
    /// The status of a failure; without one the connection is closed without an answer.
    status: Option<u16>,
}

impl Failure {
    /// The story repeats after twelve orders.
    pub fn of(entity: &str) -> Self {
        let (description, times, acts, status) = match (kind(entity), number(entity) % 12) {
            ("mail", _) => ("mailed, its answer was lost, but listed", usize::MAX, true, None),
            ("text", _) => ("texted, and its answer was lost", usize::MAX, true, None),
            (_, 2) => ("charged, but its answer was lost", 1, true, None),
            (_, 4) => ("answered 503", 1, false, Some(503)),
            (_, 5) => ("charged, then answered 500", 1, true, Some(500)),
            (_, 7) => ("charged, but its answer was lost 2 times", 2, true, None),
            (_, 8) => ("answered 429: slow down", 1, false, Some(429)),
            (_, 9) => ("hung up before it charged", 1, false, None),
            (_, 11) => ("answered 400: card refused", usize::MAX, false, Some(400)),
            _ => ("charged", 0, true, None),
        };
        Self { description, times, acts, status }
    }
}

/// The word before the number in an entity's id.
fn kind(entity: &str) -> &str {
    entity.split_once('-').map_or(entity, |(kind, _)| kind)
}

/// The number at the end of an entity's id.
fn number(entity: &str) -> i64 {
    entity.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Requests and effects of one order or message. A charge depends on the key, but is counted under
/// the entity: a second key for one order would be a second charge.
#[derive(Clone, Default, Serialize)]
pub struct Ledger {
    pub requests: usize,
    pub effects: usize,
    /// Requests whose key had been charged before.
    pub repeats: usize,
    #[serde(skip)]
    charged: HashSet<String>,
}

/// The service; its thread accepts until the process ends.
pub struct PaymentService {
    port: u16,
    ledgers: Mutex<HashMap<String, Ledger>>,
}

impl PaymentService {
    pub fn start() -> std::io::Result<Arc<Self>> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let service = Arc::new(Self { port, ledgers: Mutex::default() });
        let accepting = Arc::clone(&service);
        std::thread::Builder::new().name("demo-service".into()).spawn(move || {
            for stream in listener.incoming().flatten() {
                let service = Arc::clone(&accepting);
                // A connection that breaks is the client's to notice.
                std::thread::spawn(move || service.serve(&stream));
            }
        })?;
        Ok(service)
    }

    /// The URL that charges orders and sends messages; the entity stands in its path.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}/{{entity_id}}", self.port)
    }

    /// The URL that looks up one mail in the list.
    pub fn list(&self) -> String {
        format!("http://127.0.0.1:{}/sent/{{entity_id}}", self.port)
    }

    pub fn ledger(&self, entity: &str) -> Ledger {
        self.ledgers().get(entity).cloned().unwrap_or_default()
    }

    fn ledgers(&self) -> MutexGuard<'_, HashMap<String, Ledger>> {
        self.ledgers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the one request of a connection.
    fn serve(&self, mut stream: &TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let (entity, key) = read_request(&mut BufReader::new(stream))?;
        let answer = match entity.strip_prefix("sent/") {
            Some(mail) => Some(self.look_up(mail)),
            None => self.handle(&entity, key),
        };
        let Some((status, body)) = answer else { return Ok(()) };
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status} Demo\r\nContent-Type: application/json\r\nConnection: close\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(answer.as_bytes())
    }

    /// Whether a mail is on the list.
    fn look_up(&self, entity: &str) -> (u16, String) {
        if self.ledgers().get(entity).is_some_and(|ledger| ledger.effects > 0) {
            return (200, format!(r#"{{"id":"msg_{}"}}"#, number(entity)));
        }
        (404, "{}".into())
    }

    /// Charges unless this key was charged before, and says what to answer; `None` is silence.
    fn handle(&self, entity: &str, key: String) -> Option<(u16, String)> {
        let mut ledgers = self.ledgers();
        let ledger = ledgers.entry(entity.to_owned()).or_default();
        ledger.requests += 1;
        let failure = Failure::of(entity);
        let fails = ledger.requests <= failure.times;
        if failure.acts || !fails {
            // A message is sent for every request: its service knows no keys.
            if kind(entity) != "order" || ledger.charged.insert(key) {
                ledger.effects += 1;
            } else {
                ledger.repeats += 1;
            }
        }
        match if fails { failure.status? } else { 201 } {
            201 => Some((201, format!(r#"{{"id":"ch_{}"}}"#, number(entity)))),
            400 => Some((400, r#"{"error":"card refused"}"#.into())),
            status => Some((status, "{}".into())),
        }
    }
}

/// The entity from the path, and the key. The body is read to its end and dropped.
fn read_request(reader: &mut BufReader<&TcpStream>) -> std::io::Result<(String, String)> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let path = line.split(' ').nth(1).unwrap_or_default();
    let entity = path.trim_start_matches('/').to_owned();
    let (mut key, mut length) = (String::new(), 0_u64);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        if name.eq_ignore_ascii_case("idempotency-key") {
            value.clone_into(&mut key);
        } else if name.eq_ignore_ascii_case("content-length") {
            length = value.parse().unwrap_or(0);
        }
    }
    std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink())?;
    Ok((entity, key))
}
