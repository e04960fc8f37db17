//! Asserts the plans of the hot statements: no statistics may turn one into a scan.

use rusqlite::{Connection, ToSql};

use crate::core::Shard;
use crate::store::query::read;
use crate::store::relay::{due, leases};
use crate::store::tables::{
    audit, binding, budget, candidate, gates, hold, ledger, ordering, shard, wire_key,
};
use crate::store::verbs::{enqueue, inbox, revise};
use crate::store::{standing, transitions};

const SCHEMA: &str = include_str!("../../schema.sql");

/// A file with a few rows and statistics that say the opposite of the truth.
fn files() -> Vec<(&'static str, Connection)> {
    ["", "ANALYZE", MISLEADING]
        .map(|statistics| {
            let conn = Connection::open_in_memory().unwrap();
            conn.execute_batch(SCHEMA).unwrap();
            conn.execute_batch(ROWS).unwrap();
            conn.execute_batch(statistics).unwrap();
            conn.execute_batch("ANALYZE sqlite_schema").unwrap();
            (statistics, conn)
        })
        .into()
}

const ROWS: &str = "
    INSERT INTO outbox (operation, entity_id, idempotency_key, payload, ordering_key)
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
    SELECT 'pay', i, 'k' || i, '{}', CASE i % 2 WHEN 0 THEN 'o' || i % 5 END FROM n;
    INSERT INTO outbox_inbox (source, message_id) SELECT 'stripe', idempotency_key FROM outbox;
    INSERT INTO outbox_spend (operation, at, id, token, tenant_id, cost)
    SELECT operation, 1800000000000 + id, id, id, 't' || id % 5, id % 3 FROM outbox";

/// As if every index were useless and every table small.
const MISLEADING: &str = "
    ANALYZE;
    DELETE FROM sqlite_stat1;
    INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
        ('outbox', NULL, '3'),
        ('outbox', 'outbox_version', '3 3 3 3 3'),
        ('outbox', 'sqlite_autoindex_outbox_1', '3 3 3'),
        ('outbox_lease', 'outbox_lease_due', '1000000 1000000 1000000 1000000 1000000'),
        ('outbox_lease', 'outbox_lease_parked', '2 1 1'),
        ('outbox_lease', NULL, '2'),
        ('outbox_lease', 'outbox_lease_held', '1000000 1000000 1000000 1000000'),
        ('outbox_lease', 'outbox_lease_own', '1000000 1000000 1000000 1000000 1000000'),
        ('outbox_hold', NULL, '2'),
        ('outbox_hold', 'outbox_hold_until', '1000000 1000000 1000000'),
        ('outbox_hold', 'sqlite_autoindex_outbox_hold_1', '1000000 1000000 1000000 1000000'),
        ('outbox_keyed', 'outbox_keyed', '1000000 1000000 1000000 1000000 1000000'),
        ('outbox_spend', 'outbox_spend', '1000000 1000000 1000000 1000000 1000000'),
        ('outbox_spend', 'outbox_spend_tenant', '1000000 1000000 1000000 1000000 1000000'),
        ('outbox_spend', 'outbox_spend_run', '1000000 1000000 1000000 1000000 1000000'),
        ('outbox_spend', 'outbox_spend_intent', '1000000 1000000 1000000'),
        ('outbox_budget', 'outbox_budget', '1000000 1000000 1000000 1000000'),
        ('outbox_inbox', 'outbox_inbox', '1000000 1000000 1000000'),
        ('outbox_inbox', 'outbox_inbox_age', '1000000 1000000 1000000 1000000'),
        ('outbox_binding', 'outbox_binding', '1000000 1000000 1000000'),
        ('outbox_wire_key', 'outbox_wire_key_sent', '1000000 1000000'),
        ('outbox_event', 'outbox_event', '1000000 1000000 1000000')";

fn plan(conn: &Connection, sql: &str) -> Vec<String> {
    let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let lines = statement.raw_query().mapped(|row| row.get(3)).collect::<Result<_, _>>();
    lines.unwrap()
}

#[test]
fn no_hot_statement_scans_or_sorts() {
    for (name, sql, index) in [
        ("candidates", candidate::CANDIDATES.oldest, "outbox_lease_due"),
        ("candidates_newest", candidate::CANDIDATES.newest, "outbox_lease_due"),
        ("candidates_own", candidate::CANDIDATES_OWN.oldest, "outbox_lease_own"),
        ("candidates_configured", candidate::CANDIDATES_CONFIGURED.oldest, "outbox_lease_due"),
        ("candidates_own_newest", candidate::CANDIDATES_OWN.newest, "outbox_lease_own"),
        ("has_due_own", due::HAS_DUE_OWN, "outbox_lease_own"),
        ("has_due_configured", due::HAS_DUE_CONFIGURED, "outbox_lease_due"),
        ("next_due_own", due::NEXT_DUE_OWN, "outbox_lease_own"),
        ("throttled", hold::THROTTLED, "(operation=? AND domain=? AND name>? AND name<?)"),
        ("expired", leases::EXPIRED, "outbox_lease_due"),
        ("ended", leases::ENDED, "outbox_lease_due (operation=? AND state=? AND due_at>?)"),
        ("has_ended", leases::HAS_ENDED, "outbox_lease_due (operation=? AND state=? AND due_at>?)"),
        ("has_due", due::HAS_DUE, "outbox_lease_due"),
        ("next_due", due::NEXT_DUE, "outbox_lease_due"),
        ("hold", hold::FIND, "(operation=? AND domain=? AND name=?)"),
        ("hold_kinds", hold::KINDS, "(operation=? AND domain=?)"),
        ("holds_due", hold::DUE, "outbox_hold_until (operation=? AND until<?)"),
        ("has_due_hold", hold::HAS_DUE, "outbox_lease_held (held_by=?)"),
        ("next_until", hold::NEXT_UNTIL, "outbox_hold_until (operation=? AND until>?)"),
        ("oldest_held", hold::OLDEST, "outbox_lease_held (held_by=?)"),
        ("standing", standing::STANDING, "INTEGER PRIMARY KEY (rowid=?)"),
        ("park", transitions::PARK, "INTEGER PRIMARY KEY (rowid=?)"),
        ("unlease", transitions::UNLEASE, "INTEGER PRIMARY KEY (rowid=?)"),
        ("head", ordering::HEAD, "PRIMARY KEY"),
        ("first", ordering::FIRST, "PRIMARY KEY"),
        ("acting", ordering::ACTING, "PRIMARY KEY"),
        ("overtaken", ordering::OVERTAKEN, "outbox_keyed_overtaken"),
        ("of_intent", audit::OF_INTENT, "INTEGER PRIMARY KEY (rowid=?)"),
        ("insert_event", audit::INSERT_EVENT, "sqlite_autoindex_outbox_event_1"),
        ("of_one", audit::OF_ONE, "sqlite_autoindex_outbox_event_1"),
        ("stream", audit::STREAM, "INTEGER PRIMARY KEY (rowid>?)"),
        ("lookups", candidate::LOOKUPS, "outbox_lease_due"),
        ("has_lookup", due::HAS_LOOKUP, "outbox_lease_due"),
        ("next_lookup", due::NEXT_LOOKUP, "outbox_lease_due"),
        ("successor", revise::SUCCESSOR, "sqlite_autoindex_outbox_revision_1"),
        ("refund_doubt", ledger::REFUND_DOUBT, "outbox_spend_intent (id=?)"),
        ("next_cost", gates::NEXT_COST, "outbox_lease_due"),
        ("next_cost_own", gates::NEXT_COST_OWN, "outbox_lease_own"),
        ("budgets", budget::BUDGETS, "PRIMARY KEY"),
        ("total", ledger::TOTAL, "(operation=? AND name=? AND window_ms=?)"),
        ("spent", ledger::SPENT, "(operation=? AND at>? AND at<?)"),
        ("tenant_spent", ledger::TENANT_SPENT, "COVERING INDEX outbox_spend_tenant"),
        ("run_spent", ledger::RUN_SPENT, "COVERING INDEX outbox_spend_run"),
        ("entries", ledger::ENTRIES, "(operation=? AND at>?)"),
        ("tenant_entries", ledger::TENANT_ENTRIES, "COVERING INDEX outbox_spend_tenant"),
        ("entered", ledger::ENTERED, "outbox_spend_intent (id=?)"),
        ("give_back", ledger::GIVE_BACK, "outbox_spend_intent (id=?"),
        ("forget", ledger::FORGET, "(operation=? AND at<?)"),
        ("refund", ledger::REFUND, "outbox_spend_intent (id=? AND token=?)"),
        ("id_of_key", read::ID_OF_KEY, "sqlite_autoindex_outbox_1"),
        ("id_of_version", enqueue::ID_OF_VERSION, "outbox_version"),
        ("inbox_result", inbox::RESULT, "PRIMARY KEY (source=? AND message_id=?)"),
        ("inbox_finish", inbox::FINISH, "PRIMARY KEY (source=? AND message_id=?)"),
        ("inbox_prune", inbox::PRUNE, "PRIMARY KEY (source=? AND message_id=?)"),
        ("inbox_prune_age", inbox::PRUNE, "COVERING INDEX outbox_inbox_age (handled_at<?)"),
        ("unsettled_version", enqueue::UNSETTLED_VERSION, "outbox_version"),
    ] {
        assert_plan(name, sql, index);
    }
}

#[test]
fn a_provider_s_record_finds_its_intent_by_an_index() {
    for (name, sql, index) in [
        ("sent_as", wire_key::SENT_AS, "outbox_wire_key_sent (wire_key=?)"),
        ("bound_to", binding::BOUND_TO, "PRIMARY KEY (provider=? AND downstream_id=?)"),
    ] {
        assert_plan(name, sql, index);
    }
}

fn assert_plan(name: &str, sql: &str, index: &str) {
    for (statistics, conn) in files() {
        let plan = plan(&conn, sql);
        let described = format!("{name} after {statistics:?}: {plan:#?}");
        assert!(plan.iter().any(|line| line.contains(index)), "{described}");
        for line in &plan {
            // What is read of a result that is one row already is no scan of a table.
            let is_scan = line.starts_with("SCAN") && line.contains("outbox");
            assert!(!is_scan && !line.contains("TEMP B-TREE"), "{described}");
        }
    }
}

/// The guards run for every row that is enqueued: each must find what it looks for by an index.
#[test]
fn an_insert_looks_up_what_it_guards() {
    for (statistics, conn) in files() {
        let scanned = |entity: i64| -> i64 {
            let mut statement = conn
                .prepare(
                    "INSERT INTO outbox
                         (operation, entity_id, idempotency_key, payload, ordering_key)
                     VALUES ('pay', ?1, 'new' || ?1, '{}', 'o1')",
                )
                .unwrap();
            statement.execute([entity]).unwrap();
            i64::from(statement.get_status(rusqlite::StatementStatus::FullscanStep))
        };
        assert_eq!(scanned(1000) + scanned(1001), 0, "after {statistics:?}");
    }
}

/// The steps SQLite takes for a statement.
fn steps(conn: &Connection, sql: &str) -> i32 {
    let mut statement = conn.prepare(sql).unwrap();
    let mut rows = statement.raw_query();
    while rows.next().unwrap().is_some() {}
    drop(rows);
    statement.get_status(rusqlite::StatementStatus::VmStep)
}

fn assert_alike(few: i32, many: i32) {
    assert!(many * 2 <= few * 3, "{few} steps, and {many} where there is much more");
}

#[test]
fn each_batch_that_strips_costs_the_same() {
    let readme = include_str!("../../README.md");
    let begins = readme.find("UPDATE outbox SET payload = NULL").unwrap();
    let sql = readme[begins..].split(';').next().unwrap().replace(":before", "2");
    for (statistics, conn) in files().into_iter().take(2) {
        conn.execute_batch(
            "INSERT INTO outbox (operation, entity_id, idempotency_key, payload)
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
             SELECT 'pay', i, 'settled' || i, '{}' FROM n;
             INSERT INTO outbox_receipt (id, status, finished_at, attempts)
             SELECT id, 'succeeded', 1, 1 FROM outbox WHERE idempotency_key > 's';
             DELETE FROM outbox_lease WHERE id IN (SELECT id FROM outbox_receipt)",
        )
        .unwrap();
        let batches: Vec<i32> = (0..20).map(|_| steps(&conn, &sql)).collect();
        assert_alike(batches[0], batches[19]);
        let left: i64 = conn
            .query_row("SELECT sum(has_payload) FROM outbox_receipt", [], |row| row.get(0))
            .unwrap();
        assert_eq!(left, 0, "after {statistics:?}");
    }
}

#[test]
fn a_line_costs_the_same_however_long_it_is() {
    let cost = |count: i32| {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(SCHEMA).unwrap();
        let enqueue = format!(
            "INSERT INTO outbox (operation, entity_id, idempotency_key, payload, ordering_key)
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
             SELECT 'pay', i, 'k' || i, '{{}}', 'line' FROM n"
        );
        conn.execute_batch(&enqueue).unwrap();
        let one =
            "INSERT INTO outbox (operation, entity_id, idempotency_key, payload, ordering_key)
                   VALUES ('pay', 'one', 'one', '{}', 'line')";
        [one, "DELETE FROM outbox_keyed WHERE id = 1"].map(|sql| steps(&conn, sql))
    };
    let (short, long) = (cost(100), cost(20_000));
    assert_alike(short[0], long[0]);
    assert_alike(short[1], long[1]);
}

#[test]
fn what_is_due_in_another_shard_costs_nothing() {
    let shard = Shard::new(1, 4).unwrap();
    let cost = |count: i32| {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(SCHEMA).unwrap();
        shard::create_index(&conn, shard).unwrap();
        let enqueue = format!(
            "INSERT INTO outbox (operation, entity_id, idempotency_key, payload)
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
             SELECT 'pay', i, 'k' || i, '{{}}' FROM n;
             DELETE FROM outbox_lease WHERE id % 4 = 1 AND id < {count} - 10"
        );
        conn.execute_batch(&enqueue).unwrap();
        let cost = |sql: &'static str, values: &[(&str, &dyn ToSql)]| {
            let mut statement = conn.prepare(&shard::of_shard(sql, shard)).unwrap();
            for (name, value) in values {
                statement.raw_bind_parameter(*name, *value).unwrap();
            }
            let mut rows = statement.raw_query();
            while rows.next().unwrap().is_some() {}
            drop(rows);
            statement.get_status(rusqlite::StatementStatus::VmStep)
        };
        let now = i64::MAX;
        [
            cost(due::HAS_DUE, &[("?1", &"pay"), ("?2", &now), ("?3", &4), ("?4", &1)]),
            cost(due::NEXT_DUE, &[("?1", &"pay"), ("?2", &4), ("?3", &1)]),
            cost(gates::NEXT_COST, &[("?1", &"pay"), ("?2", &now), ("?3", &4), ("?4", &1)]),
            cost(
                candidate::CANDIDATES.oldest,
                &[
                    (":operation", &"pay"),
                    (":now", &now),
                    (":count", &4),
                    (":index", &1),
                    (":limit", &1),
                    (":passed_over", &0),
                ],
            ),
        ]
    };
    let (few, many) = (cost(100), cost(20_000));
    few.into_iter().zip(many).for_each(|(few, many)| assert_alike(few, many));
}

#[test]
fn rows_of_a_configured_endpoint_that_stands_still_cost_nothing() {
    let cost = |count: i32| {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(SCHEMA).unwrap();
        let enqueue = format!(
            "INSERT INTO outbox (operation, entity_id, idempotency_key, payload, endpoint, cost)
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
             SELECT 'pay', i, 'k' || i, '{{}}', iif(i > {count} - 10, 'https://a.example/', NULL), i
             FROM n"
        );
        conn.execute_batch(&enqueue).unwrap();
        let mut statement = conn.prepare(gates::NEXT_COST_OWN).unwrap();
        let read = |row: &rusqlite::Row<'_>| row.get::<_, i32>(0);
        let first = statement.query_row(("pay", i64::MAX, 1, 0), read).unwrap();
        assert_eq!(first, count - 9);
        statement.get_status(rusqlite::StatementStatus::VmStep)
    };
    assert_alike(cost(100), cost(20_000));
}

#[test]
fn finding_the_operations_with_something_due_does_not_walk_over_it() {
    let cost = |operations: i32, rows: i32| {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(SCHEMA).unwrap();
        let enqueue = format!(
            "INSERT INTO outbox (operation, entity_id, idempotency_key, payload)
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
             SELECT 'op' || (i % {operations}), i, 'k' || i, '{{}}' FROM n"
        );
        conn.execute_batch(&enqueue).unwrap();
        let mut statement = conn.prepare(due::FIRST_DUE).unwrap();
        let due = statement.query_map([], |row| row.get::<_, i64>(1)).unwrap();
        assert_eq!(due.count(), usize::try_from(operations).unwrap());
        statement.get_status(rusqlite::StatementStatus::VmStep)
    };
    assert_alike(cost(3, 100), cost(3, 10_000));
    assert_alike(cost(10, 1000) * 10, cost(100, 1000));
}

#[test]
fn counting_what_is_not_settled_does_not_read_what_is() {
    let sql = include_str!("../../docs/sql.md");
    let begins = sql.find("SELECT sum(total)").unwrap();
    let gauge = sql[begins..].split(';').next().unwrap();
    let cost = |settled: i32| {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(SCHEMA).unwrap();
        conn.execute_batch(ROWS).unwrap();
        let settle = format!(
            "INSERT INTO outbox (operation, entity_id, idempotency_key, payload)
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {settled})
             SELECT 'pay', i, 'settled' || i, '{{}}' FROM n;
             INSERT INTO outbox_receipt (id, status, finished_at, attempts)
             SELECT id, 'succeeded', 1, 1 FROM outbox WHERE idempotency_key > 's';
             DELETE FROM outbox_lease WHERE id IN (SELECT id FROM outbox_receipt)"
        );
        conn.execute_batch(&settle).unwrap();
        [steps(&conn, gauge), steps(&conn, read::STATS)]
    };
    assert_eq!(cost(10), cost(5000));
}
