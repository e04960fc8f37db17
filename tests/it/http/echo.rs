//! Services that repeat in their answers what was sent to them in confidence.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{
    Delivery, Downstream, Entry, Failure, Filter, Finding, Http, Operation, Outcome, Relay, Status,
};

use crate::support::wire::http;
use crate::support::world::{DEDUPLICATES, World, pay, succeeded};
use crate::support::{capture, child};

/// Every secret that is sent, as the service understands it.
const SECRETS: [&str; 8] = [
    r#"SENTINEL/1 "q" \x"#,
    "SENTINEL2",
    "SENTINEL30path",
    r#"SENTINEL/4"+q"#,
    "SENTINEL50look",
    "SENTINEL6",
    IN_JSON,
    IN_FORM,
];
const IN_JSON: &str = r#"SENTINEL7 pa$$"rd"#;
const IN_FORM: &str = "SENTINEL8$";
const WAYS: [&str; 3] = ["get", "json", "form"];

/// Past the default settle delay.
const SETTLE: u64 = 121;

fn sending(origin: &str, path: &str) -> Http {
    http()
        .endpoint(&format!("{origin}{path}/SENTINEL30path?token=SENTINEL%2F4%22%2bq"))
        .header("authorization", r#"Bearer SENTINEL/1 "q" \x"#)
        .header("cookie", "theme=dark; session=SENTINEL2")
}

/// Looks up at this path in one of the ways to ask.
fn asking(http: Http, origin: &str, path: &str, way: &str) -> Http {
    let url = format!("{origin}{path}/SENTINEL50look?key=SENTINEL6&ref={{idempotency_key}}");
    match way {
        "get" => http.reconcile_by_get(&url),
        "json" => {
            let body = r#"{"auth":["SENTINEL7 pa$$\"rd"],"ref":"{idempotency_key}"}"#;
            http.reconcile_by_post(&url, "application/json", body)
        }
        _ => {
            let body = "password=SENTINEL8%24&ref={idempotency_key}";
            http.reconcile_by_post(&url, "application/x-www-form-urlencoded", body)
        }
    }
}

/// The secrets in the spellings of a URL and of JSON; the first four can stand in a header.
fn spellings(secret: &str) -> [String; 6] {
    let encode = |is_kept: fn(u8) -> bool, escape: fn(u8) -> String| {
        let spelled = secret
            .bytes()
            .map(|byte| if is_kept(byte) { char::from(byte).to_string() } else { escape(byte) });
        spelled.collect::<String>()
    };
    let percent = |byte| format!("%{byte:02X}");
    let quoted = serde_json::to_string(secret).unwrap();
    [
        secret.to_owned(),
        encode(|byte| byte.is_ascii_alphanumeric(), percent),
        encode(|_| false, |byte| format!("%{byte:02x}")),
        encode(|byte| byte.is_ascii_alphanumeric() || byte == b' ', percent).replace(' ', "+"),
        quoted[1..quoted.len() - 1].replace('/', r"\/"),
        encode(|_| false, |byte| format!("\\u{byte:04x}")),
    ]
}

/// Answers each request with the status that begins its path, and with every secret in every
/// spelling; returns where.
fn repeating() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // A client that goes away is not the matter here.
            let _ = repeat(&stream.unwrap());
        }
    });
    address
}

fn repeat(mut stream: &TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap();
        }
    }
    reader.read_exact(&mut vec![0; length])?;
    let path = first.split(' ').nth(1).unwrap_or_default();
    let mut words = path.trim_start_matches('/').split('/');
    let mut word = || words.next().unwrap_or_default();
    let (status, form, way) = (word(), word(), word());
    // A body that is not configured is not known.
    let known = SECRETS.iter().filter(|secret| match **secret {
        IN_JSON => way == "json",
        IN_FORM => way == "form",
        _ => true,
    });
    let all: Vec<String> = known.clone().flat_map(|secret| spellings(secret)).collect();
    // The spellings but the first can stand in JSON.
    let items = known.clone().flat_map(|secret| spellings(secret)[1..].to_owned());
    let items = items.map(|text| format!("\"{text}\"")).collect::<Vec<_>>().join(",");
    let body = match form {
        "id" => format!(r#"{{"id":"{}"}}"#, spellings(SECRETS[0])[4]),
        "json" => format!(r#"{{"id":"eff_1","sent":[{items}]}}"#),
        "problem" => {
            let title = &spellings(SECRETS[0])[5];
            format!(r#"{{"type":"https://e.com/{}","title":"{title}"}}"#, spellings(SECRETS[2])[1])
        }
        _ => all.join("\n"),
    };
    let media_type = if form == "problem" { "application/problem+json" } else { "text/plain" };
    let mut answer = format!("HTTP/1.1 {status} X\r\nContent-Type: {media_type}\r\n");
    for text in &all {
        let _ = write!(answer, "X-Own-Request-Id: {text}\r\n");
    }
    let query = known.map(|secret| spellings(secret)[1].clone()).collect::<Vec<_>>().join("&");
    let _ = write!(answer, "Location: https://e.com/SENTINEL30path?{query}\r\n");
    let _ = write!(answer, "Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(answer.as_bytes())
}

/// Everything that is told of a world, in all its forms.
fn told(world: &World, by_command: bool) -> String {
    let mut told = format!("{:?}", world.outbox.operations().unwrap());
    for entry in world.outbox.list(&Filter::default()).unwrap() {
        let (full, audit) = (world.entry(entry.id), world.outbox.audit(entry.id).unwrap());
        let _ = write!(told, "{entry:?} {full:?} {audit:?}");
        let _ = write!(told, "{}", world.try_enqueue(&pay(&entry.entity_id).args(1)).unwrap_err());
        let command = option_env!("CARGO_BIN_EXE_outbox").filter(|_| by_command);
        let Some(command) = command else { continue };
        let id = entry.id.to_string();
        for arguments in [
            &["show", &id][..],
            &["--show-secrets", "show", &id],
            &["--show-secrets", "--json", "show", &id],
            &["--show-secrets", "list"],
            &["events"],
            &["why", &id],
            &["operations"],
        ] {
            let mut command = std::process::Command::new(command);
            let output = command.env("OUTBOX_DB", world.path()).args(arguments).output().unwrap();
            assert!(output.status.success(), "{arguments:?}: {output:?}");
            told += &String::from_utf8_lossy(&output.stdout);
            told += &String::from_utf8_lossy(&output.stderr);
        }
    }
    // At last, because closing a file of the database drops the locks that SQLite holds on it.
    for suffix in ["", "-wal"] {
        let bytes = std::fs::read(format!("{}{suffix}", world.path().display())).unwrap();
        told += &String::from_utf8_lossy(&bytes);
    }
    told
}

fn assert_silent(told: &str, case: &str) {
    let told = told.to_ascii_lowercase();
    for needle in ["sentinel", "%53%45%4e", "u0053", "%2f4%22"] {
        let at = told.find(needle);
        let around = at.map(|at| told.get(at.saturating_sub(200)..at + 40));
        assert_eq!(at, None, "{case}: {around:?}");
    }
}

/// A relay that adds all its events to a text.
fn relay(world: &World, downstream: Downstream, http: Http, heard: &Arc<Mutex<String>>) -> Relay {
    let heard = Arc::clone(heard);
    Relay::builder(&world.outbox)
        .operation("pay", Operation::new(downstream, http))
        .workers(1)
        .observe(move |event| write!(heard.lock().unwrap(), "{event:?}").unwrap())
        .build()
        .unwrap()
}

/// Asserts that what was kept of an answer was blanked, and was not left out altogether.
fn assert_blanked(entry: &Entry, case: &str) {
    let (headers, body) = match (&entry.receipt, &entry.last_answer) {
        (Some(receipt), _) => (&receipt.headers, receipt.body.as_deref().unwrap_or_default()),
        (_, Some(answer)) => (&answer.headers, answer.body.as_str()),
        _ => panic!("{case}: nothing is kept: {entry:?}"),
    };
    assert!(body.contains("***"), "{case}: {body}");
    let is_blanked = |(_, value): &(String, String)| value.contains("***");
    assert!(entry.receipt.is_some() || headers.iter().any(is_blanked), "{case}: {headers:?}");
}

/// Runs a test of this module in a process of its own, which has the log to itself; whether this
/// is that process.
fn is_alone(name: &str) -> bool {
    if child::is_child() {
        capture::begin();
    } else {
        child::run(&format!("{}::{name}", module_path!()), &[]);
    }
    child::is_child()
}

/// A service that repeats the request's headers in its answer had the relay's credentials stored
/// with the receipt; and a value that the configuration writes percent-encoded was stored plain.
#[test]
fn secrets_that_a_service_repeats_are_blanked_wherever_they_go() {
    if !is_alone("secrets_that_a_service_repeats_are_blanked_wherever_they_go") {
        return;
    }
    let origin = format!("http://{}", repeating());
    let heard = Arc::default();
    let statuses = [200, 201, 301, 302, 307, 400, 401, 403, 404, 409, 422, 429, 500, 501, 503];
    for (status, way) in statuses.into_iter().zip(WAYS.into_iter().cycle()) {
        for form in ["plain", "json", "problem", "id"] {
            let path = format!("/{status}/{form}/{way}");
            let world = World::new();
            let id = world.enqueue(&pay("order-1"));
            let http = asking(sending(&origin, &path), &origin, "/500/plain/get", way);
            relay(&world, DEDUPLICATES, http, &heard).drain().unwrap();
            let entry = world.entry(id);
            if status < 300 {
                assert_eq!(entry.status, Status::Succeeded);
                let id = (form == "json").then_some("eff_1");
                assert_eq!(entry.downstream_id.as_deref(), id, "{entry:?}");
            }
            assert_blanked(&entry, &path);
            assert_silent(&told(&world, form == "plain"), &path);
        }
    }
    assert_silent(&heard.lock().unwrap(), "events");
    assert_silent(&capture::logged(), "log");
}

#[test]
fn secrets_that_a_lookup_repeats_are_blanked_wherever_they_go() {
    if !is_alone("secrets_that_a_lookup_repeats_are_blanked_wherever_they_go") {
        return;
    }
    let origin = format!("http://{}", repeating());
    let heard = Arc::default();
    for way in WAYS {
        for (status, form, finds) in [
            (200, "json", Some("eff_1")),
            (200, "id", None),
            (200, "plain", None),
            (302, "plain", None),
            (403, "problem", None),
            (500, "json", None),
        ] {
            let path = format!("/{status}/{form}/{way}");
            let world = World::new();
            let id = world.enqueue(&pay("order-1"));
            let http = asking(sending(&origin, "/500/plain/get"), &origin, &path, way);
            let relay = relay(&world, Unprotected, http, &heard);
            relay.drain().unwrap();
            assert_eq!(world.entry(id).status, Status::Unknown);
            world.advance(SETTLE);
            relay.drain().unwrap();
            let entry = world.entry(id);
            let settled = form == "id" || finds.is_some();
            assert_eq!(entry.status == Status::Succeeded, settled, "{path}: {entry:?}");
            assert_eq!(entry.downstream_id.as_deref(), finds, "{path}");
            assert_eq!(
                entry.last_answer.as_ref().map(|answer| answer.status),
                Some(if settled { 500 } else { status }),
                "{path}"
            );
            assert_blanked(&entry, &path);
            assert_silent(&told(&world, form == "plain"), &path);
        }
    }
    assert_silent(&heard.lock().unwrap(), "events");
    assert_silent(&capture::logged(), "log");
}

/// Handlers hand on what their libraries say, and panic with the request in their text.
#[test]
fn secrets_in_panics_and_failures_of_a_handler_are_not_kept() {
    if !is_alone("secrets_in_panics_and_failures_of_a_handler_are_not_kept") {
        return;
    }
    const TEXTS: [&str; 4] = [
        "error sending request for url (https://SENTINEL:SENTINEL@h/SENTINEL?k=SENTINEL): closed",
        "GET 'https://h/SENTINEL' by https://SENTINEL@h:8443/it's/SENTINEL",
        "postgres://SENTINEL:SENTINEL/SENTINEL@h/db, <wss://h?SENTINEL>",
        "https://h#SENTINEL",
    ];
    let world = World::new();
    let ids: Vec<i64> = (0..12).map(|n| world.enqueue(&pay(&format!("order-{n}")))).collect();
    let fail = |n: usize| Failure::new("other", TEXTS[n % 4]);
    let handler = move |delivery: &Delivery| match delivery.id() {
        1 => panic!("{} {}", TEXTS[0], "SENTINEL"),
        2 => std::panic::panic_any(String::from("SENTINEL")),
        3 => succeeded("eff_1"),
        4 => Outcome::NotSent(fail(0)),
        5 => Outcome::Transient(fail(1)),
        6 => Outcome::Rejected(fail(2)),
        7 => Outcome::NeedsReview(fail(3)),
        n => Outcome::MaybeSent(fail(usize::try_from(n).unwrap())),
    };
    let find = |delivery: &Delivery| match delivery.id() {
        1 => panic!("SENTINEL"),
        n => Finding::Inconclusive(Failure::new("lookup", TEXTS[usize::try_from(n).unwrap() % 4])),
    };
    let heard: Arc<Mutex<String>> = Arc::default();
    let observer = Arc::clone(&heard);
    let relay = Relay::builder(&world.outbox)
        .operation("pay", Operation::new(Unprotected, handler).reconcile(find))
        .workers(1)
        .observe(move |event| write!(observer.lock().unwrap(), "{event:?}").unwrap())
        .build()
        .unwrap();
    relay.drain().unwrap();
    world.advance(SETTLE);
    relay.drain().unwrap();
    let error = |id: i64| world.entry(id).last_error.unwrap_or_default();
    assert!(error(ids[0]).contains("the handler panicked at "), "{}", error(ids[0]));
    assert!(error(ids[0]).contains("echo.rs:"), "{}", error(ids[0]));
    assert!(error(ids[5]).contains("postgres://"), "{}", error(ids[5]));
    assert_silent(&told(&world, true), "a handler's texts");
    assert_silent(&heard.lock().unwrap(), "events");
    assert_silent(&capture::logged(), "log");
}
