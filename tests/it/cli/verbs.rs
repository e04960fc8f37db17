//! Statements of a person or of a provider's record about intents: `resolve`, `confirm`, `skip` and
//! `cancel`, and the story that `show` tells of it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::relay::Running;
use super::{Desk, Ran};
use crate::support::downstream::Downstream;

impl Desk {
    /// An intent whose only answer was lost by a downstream that does not know keys.
    fn lost(&self, downstream: &Downstream, entity: &str, more: &[&str]) -> i64 {
        let enqueue = ["enqueue", "mail", "--entity", entity, "--key", entity];
        let id = self.json(&[&enqueue[..], more].concat())[0]["id"].as_i64().unwrap();
        let text = format!(
            "[operations.mail]\nendpoint = \"{}\"\ndownstream = \"unprotected\"\n",
            downstream.url("/lost/1")
        );
        let relay_toml = self.file("mail.toml", &text);
        self.ok(&["relay", "--drain", "--config", &relay_toml]);
        id
    }

    fn status(&self, id: i64) -> String {
        self.json(&["show", &id.to_string()])[0]["status"].as_str().unwrap().to_owned()
    }
}

fn lines(ran: &Ran) -> Vec<Value> {
    ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const RUN: [&str; 4] = ["--header", "x-agent-run=run-7", "--header", "x-tool-version=2.1"];

#[test]
fn show_tells_the_story_of_a_lost_answer_that_a_person_resolved() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    let secret = ["--args", r#"{"card":"SENTINEL"}"#, "--header", "x-note=SENTINEL"];
    let id = desk.lost(&downstream, "m-1", &[&RUN[..], &secret, &["--ordering-key", "o"]].concat());
    let which = id.to_string();
    let before = desk.ok(&["show", &which]);
    let path = std::fs::canonicalize(desk.path()).unwrap();
    let command = format!("`outbox --db {}", path.display());
    for words in [
        "intent 1 is needs_review\n".to_owned(),
        "agent run     run-7\n".into(),
        "tool version  2.1\n".into(),
        "attempt 1: in_flight -> needs_review, by relay-".into(),
        "claimed 20".into(),
        ", took ".into(),
        "nothing can look up what became of it".into(),
        "what helps\n  a person must find out what became of it".into(),
        format!("{command} resolve 1 --applied --downstream-id …` if it was applied\n"),
        format!("{command} resolve 1 --not-applied` if it definitely was not"),
        format!("{command} resolve 1 --dead` gives it up\n"),
        format!("{command} skip 1` lets later intents of its ordering key go on"),
    ] {
        assert!(before.contains(&words), "{words}: {before}");
    }
    assert!(!before.contains("replay"), "a second mail could be sent: {before}");

    let found = ["--downstream-id", "msg_1", "--reason", "it is in their list", "--actor", "ann"];
    let out = desk.ok(&[&["resolve", &which, "--applied"][..], &found].concat());
    assert_eq!(out, "intent 1: resolved, it is succeeded\n");
    let after = desk.ok(&["show", &which]);
    for words in [
        "intent 1 is succeeded\n",
        "downstream id msg_1\n",
        "resolved: needs_review -> succeeded, by ann\n",
        "it is in their list\n",
    ] {
        assert!(after.contains(words), "{words}: {after}");
    }
    assert!(!after.contains("what helps"), "{after}");
    let story = &desk.json(&["show", &which])[0];
    let resolved = &story["events"][1];
    assert_eq!([&resolved["kind"], &resolved["actor"]], ["resolved", "ann"]);
    assert_eq!([&resolved["downstream_id"], &resolved["agent_run"]], ["msg_1", "run-7"]);
    assert_eq!(story["next_step"], Value::Null);
    for args in
        [&["show", &which][..], &["show", &which, "--json"], &["events"], &["events", "--json"]]
    {
        assert!(!desk.ok(args).contains("SENTINEL"), "{args:?}");
    }
    assert_eq!(downstream.requests().len(), 1);
}

#[test]
fn resolve_sends_again_or_gives_up_and_refuses_the_rest() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    for entity in ["a", "b"] {
        desk.lost(&downstream, entity, &[]);
    }
    let ran = desk.run(&["--json", "resolve", "1", "2", "99", "--dead"]);
    assert_eq!(ran.code, 3);
    let expected = [
        json!({"id": 1, "outcome": "resolved", "status": "dead"}),
        json!({"id": 2, "outcome": "resolved", "status": "dead"}),
        json!({"id": 99, "outcome": "refused", "reason": "there is no intent 99"}),
    ];
    assert_eq!(lines(&ran), expected);
    let text = desk.ok(&["show", "1"]);
    assert!(text.contains("it was given up, and may have been applied"), "{text}");
    assert!(!text.contains("replay"), "{text}");

    let ran = desk.run(&["resolve", "1", "--dead"]);
    assert_eq!(ran.code, 3);
    assert!(ran.err.contains("intent 1 is dead: only what is unknown"), "{}", ran.err);
    // What was given up in doubt can still be found out.
    assert!(desk.ok(&["resolve", "1", "--not-applied"]).contains("it is pending"));
    desk.sql("UPDATE outbox_lease SET state = 'needs_review', due_at = NULL WHERE id = 1");
    desk.ok(&["resolve", "1", "2", "--applied"]);
    let ran = desk.run(&["resolve", "1", "--applied"]);
    assert!(ran.code == 3 && ran.err.contains("intent 1 is succeeded"), "{}", ran.err);

    let id = desk.lost(&downstream, "c", &[]).to_string();
    let out = desk.ok(&["resolve", &id, "--not-applied", "--reason", "asked them"]);
    assert_eq!(out, "intent 3: resolved, it is pending\n");
    desk.ok(&["relay", "--drain", "--config", "mail.toml"]);
    let keys: Vec<String> = downstream.requests().into_iter().map(|r| r.key).collect();
    assert_eq!(keys, ["a", "b", "c", "c"], "sent again under the same key");
    assert_eq!(desk.status(3), "succeeded");
}

#[test]
fn resolve_wants_one_finding_and_one_id_for_one_effect() {
    let desk = Desk::new();
    let cases: &[(&str, &[&str])] = &[
        ("--applied|--not-applied|--dead", &["resolve", "1"]),
        ("cannot be used with", &["resolve", "1", "--applied", "--dead"]),
        ("<ID>", &["resolve", "--applied"]),
        ("cannot be used with", &["resolve", "1", "--dead", "--downstream-id", "x"]),
        ("name one", &["resolve", "1", "2", "--applied", "--downstream-id", "x"]),
        ("must be one of attempt, ", &["events", "--kind", "birthday"]),
        ("--since", &["events", "--since", "soon"]),
        ("FILE: missing.jsonl", &["confirm", "missing.jsonl"]),
        ("<ID>", &["skip"]),
    ];
    for (words, args) in cases {
        let ran = desk.run(args);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{args:?}: {}", ran.err);
        assert!(ran.err.contains(words), "{args:?}: {}", ran.err);
    }
    let id = desk.dead("e").to_string();
    let ran = desk.run(&["resolve", &id, "--applied", "--downstream-id", ""]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.starts_with("error: --downstream-id: must be text"), "{}", ran.err);
}

#[test]
fn downstream_id_of_another_intent_is_refused() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    for entity in ["a", "b"] {
        desk.lost(&downstream, entity, &[]);
    }
    desk.sql("UPDATE outbox_operation SET binds_ids = 1");
    assert_eq!(desk.json(&["operations"])[0]["binds_ids"], true);
    assert!(desk.ok(&["operations"]).contains("bound"));
    desk.ok(&["resolve", "1", "--applied", "--downstream-id", "msg_1"]);
    let ran = desk.run(&["resolve", "2", "--applied", "--downstream-id", "msg_1"]);
    assert_eq!(ran.code, 3);
    assert!(ran.err.contains("which belongs to intent 1"), "{}", ran.err);
    assert_eq!(desk.status(2), "needs_review");
    let line = r#"{"idempotency_key": "b", "downstream_id": "msg_1"}"#;
    let ran = desk.run_with(line, &["confirm"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.out.starts_with("line 1: needs_review, intent 2 is needs_review: "), "{}", ran.out);
}

#[test]
fn show_says_when_the_next_lookup_is() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    desk.lost(&downstream, "a", &[]);
    // As a relay with a look-up leaves it.
    desk.sql("UPDATE outbox_operation SET reconciles = 1");
    let id = desk.lost(&downstream, "b", &[]).to_string();
    assert_eq!(desk.json(&["operations"])[0]["reconciles"], true);
    let row = &desk.json(&["list", "--status", "unknown"])[0];
    assert!(row["next_lookup_at"].is_i64(), "{row}");
    assert!(desk.ok(&["list", "--status", "unknown"]).contains(" in 1m "));
    let text = desk.ok(&["show", &id]);
    for words in [
        "next lookup   20",
        "now it is unknown, next lookup 20",
        "nothing is sent until that is known: the next lookup is at 20",
        "resolve 2 --not-applied`",
        "a relay looks up intents in doubt",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    desk.sql("UPDATE outbox_lease SET due_at = 1600000000000 WHERE state = 'unknown'");
    assert!(desk.ok(&["show", &id]).contains("a lookup is due since 2020-"));
    desk.ok(&["pause", "mail"]);
    assert!(desk.ok(&["show", &id]).contains("so that no relay looks it up"));
    desk.ok(&["resolve", &id, "--applied"]);
}

/// As configured: the answer was lost, and the provider's record has the effect.
#[test]
fn lookup_as_configured_finds_what_was_applied() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    desk.ok(&["enqueue", "mail", "--entity", "a", "--key", "a"]);
    let text = format!(
        "[operations.mail]\nendpoint = \"{}\"\ndownstream = \"unprotected\"\nbinds = \"create\"\n\
         timeouts = {{ resolve = \"200ms\", connect = \"200ms\", send = \"200ms\", \
         response = \"200ms\", body = \"200ms\" }}\n\
         reconcile = {{ get = \"{}\", downstream_id = \"/id\", delay = \"1100ms\" }}\n",
        downstream.url("/lost/1"),
        downstream.url("/effects/{idempotency_key}")
    );
    let drain = ["relay", "--drain", "--config", &desk.file("relay.toml", &text)];
    desk.ok(&drain);
    assert_eq!(desk.status(1), "unknown");
    let entry = &desk.json(&["show", "1"])[0];
    let failed_at = entry["events"][0]["at"].as_i64().unwrap();
    assert_eq!(entry["next_lookup_at"].as_i64(), Some(failed_at + 1100));
    assert!(desk.ok(&["operations"]).contains("yes"));
    desk.sql("UPDATE outbox_lease SET due_at = 1600000000000 WHERE state = 'unknown'");
    desk.ok(&drain);
    assert_eq!(desk.status(1), "succeeded");
    let story = &desk.json(&["show", "1"])[0];
    assert!(story["downstream_id"].is_string(), "{story}");
    assert_eq!(story["events"].as_array().unwrap().last().unwrap()["kind"], "reconciled");
    let text = desk.ok(&["show", "1"]);
    assert!(text.contains("lookup: unknown -> succeeded, by relay-"), "{text}");
    assert!(text.contains("the lookup found it applied"), "{text}");
    assert_eq!(downstream.requests().len(), 1, "nothing was sent again");
    assert_eq!(desk.count("outbox_binding"), 1);
}

/// A line that is wrong keeps no other from its turn, and the exit code says the worst.
#[test]
fn confirm_answers_each_line() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    desk.lost(&downstream, "a", &["--tenant", "acme"]);
    desk.ok(&["enqueue", "mail", "--entity", "b", "--key", "b", "--delay", "1h"]);
    desk.ok(&["enqueue", "mail", "--entity", "c", "--key", "c", "--delay", "1h"]);
    desk.ok(&["cancel", "3"]);
    let good = [
        concat!(
            r#"{"tenant_id": "acme", "idempotency_key": "a", "downstream_id": "msg_1", "#,
            r#""receipt": {"state": "SENT"}}"#
        ),
        "",
        r#"{"tenant_id": null, "idempotency_key": "b", "downstream_id": null, "receipt": null}"#,
        r#"{"tenant_id": "acme", "idempotency_key": "a", "downstream_id": "msg_1"}"#,
    ];
    let file = desk.file("good.jsonl", &good.join("\n"));
    let confirmed = desk.json(&["confirm", &file, "--actor", "import"]);
    let row = |mut row: Value| {
        row["status"] = json!("succeeded");
        row
    };
    let expected = [
        row(json!({"line": 1, "outcome": "confirmed", "idempotency_key": "a", "id": 1})),
        row(json!({"line": 3, "outcome": "confirmed", "idempotency_key": "b", "id": 2})),
        row(json!({"line": 4, "outcome": "known", "idempotency_key": "a", "id": 1})),
    ];
    assert_eq!(confirmed, expected);
    let story = &desk.json(&["show", "1"])[0];
    assert_eq!(story["receipt"]["body"], r#"{"state":"SENT"}"#);
    assert_eq!(story["downstream_id"], "msg_1");
    assert_eq!(story["events"][1]["actor"], "import");

    let open = [
        r#"{"idempotency_key": "a"}"#,
        r#"{"tenant_id": "acme", "idempotency_key": "a", "downstream_id": "msg_2"}"#,
        r#"{"idempotency_key": "c", "downstream_id": "msg_3"}"#,
        good[0],
    ];
    let ran = desk.run_with(&open.join("\n"), &["confirm", "-"]);
    assert_eq!((ran.code, ran.err.as_str()), (3, ""));
    let said: Vec<&str> = ran.out.lines().collect();
    assert_eq!(said.len(), 4);
    assert_eq!(said[0], "line 1: not_found: there is no intent with the key \"a\"");
    assert!(
        said[1].starts_with("line 2: duplicate_effect, intent 1 is succeeded: carried out twice")
    );
    assert!(
        said[2].starts_with("line 3: needs_review, intent 3 is cancelled: it was cancelled, but")
    );
    assert_eq!(said[3], "line 4: known, intent 1 is succeeded");

    // What happened twice is said loudly wherever one looks.
    let text = desk.ok(&["show", "1"]);
    assert!(text.contains("\nDUPLICATE EFFECT: it was carried out twice: "), "{text}");
    assert!(text.contains("\"msg_1\" and as \"msg_2\""), "{text}");
    assert!(desk.json(&["show", "1"])[0]["duplicate_effect"].as_str().unwrap().contains("twice"));
    assert_eq!(desk.json(&["stats"])[0]["duplicate_effects"], 1);
    let stats = desk.ok(&["stats"]);
    assert!(stats.contains("\nmail: 1 intent was carried out twice: `outbox events"), "{stats}");
    assert_eq!(desk.json(&["events", "--kind", "duplicate_effect"]).len(), 1);
}

/// Some programs begin a file with a mark; and a line can be longer than anything that is kept.
#[test]
fn confirm_reads_a_marked_file_and_no_more_of_a_line_than_it_can_use() {
    let desk = Desk::new();
    desk.ok(&["enqueue", "mail", "--entity", "a", "--key", "a"]);
    let long = format!(r#"{{"idempotency_key": "b", "receipt": "{}"}}"#, "x".repeat(3 << 20));
    let text = format!("\u{feff}{}\n{long}\n{}\n", r#"{"idempotency_key": "a"}"#, "{}");
    let ran = desk.run_with(&text, &["confirm", "--json"]);
    let outcomes: Vec<_> = lines(&ran).iter().map(|line| line["outcome"].clone()).collect();
    assert_eq!(outcomes, ["confirmed", "malformed", "malformed"]);
    assert!(ran.err.contains("line 2: longer than 1048576 bytes"), "{}", ran.err);
    assert!(ran.err.contains("line 3: idempotency_key: must be"), "{}", ran.err);
}

#[test]
fn confirm_names_what_is_malformed_and_goes_on() {
    let desk = Desk::new();
    desk.ok(&["enqueue", "mail", "--entity", "a", "--key", "a"]);
    let bad = [
        ("not JSON", "must be an object"),
        (r#"["", "a"]"#, "must be an object"),
        (r#""SENTINEL""#, "must be an object"),
        (r#"{"idempotency_key": "a""#, "EOF while parsing"),
        (r#"{"tenant_id": ""}"#, "idempotency_key: must be a string"),
        (r#"{"idempotency_key": 5}"#, "idempotency_key: must be a string"),
        (r#"{"idempotency_key": null}"#, "idempotency_key: must be a string"),
        (
            r#"{"idempotency_key": "a", "downstream_id": {"SENTINEL": 1}}"#,
            "downstream_id: must be a",
        ),
        (r#"{"idempotency_key": "a", "downstream_id": ""}"#, "downstream_id: must be text"),
        (r#"{"idempotency_key": "a", "tenant_id": ["SENTINEL"]}"#, "tenant_id: must be a string"),
        (r#"{"idempotency_key": "a", "downstreamid": "SENTINEL"}"#, "unknown field `downstreamid`"),
        (
            r#"{"idempotency_key": "b", "idempotency_key": "a"}"#,
            "duplicate field `idempotency_key`",
        ),
    ];
    let mut lines: Vec<&str> = bad.iter().map(|(line, _)| *line).collect();
    lines.push(r#"{"idempotency_key": "nope"}"#);
    lines.push(r#"{"idempotency_key": "a"}"#);
    let ran = desk.run_with(&lines.join("\n"), &["confirm", "--json"]);
    assert_eq!(ran.code, 2, "malformed is worse than not found");
    let answers = self::lines(&ran);
    assert_eq!(answers.len(), lines.len());
    for (place, (_, words)) in bad.iter().enumerate() {
        assert_eq!(
            [&answers[place]["outcome"], &answers[place]["line"]],
            [&json!("malformed"), &json!(place + 1)]
        );
        let complaint = ran.err.lines().nth(place).unwrap();
        assert!(
            complaint.starts_with(&format!("error: line {}: {words}", place + 1)),
            "{complaint}"
        );
    }
    assert_eq!(answers[bad.len()]["outcome"], "not_found");
    assert_eq!(answers[bad.len() + 1]["outcome"], "confirmed");
    assert!(!ran.err.contains("SENTINEL") && !ran.out.contains("SENTINEL"), "{}", ran.err);
    assert_eq!(ran.err.lines().count(), bad.len());
}

/// The reader of the answers may be gone: the lines are confirmed all the same.
#[test]
fn confirm_goes_on_over_a_broken_pipe() {
    use std::io::Write;
    use std::process::Stdio;
    let desk = Desk::new();
    let ids = 200;
    let rows: Vec<String> = (0..ids).map(|i| format!("('op','e{i}','k{i}','{{}}')")).collect();
    desk.sql(&format!(
        "INSERT INTO outbox (operation, entity_id, idempotency_key, payload) VALUES {}",
        rows.join(",")
    ));
    let mut command = desk.command(&["confirm"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let mut pipe = child.stdin.take().unwrap();
    for i in 0..ids {
        writeln!(pipe, "{{\"idempotency_key\": \"k{i}\"}}").unwrap();
    }
    drop(pipe);
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert_eq!(desk.count("outbox_receipt"), ids);
}

#[test]
fn skip_lets_the_line_go_on() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    desk.ok(&["enqueue", "mail", "--entity", "after", "--ordering-key", "p", "--delay", "1h"]);
    desk.lost(&downstream, "a", &["--ordering-key", "o"]);
    desk.ok(&["enqueue", "mail", "--entity", "b", "--key", "b", "--ordering-key", "o"]);
    assert!(desk.ok(&["show", "3"]).contains("waits behind  intent 2\n"));
    let ran =
        desk.run(&["--json", "skip", "2", "1", "99", "--reason", "not needed", "--actor", "ann"]);
    assert_eq!(ran.code, 3);
    let said = lines(&ran);
    assert_eq!(said[0], json!({"id": 2, "outcome": "skipped"}));
    assert_eq!([&said[1]["outcome"], &said[2]["outcome"]], ["refused", "refused"]);
    assert!(ran.err.contains("intent 1 is pending: only what is dead"), "{}", ran.err);
    let text = desk.ok(&["show", "2"]);
    assert!(text.contains("skipped: still needs_review, by ann\n"), "{text}");
    assert!(text.contains("resolve 2 --dead`") && !text.contains("skip 2`"), "{text}");
    desk.ok(&["relay", "--drain", "--config", "mail.toml"]);
    let keys: BTreeSet<String> = downstream.requests().into_iter().map(|r| r.key).collect();
    assert!(keys.contains("b"), "{keys:?}");
    assert_eq!(desk.run(&["skip", "2"]).code, 3, "it blocks nothing any more");
}

#[test]
fn cancel_says_when_it_is_too_late() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    desk.enqueue_for("a", &downstream.url("/gate"));
    let mut relay = Running::start(&desk, &[]);
    downstream.wait_for_requests(1);
    let ran = desk.run(&["cancel", "1", "--reason", "ordered twice"]);
    let said = "intent 1 is in_flight: too late to withdraw: it is not tried again\n";
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (3, "", said));
    let ran = desk.run(&["--json", "cancel", "1"]);
    let expected = json!({"id": 1, "outcome": "too_late", "status": "in_flight",
                          "reason": "too late to withdraw: it is not tried again"});
    assert_eq!((ran.code, &lines(&ran)[0]), (3, &expected));
    let text = desk.ok(&["show", "1"]);
    assert!(text.contains("cancel requested: still in_flight, by cli\n"), "{text}");
    downstream.release();
    relay.signal("TERM");
    assert_eq!(relay.finish().0, 0);
    assert_eq!(desk.status(1), "succeeded", "what was on the way is not stopped");
    let ran = desk.run(&["cancel", "1"]);
    assert!(
        ran.code == 3 && ran.err.contains("intent 1 is succeeded: it is settled"),
        "{}",
        ran.err
    );

    let id = desk.lost(&downstream, "b", &[]).to_string();
    let ran = desk.run(&["cancel", &id]);
    assert!(ran.code == 3 && ran.err.contains("too late to withdraw"), "{}", ran.err);
    // A person who finds that it was not applied does what somebody wanted.
    let text = desk.ok(&["show", &id]);
    assert!(text.contains("--not-applied` if it definitely was not: it is withdrawn"), "{text}");
    assert!(desk.ok(&["resolve", &id, "--not-applied"]).contains("it is cancelled"));
}

/// Both versions name each other, and the older one's end says why.
#[test]
fn show_names_what_took_its_place() {
    let desk = Desk::new();
    desk.ok(&["enqueue", "mail", "--entity", "a"]);
    let outbox = sqlite_outbox::Outbox::open(desk.path()).unwrap();
    let next = sqlite_outbox::Intent::new("mail", "a").args(json!({"to": "bob"}));
    outbox.transact(|tx| outbox.revise(tx, 1, 1, &next, "ann")).unwrap();
    let text = desk.ok(&["show", "1"]);
    assert!(text.contains("revised by    intent 2\n"), "{text}");
    assert!(text.contains("revised: pending -> cancelled, by ann\n"), "{text}");
    assert!(desk.ok(&["show", "2"]).contains("revises       intent 1\n"));
    assert_eq!(desk.json(&["show", "1"])[0]["revised_by"], 2);
    assert_eq!(desk.json(&["show", "2"])[0]["revises"], 1);
}

#[test]
fn retry_by_id_and_by_filter() {
    let desk = Desk::new();
    for entity in ["a", "b"] {
        desk.ok(&["enqueue", "mail", "--entity", entity, "--delay", "1h"]);
    }
    let one = desk.json(&["retry", "1", "--actor", "ann"]);
    assert_eq!(one, [json!({"id": 1, "outcome": "retried"})]);
    let dry = desk.ok(&["retry", "--operation", "mail", "--dry-run"]);
    assert!(dry.starts_with("2 intents can be retried, 0 refused"), "{dry}");
    assert_eq!(desk.run(&["retry", "--dry-run", "9"]).code, 3);
    let all = desk.json(&["retry", "--all"]);
    assert_eq!(all.len(), 2);
}
