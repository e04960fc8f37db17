//! A payment service on loopback that fails on purpose, for the demo.
//!
//! The service charges once per idempotency key and answers a repeat with the first answer, as
//! providers with such keys do. Mails and text messages have no key: each request sends another
//! one. The mails stand in a list that can be looked up. The order's number decides which failure
//! happens, so that every run of the demo has the same story.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;

/// The failure that the service plays for an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    Fine,
    /// Charges, then closes the connection without an answer, this many times.
    LosesAnswers(usize),
    /// Closes the connection before it charges, once.
    HangsUp,
    /// Charges, then answers 500, once.
    ChargesAndFails,
    /// Answers this status once, and charges nothing.
    SaysOnce(u16),
    /// Refuses for good.
    Refuses,
    /// Sends a mail for every request, closes the connection without an answer, and lists it.
    MailsInSilence,
    /// Sends a text message in the same way, without a list.
    TextsInSilence,
}

impl Mood {
    /// The story repeats after twelve orders.
    pub fn of(entity: &str) -> Self {
        match entity.split_once('-') {
            Some(("mail", _)) => return Self::MailsInSilence,
            Some(("text", _)) => return Self::TextsInSilence,
            _ => {}
        }
        match number(entity) % 12 {
            2 => Self::LosesAnswers(1),
            4 => Self::SaysOnce(503),
            5 => Self::ChargesAndFails,
            7 => Self::LosesAnswers(2),
            8 => Self::SaysOnce(429),
            9 => Self::HangsUp,
            11 => Self::Refuses,
            _ => Self::Fine,
        }
    }

    pub fn describe(self) -> String {
        match self {
            Self::Fine => "charged".into(),
            Self::LosesAnswers(1) => "charged, but its answer was lost".into(),
            Self::LosesAnswers(n) => format!("charged, but its answer was lost {n} times"),
            Self::HangsUp => "hung up before it charged".into(),
            Self::ChargesAndFails => "charged, then answered 500".into(),
            Self::SaysOnce(429) => "answered 429: slow down".into(),
            Self::SaysOnce(status) => format!("answered {status}"),
            Self::Refuses => "answered 400: card refused".into(),
            Self::MailsInSilence => "mailed, its answer was lost, but listed".into(),
            Self::TextsInSilence => "texted, and its answer was lost".into(),
        }
    }
}

/// The number at the end of an entity's id.
fn number(entity: &str) -> i64 {
    entity.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Requests and effects of one order or message. A charge depends on the key, but is counted under
/// the entity: a second key for one order would be a second charge.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Ledger {
    pub requests: usize,
    pub effects: usize,
    /// Requests whose key had been charged before.
    pub repeats: usize,
    #[serde(skip)]
    charged: HashSet<String>,
}

/// The service; it stops accepting when dropped.
pub struct PaymentService {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    ledgers: Mutex<HashMap<String, Ledger>>,
    stopped: AtomicBool,
}

impl PaymentService {
    pub fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new().name("demo-service".into()).spawn(move || {
            for stream in listener.incoming().flatten() {
                if theirs.stopped.load(Ordering::Acquire) {
                    return;
                }
                let shared = Arc::clone(&theirs);
                std::thread::spawn(move || {
                    // A connection that breaks is the client's to notice.
                    let _ = serve(&stream, &shared);
                });
            }
        })?;
        Ok(Self { port, shared })
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
        self.shared.ledgers().get(entity).cloned().unwrap_or_default()
    }
}

impl Drop for PaymentService {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        // Wakes the accepting thread, so that it sees the flag.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn ledgers(&self) -> MutexGuard<'_, HashMap<String, Ledger>> {
        self.ledgers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a mail is on the list.
    fn look_up(&self, entity: &str) -> (u16, String) {
        let is_sent = self.ledgers().get(entity).is_some_and(|ledger| ledger.effects > 0);
        if is_sent {
            return (200, format!(r#"{{"id":"msg_{}"}}"#, number(entity)));
        }
        (404, "{}".into())
    }

    /// Charges unless this key was charged before, and says what to answer; `None` is silence.
    fn handle(&self, entity: &str, key: &str) -> Option<(u16, String)> {
        let mut ledgers = self.ledgers();
        let ledger = ledgers.entry(entity.to_owned()).or_default();
        ledger.requests += 1;
        let request = ledger.requests;
        let mut charge = || {
            if ledger.charged.insert(key.to_owned()) {
                ledger.effects += 1;
            } else {
                ledger.repeats += 1;
            }
            (201, format!(r#"{{"id":"ch_{}"}}"#, number(entity)))
        };
        match Mood::of(entity) {
            Mood::MailsInSilence | Mood::TextsInSilence => {
                ledger.effects += 1;
                None
            }
            Mood::Refuses => Some((400, r#"{"error":"card refused"}"#.into())),
            Mood::SaysOnce(status) if request == 1 => Some((status, "{}".into())),
            Mood::HangsUp if request == 1 => None,
            Mood::ChargesAndFails if request == 1 => {
                charge();
                Some((500, "{}".into()))
            }
            Mood::LosesAnswers(times) if request <= times => {
                charge();
                None
            }
            _ => Some(charge()),
        }
    }
}

fn serve(stream: &TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    while let Some((entity, key)) = read_request(&mut reader)? {
        let answer = match entity.strip_prefix("sent/") {
            Some(mail) => Some(shared.look_up(mail)),
            None => shared.handle(&entity, &key),
        };
        let Some((status, body)) = answer else { return Ok(()) };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status} Demo\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        let mut stream = stream;
        stream.write_all((head + &body).as_bytes())?;
    }
    Ok(())
}

/// The entity from the path, and the key.
fn read_request(reader: &mut BufReader<&TcpStream>) -> std::io::Result<Option<(String, String)>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
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
    Ok(Some((entity, key)))
}
