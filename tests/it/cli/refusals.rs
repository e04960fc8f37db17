//! Values and files that the command refuses: one clear line, the right exit code, and nothing
//! written.

use crate::support::downstream::Downstream;
use crate::support::needs;

use super::{Desk, Ran};

/// The only line on standard error, which begins with `error: `.
fn only_error(ran: &Ran) -> &str {
    let lines: Vec<&str> = ran.err.lines().collect();
    assert_eq!(lines.len(), 1, "{}", ran.err);
    lines[0].strip_prefix("error: ").expect("begins with error")
}

#[test]
fn enqueue_names_the_flag_of_a_bad_value_and_writes_nothing() {
    let desk = Desk::new();
    desk.ok(&["enqueue", "pay", "--entity", "there", "--args", r#"{"a":1}"#]);
    let long = "x".repeat(1025);
    let body = desk.file("big.json", &format!("\"{}\"", "x".repeat(1_048_576)));
    let big = format!("@{body}");
    std::fs::write(desk.dir.path().join("latin1"), b"caf\xe9").unwrap();
    let cases: &[(i32, &str, &[&str])] = &[
        (2, "OPERATION", &["bad name!", "--entity", "e"]),
        (2, "--entity", &["pay", "--entity", ""]),
        (2, "--entity", &["pay", "--entity", &long]),
        (2, "--entity", &["pay"]),
        (2, "--tenant", &["pay", "--entity", "e", "--tenant", &long]),
        (2, "--version", &["pay", "--entity", "e", "--version", "0"]),
        (2, "--version", &["pay", "--entity", "e", "--version", "-1"]),
        (2, "--version", &["pay", "--entity", "e", "--version", "x"]),
        (2, "--key", &["pay", "--entity", "e", "--key", "a b"]),
        (2, "--key", &["pay", "--entity", "e", "--key", ""]),
        (2, "--endpoint", &["pay", "--entity", "e", "--endpoint", "ftp://x/"]),
        (2, "--endpoint", &["pay", "--entity", "e", "--endpoint", "https://u:p@x.example/"]),
        (2, "--method", &["pay", "--entity", "e", "--method", "FETCH"]),
        (2, "--args", &["pay", "--entity", "e", "--args", "{"]),
        (2, "--args", &["pay", "--entity", "e", "--args", "{\"n\":1e400}"]),
        (2, "--args", &["pay", "--entity", "e", "--args", "@missing.json"]),
        (2, "--args", &["pay", "--entity", "e", "--args", "@latin1"]),
        (2, "--args: @ must be followed by a file", &["pay", "--entity", "e", "--args", "@"]),
        (2, "--args", &["pay", "--entity", "e", "--payload", "x", "--content-type", "text/plain"]),
        (2, "--payload", &["pay", "--entity", "e", "--payload", "not JSON"]),
        (2, "--payload", &["pay", "--entity", "e", "--payload", &big]),
        (2, "--payload", &["pay", "--entity", "e", "--args", "-", "--payload", "-"]),
        (2, "--content-type", &["pay", "--entity", "e", "--content-type", "json"]),
        (2, "--header", &["pay", "--entity", "e", "--header", "no value"]),
        (2, "--header", &["pay", "--entity", "e", "--header", "host=x"]),
        (2, "--header", &["pay", "--entity", "e", "--header", "x=a\r\nb: c"]),
        (2, "--header", &["pay", "--entity", "e", "--header", "x=1", "--header", "X=2"]),
        (2, "--ordering-key", &["pay", "--entity", "e", "--ordering-key", ""]),
        (2, "--delay", &["pay", "--entity", "e", "--delay", "soon"]),
        (2, "--expires-in", &["pay", "--entity", "e", "--expires-in", "-1h"]),
        (2, "--expires-in", &["pay", "--entity", "e", "--delay", "2h", "--expires-in", "1h"]),
        (2, "--colour", &["pay", "--entity", "e", "--colour", "red"]),
        (3, "a change needs a new version", &["pay", "--entity", "there", "--args", r#"{"a":2}"#]),
    ];
    for (code, named, args) in cases {
        let ran = desk.run(&[&["enqueue"], *args].concat());
        assert_eq!(ran.code, *code, "{args:?}: {}", ran.err);
        let shown = ran.err.lines().take(3).collect::<Vec<_>>().join(" ");
        assert!(shown.starts_with("error: ") && shown.contains(named), "{args:?}: {}", ran.err);
        assert_eq!(ran.out, "");
        assert_eq!(desk.count("outbox"), 1, "{args:?}");
    }
    let ran = desk.run(&["enqueue", "pay", "--entity", "e", "--header", "authorization: SENTINEL"]);
    assert!(ran.code == 2 && !ran.err.contains("SENTINEL"), "{}", ran.err);
}

#[test]
fn commands_refuse_bad_values() {
    let desk = Desk::new();
    let cases: &[(i32, &str, &[&str])] = &[
        (2, "--status", &["list", "--status", "lost"]),
        (2, "--since", &["list", "--since", "yesterday"]),
        (2, "--limit", &["list", "--limit", "many"]),
        (2, "--all", &["replay"]),
        (2, "--all", &["replay", "--limit", "3"]),
        (2, "cannot be used with", &["replay", "1", "--status", "dead"]),
        (2, "<ID>", &["cancel"]),
        (2, "'x'", &["cancel", "x"]),
        (2, "--operation", &["key", "--entity", "e"]),
        (2, "--args", &["key", "--operation", "o", "--entity", "e", "--args", "{"]),
        (2, "--version", &["key", "--operation", "o", "--entity", "e", "--version", "0"]),
        (2, "--downstream", &["relay"]),
        (2, "--config: must name a file", &["relay", "--config", ""]),
        (2, "--db: must name a file", &["stats", "--db", ""]),
        (2, "--downstream", &["relay", "--downstream", "perhaps"]),
        (2, "--shard", &["relay", "--downstream", "deduplicates", "--shard", "2/2"]),
        (2, "--workers", &["relay", "--downstream", "deduplicates", "--workers", "0"]),
        (2, "--lease", &["relay", "--downstream", "deduplicates", "--lease", "5s"]),
        (2, "--key-window", &["relay", "--downstream", "deduplicates", "--key-window", "5s"]),
        (2, "--key-window", &["relay", "--downstream", "unprotected", "--key-window", "5h"]),
        (
            2,
            "--allow-addresses",
            &["relay", "--downstream", "unprotected", "--allow-addresses", "x"],
        ),
        (3, "there is no intent 7", &["show", "7"]),
        (3, "there is no intent nope", &["show", "nope"]),
        (3, "there is no intent 7", &["replay", "7", "--dry-run"]),
        (2, "unrecognized subcommand", &["purge"]),
    ];
    for (code, named, args) in cases {
        let ran = desk.run(args);
        assert_eq!(ran.code, *code, "{args:?}: {}", ran.err);
        let shown = ran.err.lines().take(3).collect::<Vec<_>>().join(" ");
        assert!(shown.starts_with("error: ") && shown.contains(named), "{args:?}: {}", ran.err);
        assert_eq!(ran.out, "", "{args:?}");
    }
}

#[test]
fn file_must_be_named_and_is_not_created_by_reading() {
    let desk = Desk::new();
    let output = desk.command(&["list"]).env_remove("OUTBOX_DB").output().unwrap();
    let ran = Ran::from(output);
    assert_eq!(ran.code, 2);
    assert!(only_error(&ran).contains("--db FILE is needed"));
    for command in
        [&["list"][..], &["stats"], &["enqueue", "op", "--entity", "e"], &["cancel", "1"]]
    {
        let ran = desk.run(&[&["--db", "other.db"], command].concat());
        assert_eq!(ran.code, 1);
        assert!(only_error(&ran).contains("other.db: no such file"), "{}", ran.err);
    }
    assert!(!desk.dir.path().join("other.db").exists());
}

#[test]
fn file_that_cannot_be_used_is_explained_in_one_line() {
    let desk = Desk::new();
    desk.file("text.db", &"this is no database\n".repeat(500));
    let cases = [
        ("text.db", "not an SQLite database"),
        ("missing/app.db", "the folder missing does not exist"),
        (".", "is a folder"),
        (":memory:", "in a file, not in memory"),
    ];
    for (file, why) in cases {
        for command in ["init", "list"] {
            let ran = desk.run(&["--db", file, command]);
            assert!(ran.code == 1 || file == ":memory:", "{file}: {}", ran.err);
            assert!(only_error(&ran).contains(why), "{file}: {}", ran.err);
        }
    }
    desk.sql("UPDATE outbox_meta SET schema_version = 99");
    let ran = desk.run(&["stats"]);
    assert_eq!(ran.code, 1);
    assert!(only_error(&ran).contains("version 99"), "{}", ran.err);
}

#[cfg(unix)]
#[test]
fn file_that_is_read_only_is_explained_in_one_line() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    let desk = Desk::new();
    let mode = |path: &std::path::Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(desk.dir.path(), 0o755);
    mode(&desk.path(), 0o444);
    let mut command = desk.command(&["list"]);
    if desk.path().metadata().unwrap().uid() == 0 {
        // Permissions do not hold root.
        command.uid(65534);
    }
    let Ok(output) = command.output() else {
        return needs::skipped("the command's folder is closed to the other user");
    };
    let ran = Ran::from(output);
    assert_eq!(ran.code, 1);
    assert!(only_error(&ran).contains("read-only"), "{}", ran.err);
}

/// The name of a file is bytes, of whatever encoding.
#[cfg(target_os = "linux")]
#[test]
fn file_may_have_a_name_that_is_no_text() {
    use std::os::unix::ffi::OsStrExt;
    let (desk, downstream) = (Desk::new(), Downstream::start());
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9 \xff.db");
    let run = |args: &[&str]| {
        let mut command = desk.command(&[]);
        let ran = Ran::from(command.arg("--db").arg(name).args(args).output().unwrap());
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
        ran.out
    };
    run(&["init"]);
    assert!(run(&["init", "--json"]).contains("\u{fffd} \u{fffd}.db"));
    run(&["enqueue", "pay", "--entity", "a", "--endpoint", &downstream.url("/ok")]);
    let relay = ["relay", "--drain", "--downstream", "deduplicates"];
    let loopback = ["--allow-addresses", "127.0.0.0/8"];
    assert_eq!(run(&[&relay[..], &loopback].concat()), "1 attempt: 1 succeeded\n");
    assert!(run(&["list", "--json"]).contains("succeeded"));
    assert!(desk.dir.path().join(name).is_file());
}

/// Input without an end is read up to a bound, and named.
#[cfg(target_os = "linux")]
#[test]
fn input_without_an_end_is_refused() {
    let desk = Desk::new();
    for (code, args) in [
        (2, &["relay", "--drain", "--config", "/dev/zero"][..]),
        (2, &["enqueue", "pay", "--entity", "e", "--args", "@/dev/zero"]),
        (2, &["enqueue", "pay", "--entity", "e", "--payload", "@/dev/zero"]),
        (1, &["confirm", "/dev/zero"]),
    ] {
        let ran = desk.run(args);
        assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
        assert!(only_error(&ran).contains("/dev/zero: "), "{}", ran.err);
        assert!(only_error(&ran).contains("more than "), "{}", ran.err);
    }
    let zero = std::fs::File::open("/dev/zero").unwrap();
    let ran = Ran::from(desk.command(&["key", "--stdin"]).stdin(zero).output().unwrap());
    assert!(ran.code == 1 && only_error(&ran).contains("more than "), "{}", ran.err);
}

const A_B: &str = "[operations.\"a.b\"]\n";

/// An operation whose third line is this.
fn unprotected(line: &str) -> String {
    format!("{A_B}downstream = \"unprotected\"\n{line}\n")
}

/// Each text is refused with its reason, which names the line and no secret.
fn relay_toml_is_refused(cases: &[(&str, String)]) {
    let desk = Desk::new();
    for (why, text) in cases {
        desk.file("relay.toml", text);
        let ran = desk.run(&["relay", "--drain", "--config", "relay.toml"]);
        assert_eq!(ran.code, 2, "{text}: {}", ran.err);
        let error = only_error(&ran);
        assert!(error.contains(why), "{text}: {error}");
        assert!(error.starts_with("relay.toml: "), "{error}");
        assert!(!error.contains("SENTINEL"), "{error}");
    }
    assert_eq!(desk.count("outbox_operation"), 0);
}

#[test]
fn relay_toml_mistake_is_named_with_its_line() {
    let op = A_B;
    let looked_up = |more: &str| {
        let get = r#"get = "https://x.example/{idempotency_key}""#;
        unprotected(&format!("reconcile = {{ {get}, {more} }}"))
    };
    relay_toml_is_refused(&[
        ("line 2: relay: unknown field `worker`", "[relay]\nworker = 3\n".into()),
        (r#"line 2: relay.lease: "soon" is not a duration"#, "[relay]\nlease = \"soon\"\n".into()),
        ("line 2: relay.shard: 3/2 must be K/N", "[relay]\nshard = \"3/2\"\n".into()),
        (
            "line 2: relay.workers: 0",
            format!("[relay]\nworkers = 0\n{op}downstream = \"unprotected\"\n"),
        ),
        ("line 1: operations.a.b: missing field `downstream`", format!("{op}max_attempts = 3\n")),
        (
            r#"line 2: operations."a.b".downstream: "maybe" must be one of"#,
            format!("{op}downstream = \"maybe\"\n"),
        ),
        (r#"line 3: operations."a.b".answer_max: must be 1 byte"#, unprotected("answer_max = 0")),
        (
            r#"line 3: operations."a.b".answer_max: must be 1 byte to 64 MiB"#,
            unprotected("answer_max = 67108865"),
        ),
        ("line 3: operations.a.b.answer_max: invalid", unprotected("answer_max = -1")),
        ("line 3: operations.a.b.answer_max: invalid", unprotected("answer_max = \"1 MiB\"")),
        ("line 3: operations.a.b.connection: ", unprotected("connection = \"open\"")),
        ("line 3: operations.a.b.connection: ", unprotected("connection = true")),
        (
            "line 3: operations.a.b.reconcile: unknown field `geht`",
            unprotected(r#"reconcile = { geht = "https://x.example" }"#),
        ),
        (
            r#"line 3: operations."a.b".reconcile: needs either get, or post with a body"#,
            unprotected(r#"reconcile = { delay = "2m" }"#),
        ),
        (
            r#"line 3: operations."a.b".reconcile: needs either get, or post with a body"#,
            unprotected(r#"reconcile = { post = "https://x.example/{entity_id}" }"#),
        ),
        (
            r#"line 3: operations."a.b".reconcile: needs either get, or post with a body"#,
            looked_up(r#"content_type = "application/json""#),
        ),
        (
            r#"line 3: operations."a.b".reconcile.body: is not JSON"#,
            unprotected(r#"reconcile = { post = "https://x.example/", body = "{key_hash}" }"#),
        ),
        (
            r#"line 3: operations."a.b".reconcile.list: needs first = true"#,
            looked_up(r#"list = { at = "/data", first = false }"#),
        ),
        (
            r#"line 3: operations."a.b".reconcile.match: must say which intent is meant"#,
            looked_up(r#"match = { pointer = "/key", equals = "k" }"#),
        ),
        (
            r#"line 3: operations."a.b".reconcile.get: "#,
            unprotected(r#"reconcile = { get = "nowhere" }"#),
        ),
        (
            r#"line 3: operations."a.b".reconcile.downstream_id: "#,
            looked_up(r#"downstream_id = "id""#),
        ),
        (
            r#"line 3: operations."a.b".reconcile.when: "#,
            looked_up(r#"when = { pointer = "state", equals = 1 }"#),
        ),
        (r#"line 3: operations."a.b".reconcile.delay: "#, looked_up(r#"delay = "1s""#)),
        (
            r#"line 3: operations.a.b.reconcile.delay: "soon" is not a duration"#,
            looked_up(r#"delay = "soon""#),
        ),
        (r#"line 3: operations."a.b".reconcile.max_attempts: "#, looked_up("max_attempts = 0")),
        ("line 3: operations.a.b.binds: unknown variant `ids`", unprotected(r#"binds = "ids""#)),
        (
            "line 3: default.reconcile.delay: ",
            concat!(
                "[default]\ndownstream = \"unprotected\"\n",
                "reconcile = { get = \"https://x.example/{entity_id}\", delay = \"1s\" }\n"
            )
            .into(),
        ),
    ]);
}

#[test]
fn relay_toml_setting_of_an_operation_is_named_with_its_line() {
    let op = A_B;
    relay_toml_is_refused(&[
        (r#"line 3: operations."a.b".key_window"#, unprotected(r#"key_window = "1h""#)),
        (
            r#"line 3: operations."a.b".key_window"#,
            format!("{op}downstream = \"deduplicates\"\nkey_window = \"1s\"\n"),
        ),
        (r#"line 3: operations."a.b".endpoint"#, unprotected(r#"endpoint = "nowhere""#)),
        (r#"line 3: operations."a.b".headers.host"#, unprotected(r#"headers = { host = "x" }"#)),
        (r#"line 3: operations."a.b".headers.x"#, unprotected("headers = { x = 1.5 }")),
        (r#"line 3: operations."a.b".headers.x"#, unprotected("headers = { x = [\"SENTINEL\"] }")),
        (
            r#"line 3: operations."a.b".headers: a name must"#,
            unprotected(r#"headers = { "authorization: Bearer SENTINEL" = "x" }"#),
        ),
        (
            r#"line 4: operations."a.b".headers: its value must"#,
            unprotected("[operations.\"a.b\".headers]\n\"authorization: Bearer SENTINEL\" = []"),
        ),
        (
            "line 3: operations.a.b: a key has a character that no key has",
            unprotected(r#""authorization: Bearer SENTINEL" = "x""#),
        ),
        (
            "headers.x: the environment variable in ${…} is not set",
            unprotected(r#"headers = { x = "${sk_SENTINEL}" }"#),
        ),
        (
            "variable OUTBOX_TEST_MISSING is not set",
            unprotected(r#"headers = { x = "SENTINEL ${OUTBOX_TEST_MISSING}" }"#),
        ),
        (
            "headers.x: a variable is written ${PAY_KEY}",
            unprotected(r#"headers = { x = "Bearer $PAY_KEY" }"#),
        ),
        (
            "headers.x: a variable is written ${NAME}",
            unprotected(r#"headers = { x = "a$SENTINEL" }"#),
        ),
        (r#"line 3: operations."a.b".headers"#, unprotected(r#"headers = "SENTINEL""#)),
        (
            r#"line 3: operations.a.b.backoff.base: "2" is not a duration"#,
            unprotected(r#"backoff = { kind = "exponential", base = "2" }"#),
        ),
        (
            r#"line 3: operations."a.b".backoff"#,
            unprotected(r#"backoff = { kind = "schedule", cap = "1s" }"#),
        ),
        (r#"line 3: operations."a.b".backoff"#, unprotected(r#"backoff = { kind = "schedule" }"#)),
        (
            r#"line 3: operations."a.b".backoff"#,
            unprotected(r#"backoff = { kind = "exponential", base = "2h" }"#),
        ),
        (r#"line 3: operations."a.b".max_attempts"#, unprotected("max_attempts = 0")),
        (r#"line 3: operations."a.b".downstream_id"#, unprotected(r#"downstream_id = "id""#)),
        (
            r#"line 3: operations."a.b".idempotency_header"#,
            unprotected(r#"idempotency_header = "a b""#),
        ),
        (r#"line 3: operations."a.b".allow_addresses"#, unprotected(r#"allow_addresses = ["x"]"#)),
        (
            r#"line 3: operations."a.b".allow_origins"#,
            unprotected(r#"allow_origins = ["https://x.example/path"]"#),
        ),
        ("line 3: operations.a.b.on_dead: unknown variant", unprotected(r#"on_dead = "stop""#)),
        (
            "line 3: operations.a.b.timeouts.response:",
            unprotected(r#"timeouts = { connect = "1s", response = "x" }"#),
        ),
        (
            r#"line 3: operations."a.b".timeouts.send: must be longer than zero"#,
            unprotected(r#"timeouts = { connect = "1s", send = "0s" }"#),
        ),
        (
            r#"line 3: operations.a.b.max_cost: "x" is not an amount"#,
            unprotected(r#"max_cost = "5/1h,x""#),
        ),
        ("line 2: ", format!("{op}downstream = deduplicates\n")),
        (
            "line 2: relay.batch: 0",
            format!("[relay]\nbatch = 0\n{op}downstream = \"unprotected\"\n"),
        ),
        (
            r#"line 1: operations.a.b.c: a name with a dot needs quotes: [operations."a.b.c"]"#,
            "[operations.a.b.c]\ndownstream = \"unprotected\"\n".into(),
        ),
        ("names no operation", String::new()),
    ]);
}

#[test]
fn relay_toml_rule_about_answers_is_named_with_its_line() {
    relay_toml_is_refused(&[
        (
            "line 3: operations.a.b.on_status.409: unknown variant",
            unprotected(r#"on_status = { 409 = "retry" }"#),
        ),
        (
            r#"line 3: operations."a.b".on_status.200: 200 is a success; success_when"#,
            unprotected(r#"on_status = { 200 = "rejected" }"#),
        ),
        (
            r#"line 3: operations."a.b".on_status.522: 522 is said by proxies"#,
            unprotected(r#"on_status = { 522 = "not_reached" }"#),
        ),
        (
            r#"line 3: operations."a.b".on_status.99: 99 is no final status"#,
            unprotected(r#"on_status = { 99 = "transient" }"#),
        ),
        (
            r#"line 3: operations."a.b".on_status.4xx: is not a status such as 404"#,
            unprotected(r#"on_status = { 4xx = "rejected" }"#),
        ),
        (
            r#"line 3: operations."a.b".limited_when: "x" is not a JSON pointer"#,
            unprotected(r#"limited_when = { pointer = "x", exists = true }"#),
        ),
        (
            "line 3: default.success_when",
            concat!(
                "[default]\ndownstream = \"deduplicates\"\n",
                "success_when = { pointer = \"ok\", equals = true }\n"
            )
            .into(),
        ),
        (
            "line 3: operations.a.b.success_when: needs, beside pointer, exactly one of",
            unprotected(r#"success_when = { pointer = "/ok" }"#),
        ),
        (
            "line 3: operations.a.b.success_when: needs, beside pointer, exactly one of",
            unprotected(r#"success_when = { pointer = "/ok", equals = 1, exists = true }"#),
        ),
        (
            "line 3: operations.a.b.success_when: exists, non_null and absent can only be true",
            unprotected(r#"success_when = { pointer = "/ok", absent = false }"#),
        ),
        (
            r#"line 3: operations."a.b".success_when: one_of names no value"#,
            unprotected(r#"success_when = { pointer = "/ok", one_of = [] }"#),
        ),
    ]);
}

#[test]
fn credential_in_a_stored_header_is_warned_of_by_name() {
    let desk = Desk::new();
    for (entity, name) in [("a", "Authorization"), ("b", "cookie"), ("c", "X-API-Key")] {
        let header = format!("{name}=SENTINEL");
        let ran = desk.run(&["enqueue", "pay", "--entity", entity, "--header", &header]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.err.starts_with(&format!("warning: --header {name}: ")), "{}", ran.err);
        assert!(ran.err.contains("relay.toml") && !ran.err.contains("SENTINEL"), "{}", ran.err);
    }
    let ran = desk.run(&["enqueue", "pay", "--entity", "d", "--header", "traceparent=00-ab-cd-01"]);
    assert_eq!(ran.err, "");
}

#[test]
fn demo_refuses_the_file_of_an_application() {
    let desk = Desk::new();
    desk.sql("CREATE TABLE invoices (id TEXT)");
    let ran = desk.run(&["demo", "--db", "app.db"]);
    assert_eq!(ran.code, 3);
    assert!(only_error(&ran).contains("(invoices)"), "{}", ran.err);
    assert_eq!(desk.count("outbox"), 0);
}

#[test]
fn demo_refuses_a_file_with_other_intents() {
    let desk = Desk::new();
    desk.ok(&["enqueue", "stripe.charge", "--entity", "order-1"]);
    let ran = desk.run(&["demo", "--db", desk.path().to_str().unwrap()]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.err.contains("intents that are not the demo's"), "{}", ran.err);
    assert_eq!(desk.json(&["list"]).len(), 1);
}
