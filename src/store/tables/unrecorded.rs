//! Outcomes that could not be recorded and rows that could not be moved, because an object of the
//! application made the write fail.

use rusqlite::{Connection, OptionalExtension, Row, named_params};

use crate::core::Outcome;
use crate::error::{Error, Result};
use crate::store::columns;
use crate::store::statement::{execute, query_row};

/// An outcome that is kept until it can be recorded, or a row that could not be moved.
#[derive(Debug)]
pub(crate) struct Kept {
    pub id: i64,
    /// The claim it was made for.
    pub token: i64,
    pub operation: String,
    pub outcome: Option<Outcome>,
}

/// The condition that a row may be claimed or taken back. In statements that name
/// `outbox_lease` l.
macro_rules! may_move {
    () => {
        "NOT EXISTS (SELECT 1 FROM main.outbox_unrecorded u
                     WHERE u.id = l.id AND u.retry_at IS NOT NULL)"
    };
}

pub(crate) use may_move;

/// Keeps the outcome of a claim, or notes that a row cannot be moved. The next try is in ten
/// seconds, or after as long again as it has failed already, at most an hour.
pub(crate) fn keep(
    conn: &Connection,
    (id, token): (i64, i64),
    outcome: Option<&Outcome>,
    error: &Error,
    now: i64,
) -> Result<()> {
    let sql = "INSERT INTO main.outbox_unrecorded (id, token, since, outcome, error, retry_at)
               VALUES (:id, :token, :now, :outcome, :error, :now + 10000)
               ON CONFLICT (id, token) DO UPDATE SET error = excluded.error,
                   retry_at = :now + min(max(:now - since, 10000), 3600000)";
    let values = named_params! {
        ":id": id,
        ":token": token,
        ":now": now,
        ":outcome": outcome.map(Outcome::to_json),
        ":error": error.to_string(),
    };
    execute(conn, sql, values).map(drop)
}

/// Outcomes and rows that are to be tried again.
pub(crate) fn due(conn: &Connection, now: i64) -> Result<Vec<Kept>> {
    let sql = "SELECT u.id, u.token, o.operation, u.outcome
               FROM main.outbox_unrecorded u JOIN main.outbox o ON o.id = u.id
               WHERE u.retry_at <= ?1 ORDER BY u.retry_at LIMIT 1000";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([now], |row| {
        Ok(Kept {
            id: row.get(0)?,
            token: row.get(1)?,
            operation: columns::lossy(row, 2)?,
            outcome: columns::lossy_option(row, 3)?.map(|text| Outcome::from_json(&text)),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// When the next try is, after `now`.
pub(crate) fn next_retry(conn: &Connection, now: i64) -> Result<Option<i64>> {
    let sql = "SELECT min(retry_at) FROM main.outbox_unrecorded WHERE retry_at > ?1";
    Ok(query_row(conn, sql, [now], |row| row.get(0))?)
}

/// Lets a row be claimed and taken back again that could not be moved. Where that goes well for as
/// long as the longest wait, it is forgotten.
pub(crate) fn let_move(conn: &Connection, id: i64, now: i64) -> Result<()> {
    let sql = "DELETE FROM main.outbox_unrecorded
               WHERE outcome IS NULL AND retry_at IS NULL AND since < ?1 - 7200000";
    execute(conn, sql, [now])?;
    let sql = "UPDATE main.outbox_unrecorded SET retry_at = NULL WHERE id = ?1 AND outcome IS NULL";
    execute(conn, sql, [id]).map(drop)
}

/// Whether an outcome of this intent is kept, or else that it cannot be moved; the error, and when
/// that is tried again.
pub(crate) fn of(conn: &Connection, id: i64) -> Result<Option<(bool, String, i64)>> {
    let sql = "SELECT outcome IS NOT NULL, error, retry_at FROM main.outbox_unrecorded
               WHERE id = ?1 AND retry_at IS NOT NULL ORDER BY outcome IS NULL LIMIT 1";
    let read = |row: &Row<'_>| Ok((row.get(0)?, columns::lossy(row, 1)?, row.get(2)?));
    Ok(query_row(conn, sql, [id], read).optional()?)
}

/// Lets what is known of an intent be tried again at once.
pub(crate) fn hurry(conn: &Connection, id: i64, now: i64) -> Result<bool> {
    let sql = "UPDATE main.outbox_unrecorded SET retry_at = ?2 WHERE id = ?1 AND retry_at > ?2";
    Ok(execute(conn, sql, (id, now))? > 0)
}

/// Forgets what is being recorded. Returns whether it was there.
pub(crate) fn forget(conn: &Connection, id: i64, token: i64) -> Result<bool> {
    let sql = "DELETE FROM main.outbox_unrecorded WHERE id = ?1 AND token = ?2";
    Ok(execute(conn, sql, (id, token))? > 0)
}
