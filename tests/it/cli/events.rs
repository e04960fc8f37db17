//! `outbox events`: the stream of what happened, once or followed.

use std::io::{BufRead, BufReader};

use serde_json::Value;

use super::Desk;
use super::relay::Running;

impl Desk {
    /// An intent that was withdrawn, which is one event.
    fn withdrawn(&self, operation: &str, entity: &str) {
        let args = r#"{"card":"SENTINEL"}"#;
        let enqueue = ["enqueue", operation, "--entity", entity, "--args", args];
        let headers = ["--header", "x-note=SENTINEL", "--header", "x-agent-run=run-7"];
        let id = self.json(&[&enqueue[..], &headers].concat())[0]["id"].to_string();
        self.ok(&["cancel", &id, "--reason", "ordered\ntwice", "--actor", "ann"]);
    }
}

#[test]
fn events_come_in_order_filtered_and_under_the_names_of_the_columns() {
    let desk = Desk::new();
    assert_eq!(desk.ok(&["events"]), "");
    for (operation, entity) in [("pay", "a"), ("mail", "b"), ("pay", "c")] {
        desk.withdrawn(operation, entity);
    }
    let dead = desk.dead("d");
    let events = desk.json(&["events"]);
    let positions: Vec<&Value> = events.iter().map(|event| &event["position"]).collect();
    assert_eq!(positions, [1, 2, 3, 4]);
    let conn = desk.conn();
    let statement = conn.prepare("SELECT * FROM outbox_event").unwrap();
    let mut columns = statement.column_names();
    columns.extend(["operation", "wire_key", "key_hash", "args_hash"]);
    columns.sort_unstable();
    for event in &events {
        let names: Vec<&String> = event.as_object().unwrap().keys().collect();
        assert_eq!(names, columns);
        assert_eq!(event["key_hash"].as_str().unwrap().len(), 64);
    }
    let cancelled = &events[0];
    assert_eq!([&cancelled["kind"], &cancelled["status"]], ["cancelled", "cancelled"]);
    assert_eq!([&cancelled["agent_run"], &cancelled["actor"]], ["run-7", "ann"]);
    let attempt = &events[3];
    assert_eq!([&attempt["kind"], &attempt["outbox_id"]], [&"attempt".into(), &Value::from(dead)]);
    assert!(attempt["claimed_at"].as_i64().unwrap() <= attempt["at"].as_i64().unwrap());

    let count = |args: &[&str]| desk.json(&[&["events"], args].concat()).len();
    assert_eq!(count(&["--operation", "mail"]), 1);
    assert_eq!(count(&["--kind", "cancelled", "--operation", "pay"]), 2);
    assert_eq!(count(&["--limit", "2"]), 2);
    assert_eq!(count(&["--after", "3"]), 1);
    assert_eq!((count(&["--since", "1h"]), count(&["--since", "2100-01-01T00:00:00Z"])), (4, 0));
    let text = desk.ok(&["events"]);
    assert_eq!(text.lines().count(), 4, "one line for each: {text}");
    assert!(
        text.contains("  #1  intent 1 (pay)  cancelled: pending -> cancelled, by ann"),
        "{text}"
    );
    assert!(text.contains("agent run run-7: ordered\\ntwice\n"), "{text}");
    assert!(text.contains("attempt 1: in_flight -> dead, by relay-") && text.contains(", took "));
    assert!(!text.contains("SENTINEL") && !desk.ok(&["events", "--json"]).contains("SENTINEL"));
}

#[test]
fn events_are_read_page_by_page() {
    let desk = Desk::new();
    let rows: Vec<String> = (0..1203).map(|i| format!("('op','e{i}','k{i}','{{}}')")).collect();
    desk.sql(&format!(
        "INSERT INTO outbox (operation, entity_id, idempotency_key, payload) VALUES {}",
        rows.join(",")
    ));
    let ids: Vec<String> = (1..=1203).map(|id| id.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    desk.ok(&[&["cancel"], &ids[..]].concat());
    assert_eq!(desk.json(&["events"]).len(), 1203);
    assert_eq!(desk.json(&["events", "--limit", "1000", "--after", "100"]).len(), 1000);
    assert_eq!(desk.json(&["events", "--operation", "other"]).len(), 0);
}

#[test]
fn events_follow_sees_other_processes_until_told_to_stop() {
    for signal in ["TERM", "INT"] {
        let desk = Desk::new();
        desk.withdrawn("pay", "before");
        let mut follower =
            Running::spawn(&desk, &["--json", "events", "--follow", "--operation", "pay"]);
        let stdout = follower.0.stdout.take().unwrap();
        let mut lines = BufReader::new(stdout).lines().map(Result::unwrap);
        let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap()).unwrap() };
        assert_eq!(next()["position"], 1);
        desk.withdrawn("mail", "other");
        desk.withdrawn("pay", "after");
        let last = next();
        assert_eq!([&last["position"], &last["outbox_id"]], [3, 3]);
        follower.signal(signal);
        assert_eq!(follower.0.wait().unwrap().code(), Some(0), "{signal}");
        assert_eq!(lines.next(), None);
        // Where it stopped, the next one goes on.
        let mut follower =
            Running::spawn(&desk, &["events", "--follow", "--after", "2", "--limit", "1"]);
        let (code, out) = follower.finish();
        assert!(code == 0 && out.contains("  #3  intent 3 (pay)  "), "{out}");
    }
}

#[test]
fn events_follow_ends_quietly_on_a_broken_pipe() {
    let desk = Desk::new();
    desk.withdrawn("pay", "before");
    let mut follower = Running::spawn(&desk, &["events", "--follow"]);
    let mut line = String::new();
    let mut stdout = BufReader::with_capacity(1, follower.0.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    drop(stdout);
    desk.withdrawn("pay", "after");
    assert_eq!(follower.0.wait().unwrap().code(), Some(0));
}

/// A closed terminal stops the command as Ctrl-C does; `nohup` starts it with the signal ignored.
#[cfg(target_os = "linux")]
#[test]
fn sighup_stops_the_command_unless_it_is_ignored() {
    use std::process::{Command, Stdio};
    for (disposition, sent) in [("--default-signal=HUP", "HUP"), ("--ignore-signal=HUP", "TERM")] {
        let desk = Desk::new();
        desk.withdrawn("pay", "before");
        let mut command = Command::new("env");
        command.args([disposition, env!("CARGO_BIN_EXE_outbox"), "--json", "events", "--follow"]);
        command.env("OUTBOX_DB", desk.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut follower = Running(command.spawn().unwrap());
        let stdout = follower.0.stdout.take().unwrap();
        let mut lines = BufReader::new(stdout).lines().map(Result::unwrap);
        assert!(lines.next().unwrap().contains("\"position\":1"));
        follower.signal("HUP");
        if sent != "HUP" {
            for entity in ["after", "later"] {
                desk.withdrawn("pay", entity);
                assert!(lines.next().is_some(), "the command went on");
            }
            follower.signal(sent);
        }
        assert_eq!(follower.0.wait().unwrap().code(), Some(0), "{disposition}");
    }
}
