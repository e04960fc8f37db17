//! Plain SQL on the tables, and what their guards refuse, whoever writes it.

use sqlite_outbox::Status;
use sqlite_outbox::rusqlite::types::Value;
use sqlite_outbox::rusqlite::{Connection, Error as SqlError};

use crate::support::world::{DEDUPLICATES, World, interrupted, pay, rejected, succeeded};

const TABLES: [&str; 6] =
    ["outbox", "outbox_lease", "outbox_keyed", "outbox_receipt", "outbox_event", "outbox_settled"];

/// Every value of every row of our tables.
fn everything(conn: &Connection) -> Vec<Vec<Value>> {
    let mut all = Vec::new();
    for table in TABLES {
        let mut statement = conn.prepare(&format!("SELECT * FROM {table} ORDER BY 1, 2")).unwrap();
        let columns = statement.column_count();
        let rows = statement
            .query_map([], |row| {
                (0..columns).map(|i| row.get(i)).collect::<Result<Vec<Value>, _>>()
            })
            .unwrap();
        all.extend(rows.map(Result::unwrap));
    }
    all
}

/// A file with a settled row 1, a row 2 on the way, a dead row 3, a pending row 4 and a queued
/// row 6 behind row 5.
fn in_every_state(check: impl FnOnce(&Connection) + Send + 'static) {
    let world = World::new();
    world.enqueue(&pay("1").key("k1"));
    world.drain(DEDUPLICATES);
    world.enqueue(&pay("2").key("k2"));
    let path = world.path();
    let clock = world.clock.clone();
    let checking = interrupted(
        move || {
            let conn = Connection::open(path).unwrap();
            check(&conn);
        },
        succeeded("ok"),
    );
    // The dead one is made while row 2 waits for its turn in the second relay.
    world.enqueue(&pay("3").key("k3"));
    world.sql("UPDATE outbox_lease SET due_at = due_at + 1000 WHERE id = 2");
    world.script.then(rejected());
    world.drain(DEDUPLICATES);
    clock.set(crate::support::world::START + 1000);
    for (id, order) in [(4, None), (5, Some("k")), (6, Some("k"))] {
        let mut intent = pay(&id.to_string()).key(format!("k{id}"));
        intent = intent.delay(std::time::Duration::from_secs(1_000_000));
        if let Some(order) = order {
            intent = intent.ordering_key(order);
        }
        world.enqueue(&intent);
    }
    let states: Vec<Status> = (1..=6).map(|id| world.entry(id).status).collect();
    use Status::{Dead, Pending, Succeeded};
    assert_eq!(states, [Succeeded, Pending, Dead, Pending, Pending, Pending]);
    world.other_relay(DEDUPLICATES, checking).drain().unwrap();
    assert_eq!(world.entry(2).status, Succeeded);
}

/// `INSERT OR REPLACE` on a used key changed the payload past the frozen trigger and orphaned
/// the lease; `OR IGNORE` lost an intent without a word.
#[test]
fn guard_refuses_every_change_of_an_intent() {
    in_every_state(|conn| {
        let before = everything(conn);
        for id in 1..=6 {
            let values = format!("('pay', '{id}', 'k{id}', '{{\"amount\":1}}')");
            let columns = "(operation, entity_id, idempotency_key, payload)";
            let refused = [
                format!("INSERT INTO outbox {columns} VALUES {values}"),
                format!("INSERT OR REPLACE INTO outbox {columns} VALUES {values}"),
                format!("REPLACE INTO outbox {columns} VALUES {values}"),
                format!("INSERT OR IGNORE INTO outbox {columns} VALUES {values}"),
                format!("INSERT OR FAIL INTO outbox {columns} VALUES {values}"),
                format!("INSERT INTO outbox {columns} VALUES {values} ON CONFLICT DO NOTHING"),
                format!(
                    "INSERT INTO outbox {columns} VALUES {values}
                     ON CONFLICT (tenant_id, idempotency_key)
                     DO UPDATE SET payload = excluded.payload"
                ),
                format!(
                    "INSERT INTO outbox {columns} SELECT 'pay', 'new', 'new', '{{}}'
                     UNION ALL SELECT 'pay', 'other', 'k{id}', '{{}}'"
                ),
                format!(
                    "INSERT INTO outbox (id, operation, entity_id, idempotency_key, payload)
                         VALUES ({id}, 'pay', 'x', 'x', '{{}}')"
                ),
                format!(
                    "INSERT OR REPLACE INTO outbox (id, operation, entity_id, idempotency_key,
                        payload)
                         VALUES ({id}, 'pay', 'x', 'x', '{{}}')"
                ),
                format!("UPDATE outbox SET payload = '{{}}' WHERE id = {id}"),
                format!("UPDATE outbox SET idempotency_key = 'other' WHERE id = {id}"),
                format!(
                    "UPDATE OR REPLACE outbox SET idempotency_key = 'k1'
                         WHERE id = {id} + (id = 1)"
                ),
                format!("UPDATE OR IGNORE outbox SET tenant_id = 'x' WHERE id = {id}"),
                format!("UPDATE outbox SET id = 99 WHERE id = {id}"),
                format!(
                    "UPDATE outbox SET payload = NULL, headers = '{{}}', method = 'PUT'
                         WHERE id = {id}"
                ),
                format!("UPDATE outbox SET available_at = available_at + 1 WHERE id = {id}"),
            ];
            for sql in refused {
                let result = conn.execute(&sql, []);
                // A statement that matched no row did nothing either.
                assert!(result.is_err() || result == Ok(0), "{sql}");
                assert!(conn.is_autocommit());
                assert!(everything(conn) == before, "changed by {sql}");
            }
            if id > 1 {
                conn.execute("DELETE FROM outbox WHERE id = ?1", [id]).unwrap_err();
                conn.execute("UPDATE outbox SET payload = NULL WHERE id = ?1", [id]).unwrap_err();
            }
        }
        for sql in [
            "INSERT INTO outbox (id, operation, entity_id, idempotency_key, payload)
             VALUES (77, 'pay', 'x', 'x', '{}')",
            "INSERT INTO outbox (id, operation, entity_id, idempotency_key, payload)
             VALUES (0, 'pay', 'x', 'x', '{}')",
            "INSERT INTO outbox (id, operation, entity_id, idempotency_key, payload)
             VALUES (-1, 'pay', 'x', 'x', '{}')",
            "UPDATE outbox_event SET reason = 'x'",
            "DELETE FROM outbox_event",
            "INSERT OR REPLACE INTO outbox_event SELECT * FROM outbox_event",
            "DELETE FROM outbox",
        ] {
            conn.execute(sql, []).expect_err(sql);
            assert!(everything(conn) == before, "changed by {sql}");
        }
    });
}

#[test]
fn plain_sql_recipe_is_idempotent() {
    let world = World::new();
    let recipe = "INSERT INTO outbox (operation, entity_id, idempotency_key, payload)
         SELECT 'pay', 'a', 'k', '{}'
         WHERE NOT EXISTS (SELECT 1 FROM outbox WHERE tenant_id = '' AND idempotency_key = 'k')";
    assert_eq!(world.sql(recipe), 1);
    assert_eq!(world.sql(recipe), 0);
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 1);
    assert_eq!(world.sql(recipe), 0);
}

/// Each guard by its field, loud under every conflict clause.
#[test]
fn guard_names_the_field_of_a_bad_value() {
    let world = World::new();
    let conn = Connection::open(world.path()).unwrap();
    let long = |count: usize| format!("'{}'", "x".repeat(count));
    let mut bad: Vec<(&str, String)> = [
        ("tenant_id", "X'00'"),
        ("tenant_id", "'a' || char(0)"),
        ("operation", "''"),
        ("operation", "'a b'"),
        ("operation", "'a:b'"),
        ("operation", "X'61'"),
        ("entity_id", "''"),
        ("entity_id", "'a' || char(0) || 'b'"),
        ("intent_version", "0"),
        ("intent_version", "'one'"),
        ("idempotency_key", "''"),
        ("idempotency_key", "'a b'"),
        ("idempotency_key", "'ä'"),
        ("idempotency_key", "'a' || char(10)"),
        ("args_hash", "'abc'"),
        ("args_hash", "upper(printf('%064x', 171))"),
        ("endpoint", "''"),
        ("endpoint", "'ftp://a'"),
        ("endpoint", "'https://a b'"),
        ("endpoint", "'http://'"),
        ("method", "'post'"),
        ("method", "NULL"),
        ("content_type", "'json'"),
        ("content_type", "'a/b' || char(10)"),
        ("payload", "NULL"),
        ("payload", "'{'"),
        ("payload", "''"),
        ("payload", "'\"' || char(0) || '\"'"),
        ("payload", "X'7B7D'"),
        ("headers", "'[]'"),
        ("headers", "'{'"),
        ("headers", "'{\"a\":null}'"),
        ("headers", "'{\"a\":\"1\",\"a\":\"1\"}'"),
        ("headers", "'{\"\\u0048ost\":\"h\"}'"),
        ("headers", "'{}' || char(0)"),
        ("headers", "X'7B7D'"),
        ("args_hash", "printf('%064x', 171) || char(0)"),
        ("endpoint", "X'68747470733a2f2f682f'"),
        ("headers", "'{\"a\":{}}'"),
        ("ordering_key", "''"),
        ("ordering_key", "char(0)"),
        ("created_at", "1700000000"),
        ("created_at", "'yesterday'"),
        ("available_at", "1700000000"),
        ("available_at", "1700000000000000"),
        ("expires_at", "1700000000"),
        ("expires_at", "1000000000001"),
    ]
    .map(|(field, value)| (field, value.to_owned()))
    .into();
    bad.extend([
        ("tenant_id", long(256)),
        ("operation", long(129)),
        ("entity_id", long(1025)),
        ("idempotency_key", long(256)),
        ("ordering_key", long(256)),
        ("endpoint", format!("'https://' || {}", long(2048))),
        ("content_type", format!("'a/' || {}", long(254))),
        ("payload", "json_quote(printf('%.*c', 1048575, 'x'))".to_owned()),
    ]);
    for (field, value) in bad {
        let mut row =
            vec![("operation", "'pay'"), ("entity_id", "'a'"), ("idempotency_key", "'k'")];
        row.push(("payload", "'{}'"));
        row.retain(|(column, _)| *column != field);
        row.push((field, &value));
        let (columns, values): (Vec<&str>, Vec<&str>) = row.into_iter().unzip();
        for verb in ["INSERT", "INSERT OR IGNORE", "INSERT OR REPLACE"] {
            let sql = format!(
                "{verb} INTO outbox ({}) VALUES ({})",
                columns.join(", "),
                values.join(", ")
            );
            let error = conn.execute(&sql, []).expect_err(&sql).to_string();
            assert!(error.contains(&format!("outbox.{field}")), "{field} = {value:.40}: {error}");
        }
    }
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 0);
}

/// Numbers and booleans go out as they are written, also where they name the agent's run.
#[test]
fn header_of_a_number_is_its_text() {
    let world = World::new();
    let headers = r#"{"n":1,"real":1.10,"exp":1E+2,"big":12345678901234567890123,"b":true,
                      "s":"a \u0062","x-agent-run":7.0,"x-tool-version":false}"#;
    let conn = Connection::open(world.path()).unwrap();
    let sql = "INSERT INTO outbox (operation, entity_id, idempotency_key, headers, payload)
               VALUES ('pay', 'a', 'k', ?1, '{}')";
    conn.execute(sql, [headers]).unwrap();
    world.drain(DEDUPLICATES);
    let seen = world.script.seen();
    let sent: Vec<String> =
        seen[0].headers().iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let mut expected = [
        "n: 1",
        "real: 1.10",
        "exp: 1E+2",
        "big: 12345678901234567890123",
        "b: true",
        "s: a b",
        "x-agent-run: 7.0",
        "x-tool-version: false",
    ];
    expected.sort_unstable();
    assert_eq!(sent, expected);
    let named = "SELECT count(*) FROM outbox_run r, outbox_event e
                 WHERE r.run = '7.0' AND e.agent_run = '7.0' AND e.tool_version = 'false'";
    assert_eq!(world.number(named), 1);
}

#[test]
fn settled_row_may_be_stripped_and_deleted() {
    let world = World::new();
    let ids = [world.enqueue(&pay("a").key("k").header("x", "y")), world.enqueue(&pay("b"))];
    world.drain(DEDUPLICATES);
    assert_eq!(world.sql("UPDATE outbox SET payload = NULL, headers = '{}' WHERE id = 1"), 1);
    let entry = world.entry(ids[0]);
    assert_eq!(entry.status, Status::Succeeded);
    // A stripped row is its own tombstone: the key is not forgotten.
    let again = world.try_enqueue(&pay("a").key("k")).unwrap();
    assert_eq!((again.id(), again.is_new()), (ids[0], false));

    assert_eq!(world.sql("DELETE FROM outbox WHERE id = 2"), 1);
    for table in ["outbox_receipt WHERE id", "outbox_event WHERE outbox_id"] {
        assert_eq!(world.number(&format!("SELECT count(*) FROM {table} = 2")), 0);
        assert_eq!(world.number(&format!("SELECT count(*) FROM {table} = 1")), 1);
    }
    // Its id is never given to another, or an old event would be read as the new row's.
    assert_eq!(world.enqueue(&pay("c")), 3);
    assert_eq!(world.number("SELECT sum(total) FROM outbox_settled"), 2);
}

#[test]
fn guard_refusal_leaves_the_callers_transaction() {
    let world = World::new();
    world.enqueue(&pay("a").key("k"));
    let conn = world.app();
    conn.execute_batch("BEGIN IMMEDIATE; INSERT INTO orders VALUES ('o', 'paid')").unwrap();
    let sql = "INSERT INTO outbox (operation, entity_id, idempotency_key, payload)
               VALUES ('pay', 'b', 'k2', '{}'), ('pay', 'a', 'k', '{}')";
    let error = conn.execute(sql, []).unwrap_err();
    assert!(
        matches!(error, SqlError::SqliteFailure(_, Some(text)) if text.contains("already used"))
    );
    conn.execute_batch("COMMIT").unwrap();
    assert_eq!(world.number("SELECT count(*) FROM orders"), 1);
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 1);
}
