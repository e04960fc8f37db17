//! The last failing answer of an intent.

use rusqlite::{Connection, OptionalExtension, Row};

use crate::core::{FailingAnswer, Failure};
use crate::error::Result;
use crate::store::columns::lossy;
use crate::store::statement::{execute, query_row};

/// Keeps the answer that a failure came with, if any, in place of the one before. A settled intent,
/// which may have been stripped, gets none.
pub(crate) fn keep(conn: &Connection, id: i64, failure: Option<&Failure>, now: i64) -> Result<()> {
    let Some(answer) = failure.and_then(|failure| failure.answer.as_deref()) else {
        return Ok(());
    };
    let sql = "INSERT INTO main.outbox_answer
                   (id, at, status, headers, body, body_bytes, body_sha256)
               SELECT id, ?2, ?3, ?4, ?5, ?6, ?7 FROM main.outbox_lease WHERE id = ?1
               ON CONFLICT (id) DO UPDATE
               SET at = excluded.at, status = excluded.status, headers = excluded.headers,
                   body = excluded.body, body_bytes = excluded.body_bytes,
                   body_sha256 = excluded.body_sha256";
    let headers = serde_json::json!(answer.headers).to_string();
    let bytes = i64::try_from(answer.body_bytes).unwrap_or(i64::MAX);
    let body = (&answer.body, bytes, &answer.body_sha256);
    execute(conn, sql, (id, now, answer.status, headers, body.0, body.1, body.2)).map(drop)
}

/// The last failing answer of an intent.
pub(crate) fn of(conn: &Connection, id: i64) -> Result<Option<FailingAnswer>> {
    let sql = "SELECT at, status, headers, body, body_bytes, body_sha256
               FROM main.outbox_answer WHERE id = ?1";
    let read = |row: &Row<'_>| {
        Ok(FailingAnswer {
            at: row.get(0)?,
            status: row.get::<_, i64>(1)?.try_into().unwrap_or_default(),
            headers: serde_json::from_str(&lossy(row, 2)?).unwrap_or_default(),
            body: lossy(row, 3)?,
            body_bytes: row.get::<_, i64>(4)?.try_into().unwrap_or_default(),
            body_sha256: lossy(row, 5)?,
        })
    };
    Ok(query_row(conn, sql, [id], read).optional()?)
}
