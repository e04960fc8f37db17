//! Texts for people: the story of one intent, the counts, and the demo.

use super::Desk;

#[test]
fn show_tells_the_story_but_no_payload_and_no_header() {
    let desk = Desk::new();
    desk.ok(&[
        "enqueue",
        "pay",
        "--entity",
        "e",
        "--key",
        "mine",
        "--tenant",
        "acme",
        "--args",
        r#"{"card":"SENTINEL"}"#,
        "--header",
        "x-note=SENTINEL",
    ]);
    desk.ok(&["cancel", "1", "--reason", "ordered twice", "--actor", "ann"]);
    for which in [&["show", "1"][..], &["show", "mine", "--tenant", "acme"]] {
        let text = desk.ok(which);
        assert!(text.contains("intent 1 is cancelled"), "{text}");
        assert!(text.contains("cancelled: pending -> cancelled, by ann"), "{text}");
        assert!(text.contains("headers       x-note\n"), "{text}");
        assert!(text.contains("payload       19 bytes\n"), "{text}");
        assert!(text.contains("ordered twice") && !text.contains("SENTINEL"), "{text}");
        let story = desk.json(which);
        assert_eq!(story.len(), 1);
        assert_eq!(story[0]["status"], "cancelled");
        assert_eq!(story[0]["events"][0]["kind"], "cancelled");
        assert_eq!(story[0]["events"][0]["reason"], "ordered twice");
        assert!(story[0].get("receipt").is_none(), "nothing was applied");
        assert!(!story[0].to_string().contains("SENTINEL"));
    }
}

#[test]
fn show_ends_with_what_helps() {
    let desk = Desk::new();
    let id = desk.dead("e e").to_string();
    let text = desk.ok(&["show", &id]);
    let path = std::fs::canonicalize(desk.path()).unwrap();
    let replay = format!("`outbox --db {} replay {id}`", path.display());
    assert!(text.contains("what helps\n") && text.contains(&replay), "{text}");
    assert!(text.contains("contract      deduplicates, remembers a key for 24h\n"), "{text}");

    desk.sql("UPDATE outbox_lease SET state = 'unknown', due_at = 1, in_doubt_since = 1");
    let next = &desk.json(&["show", &id])[0]["next_step"];
    let next = next.as_str().unwrap();
    assert!(next.starts_with("it may have been applied, and nothing is sent until"), "{next}");
    assert!(
        next.contains(&format!("resolve {id} --applied --downstream-id …` if it was")),
        "{next}"
    );
    assert!(!next.contains("replay") && !next.contains("skip"), "{next}");
}

#[test]
fn show_names_the_intent_that_is_waited_for() {
    let desk = Desk::new();
    for entity in ["a", "b"] {
        desk.ok(&["enqueue", "pay", "--entity", entity, "--ordering-key", "acme"]);
    }
    assert!(!desk.ok(&["show", "1"]).contains("waits behind"));
    assert!(desk.ok(&["show", "2"]).contains("waits behind  intent 1\n"));
    assert_eq!(desk.json(&["show", "2"])[0]["waits_behind"], 1);
    assert!(desk.ok(&["show", "2"]).contains("no relay has ever registered"));
}

#[test]
fn list_that_is_piped_is_not_cut() {
    let desk = Desk::new();
    let entity = "x".repeat(300);
    desk.dead(&entity);
    let list = desk.ok(&["list"]);
    assert!(list.contains(&entity) && !list.contains('…'), "{list}");
}

#[test]
fn stats_count_and_mark_what_no_relay_knows() {
    let desk = Desk::new();
    assert_eq!(desk.ok(&["stats"]), "no intents yet\n");
    desk.dead("a");
    desk.ok(&["enqueue", "other", "--entity", "a"]);
    let stats = desk.json(&["stats"]);
    assert_eq!(stats.len(), 2);
    assert_eq!([&stats[0]["operation"], &stats[1]["operation"]], ["other", "pay"]);
    assert_eq!([&stats[0]["pending"], &stats[1]["dead"]], [1, 1]);
    assert_eq!([&stats[0]["registered"], &stats[1]["registered"]], [false, true]);
    assert!(stats[0]["oldest_due_at"].is_i64() && stats[1]["oldest_due_at"].is_null());
    let text = desk.ok(&["stats"]);
    assert!(text.contains("other *") && text.contains("* no relay has ever"), "{text}");
    let head = text.lines().next().unwrap();
    assert_eq!(
        head.split_whitespace().collect::<Vec<_>>().join(" "),
        "OPERATION PENDING DEAD OLDEST DUE"
    );
}

#[test]
fn demo_ends_with_one_effect_per_intent() {
    let desk = Desk::new();
    let text = desk.ok(&["demo"]);
    assert!(text.contains("One effect per intent: 12 succeeded, each with one effect"), "{text}");
    assert_eq!(desk.count("outbox"), 0, "the variable alone must not choose the demo's file");
    // On a file that is named, and again on the same: nothing of the first run is in the way.
    for _ in 0..2 {
        let lines = desk.json(&["demo", "--db", "demo.db"]);
        assert_eq!(lines.len(), 15);
        // Neither is sent again; one of them can be looked up.
        for (message, status) in [(&lines[12], "succeeded"), (&lines[13], "needs_review")] {
            assert_eq!([&message["requests"], &message["effects"]], [1, 1]);
            assert_eq!(message["status"], status);
        }
        assert_eq!(lines[14]["one_effect_per_intent"], true);
        assert_eq!([&lines[14]["effects"], &lines[14]["succeeded"]], [13, 12]);
    }
    assert!(desk.ok(&["--db", "demo.db", "demo"]).contains("outbox --db demo.db show"));
}

/// The provider knows the key that was sent, and nothing of a key that a tenant brought along.
#[test]
fn key_that_was_sent_is_shown_and_accepted() {
    let desk = Desk::new();
    let enqueue = ["enqueue", "mail", "--entity", "a", "--tenant", "acme", "--key", "mine"];
    let sent = desk.json(&enqueue)[0]["wire_key"].as_str().unwrap().to_owned();
    let derive = ["key", "--tenant", "acme", "--operation", "mail", "--key", "mine"];
    assert_eq!(desk.ok(&derive), format!("{sent}\n"));
    assert_eq!(desk.json(&derive)[0]["wire_key"], sent.as_str());
    assert_ne!(sent, "mine");
    assert_eq!(desk.count("outbox_wire_key"), 0, "nothing was sent yet");
    let text = "[operations.mail]\nendpoint = \"http://127.0.0.1:1\"\ndownstream = \"unprotected\"";
    let relay_toml = desk.file("sent.toml", text);
    desk.ok(&["relay", "--drain", "--config", &relay_toml]);
    assert_eq!(desk.count("outbox_wire_key"), 1);
    desk.ok(&["cancel", "1"]);
    for key in ["mine", &sent] {
        let story = &desk.json(&["show", key, "--tenant", "acme"])[0];
        assert_eq!(story["id"], 1);
        assert_eq!(story["wire_key"], sent.as_str());
        assert_eq!(desk.json(&["why", key, "--tenant", "acme"])[0]["id"], 1);
    }
    assert!(desk.ok(&["show", "1"]).contains(&format!("key as sent   {sent}\n")));
    assert_eq!(desk.run(&["show", &sent, "--tenant", "other"]).code, 3);
    assert_eq!(desk.json(&["list"])[0]["wire_key"], sent.as_str());
    assert_eq!(desk.json(&["events"])[0]["wire_key"], sent.as_str());
    let line = format!(r#"{{"tenant_id": "acme", "idempotency_key": "{sent}"}}"#);
    let ran = desk.run_with(&line, &["confirm"]);
    assert!(ran.out.starts_with("line 1: needs_review, intent 1 is cancelled"), "{}", ran.out);
}

#[test]
fn provider_s_id_finds_its_intent_and_an_unknown_one_settles_nothing() {
    let desk = Desk::new();
    for entity in ["a", "b"] {
        desk.ok(&["enqueue", "mail", "--entity", entity, "--key", entity, "--delay", "1h"]);
    }
    let outbox = sqlite_outbox::Outbox::open(desk.path()).unwrap();
    outbox.transact(|tx| outbox.bind(tx, 1, "msg_1", "app")).unwrap();
    let say = |line: &str| desk.run_with(line, &["confirm"]);
    for unknown in [
        r#"{"downstream_id": "msg_2"}"#,
        r#"{"downstream_id": "msg_1", "provider": "bank"}"#,
        r#"{"downstream_id": "msg_1", "tenant_id": "acme"}"#,
    ] {
        let ran = say(unknown);
        assert_eq!(ran.code, 3, "{unknown}");
        assert!(ran.out.starts_with("line 1: not_found"), "{}", ran.out);
    }
    let confirmed = say(r#"{"downstream_id": "msg_1", "provider": "mail"}"#);
    assert_eq!(confirmed.out, "line 1: confirmed, intent 1 is succeeded\n");
    // Without a binding, the receipt has it.
    assert_eq!(say(r#"{"idempotency_key": "b", "downstream_id": "msg_3"}"#).code, 0);
    assert_eq!(say(r#"{"downstream_id": "msg_3"}"#).out, "line 1: known, intent 2 is succeeded\n");
    assert_eq!(desk.json(&["show", "msg_3"])[0]["id"], 2);
    desk.conn().execute("UPDATE outbox_receipt SET downstream_id = 'msg_1'", []).unwrap();
    let ran = say(r#"{"downstream_id": "msg_1"}"#);
    assert!(ran.code == 3 && ran.out.starts_with("line 1: refused: the id"), "{}", ran.out);
}
