//! The command, as processes: every command once, for people and as JSON.

mod events;
mod inspect;
mod operations;
mod refusals;
mod relay;
mod terminal;
mod verbs;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use sqlite_outbox::IdempotencyKey;
use sqlite_outbox::rusqlite::Connection;
use tempfile::TempDir;

use crate::support::folder::folder;

/// A folder with a file that has an outbox.
struct Desk {
    dir: TempDir,
}

/// Exit code and texts that a process left behind.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Desk {
    fn new() -> Self {
        let desk = Self { dir: folder() };
        desk.ok(&["init"]);
        desk
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("app.db")
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// The command on this file, in its folder, with nothing inherited that would change it.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
        command.current_dir(self.dir.path()).env_remove("RUST_LOG").env_remove("USER");
        command.env("OUTBOX_DB", self.path()).args(args).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        Ran::from(self.command(args).output().unwrap())
    }

    fn run_with(&self, stdin: &str, args: &[&str]) -> Ran {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        let text = stdin.to_owned();
        // From a thread: the child answers while it reads.
        let writer = std::thread::spawn(move || drop(pipe.write_all(text.as_bytes())));
        let ran = Ran::from(child.wait_with_output().unwrap());
        writer.join().unwrap();
        ran
    }

    fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
        ran.out
    }

    /// The objects a command prints with `--json`.
    fn json(&self, args: &[&str]) -> Vec<Value> {
        let out = self.ok(&[&["--json"], args].concat());
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn conn(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }

    fn sql(&self, sql: &str) {
        self.conn().execute_batch(sql).unwrap();
    }

    fn count(&self, table: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        self.conn().query_row(&sql, [], |row| row.get(0)).unwrap()
    }

    /// An intent that was refused by its downstream.
    fn dead(&self, entity: &str) -> i64 {
        // An address of an intent's own that leads inside is refused for good.
        let inside = ["--endpoint", "http://127.0.0.1:1/"];
        let enqueue = [&["enqueue", "pay", "--entity", entity][..], &inside].concat();
        let id = self.json(&enqueue)[0]["id"].as_i64().unwrap();
        self.ok(&["relay", "--drain", "--downstream", "deduplicates"]);
        id
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

#[test]
fn init_creates_a_file_and_says_which_schema_it_has() {
    let dir = folder();
    let desk = Desk { dir };
    assert!(desk.ok(&["init"]).contains("app.db: schema version 5, database "));
    let again = &desk.json(&["init"])[0];
    assert_eq!(again["schema_version"], 5);
    assert_eq!(again["database_id"].as_str().unwrap().len(), 32);
    // The flag wins over the variable, and may stand on either side of the command.
    desk.ok(&["--db", "one.db", "init"]);
    desk.ok(&["init", "--db", "two.db"]);
    assert!(desk.dir.path().join("one.db").exists() && desk.dir.path().join("two.db").exists());
}

#[test]
fn key_is_derived_without_a_file() {
    let desk = Desk::new();
    let args = r#"{"currency": "eur", "amount": 4200}"#;
    let flags = ["--tenant", "acme", "--operation", "stripe.charge", "--entity", "order-42"];
    let expected = "stripe.charge:04ce3c5f8696d7736c9b5fc694cbe55ef78e226b";
    let derive = |more: &[&'static str]| [&["key"], flags.as_slice(), more].concat();
    let out = desk.ok(&derive(&["--version", "1", "--args", args]));
    assert_eq!(out.trim_end(), expected);
    let ran = desk.run_with(args, &derive(&["--args", "-", "--json"]));
    let derived: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(derived["key"], expected);
    assert_eq!(derived["args_hash"].as_str().unwrap().len(), 64);
    let output = desk.command(&derive(&[])).env_remove("OUTBOX_DB").output().unwrap();
    assert!(output.status.success());
}

#[test]
fn key_vectors_go_through_the_pipe() {
    let desk = Desk::new();
    let vectors = include_str!("../vectors/idempotency_keys.jsonl");
    let ran = desk.run_with(vectors, &["key", "--stdin"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert_eq!(ran.out.lines().count(), vectors.lines().count());
    for (line, vector) in ran.out.lines().zip(vectors.lines()) {
        let (derived, vector): (Value, Value) =
            (serde_json::from_str(line).unwrap(), serde_json::from_str(vector).unwrap());
        assert_eq!(derived["key"], vector["key"]);
        assert_eq!(derived["args_hash"], vector["args_hash"]);
        assert_eq!(derived.as_object().unwrap().len(), 2);
    }
}

#[test]
fn key_names_a_bad_line_and_answers_the_others() {
    let desk = Desk::new();
    let mut lines = vec![r#"{"operation":"op","entity_id":"e","args_json":"{}"}"#.to_owned()];
    for vector in include_str!("../vectors/idempotency_key_errors.jsonl").lines() {
        let vector: Value = serde_json::from_str(vector).unwrap();
        let line = json!({"tenant_id": "t", "operation": "op", "entity_id": "e",
                          "intent_version": 1, "args_json": vector["args_json"]});
        lines.push(line.to_string());
    }
    lines.push("not JSON".into());
    lines.push(r#"{"operation":"op","args_json":"{}"}"#.into());
    lines.push(lines[0].clone());
    let ran = desk.run_with(&lines.join("\n"), &["key", "--stdin"]);
    assert_eq!(ran.code, 2);
    assert_eq!(ran.out.lines().count(), 2, "the first and the last");
    let complaints: Vec<&str> = ran.err.lines().collect();
    assert_eq!(complaints.len(), lines.len() - 2);
    for (index, complaint) in complaints.iter().enumerate() {
        assert!(complaint.starts_with(&format!("error: line {}: ", index + 2)), "{complaint}");
    }
    assert!(complaints.last().unwrap().contains("entity_id"));
}

#[test]
fn enqueue_writes_what_the_flags_say() {
    let desk = Desk::new();
    desk.file("body.txt", "héllo\n");
    let flags = [
        "enqueue",
        "mail.send",
        "--entity",
        "m-1",
        "--tenant",
        "acme",
        "--version",
        "3",
        "--key",
        "my-key",
        "--endpoint",
        "https://api.example.com/mail",
        "--method",
        "PUT",
        "--args",
        r#"{"to": 1.0}"#,
        "--payload",
        "@body.txt",
        "--content-type",
        "text/plain",
        "--header",
        "traceparent=00-ab=cd-01",
        "--header",
        "x-schema=2",
        "--ordering-key",
        "acme",
        "--delay",
        "5m",
        "--expires-in",
        "1h",
    ];
    let new = &desk.json(&flags)[0];
    let sent = IdempotencyKey::wire_key("acme", "mail.send", "my-key").unwrap();
    let expected = json!({
        "id": 1, "idempotency_key": "my-key", "outcome": "new", "status": "pending",
        "wire_key": sent,
    });
    assert_eq!(*new, expected);
    let row: Vec<String> = desk
        .conn()
        .query_row(
            "SELECT tenant_id, operation, entity_id, intent_version, endpoint, method, payload,
                    content_type, headers, ordering_key, available_at - created_at,
                    expires_at - created_at FROM outbox",
            [],
            |row| {
                (0..12)
                    .map(|i| {
                        let value: sqlite_outbox::rusqlite::types::Value = row.get(i)?;
                        Ok(match value {
                            sqlite_outbox::rusqlite::types::Value::Integer(n) => n.to_string(),
                            sqlite_outbox::rusqlite::types::Value::Text(text) => text,
                            other => format!("{other:?}"),
                        })
                    })
                    .collect()
            },
        )
        .unwrap();
    let headers = r#"{"traceparent":"00-ab=cd-01","x-schema":"2"}"#;
    let expected = [
        "acme",
        "mail.send",
        "m-1",
        "3",
        "https://api.example.com/mail",
        "PUT",
        "héllo\n",
        "text/plain",
        headers,
        "acme",
        "300000",
        "3600000",
    ];
    assert_eq!(row, expected);
    assert_eq!(desk.json(&flags)[0]["outcome"], "existing");
    assert!(desk.ok(&flags).contains("intent 1 exists and is pending, key my-key"));
    assert_eq!(desk.count("outbox"), 1);
}

#[test]
fn enqueue_reads_arguments_and_payload_from_standard_input() {
    let desk = Desk::new();
    let ran = desk.run_with(r#"{"a": 1}"#, &["enqueue", "op", "--entity", "1", "--args", "-"]);
    assert!(ran.out.starts_with("intent 1 is enqueued, key op:"), "{}", ran.out);
    let ran = desk.run_with(r#"{"a": 2}"#, &["enqueue", "op", "--entity", "2", "--payload", "-"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let payloads: Vec<String> = [1, 2]
        .map(|id| {
            let sql = "SELECT payload FROM outbox WHERE id = ?1";
            desk.conn().query_row(sql, [id], |row| row.get(0)).unwrap()
        })
        .into();
    assert_eq!(payloads, [r#"{"a": 1}"#, r#"{"a": 2}"#]);
}

#[test]
fn list_filters_pages_and_has_the_columns_of_the_view() {
    let desk = Desk::new();
    for entity in ["a", "b", "c"] {
        desk.ok(&["enqueue", "op.one", "--entity", entity, "--tenant", "acme"]);
    }
    desk.ok(&["enqueue", "op.two", "--entity", "a"]);
    let rows = desk.json(&["list"]);
    assert_eq!(rows.len(), 4);
    let conn = desk.conn();
    let statement = conn.prepare("SELECT * FROM outbox_status").unwrap();
    let mut columns: Vec<&str> = statement.column_names();
    columns.push("wire_key");
    columns.sort_unstable();
    for row in &rows {
        let names: Vec<&String> = row.as_object().unwrap().keys().collect();
        assert_eq!(names, columns);
    }
    let ids = |args: &[&str]| -> Vec<i64> {
        let rows = desk.json(&[&["list"], args].concat());
        rows.iter().map(|row| row["id"].as_i64().unwrap()).collect()
    };
    assert_eq!(ids(&["--operation", "op.two"]), [4]);
    assert_eq!(ids(&["--tenant", "acme", "--entity", "b"]), [2]);
    assert_eq!(ids(&["--status", "pending", "--limit", "2"]), [1, 2]);
    assert_eq!(ids(&["--after", "2", "--since", "1h"]), [3, 4]);
    assert!(ids(&["--since", "2100-01-01T00:00:00Z"]).is_empty());
    assert!(ids(&["--status", "dead"]).is_empty());
    let page = desk.run(&["list", "--limit", "2"]);
    assert!(page.out.starts_with("ID  STATUS   TENANT  OPERATION"), "{}", page.out);
    assert!(page.err.contains("--after 2"));
    assert_eq!(desk.ok(&["list", "--status", "dead"]), "no such intents\n");
}

#[test]
fn list_prints_foreign_bytes_escaped() {
    let desk = Desk::new();
    desk.ok(&["enqueue", "pay", "--entity", "e"]);
    let sql: String = desk
        .conn()
        .query_row(
            "SELECT group_concat('DROP TRIGGER ' || name, ';') FROM sqlite_schema
             WHERE type = 'trigger' AND tbl_name = 'outbox' AND sql LIKE '%UPDATE%'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    // As a hand with an editor would: the triggers are put back, or the file would be refused.
    let triggers: Vec<String> = {
        let conn = desk.conn();
        let mut statement = conn
            .prepare(
                "SELECT sql FROM sqlite_schema
                 WHERE type = 'trigger' AND tbl_name = 'outbox' AND sql LIKE '%UPDATE%'",
            )
            .unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    desk.sql(&sql);
    desk.sql(
        "PRAGMA ignore_check_constraints = ON;
         UPDATE outbox SET entity_id = CAST(x'1b5b33316dff0ac285e280ae78' AS TEXT)",
    );
    desk.sql(&triggers.join(";"));
    for args in [&["list"][..], &["show", "1"], &["list", "--json"], &["show", "1", "--json"]] {
        let out = desk.ok(args);
        let is_harmless = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
        assert!(out.chars().all(is_harmless), "{args:?}: {out:?}");
        assert!(out.contains("[31m"), "{args:?}: {out:?}");
    }
    let row = &desk.json(&["list"])[0];
    assert_eq!(row["entity_id"], "\u{1b}[31m\u{fffd}\n\u{85}\u{202e}x");
}

#[test]
fn replay_by_id_or_by_filter() {
    let desk = Desk::new();
    for entity in ["a", "b", "c"] {
        desk.dead(entity);
    }
    assert_eq!(desk.json(&["list", "--status", "dead"]).len(), 3);
    let dry = desk.json(&["replay", "--all", "--dry-run"]);
    assert_eq!(dry[0], json!({"id": 1, "outcome": "would_be_replayed"}));
    assert_eq!(dry.len(), 3);
    assert_eq!(desk.json(&["replay", "1", "--dry-run"]).len(), 1);
    assert_eq!(desk.json(&["list", "--status", "dead"]).len(), 3);

    assert_eq!(desk.json(&["replay", "1", "--reason", "fixed"])[0]["outcome"], "replayed");
    let event = &desk.json(&["show", "1"])[0]["events"];
    let event = event.as_array().unwrap().last().unwrap();
    assert_eq!([&event["kind"], &event["actor"], &event["reason"]], ["replayed", "cli", "fixed"]);

    let out = desk.ok(&["replay", "--status", "dead", "--operation", "pay", "--limit", "1"]);
    assert!(out.starts_with("1 intent can be replayed, 0 refused\n"), "{out}");
    let ran = desk.run(&["replay", "--status", "pending", "--all"]);
    assert_eq!((ran.code, ran.err.lines().count()), (0, 2));
    assert!(desk.ok(&["replay", "--all"]).contains("intent 3: replayed"));

    let ran = desk.run(&["replay", "1", "99", "--json"]);
    assert_eq!(ran.code, 3);
    assert!(ran.err.contains("error: intent 1 is pending") && ran.err.contains("no intent 99"));
    let refused: Value = serde_json::from_str(ran.out.lines().next().unwrap()).unwrap();
    assert_eq!(refused["outcome"], "refused");
}

#[test]
fn cancel_withdraws_and_says_what_it_may_not() {
    let desk = Desk::new();
    desk.ok(&["enqueue", "pay", "--entity", "a"]);
    desk.ok(&["enqueue", "pay", "--entity", "b"]);
    assert_eq!(desk.ok(&["cancel", "1"]), "intent 1: cancelled\n");
    let ran = desk.run(&["cancel", "1", "2", "--json"]);
    assert_eq!(ran.code, 3);
    assert!(ran.err.starts_with("error: intent 1 is cancelled"), "{}", ran.err);
    assert!(ran.out.contains(r#"{"id":2,"outcome":"cancelled"}"#), "{}", ran.out);
}

#[test]
fn broken_pipe_is_not_an_error() {
    let desk = Desk::new();
    let many: Vec<String> = (0..2000).map(|i| format!("('op','e{i}','k{i}','{{}}')")).collect();
    desk.sql(&format!(
        "INSERT INTO outbox (operation, entity_id, idempotency_key, payload) VALUES {}",
        many.join(",")
    ));
    let mut command = desk.command(&["list", "--json", "--limit", "2000"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}
