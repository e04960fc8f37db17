//! `outbox relay` against a real server.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::Desk;
use crate::support::downstream::Downstream;

const LOOPBACK: [&str; 2] = ["--allow-addresses", "127.0.0.0/8"];

impl Desk {
    pub fn enqueue_for(&self, entity: &str, endpoint: &str) -> String {
        let new = self.json(&["enqueue", "pay", "--entity", entity, "--endpoint", endpoint]);
        new[0]["idempotency_key"].as_str().unwrap().to_owned()
    }

    fn statuses(&self) -> Vec<String> {
        let rows = self.json(&["list"]);
        rows.iter().map(|row| row["status"].as_str().unwrap().to_owned()).collect()
    }
}

#[test]
fn drain_sends_what_is_due_and_sums_up() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    let key = desk.enqueue_for("a", &downstream.url("/ok"));
    desk.enqueue_for("b", &downstream.url("/status/400"));
    let drain = ["relay", "--drain", "--downstream", "deduplicates"];
    let report = &desk.json(&[&drain[..], &LOOPBACK].concat())[0];
    let expected = json!({"attempts": 2, "succeeded": 1, "retried": 0, "unknown": 0,
                          "needs_review": 0, "dead": 1, "stopped": false});
    assert_eq!(*report, expected);
    assert_eq!(downstream.effects(&key), 1);
    assert_eq!(desk.statuses(), ["succeeded", "dead"]);
    let story = &desk.json(&["show", "1"])[0];
    assert_eq!(story["receipt"]["status"], 200);
    assert_eq!(story["receipt"]["downstream_id"], story["downstream_id"]);

    // From now on the file knows the operation.
    desk.enqueue_for("c", &downstream.url("/ok"));
    let out = desk.ok(&[&["relay", "--drain"][..], &LOOPBACK].concat());
    assert_eq!(out, "1 attempt: 1 succeeded\n");
}

#[test]
fn endpoint_of_a_row_on_a_private_address_is_refused() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    desk.enqueue_for("a", &downstream.url("/ok"));
    desk.ok(&["relay", "--drain", "--downstream", "deduplicates"]);
    assert_eq!(downstream.connections(), 0);
    assert_ne!(desk.statuses(), ["succeeded"]);
}

/// A configuration that sets every key.
fn everything(endpoint: &str) -> String {
    format!(
        r#"
[relay]
workers = 2
lease = "90s"
shard = "0/1"

[operations."stripe.charge"]
endpoint = "{endpoint}"
downstream = "deduplicates"
key_window = "24h"
provider = "stripe"
max_attempts = 10
give_up_after = "72h"
backoff = {{ kind = "schedule", delays = ["0s", "5s", "5m"] }}
timeouts = {{ resolve = "5s", connect = "5s", send = "15s", response = "30s", body = "5s" }}
headers = {{ authorization = "Bearer ${{OUTBOX_TEST_KEY}}", x-schema = 2, x-live = true }}
idempotency_header = "Idempotency-Key"
downstream_id = "/id"
success_when = {{ pointer = "/id", equals = "eff_1_1" }}
rejected_when = {{ pointer = "/error", non_null = true }}
transient_when = {{ pointer = "/state", equals = "busy" }}
limited_when = {{ pointer = "/state", one_of = ["slow", "later"] }}
not_applied_when = {{ pointer = "/applied", equals = false }}
on_status = {{ 409 = "in_doubt", 404 = "applied", 521 = "not_reached" }}
repeat_safe = false
binds = "create"
reconcile.get = "https://api.example.com/charges/{{idempotency_key}}"
reconcile.downstream_id = "/id"
reconcile.when = {{ pointer = "/state", equals = "done" }}
reconcile.delay = "2m"
reconcile.max_attempts = 8
max_in_flight = 4
max_per = "100/1m, 5000/24h"
max_cost = "5000000000/24h"
on_dead = "continue"
allow_addresses = ["127.0.0.0/8"]
allow_origins = ["https://api.example.com"]
weaken_stored_contract = true

[default]
downstream = "unprotected"
backoff = {{ kind = "exponential", base = "2s", cap = "1h", jitter = "full" }}
reconcile.post = "https://api.example.com/search"
reconcile.body = "ref={{idempotency_key}}&created={{created_at}}"
reconcile.content_type = "application/x-www-form-urlencoded"
reconcile.list = {{ at = "/data", first = true }}
reconcile.match = {{ pointer = "/ref", equals = "{{idempotency_key}}" }}
reconcile.not_applied_when = {{ pointer = "/found", equals = false }}
"#
    )
}

#[test]
fn relay_toml_with_everything_is_obeyed() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    desk.ok(&["enqueue", "stripe.charge", "--entity", "a"]);
    desk.ok(&["enqueue", "other", "--entity", "a"]);
    desk.file("relay.toml", &everything(&downstream.url("/ok")));
    let mut command =
        desk.command(&["relay", "--drain", "--config", "relay.toml", "--workers", "1"]);
    let output = command.env("OUTBOX_TEST_KEY", "SENTINEL").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let requests = downstream.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].header("authorization"), Some("Bearer SENTINEL"));
    assert_eq!(requests[0].header("x-schema"), Some("2"));
    assert_eq!(requests[0].header("x-live"), Some("true"));
    assert_eq!(desk.statuses()[0], "succeeded");
    let known = desk.json(&["operations"]);
    let stripe = known.iter().find(|known| known["operation"] == "stripe.charge").unwrap();
    let minute_and_day = json!([{"amount": 100, "window_ms": 60_000},
                                {"amount": 5000, "window_ms": 86_400_000}]);
    assert_eq!(stripe["max_per"], minute_and_day);
    assert_eq!(stripe["repeat_safe"], false);
    let rules = [
        "on_status 521 = not_reached",
        r#"transient_when "/state" is ["busy"]"#,
        r#"limited_when "/state" is ["slow","later"]"#,
        r#"not_applied_when "/applied" is [false]"#,
    ];
    assert_eq!(stripe["repeat_rules"], json!(rules));
    assert_eq!(stripe["max_cost"], json!([{"amount": 5_000_000_000_i64, "window_ms": 86_400_000}]));
    let contracts: Vec<(String, String, String)> = {
        let conn = desk.conn();
        let mut statement = conn
            .prepare("SELECT operation, downstream, on_dead FROM outbox_operation ORDER BY 1")
            .unwrap();
        let rows = statement.query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?))).unwrap();
        rows.map(Result::unwrap).collect()
    };
    let contract = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
    let expected = [
        contract("other", "unprotected", "block"),
        contract("stripe.charge", "deduplicates", "continue"),
    ];
    assert_eq!(contracts, expected);

    // Without the configuration, what is stored stays as it is.
    desk.ok(&["relay", "--drain"]);
    let on_dead: String = desk
        .conn()
        .query_row("SELECT on_dead FROM outbox_operation WHERE provider = 'stripe'", [], |r| {
            r.get(0)
        })
        .unwrap();
    assert_eq!(on_dead, "continue");
    let file = std::fs::read(desk.path()).unwrap();
    assert!(!file.windows(8).any(|bytes| bytes == b"SENTINEL"), "a credential must not be stored");
}

#[test]
fn relay_toml_of_the_guide_is_accepted_and_names_every_key() {
    let guide = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/relay-toml.md"));
    let (_, rest) = guide.split_once("```toml\n# relay.toml\n").unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    let desk = Desk::new();
    desk.file("relay.toml", text);
    let mut command = desk.command(&["relay", "--drain", "--config", "relay.toml"]);
    let output = command.env("STRIPE_KEY", "SENTINEL").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The keys as the parser itself lists them.
    desk.file("relay.toml", "[default]\nnothing = 1\n");
    let ran = desk.run(&["relay", "--config", "relay.toml"]);
    let (_, keys) = ran.err.split_once("expected one of ").unwrap();
    for key in keys.split('`').skip(1).step_by(2) {
        assert!(text.lines().any(|line| line.starts_with(&format!("{key} = "))), "{key}");
    }
}

/// These were once the library's alone.
#[test]
fn relay_toml_quotes_the_key_and_sends_urgent_operations_first() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    // More rows than are claimed ahead of one worker: those of `bulk` must not fill the gaps.
    for (operation, keys) in [("bulk", ["a", "b", "c", "d"]), ("urgent", ["e", "f", "g", "h"])] {
        for key in keys {
            desk.ok(&["enqueue", operation, "--entity", key, "--key", key]);
        }
    }
    let operation = |name: &str, more: &str| {
        let url = downstream.url("/ok");
        format!(
            "[operations.{name}]\nendpoint = \"{url}\"\ndownstream = \"deduplicates\"\n{more}\n"
        )
    };
    let text = "[relay]\nworkers = 1\nbatch = 100\n".to_owned()
        + &operation("bulk", "priority = -1")
        + &operation("urgent", "priority = 10\nquoted_key = true");
    desk.ok(&["relay", "--drain", "--config", &desk.file("relay.toml", &text)]);
    let requests = downstream.requests();
    let keys: Vec<_> = requests.iter().map(|r| r.header("idempotency-key").unwrap()).collect();
    let (urgent, bulk) = keys.split_at(4);
    assert_eq!(urgent[..3], ["\"e\"", "\"f\"", "\"g\""], "{keys:?}");
    assert_eq!(bulk[1..], ["b", "c", "d"], "{keys:?}");
}

/// A command that is running; it is not left behind when a test fails.
pub struct Running(pub Child);

impl Running {
    pub fn spawn(desk: &Desk, args: &[&str]) -> Self {
        let mut command = desk.command(args);
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    pub fn start(desk: &Desk, more: &[&str]) -> Self {
        let args = ["relay", "--downstream", "deduplicates"];
        Self::spawn(desk, &[&args[..], &LOOPBACK, more].concat())
    }

    pub fn signal(&self, name: &str) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    /// Reads standard error up to a line that begins so.
    fn wait_to_hear(&mut self, begin: &str) {
        self.wait_for_line(begin, |line| line.starts_with(begin));
    }

    /// Reads standard error up to a line that holds this, and returns the line.
    fn wait_to_hear_of(&mut self, text: &str) -> String {
        self.wait_for_line(text, |line| line.contains(text))
    }

    fn wait_for_line(&mut self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        let stderr = self.0.stderr.as_mut().unwrap();
        let mut lines = BufReader::with_capacity(1, stderr).lines().map_while(Result::ok);
        lines.find(|line| is_it(line)).unwrap_or_else(|| panic!("{what:?} was never said"))
    }

    pub fn finish(&mut self) -> (i32, String) {
        let mut out = String::new();
        self.0.stdout.as_mut().unwrap().read_to_string(&mut out).unwrap();
        (self.0.wait().unwrap().code().unwrap_or(-1), out)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn sigterm_finishes_and_records_a_request_in_flight() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    let key = desk.enqueue_for("a", &downstream.url("/gate"));
    let mut relay = Running::start(&desk, &["--json"]);
    downstream.wait_for_requests(1);
    relay.signal("TERM");
    relay.wait_to_hear("stopping");
    downstream.release();
    let (code, out) = relay.finish();
    assert_eq!(code, 0);
    let report: Value = serde_json::from_str(&out).unwrap();
    let expected = json!({"attempts": 1, "succeeded": 1, "retried": 0, "unknown": 0,
        "needs_review": 0,
                          "dead": 0, "finished": 1, "released": 0, "left": 0,
                          "unwritten": 0});
    assert_eq!(report, expected);
    assert_eq!((desk.statuses(), downstream.effects(&key)), (vec!["succeeded".into()], 1));
}

/// Once reported as nothing finished: the outcome could be recorded between the words on standard
/// error and the moment the relay itself was told to stop.
#[test]
fn sigterm_counts_only_what_was_finished_after_it() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    desk.enqueue_for("a", &downstream.url("/status/400"));
    let mut relay = Running::start(&desk, &[]);
    // The warning is unasked for, and comes after the outcome was recorded.
    let heard = relay.wait_to_hear_of("intent 1 (pay): attempt, in_flight -> dead, permanent");
    assert!(heard.contains("WARN"), "{heard}");
    relay.signal("TERM");
    let (code, out) = relay.finish();
    assert_eq!(code, 0);
    assert_eq!(
        out,
        "stopped: 0 finished, 0 released, 0 left\nin all 1 attempt: 0 succeeded, 1 dead\n"
    );
}

#[test]
fn contract_that_is_stricter_names_the_way_out() {
    let desk = Desk::new();
    let drain = |contract: &str| {
        desk.file("relay.toml", &format!("[operations.pay]\ndownstream = {contract}\n"));
        desk.run(&["relay", "--drain", "--config", "relay.toml"])
    };
    assert_eq!(drain("\"unprotected\"").err, "");
    let ran = drain("\"deduplicates\"\nkey_window = \"90m\"");
    let expected = "its stored contract says \"unprotected\", which is stricter than the \
                    configured \"deduplicates\" with key_window 1h 30m";
    assert!(ran.err.contains(expected), "{}", ran.err);
    assert!(ran.err.contains("set weaken_stored_contract = true in relay.toml"), "{}", ran.err);
    let ran = drain("\"deduplicates\"\nweaken_stored_contract = true");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}

#[test]
fn sigint_lets_a_drain_finish_what_is_in_flight() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    desk.enqueue_for("a", &downstream.url("/gate"));
    let mut relay = Running::start(&desk, &["--drain", "--json"]);
    downstream.wait_for_requests(1);
    relay.signal("INT");
    relay.wait_to_hear("stopping");
    downstream.release();
    let (code, out) = relay.finish();
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["succeeded"], &report["stopped"]), (0, &json!(1), &json!(true)));
    assert_eq!(desk.statuses(), ["succeeded"]);
}

#[test]
fn signal_that_comes_twice_ends_the_relay_at_once() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    desk.enqueue_for("a", &downstream.url("/gate"));
    let mut relay = Running::start(&desk, &[]);
    downstream.wait_for_requests(1);
    relay.signal("TERM");
    relay.wait_to_hear("stopping");
    relay.signal("TERM");
    assert_eq!(relay.finish().0, 143);
    assert_eq!(desk.statuses(), ["in_flight"], "the lease stands until it runs out");
}

#[test]
fn schema_that_is_newer_stops_the_relay() {
    let desk = Desk::new();
    let mut relay = Running::start(&desk, &[]);
    relay.wait_to_hear("relaying");
    desk.sql("UPDATE outbox_meta SET schema_version = 99");
    desk.sql(
        "INSERT INTO outbox (operation, entity_id, idempotency_key, payload)
         VALUES ('pay', 'e', 'k', '{}')",
    );
    assert_eq!(relay.finish().0, 1);
}

#[test]
fn log_never_holds_what_the_transport_would_tell() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    let toml = format!(
        "[default]\nendpoint = \"{}\"\ndownstream = \"deduplicates\"\n\
         headers = {{ authorization = \"Bearer SENTINEL\" }}\n",
        downstream.url("/ok")
    );
    desk.file("relay.toml", &toml);
    desk.ok(&["enqueue", "pay", "--entity", "a", "--args", r#"{"card":"SENTINEL"}"#]);
    let mut command = desk.command(&["relay", "--drain", "--config", "relay.toml"]);
    let filter = "trace,ureq=trace,ureq::unversioned=trace,ureq_proto=trace,rustls=trace";
    let output = command.env("RUST_LOG", filter).output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(downstream.requests().len(), 1);
    assert!(log.contains("intent 1 (pay): attempt, in_flight -> succeeded"), "{log}");
    assert!(!log.contains("SENTINEL"), "{log}");
}

/// How much of an answer is read decides what it means, and a connection is kept or not.
#[test]
fn answer_max_and_connection_of_relay_toml_are_obeyed() {
    let text = r#"{"pad":"0123456789","id":"eff"}"#;
    let body = text.replace('{', "%7B").replace('}', "%7D").replace('"', "%22");
    let config = |url: &str, more: &str| {
        format!("[operations.pay]\nendpoint = \"{url}\"\ndownstream = \"deduplicates\"\n{more}\n")
    };
    for (more, id, connections, header) in [
        ("", Some("eff"), 1, None),
        ("connection = \"keep\"\nanswer_max = 31", Some("eff"), 1, None),
        ("answer_max = 30", None, 2, None),
        ("connection = \"close\"\nanswer_max = 67108864", Some("eff"), 2, Some("close")),
    ] {
        let (desk, downstream) = (Desk::new(), Downstream::start());
        desk.ok(&["enqueue", "pay", "--entity", "a"]);
        desk.ok(&["enqueue", "pay", "--entity", "b"]);
        let url = downstream.url(&format!("/body/200/{body}"));
        let relay = ["relay", "--drain", "--workers", "1", "--config", "relay.toml"];
        desk.file("relay.toml", &config(&url, more));
        desk.ok(&relay);
        let show = &desk.json(&["show", "1"])[0];
        assert_eq!(show["status"], "succeeded", "{more}");
        assert_eq!(show["downstream_id"].as_str(), id, "{more}");
        let note = show["receipt"]["note"].as_str().unwrap_or_default();
        assert_eq!(note.contains("answer_max"), id.is_none(), "{more}: {note}");
        assert_eq!(downstream.connections(), connections, "{more}");
        for request in downstream.requests() {
            assert_eq!(request.header("connection"), header, "{more}");
        }
    }
}
