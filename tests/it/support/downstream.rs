//! A downstream to test against: an HTTP/1.1 server on loopback that applies effects, remembers
//! every request, and fails as the path it is asked for says.
//!
//! | path | what happens |
//! |---|---|
//! | `/ok` | the effect is applied once per key; later requests get the first answer again |
//! | `/naive` | the effect is applied on every request |
//! | `/status/CODE` | answers CODE, applies nothing |
//! | `/fail/N/CODE` | the first N requests of a key answer CODE, then as `/ok` |
//! | `/after/N/CODE/VALUE` | the same with `Retry-After: VALUE` (percent-encoded) |
//! | `/lost/N` | every request applies; the first N of a key are closed without an answer |
//! | `/lostdedupe/N` | the same, deduplicating by key |
//! | `/cut/N` | the first N requests of a key are closed before the effect, then as `/naive` |
//! | `/hang/SECONDS` | applies the effect, then waits before answering the first request of a key |
//! | `/slow/MS` | waits, then as `/ok` |
//! | `/silent` | reads the request and never answers |
//! | `/gate` | holds the request until [`Downstream::release`], then as `/ok` |
//! | `/close` | closed once the first line is read, with the rest unread |
//! | `/reset` | reads the request, then resets the connection |
//! | `/partial_status`, `/partial_headers` | applies the effect, closes in the middle of the head |
//! | `/garbage` | applies the effect, answers bytes that are no HTTP |
//! | `/truncated` | applies the effect, declares 1000 bytes and sends 10 |
//! | `/unmarked` | applies the effect, ends the body by closing the connection |
//! | `/drip/MS` | applies, sends the head, then one byte of the body every MS, without end |
//! | `/drip_head/MS` | applies the effect, sends the head one byte every MS, without end |
//! | `/bigheader/BYTES`, `/big/BYTES` | applies, answers 200 with a header, a body of that size |
//! | `/endless` | applies the effect, sends a chunked body without end |
//! | `/body/STATUS/TEXT` | answers STATUS with TEXT (percent-encoded) as its body |
//! | `/replayed/CODE` | answers CODE with `Idempotent-Replayed: true` |
//! | `/redirect/CODE/PATH` | answers CODE with `Location: /PATH` |
//! | `/effects/KEY` | GET: 200 with the effect's id where there is one, else 404; not recorded |

// Each binary that includes this file uses a part of it.
#![allow(dead_code)]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The value of `Idempotency-Key`, without quotes.
    pub key: String,
    /// In the order they arrived, names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
    pub at: Instant,
}

impl Request {
    /// The value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// How often a header was sent.
    pub fn count(&self, name: &str) -> usize {
        self.headers.iter().filter(|(n, _)| n == name).count()
    }
}

/// The server. It stops accepting when dropped; open connections end with their threads.
#[derive(Debug)]
pub struct Downstream {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    requests: Vec<Request>,
    seen: HashMap<String, usize>,
    effects: HashMap<String, usize>,
    first_answers: HashMap<String, String>,
    connections: usize,
    released: bool,
    stopped: bool,
    down: bool,
    active: usize,
    active_max: usize,
}

impl Downstream {
    /// Starts on a free port of 127.0.0.1.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        let shared = Arc::new(Shared::default());
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.lock().stopped {
                    return;
                }
                let Ok(stream) = stream else { continue };
                accepting.lock().connections += 1;
                let shared = Arc::clone(&accepting);
                std::thread::spawn(move || {
                    // A client that goes away in the middle is part of the script.
                    let _ = serve(&stream, &shared);
                });
            }
        });
        Self { address, shared }
    }

    /// The URL of a path such as `/ok`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Every request whose body was read, in the order they arrived.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.lock().requests.clone()
    }

    pub fn requests_for(&self, key: &str) -> Vec<Request> {
        self.requests().into_iter().filter(|request| request.key == key).collect()
    }

    /// How often the effect of a key was applied.
    pub fn effects(&self, key: &str) -> usize {
        self.shared.lock().effects.get(key).copied().unwrap_or(0)
    }

    /// The keys seen, sorted.
    pub fn distinct_keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.shared.lock().seen.keys().cloned().collect();
        keys.sort();
        keys
    }

    /// How many connections were accepted.
    pub fn connections(&self) -> usize {
        self.shared.lock().connections
    }

    /// Waits until so many requests have arrived; false after the time-out.
    pub fn wait_for(&self, requests: usize, timeout: Duration) -> bool {
        let (_state, result) = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), timeout, |s| s.requests.len() < requests)
            .unwrap_or_else(PoisonError::into_inner);
        !result.timed_out()
    }

    /// Waits until so many requests have arrived.
    ///
    /// # Panics
    ///
    /// After 20 seconds.
    pub fn wait_for_requests(&self, requests: usize) {
        assert!(self.wait_for(requests, Duration::from_secs(20)), "{requests} requests awaited");
    }

    /// Lets go every request held by `/gate`, and those that come later.
    pub fn release(&self) {
        self.shared.lock().released = true;
        self.shared.changed.notify_all();
    }

    /// Answers 500 to everything, or works again.
    pub fn set_down(&self, down: bool) {
        self.shared.lock().down = down;
    }

    /// The most requests that were being answered at the same time.
    pub fn active_max(&self) -> usize {
        self.shared.lock().active_max
    }

    /// Holds requests at `/gate` again.
    pub fn close_gate(&self) {
        self.shared.lock().released = false;
    }
}

impl Drop for Downstream {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.changed.notify_all();
        // Wakes the accepting thread, so that it sees the flag.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) {
        let mut state = self.lock();
        state.active += 1;
        state.active_max = state.active_max.max(state.active);
    }

    fn leave(&self) {
        self.lock().active -= 1;
    }

    /// Waits without sleeping through the end of the test.
    fn pause(&self, time: Duration) {
        drop(self.changed.wait_timeout_while(self.lock(), time, |state| !state.stopped));
    }

    fn hold_until(&self, open: impl Fn(&State) -> bool) {
        drop(self.changed.wait_while(self.lock(), |state| !state.stopped && !open(state)));
    }

    /// Records a request; returns which one of its key it is, from 1.
    fn record(&self, request: &Request) -> usize {
        let mut state = self.lock();
        state.requests.push(request.clone());
        let seen = state.seen.entry(request.key.clone()).or_default();
        *seen += 1;
        let nth = *seen;
        drop(state);
        self.changed.notify_all();
        nth
    }

    /// Applies the effect and returns the answer's body.
    fn effect(&self, key: &str, dedupe: bool) -> String {
        let mut state = self.lock();
        if let (true, Some(first)) = (dedupe, state.first_answers.get(key)) {
            return first.clone();
        }
        let times = state.effects.entry(key.to_owned()).or_default();
        *times += 1;
        let times = *times;
        let body = format!(r#"{{"id":"eff_{}_{times}"}}"#, state.effects.len());
        state.first_answers.entry(key.to_owned()).or_insert_with(|| body.clone());
        body
    }
}

type Io<T> = std::io::Result<T>;

/// Serves one connection until a script or the client ends it.
fn serve(stream: &TcpStream, shared: &Shared) -> Io<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut first_line = String::new();
        if reader.read_line(&mut first_line)? == 0 {
            return Ok(());
        }
        let mut words = first_line.split_whitespace();
        let method = words.next().unwrap_or_default().to_owned();
        let path = words.next().unwrap_or_default().to_owned();
        if path.starts_with("/close") {
            return Ok(());
        }
        let request = read_rest(&mut reader, method, path)?;
        shared.enter();
        let answered = answer(stream, shared, &request);
        shared.leave();
        if !answered? {
            return Ok(());
        }
    }
}

fn read_rest(reader: &mut impl BufRead, method: String, path: String) -> Io<Request> {
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim_start().to_owned()));
    }
    let mut request = Request {
        method,
        path,
        key: String::new(),
        headers,
        body: String::new(),
        at: Instant::now(),
    };
    let length = request.header("content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    request.body = String::from_utf8_lossy(&body).into_owned();
    let key = request.header("idempotency-key").unwrap_or_default();
    request.key = String::from(key.trim_matches('"'));
    Ok(request)
}

/// Answers as the path says; whether the connection stays open.
fn answer(mut stream: &TcpStream, shared: &Shared, request: &Request) -> Io<bool> {
    let path = request.path.split('?').next().unwrap_or_default();
    let words: Vec<&str> = path.trim_matches('/').split('/').collect();
    let key = request.key.as_str();
    if words[0] == "effects" {
        return look_up(stream, shared, &decode(words.get(1).unwrap_or(&"")));
    }
    let nth = shared.record(request);
    let number = |i: usize| words.get(i).and_then(|w| w.parse::<usize>().ok()).unwrap_or(0);
    let millis = |i: usize| Duration::from_millis(number(i) as u64);
    let scripted = r#"{"error":"scripted"}"#;
    let ok = |body: &str| reply(stream, 200, &[], body);
    if shared.lock().down {
        return reply(stream, 500, &[], scripted);
    }
    match words[0] {
        "status" => reply(stream, number(1), &[], scripted),
        "fail" if nth <= number(1) => reply(stream, number(2), &[], scripted),
        "after" if nth <= number(1) => {
            let value = decode(words.get(3).unwrap_or(&""));
            reply(stream, number(2), &[("Retry-After", &value)], scripted)
        }
        "lost" | "lostdedupe" => {
            let body = shared.effect(key, words[0] == "lostdedupe");
            if nth <= number(1) { Ok(false) } else { ok(&body) }
        }
        "cut" if nth <= number(1) => Ok(false),
        "ok" | "fail" | "after" => ok(&shared.effect(key, true)),
        "naive" | "cut" => ok(&shared.effect(key, false)),
        "hang" => {
            let body = shared.effect(key, true);
            if nth == 1 {
                let seconds = words.get(1).and_then(|w| w.parse().ok()).unwrap_or(0.0);
                shared.pause(Duration::from_secs_f64(seconds));
            }
            ok(&body)
        }
        "slow" => {
            shared.pause(millis(1));
            ok(&shared.effect(key, true))
        }
        "silent" => {
            shared.hold_until(|_| false);
            Ok(false)
        }
        "gate" => {
            shared.hold_until(|state| state.released);
            ok(&shared.effect(key, true))
        }
        "redirect" => {
            let location = format!("/{}", words.get(2..).unwrap_or_default().join("/"));
            reply(stream, number(1), &[("Location", &location)], "")
        }
        "replayed" => reply(stream, number(1), &[("Idempotent-Replayed", "true")], scripted),
        "body" => reply(stream, number(1), &[], &decode(words.get(2).unwrap_or(&""))),
        "reset" => {
            // Dropping a socket with this option resets the connection instead of closing it.
            socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO))?;
            Ok(false)
        }
        _ if !SPOILED.contains(&words[0]) => reply(stream, 404, &[], "{}"),
        _ => {
            shared.effect(key, true);
            spoil(&mut stream, shared, &words, number(1), millis(1))
        }
    }
}

const SPOILED: [&str; 10] = [
    "big",
    "bigheader",
    "partial_status",
    "partial_headers",
    "garbage",
    "truncated",
    "unmarked",
    "drip",
    "drip_head",
    "endless",
];

/// Answers that no client can make full sense of; the effect is there.
fn spoil(
    stream: &mut &TcpStream,
    shared: &Shared,
    words: &[&str],
    size: usize,
    pause: Duration,
) -> Io<bool> {
    match words[0] {
        "big" => return reply(stream, 200, &[], &"x".repeat(size)),
        "bigheader" => return reply(stream, 200, &[("X-Big", &"x".repeat(size))], "{}"),
        "partial_status" => stream.write_all(b"HTTP/1.1 20")?,
        "partial_headers" => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Le")?,
        "garbage" => stream.write_all(b"\x00\x01 not http \r\n\r\n")?,
        "truncated" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"id\":\"eff\"")?;
        }
        "unmarked" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"id\":\"eff\"}")?;
        }
        "drip" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")?;
            drip(stream, shared, pause)?;
        }
        "drip_head" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nX-Drip: ")?;
            drip(stream, shared, pause)?;
        }
        _ => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
            let chunk = format!("1000\r\n{}\r\n", "0".repeat(4096));
            while !shared.lock().stopped {
                stream.write_all(chunk.as_bytes())?;
            }
        }
    }
    Ok(false)
}

fn drip(stream: &mut &TcpStream, shared: &Shared, pause: Duration) -> Io<()> {
    while !shared.lock().stopped {
        stream.write_all(b"x")?;
        shared.pause(pause);
    }
    Ok(())
}

fn look_up(stream: &TcpStream, shared: &Shared, key: &str) -> Io<bool> {
    let state = shared.lock();
    let found = state.effects.get(key).zip(state.first_answers.get(key)).map(|(count, first)| {
        let open = first.trim_end_matches('}');
        format!(r#"{open},"count":{count}}}"#)
    });
    drop(state);
    match found {
        Some(body) => reply(stream, 200, &[], &body),
        None => reply(stream, 404, &[], "{}"),
    }
}

fn reply(mut stream: &TcpStream, status: usize, headers: &[(&str, &str)], body: &str) -> Io<bool> {
    let mut text = format!("HTTP/1.1 {status} Scripted\r\nContent-Type: application/json\r\n");
    for (name, value) in headers {
        let _ = write!(text, "{name}: {value}\r\n");
    }
    // These never have a body, and a client takes one for the next answer.
    if matches!(status, 100..=199 | 204 | 304) {
        text.push_str("\r\n");
    } else {
        let _ = write!(text, "Content-Length: {}\r\n\r\n{body}", body.len());
    }
    stream.write_all(text.as_bytes())?;
    Ok(true)
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|h| std::str::from_utf8(h).ok());
        let byte = hex.and_then(|h| u8::from_str_radix(h, 16).ok()).filter(|_| first == b'%');
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
