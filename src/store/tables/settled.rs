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
