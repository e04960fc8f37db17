//! Receipts of settled rows, and how many were settled.

use rusqlite::{Connection, params};

use crate::core::{Decision, Receipt};
use crate::error::{Error, Result};
use crate::store::statement::{execute, query_row};

/// Writes the receipt of a row whose place in `outbox_lease` the caller has removed.
pub(crate) fn write(
    conn: &Connection,
    id: i64,
    decision: &Decision,
    receipt: Option<&Receipt>,
    now: i64,
) -> Result<()> {
    let sql =
        "INSERT INTO main.outbox_receipt (id, status, finished_at, attempts, downstream_id, receipt)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let values = params![
        id,
        decision.status.as_str(),
        now,
        decision.facts.attempts,
        receipt.and_then(|r| r.downstream_id.as_deref()),
        receipt.map(Receipt::to_json),
    ];
    if execute(conn, sql, values)? == 1 { Ok(()) } else { Err(Error::kept_by_trigger()) }
}

/// Adds to the number of intents that were ever settled.
pub(crate) fn count(conn: &Connection, operation: &str, status: &str, number: i64) -> Result<()> {
    let sql = "INSERT INTO main.outbox_settled (operation, status, total) VALUES (?1, ?2, ?3)
               ON CONFLICT (operation, status) DO UPDATE SET total = total + excluded.total";
    execute(conn, sql, (operation, status, number)).map(drop)
}

/// The word under which effects that happened twice are counted.
pub(crate) const DUPLICATE_EFFECT: &str = "duplicate_effect";

/// Whether the trail of an intent has this id already. A second id is counted when it first comes.
pub(crate) fn has_heard_of(conn: &Connection, id: i64, downstream_id: &str) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM main.outbox_event
                              WHERE outbox_id = ?1 AND downstream_id = ?2)";
    Ok(query_row(conn, sql, (id, downstream_id), |row| row.get(0))?)
}

/// Walks over the receipts: an index would cost every success as much as its receipt. Operations
/// that bind their ids are found by that.
const RECEIVED: &str = "
    SELECT r.id FROM main.outbox_receipt r
        CROSS JOIN main.outbox o ON o.id = r.id
        LEFT JOIN main.outbox_operation c ON c.operation = o.operation
    WHERE r.downstream_id = ?2 AND (?1 IS NULL OR coalesce(c.provider, o.operation) = ?1)
    LIMIT 2";

/// The intents that have an id in their receipt, two at most: more than one is too many.
pub(crate) fn ids_of(
    conn: &Connection,
    provider: Option<&str>,
    downstream_id: &str,
) -> Result<Vec<i64>> {
    let mut statement = conn.prepare_cached(RECEIVED)?;
    let rows = statement.query_map((provider, downstream_id), |row| row.get(0))?;
    Ok(rows.collect::<std::result::Result<_, _>>()?)
}
