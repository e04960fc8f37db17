//! Text that others have chosen, on a terminal: nothing in it moves, hides or floods.

use sqlite_outbox::rusqlite::Connection;

use super::Desk;

/// Characters that are drawn as nothing, or change how others are drawn.
const HARMFUL: [char; 30] = [
    '\u{1b}',
    '\u{7f}',
    '\u{85}',
    '\u{9b}',
    '\u{ad}',
    '\u{61c}',
    '\u{180e}',
    '\u{200b}',
    '\u{200c}',
    '\u{200d}',
    '\u{200e}',
    '\u{200f}',
    '\u{2028}',
    '\u{2029}',
    '\u{202a}',
    '\u{202b}',
    '\u{202c}',
    '\u{202d}',
    '\u{202e}',
    '\u{2060}',
    '\u{2066}',
    '\u{2067}',
    '\u{2068}',
    '\u{2069}',
    '\u{fe0f}',
    '\u{feff}',
    '\u{e0001}',
    '\u{e0041}',
    '\u{e007f}',
    '\u{e0100}',
];

fn hostile() -> String {
    format!("a{}z", HARMFUL.iter().collect::<String>())
}

/// A file that others have written into: with these texts wherever a text can stand.
fn desk_with(text: &str) -> Desk {
    let desk = Desk::new();
    desk.dead("d");
    desk.ok(&["enqueue", "pay", "--entity", "paused"]);
    let conn = desk.conn();
    let sql = |sql: &str| conn.execute(sql, [text]).unwrap();
    // What an application writes may be any text; what the library writes, a hand with an editor.
    without_triggers(&conn, |conn| {
        conn.execute_batch("PRAGMA ignore_check_constraints = ON").unwrap();
        let set = "tenant_id = ?1, entity_id = ?1 || id, ordering_key = ?1, content_type = ?1,
                   endpoint = 'https://' || ?1, idempotency_key = ?1 || id";
        conn.execute(&format!("UPDATE outbox SET {set}"), [text]).unwrap();
    });
    sql("UPDATE outbox_lease SET last_error = ?1");
    sql("INSERT INTO outbox_event (outbox_id, seq, at, kind, from_status, status, attempt,
             actor, error_class, reason, downstream_id, agent_run, tool_version)
         SELECT id, 90, 1800000000000, 'duplicate_effect', 'dead', 'dead', 1, ?1, ?1, ?1, ?1,
             ?1, ?1
         FROM outbox");
    sql("INSERT INTO outbox_answer (id, at, status, headers, body, body_bytes, body_sha256)
         SELECT id, 1800000000000, 500, json_array(json_array('x-' || ?1, ?1)), ?1, 1, ?1
         FROM outbox");
    sql("UPDATE outbox_operation SET provider = ?1, owner = ?1, key_recipe = ?1");
    drop(conn);
    desk.ok(&["pause", "pay", "--reason", text, "--actor", text]);
    desk
}

/// Changes rows that triggers protect, and puts the triggers back, or the file would be refused.
fn without_triggers(conn: &Connection, change: impl FnOnce(&Connection)) {
    let of = "FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'outbox'
              AND sql LIKE '%UPDATE%'";
    let list = |column: &str| {
        let sql = format!("SELECT coalesce(group_concat({column}, ';'), '') {of}");
        conn.query_row(&sql, [], |row| row.get::<_, String>(0)).unwrap()
    };
    let (triggers, drops) = (list("sql"), list("'DROP TRIGGER ' || name"));
    conn.execute_batch(&drops).unwrap();
    change(conn);
    conn.execute_batch(&triggers).unwrap();
}

const READING: [&[&str]; 7] = [
    &["show", "1"],
    &["--show-secrets", "show", "1"],
    &["show", "2"],
    &["list"],
    &["events"],
    &["why", "2"],
    &["operations"],
];

#[test]
fn harmful_characters_of_others_are_printed_as_escapes() {
    let desk = desk_with(&hostile());
    for args in READING {
        let text = desk.ok(args);
        for c in HARMFUL {
            assert!(!text.contains(c), "{args:?}: {c:?}: {text}");
        }
        assert!(text.contains(r"a\u{1b}\u{7f}\u{85}\u{9b}\u{ad}"), "{args:?}: {text}");
        let json = desk.ok(&[&["--json"], args].concat());
        for c in HARMFUL {
            assert!(!json.contains(c), "{args:?}: {c:?}: {json}");
        }
        // What is escaped is the same text again for a program.
        let escaped = r"a\u001b\u007f\u0085\u009b\u00ad\u061c";
        assert!(json.contains(escaped), "{args:?}: {json}");
        let last = json.lines().last().unwrap();
        let value: serde_json::Value = serde_json::from_str(last).unwrap();
        assert!(value.to_string().contains('\u{202e}'), "{args:?}: {value}");
    }
    // An error names what was asked for.
    let ran = desk.run(&["show", &hostile()]);
    assert!(!ran.err.contains(HARMFUL) && ran.err.contains(r"\u{202e}"), "{}", ran.err);
}

/// An id that a provider has chosen may be as long as its answer.
#[test]
fn long_texts_of_others_are_cut_for_people_and_whole_for_programs() {
    let desk = desk_with(&"x".repeat(5000));
    let cut = |max| "x".repeat(max) + "…";
    for args in [&["show", "1"][..], &["events"]] {
        let text = desk.ok(args);
        for (name, shown) in [("by ", 160), ("downstream id ", 160)] {
            assert!(text.contains(&(name.to_owned() + &cut(shown))), "{args:?}: {name}");
            assert!(
                !text.contains(&(name.to_owned() + &"x".repeat(shown + 1))),
                "{args:?}: {name}"
            );
        }
    }
    let list = desk.ok(&["list"]);
    assert!(list.contains(&format!("  {}", cut(250))), "{list}");
    let operations = desk.ok(&["operations"]);
    assert!(operations.lines().all(|line| line.chars().count() < 400), "{operations}");
    let event = desk.json(&["events"]).pop().unwrap();
    assert_eq!(event["downstream_id"].as_str().map(str::len), Some(5000));
}
