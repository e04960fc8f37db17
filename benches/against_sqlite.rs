//! How close the outbox comes to the limit of SQLite itself, measured in the same run.
//!
//! `cargo bench` runs the quick figures; `cargo bench -- full` adds the ones on a million settled
//! rows and the memory figure. Every figure is a ratio of medians with the range of the rounds,
//! because absolute times say more about the machine than about the library.

use std::path::Path;
use std::time::{Duration, Instant};

use sqlite_outbox::rusqlite::{Connection, TransactionBehavior, params};
use sqlite_outbox::{Delivery, Downstream, Intent, Operation, Outbox, Outcome, Receipt, Relay};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, path] = arguments.as_slice()
        && mode == "drain-and-tell-memory"
    {
        return drain_and_tell_memory(Path::new(path));
    }
    let full = arguments.iter().any(|argument| argument == "full");
    println!("{:<44} {:>12} {:>12} {:>7}  range", "figure", "limit/s", "outbox/s", "ratio");
    enqueue("enqueue, one per transaction", 1, 300);
    enqueue("enqueue, 100 per transaction", 100, 40);
    let on_empty = relay("relay, 4 workers, on 0 settled rows", 0, 20_000);
    if full {
        let on_empty = relay("relay, 100k pending on 0 settled rows", 0, 100_000);
        let on_million = relay("relay, 100k pending on 1M settled rows", 1_000_000, 100_000);
        println!("{:<44} {:>33.2}", "the same, 1M settled to 0 settled", on_million / on_empty);
        memory(1_000_000);
        beside_a_paused_operation(100_000);
    } else {
        beside_a_paused_operation(100_000);
        let on_some = relay("relay, 4 workers, on 100k settled rows", 100_000, 20_000);
        println!("{:<44} {:>33.2}", "the same, 100k settled to 0 settled", on_some / on_empty);
    }
}

const ROUNDS: usize = 5;

/// Prints the rates of both sides and the ratio, round by round compared; returns our rate.
fn report(figure: &str, limit: &[f64], ours: &[f64]) -> f64 {
    let mut ratios: Vec<f64> = ours.iter().zip(limit).map(|(ours, limit)| ours / limit).collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "{figure:<44} {:>12.0} {:>12.0} {:>7.2}  {:.2} to {:.2}",
        median(limit),
        median(ours),
        median(&ratios),
        ratios[0],
        ratios[ratios.len() - 1]
    );
    median(ours)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn rate(rows: usize, took: Duration) -> f64 {
    f64::from(u32::try_from(rows).unwrap()) / took.as_secs_f64()
}

/// A bare prepared INSERT into the same tables against `enqueue`, in turn, on one file.
fn enqueue(figure: &str, per_transaction: usize, transactions: usize) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let outbox = Outbox::open(dir.path().join("app.db")).expect("an outbox");
    let mut conn = Connection::open(outbox.path()).expect("a connection");
    conn.pragma_update(None, "synchronous", "FULL").expect("FULL");
    let rows = per_transaction * transactions;
    let (mut limit, mut ours) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let bare: Vec<_> = (0..rows)
            .map(|n| format!("bare-{round}-{n}"))
            .map(|entity| (key(&entity), entity))
            .collect();
        let began = Instant::now();
        for chunk in bare.chunks(per_transaction) {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            for (key, entity) in chunk {
                insert_bare(&tx, "bench.charge", entity, key);
            }
            tx.commit().unwrap();
        }
        let bare_took = began.elapsed();
        let intents: Vec<_> = (0..rows).map(|n| intent(&format!("ours-{round}-{n}"))).collect();
        let began = Instant::now();
        for chunk in intents.chunks(per_transaction) {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            for intent in chunk {
                outbox.enqueue(&tx, intent).unwrap();
            }
            tx.commit().unwrap();
        }
        let ours_took = began.elapsed();
        // The first round only warms up.
        if round > 0 {
            limit.push(rate(rows, bare_took));
            ours.push(rate(rows, ours_took));
        }
    }
    report(figure, &limit, &ours);
}

const PAYLOAD: &str = r#"{"amount":4200,"currency":"usd","customer":"cus_N2x8Qk","memo":"order"}"#;

fn intent(entity: &str) -> Intent {
    Intent::new("bench.charge", entity)
        .tenant("acme")
        .endpoint("https://api.example.com/charges")
        .payload(PAYLOAD)
}

fn key(entity: &str) -> (String, String) {
    let derived =
        sqlite_outbox::IdempotencyKey::derive("acme", "bench.charge", entity, 1, PAYLOAD).unwrap();
    (derived.key, derived.args_hash)
}

fn insert_bare(
    conn: &Connection,
    operation: &str,
    entity: &str,
    (key, args_hash): &(String, String),
) {
    conn.prepare_cached(
        "INSERT INTO outbox (tenant_id, operation, entity_id, intent_version, idempotency_key,
             args_hash, endpoint, method, content_type, payload, headers, ordering_key,
             available_at, expires_at, created_at)
         VALUES (?1, ?2, ?3, 1, ?4, ?5, ?6, 'POST', 'application/json', ?7, '{}', NULL, ?8,
             NULL, ?8)",
    )
    .unwrap()
    .execute(params![
        "acme",
        operation,
        entity,
        key,
        args_hash,
        "https://api.example.com/charges",
        PAYLOAD,
        1_700_000_000_000_i64
    ])
    .unwrap();
}

/// A file with settled and pending rows.
fn fill(path: &Path, settled: usize, pending: usize) {
    let outbox = Outbox::open(path).unwrap();
    let mut conn = Connection::open(outbox.path()).unwrap();
    conn.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA cache_size = -65536").unwrap();
    insert_many(&mut conn, "bench.charge", "settled", settled);
    conn.execute_batch(
        "INSERT INTO outbox_receipt (id, status, finished_at, attempts, downstream_id, receipt)
             SELECT id, 'succeeded', 1700000000000, 1, 'eff_' || id, '{\"status\":200}'
             FROM outbox_lease;
         INSERT INTO outbox_event (outbox_id, seq, at, kind, from_status, status, attempt)
             SELECT id, 1, 1700000000000, 'attempt', 'in_flight', 'succeeded', 1 FROM outbox_lease;
         DELETE FROM outbox_lease;",
    )
    .unwrap();
    insert_many(&mut conn, "bench.charge", "pending", pending);
    conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
}

fn insert_many(conn: &mut Connection, operation: &str, prefix: &str, count: usize) {
    for from in (0..count).step_by(10_000) {
        let tx = conn.transaction().unwrap();
        for n in from..(from + 10_000).min(count) {
            let entity = format!("{prefix}-{n}");
            // Any key will do here, and deriving a million takes longer than inserting them.
            insert_bare(&tx, operation, &entity, &(format!("key-{entity}"), "0".repeat(64)));
        }
        tx.commit().unwrap();
    }
}

/// A bare loop with the same statements in merged batches of 100 against a relay, each on a
/// fresh copy of the same file.
fn relay(figure: &str, settled: usize, pending: usize) -> f64 {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let master = dir.path().join("master.db");
    fill(&master, settled, pending);
    let (mut limit, mut ours) = (Vec::new(), Vec::new());
    for round in 0..3 {
        let path = dir.path().join(format!("bare-{round}.db"));
        std::fs::copy(&master, &path).unwrap();
        let began = Instant::now();
        assert_eq!(bare_loop(&path), pending);
        limit.push(rate(pending, began.elapsed()));
        std::fs::remove_file(&path).unwrap();

        let path = dir.path().join(format!("ours-{round}.db"));
        std::fs::copy(&master, &path).unwrap();
        let relay = noop_relay(&path);
        let began = Instant::now();
        assert_eq!(relay.drain().unwrap().succeeded, pending as u64);
        ours.push(rate(pending, began.elapsed()));
        drop(relay);
        std::fs::remove_file(&path).unwrap();
    }
    report(figure, &limit, &ours)
}

/// Cost of so many due rows of a paused operation for another operation.
fn beside_a_paused_operation(paused: usize) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for round in 0..3 {
        for rows in [0, paused] {
            let path = dir.path().join(format!("{round}-{rows}.db"));
            fill(&path, 0, 20_000);
            let mut conn = Connection::open(&path).unwrap();
            insert_many(&mut conn, "bench.paused", "paused", rows);
            drop(conn);
            let relay = noop_relay_with_paused(&path);
            let began = Instant::now();
            assert_eq!(relay.drain().unwrap().succeeded, 20_000);
            let rate = rate(20_000, began.elapsed());
            if rows == 0 { alone.push(rate) } else { beside.push(rate) }
        }
    }
    report("beside 100k due rows of a paused operation", &alone, &beside);
}

fn noop_relay_with_paused(path: &Path) -> Relay {
    let outbox = Outbox::open(path).unwrap();
    let downstream = Downstream::DeduplicatesByKey { window: Duration::from_secs(86_400) };
    let handler = |_: &Delivery| Outcome::Succeeded(Receipt::new().downstream_id("eff_1"));
    let relay = Relay::builder(&outbox)
        .operation("bench.charge", Operation::new(downstream, handler))
        .operation("bench.paused", Operation::new(downstream, handler))
        .workers(4)
        .build()
        .unwrap();
    outbox.pause("bench.paused", None, "bench").unwrap();
    relay
}

fn noop_relay(path: &Path) -> Relay {
    let outbox = Outbox::open(path).unwrap();
    let downstream = Downstream::DeduplicatesByKey { window: Duration::from_secs(86_400) };
    let handler = |_: &Delivery| Outcome::Succeeded(Receipt::new().downstream_id("eff_1"));
    Relay::builder(&outbox)
        .operation("bench.charge", Operation::new(downstream, handler))
        .workers(4)
        .build()
        .unwrap()
}

/// SQL of a relay and nothing else. Reads the columns a handler would get.
fn bare_loop(path: &Path) -> usize {
    let mut conn = Connection::open(path).unwrap();
    conn.set_prepared_statement_cache_capacity(64);
    conn.execute_batch("PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 2000").unwrap();
    let now = 1_900_000_000_000_i64;
    let mut held: Vec<i64> = Vec::new();
    let mut done = 0;
    loop {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let token: i64 = tx
            .prepare_cached(
                "UPDATE outbox_meta SET token = token + 1 WHERE id = 1 AND schema_version = ?1
                 RETURNING token",
            )
            .unwrap()
            .query_row([Outbox::SCHEMA_VERSION], |row| row.get(0))
            .unwrap();
        for id in held.drain(..) {
            bare_record(&tx, id, token - 1, now);
            done += 1;
        }
        held.extend(bare_claim(&tx, token, now));
        tx.commit().unwrap();
        if held.is_empty() {
            return done;
        }
    }
}

fn bare_claim(conn: &Connection, token: i64, now: i64) -> Vec<i64> {
    let mut select = conn
        .prepare_cached(
            "SELECT l.id, l.attempts, l.tries, l.lost, l.in_doubt_since, l.first_sent_at,
                    l.claimed_at, l.token, o.tenant_id, o.entity_id, o.intent_version,
                    o.idempotency_key, o.args_hash,
                    o.endpoint, o.method, o.content_type, o.payload, o.headers, o.ordering_key,
                    o.created_at, o.expires_at
             FROM outbox_lease l INDEXED BY outbox_lease_due LEFT JOIN outbox o ON o.id = l.id
             WHERE l.operation = 'bench.charge' AND l.state = 'pending' AND l.due_at <= ?1
             ORDER BY l.due_at, l.id LIMIT 100",
        )
        .unwrap();
    let rows: Vec<(i64, String, String, String)> = select
        .query_map([now], |row| Ok((row.get(0)?, row.get(9)?, row.get(11)?, row.get(16)?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let mut take = conn
        .prepare_cached(
            "UPDATE outbox_lease SET state = 'in_flight', due_at = ?2, attempts = attempts + 1,
                 tries = tries + 1, token = ?3, owner = 'bare', claimed_at = ?4
             WHERE id = ?1 AND state = 'pending'",
        )
        .unwrap();
    for (id, ..) in &rows {
        take.execute((id, now + 90_000, token, now)).unwrap();
    }
    rows.into_iter().map(|(id, ..)| id).collect()
}

fn bare_record(conn: &Connection, id: i64, token: i64, now: i64) {
    let changed = conn
        .prepare_cached(
            "DELETE FROM outbox_lease WHERE id = ?1 AND state = 'in_flight' AND token IS ?2",
        )
        .unwrap()
        .execute((id, token))
        .unwrap();
    assert_eq!(changed, 1);
    conn.prepare_cached(
        "INSERT INTO outbox_receipt (id, status, finished_at, attempts, downstream_id, receipt)
         VALUES (?1, 'succeeded', ?2, 1, 'eff_1', '{}')",
    )
    .unwrap()
    .execute((id, now))
    .unwrap();
    conn.prepare_cached(
        "INSERT INTO outbox_event (outbox_id, seq, at, kind, from_status, status, attempt,
             claimed_at,
             token, actor, downstream_id)
         VALUES (?1, (SELECT coalesce(max(seq), 0) + 1 FROM outbox_event WHERE outbox_id = ?1), ?2,
             'attempt', 'in_flight', 'succeeded', 1, ?2, ?3, 'bare', 'eff_1')",
    )
    .unwrap()
    .execute((id, now, token))
    .unwrap();
}

/// The peak of resident memory of a process that does nothing but drain.
fn memory(pending: usize) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("app.db");
    fill(&path, 0, pending);
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["drain-and-tell-memory", path.to_str().unwrap()])
        .output()
        .unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
}

fn drain_and_tell_memory(path: &Path) {
    let report = noop_relay(path).drain().unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM: unknown");
    println!("{:<44} {peak}", format!("memory while draining {} rows", report.succeeded));
}
