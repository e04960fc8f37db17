//! `outbox pause`, `resume`, `operations` and `why`, and what stands in `relay.toml` about them.

use serde_json::{Value, json};

use super::Desk;
use crate::support::downstream::Downstream;

fn config(endpoint: &str, more: &str) -> String {
    format!(
        "[operations.pay]\nendpoint = \"{endpoint}\"\ndownstream = \"deduplicates\"\n\
         key_window = \"2h\"\n{more}\n"
    )
}

const EVERYTHING: &str = r#"provider = "stripe"
max_in_flight = 4
breaker_after = 3
rate = "20/s"
owner = "payments team"
key_recipe = "order id, version bumped on each change"
max_per = "100/1h"
max_cost_per_tenant = "5000/24h""#;

#[test]
fn pause_holds_back_what_a_relay_would_send() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    let relay_toml = desk.file("relay.toml", &config(&downstream.url("/ok"), EVERYTHING));
    let drain = ["relay", "--drain", "--config", &relay_toml];
    desk.ok(&drain);
    desk.ok(&["enqueue", "pay", "--entity", "a"]);
    desk.ok(&["enqueue", "pay", "--entity", "b"]);
    let pause = ["pause", "pay", "--reason", "their maintenance", "--actor", "ann"];
    assert_eq!(desk.ok(&pause), "operation pay: paused until it is resumed\n");
    let why = desk.ok(&["why", "1"]);
    assert!(why.starts_with("intent 1: \"pay\" is paused by ann since 20"), "{why}");
    assert!(why.contains("until it is resumed: their maintenance"), "{why}");
    desk.ok(&drain);
    assert_eq!(downstream.connections(), 0);
    let show = desk.ok(&["show", "1"]);
    assert!(show.contains("what helps\n  its operation is paused: `outbox --db "), "{show}");
    assert!(show.contains(" resume pay` lets it go on"), "{show}");

    let row = &desk.json(&["operations"])[0];
    let expected = json!({
        "operation": "pay", "downstream": "deduplicates", "window_ms": 7_200_000,
        "on_dead": "block", "provider": "stripe", "owner": "payments team",
        "key_recipe": "order id, version bumped on each change",
        "reconciles": false, "repeat_safe": true, "repeat_rules": [],
        "binds_ids": false, "max_in_flight": 4,
        "rate_count": 20, "rate_ms": 1000,
        "max_per": [{"amount": 100, "window_ms": 3_600_000}], "max_cost": [],
        "max_per_tenant": [],
        "max_cost_per_tenant": [{"amount": 5000, "window_ms": 86_400_000}],
        "max_per_run": [], "max_cost_per_run": [],
        "paused": "operator", "paused_until": null,
        "paused_since": row["paused_since"], "paused_by": "ann",
        "paused_reason": "their maintenance", "paused_culprit": null,
        "throttled_until": null, "throttled_since": null, "throttled_by": null, "holds": [],
        "only_registered": false,
    });
    assert_eq!(*row, expected);
    assert!(row["paused_since"].is_i64());
    let text = desk.ok(&["operations"]);
    for words in [
        "2h",
        "4 in flight, rate 20/s",
        "100 sends per 1h",
        "cost 5000 per 24h and tenant",
        "payments team",
        "by ann since 20",
    ] {
        assert!(text.contains(words), "{text}");
    }
    let stats = desk.ok(&["stats"]);
    assert!(stats.contains("\npay is paused by ann since 20"), "{stats}");
    assert_eq!(desk.json(&["stats"])[0]["paused"], "operator");

    assert_eq!(desk.ok(&["resume", "pay", "--reason", "over"]), "operation pay: resumed\n");
    assert_eq!(desk.ok(&["resume", "pay"]), "operation pay: was not paused\n");
    let again = &desk.json(&["resume", "pay"])[0];
    assert_eq!(*again, json!({"operation": "pay", "outcome": "not_paused"}));
    assert_eq!(desk.json(&["stats"])[0]["paused"], Value::Null);
    assert_eq!(desk.count("outbox_operation_event"), 2);
    desk.ok(&drain);
    assert_eq!(desk.json(&["why", "1"])[0]["rule"], "settled");
}

#[test]
fn pause_for_a_time_says_when_it_ends() {
    let desk = Desk::new();
    let relay_toml = desk.file("relay.toml", &config("http://127.0.0.1:9/", ""));
    desk.ok(&["relay", "--drain", "--config", &relay_toml]);
    let paused = &desk.json(&["pause", "pay", "--for", "1h"])[0];
    assert_eq!(paused["outcome"], "paused");
    let until = paused["paused_until"].as_i64().unwrap();
    assert_eq!(desk.json(&["operations"])[0]["paused_until"], until);
    for args in [&["pause", "pay", "--for", "0s"][..], &["pause", "pay", "--for", "soon"]] {
        let ran = desk.run(args);
        assert_eq!(ran.code, 2);
        assert!(ran.err.contains("--for"), "{}", ran.err);
    }
    for args in [["pause", "pya"], ["resume", "pya"]] {
        let ran = desk.run(&args);
        assert_eq!(ran.code, 3);
        assert!(ran.err.contains("\"pya\" is not registered"), "{}", ran.err);
    }
    assert!(desk.ok(&["pause", "--help"]).contains("until it is resumed"));
}

#[test]
fn why_names_the_first_rule() {
    let desk = Desk::new();
    assert!(desk.ok(&["operations"]).contains("no relay has registered"));
    desk.ok(&["enqueue", "pay", "--entity", "a"]);
    desk.ok(&["enqueue", "mail", "--entity", "a", "--delay", "1h"]);
    let rule = |args: &[&str]| {
        let why = desk.json(&[&["why"], args].concat()).remove(0);
        assert!(why["text"].as_str().is_some_and(|text| !text.is_empty()));
        assert_eq!(why["id"].to_string(), args[0]);
        why["rule"].as_str().unwrap().to_owned()
    };
    assert_eq!(rule(&["1"]), "not_registered");
    let list = desk.ok(&["list"]);
    assert_eq!(list.matches("not registered").count(), 2, "{list}");
    assert_eq!(desk.json(&["list"])[0]["registered"], false);
    let both = "[operations.mail]\ndownstream = \"unprotected\"\n";
    let both = desk.file("relay.toml", &(config("http://127.0.0.1:9/", "") + both));
    // It takes the intents of the other shard, so none of these that are due.
    desk.ok(&["relay", "--drain", "--config", &both, "--shard", "0/2"]);
    assert_eq!(rule(&["1"]), "next");
    assert_eq!(rule(&["1", "--shard", "0/2"]), "other_shard");
    assert_eq!(rule(&["1", "--shard", "1/2"]), "next");
    assert_eq!(rule(&["2"]), "not_due");
    assert_eq!(desk.json(&["list"])[0]["registered"], true);
    assert!(!desk.ok(&["list"]).contains("not registered"));
    let ran = desk.run(&["why", "99"]);
    assert_eq!((ran.code, ran.err.as_str()), (3, "error: there is no intent 99\n"));
    assert_eq!(desk.run(&["why", "1", "--shard", "2/2"]).code, 2);
}

#[test]
fn rates_are_read_and_mistakes_name_their_line() {
    for (rate, count, ms) in
        [("20/s", 20, 1000), ("100/m", 100, 60_000), ("9/h", 9, 3_600_000), ("5/100ms", 5, 100)]
    {
        let desk = Desk::new();
        let text = config("http://127.0.0.1:9/", &format!("rate = \"{rate}\""));
        desk.ok(&["relay", "--drain", "--config", &desk.file("relay.toml", &text)]);
        let row = &desk.json(&["operations"])[0];
        assert_eq!([&row["rate_count"], &row["rate_ms"]], [&json!(count), &json!(ms)]);
        assert!(desk.ok(&["operations"]).contains(rate));
    }
    let desk = Desk::new();
    for (line, words) in [
        ("rate = \"20\"", "rate: \"20\" is not an amount in a time, such as 20/s"),
        ("rate = \"0/s\"", "rate: \"0/s\" is not an amount"),
        ("rate = \"5/0s\"", "rate: \"5/0s\" is not an amount"),
        ("rate = \"-1/s\"", "rate: \"-1/s\" is not an amount"),
        ("rate = \"5000000000/s\"", "rate: \"5000000000/s\" is not an amount"),
        ("rate = 20", "rate: "),
        ("breaker_after = \"ten\"", "breaker_after: "),
        ("breaker_after = -1", "breaker_after: "),
        ("owner = 7", "owner: "),
        ("key_recipe = []", "key_recipe: "),
        ("max_in_flight = 0", "max_in_flight: must be 1 or more"),
    ] {
        let text = config("http://127.0.0.1:9/", line);
        let ran = desk.run(&["relay", "--drain", "--config", &desk.file("bad.toml", &text)]);
        assert_eq!(ran.code, 2, "{line}");
        assert!(ran.err.contains("bad.toml: line 5: ") && ran.err.contains(words), "{}", ran.err);
    }
}

/// A second relay that is started by mistake, with another configuration.
#[test]
fn limits_are_lifted_by_a_person_only() {
    let desk = Desk::new();
    let relay = |limits: &str| {
        let text = config("http://127.0.0.1:9/", limits);
        desk.run(&["relay", "--drain", "--config", &desk.file("relay.toml", &text)]).err
    };
    relay("max_cost = \"100/1h\"\nrate = \"5/s\"\nmax_per_run = \"3/1m\"");
    let said = relay("max_cost = \"9000/1h\"\nrate = \"5/s\"");
    let warned = "stricter limits than the configured max_cost are stored and hold";
    assert!(said.contains(warned) && !said.contains("rate"), "{said}");
    let row = |desk: &Desk| desk.json(&["operations"])[0].clone();
    assert_eq!(row(&desk)["max_cost"], json!([{"amount": 100, "window_ms": 3_600_000}]));
    assert_eq!(row(&desk)["max_per_run"], json!([{"amount": 3, "window_ms": 60_000}]));

    let said = desk.ok(&[
        "limit",
        "pay",
        "--max-cost",
        "9000/1h,20000/24h",
        "--rate",
        "none",
        "--max-in-flight",
        "7",
        "--actor",
        "ann",
        "--reason",
        "launch day",
    ]);
    let now = "7 in flight, cost 9000 per 1h, cost 20000 per 24h, 3 sends per 1m and run";
    assert_eq!(said, format!("operation pay: {now}\n"));
    assert_eq!(row(&desk)["rate_count"], Value::Null);
    assert_eq!(desk.count("outbox_operation_event"), 3);
    for args in [
        &["limit", "pay"][..],
        &["limit", "pay", "--rate", "many"],
        &["limit", "pay", "--max-cost", "0/1h"],
        &["limit", "pay", "--max-in-flight", "0"],
    ] {
        assert_eq!(desk.run(args).code, 2, "{args:?}");
    }
    for (flag, value, field) in [
        ("--max-cost", "5/0s", "--max-cost: "),
        ("--rate", "5/0s", "--rate: "),
        ("--max-cost", "5/367d", "max_cost: is over 8808h; the longest time is 366 days"),
        ("--max-per-run", "1/1m,2/9999999d", "max_per_run: is over 239999976h; "),
        ("--rate", "5/367d", "rate: is over 8808h; "),
    ] {
        let ran = desk.run(&["limit", "pay", flag, value]);
        assert!(ran.code == 2 && ran.err.contains(field), "{flag} {value}: {}", ran.err);
    }
    let none = ["--max-in-flight", "none", "--max-cost", "none", "--max-per-run", "none"];
    let said = desk.ok(&[&["limit", "pay"][..], &none].concat());
    assert_eq!(said, "operation pay: no limits\n");
    let said = desk.ok(&["limit", "pay", "--rate", "9/m", "--max-per-tenant", "1/366d"]);
    assert_eq!(said, "operation pay: rate 9/m, 1 send per 8784h and tenant\n");
    assert_eq!(desk.run(&["limit", "pya", "--rate", "none"]).code, 3);
}

#[test]
fn run_is_paused_and_cancelled_by_name() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    let relay_toml = desk.file("relay.toml", &config(&downstream.url("/ok"), ""));
    let drain = ["relay", "--drain", "--config", &relay_toml];
    desk.ok(&drain);
    for (entity, run) in [("a", "x-agent-run=r1"), ("b", "x-agent-run=r2")] {
        desk.ok(&["enqueue", "pay", "--entity", entity, "--header", run]);
    }
    let pause = ["pause", "--run", "r1", "--for", "1h", "--actor", "ann"];
    assert_eq!(desk.ok(&pause), "run \"r1\": paused for 1h\n");
    desk.ok(&drain);
    assert_eq!(desk.json(&["list", "--status", "succeeded"])[0]["entity_id"], "b");
    assert_eq!(desk.json(&["list", "--run", "r1"])[0]["entity_id"], "a");
    let resumed = &desk.json(&["resume", "pay", "--run", "r1"])[0];
    assert_eq!(*resumed, json!({"operation": "pay", "run": "r1", "outcome": "resumed"}));
    assert_eq!(desk.ok(&["cancel", "--run", "r1"]), "intent 1: cancelled\n");
    assert_eq!(desk.ok(&["cancel", "--run", "r1"]), "");
    for args in [&["cancel"][..], &["cancel", "1", "--run", "r1"], &["pause"]] {
        assert_eq!(desk.run(args).code, 2, "{args:?}");
    }
}

#[test]
fn pause_of_a_tenant_is_refused_where_it_would_hold_nothing() {
    let desk = Desk::new();
    desk.ok(&["enqueue", "pay", "--entity", "a", "--tenant", "t"]);
    assert_eq!(desk.run(&["pause", "--tenant", "t"]).code, 3);
    assert_eq!(desk.run(&["pause", "--run", "r"]).code, 3);
}

#[test]
fn operations_are_an_allow_list_where_that_is_switched_on() {
    let desk = Desk::new();
    let relay_toml = desk.file("relay.toml", &config("http://127.0.0.1:9/", ""));
    desk.ok(&["relay", "--drain", "--config", &relay_toml]);
    desk.ok(&["operations", "--only-registered", "--actor", "ann"]);
    desk.ok(&["enqueue", "pay", "--entity", "a"]);
    let ran = desk.run(&["enqueue", "pya", "--entity", "a"]);
    assert_eq!(ran.code, 2);
    for words in ["\"pya\" is not registered", "`outbox operations --only-registered=off`"] {
        assert!(ran.err.contains(words), "{}", ran.err);
    }
    for command in ["operations", "stats"] {
        let told = "\nintents of operations that no relay has registered are refused; \
                    `outbox operations --only-registered=off` ends that\n";
        assert!(desk.ok(&[command]).ends_with(told), "{command}");
        assert_eq!(desk.json(&[command])[0]["only_registered"], true, "{command}");
        let empty = Desk::new();
        empty.ok(&["operations", "--only-registered"]);
        assert!(empty.ok(&[command]).ends_with(told), "{command}");
        assert_eq!(empty.json(&[command]), [json!({"only_registered": true})], "{command}");
    }
    let off = &desk.json(&["operations", "--only-registered=off"])[0];
    assert_eq!(*off, json!({"only_registered": false}));
    desk.ok(&["enqueue", "pya", "--entity", "a"]);
    for command in ["operations", "stats"] {
        assert_eq!(desk.json(&[command])[0]["only_registered"], false, "{command}");
        assert!(!desk.ok(&[command]).contains("refused"), "{command}");
    }
}

/// Budgets of cost were once read as 32 bits, though the library and the file hold 63.
#[test]
fn budget_of_cost_has_the_range_of_the_library() {
    let desk = Desk::new();
    let limits = "max_cost = \"5000000000/24h\"\nmax_cost_per_tenant = \"9223372036854775807/1h\"";
    let relay_toml = desk.file("relay.toml", &config("http://127.0.0.1:9/", limits));
    desk.ok(&["relay", "--drain", "--config", &relay_toml]);
    let row = &desk.json(&["operations"])[0];
    assert_eq!(row["max_cost"][0]["amount"], 5_000_000_000_u64);
    assert_eq!(row["max_cost_per_tenant"][0]["amount"], i64::MAX);
}

/// The breaker as configured, in a process, and what is said about it in another.
#[test]
fn breaker_as_configured_pauses_and_is_explained() {
    let desk = Desk::new();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = config(&format!("http://{closed}/"), "breaker_after = 2");
    let relay_toml = desk.file("relay.toml", &text);
    for entity in ["a", "b", "c"] {
        desk.ok(&["enqueue", "pay", "--entity", entity]);
    }
    desk.ok(&["relay", "--drain", "--workers", "1", "--config", &relay_toml]);
    let row = &desk.json(&["operations"])[0];
    assert_eq!([&row["paused"], &row["paused_by"]], ["breaker", "relay"]);
    let why = &desk.json(&["why", "3"])[0];
    assert_eq!(why["rule"], "paused");
    assert!(why["text"].as_str().unwrap().contains("too many attempts in a row failed"), "{why}");
    assert!(
        desk.ok(&["stats"])
            .contains("too many attempts in a row failed; one intent tries again at 20")
    );
}

/// Held origins, as text and as JSON, with what ends them.
#[test]
fn held_origins_are_listed_and_resumed() {
    let (desk, downstream) = (Desk::new(), Downstream::start());
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text =
        config(&downstream.url("/ok"), "breaker_after = 2\nallow_addresses = [\"127.0.0.0/8\"]");
    let relay_toml = desk.file("relay.toml", &text);
    let endpoint = format!("http://{closed}/hook?token=hidden");
    for entity in ["a", "b", "c"] {
        desk.ok(&["enqueue", "pay", "--entity", entity, "--endpoint", &endpoint]);
    }
    desk.ok(&["enqueue", "pay", "--entity", "d"]);
    desk.ok(&["relay", "--drain", "--workers", "1", "--config", &relay_toml]);
    for command in ["operations", "stats"] {
        let row = &desk.json(&[command])[0];
        let hold = &row["holds"][0];
        assert_eq!(row["paused"], Value::Null);
        assert_eq!([&hold["domain"], &hold["cause"]], ["origin", "breaker"]);
        assert_eq!(
            (&hold["name"], &hold["culprit"]),
            (&json!(format!("http://{closed}")), &json!(2))
        );
        assert!(hold["since"].is_i64() && hold["until"].as_i64() > hold["since"].as_i64());
        let text = desk.ok(&[command]);
        assert!(
            text.contains(&format!("pay: the origin http://{closed} is held since 20")),
            "{text}"
        );
        assert!(text.contains("(intent 2 last); one intent tries again at 20"), "{text}");
        assert!(!text.contains("hidden"), "{text}");
    }
    assert_eq!(desk.json(&["why", "3"])[0]["rule"], "held");
    assert_eq!(desk.ok(&["resume", "pay", "--reason", "mended"]), "operation pay: resumed\n");
    assert_eq!(desk.json(&["operations"])[0]["holds"], json!([]));
    assert_eq!(desk.ok(&["resume", "pay"]), "operation pay: was not paused\n");
}

/// Each field that these commands print is in the table of the documentation.
#[test]
fn fields_of_json_are_documented() {
    let docs = include_str!("../../../docs/operations.md");
    let desk = Desk::new();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = config(&format!("http://{closed}/"), "max_cost = \"5/1h\"");
    let relay_toml = desk.file("relay.toml", &text);
    desk.ok(&["enqueue", "pay", "--entity", "a"]);
    desk.ok(&["relay", "--drain", "--config", &relay_toml]);
    desk.ok(&["pause", "--tenant", "t", "--for", "1h"]);
    for command in [&["operations"][..], &["stats"], &["why", "1"]] {
        let line = desk.json(command).remove(0);
        let hold = line.get("holds").map(|holds| holds[0].as_object().unwrap().keys());
        for field in line.as_object().unwrap().keys().chain(hold.into_iter().flatten()) {
            assert!(docs.contains(&format!("`{field}`")), "{field} of {command:?}");
        }
    }
}
