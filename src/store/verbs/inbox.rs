//! The inbox: which messages were handled, and the first result of each.

use rusqlite::{Connection, OptionalExtension};

use crate::error::{Error, ErrorKind, Result};
use crate::store::columns;
use crate::store::savepoint::all_or_nothing;
use crate::store::statement::{execute, query_row};

/// The most rows that one transaction deletes, so that other writers wait briefly.
const CHUNK: u32 = 500;

/// Runs `f` in the caller's transaction if the message is new, and stores its result; otherwise
/// returns the result of the first time.
pub(crate) fn once<E: From<Error>>(
    conn: &Connection,
    source: &str,
    message_id: &str,
    now: i64,
    f: impl FnOnce(&Connection) -> Result<String, E>,
) -> Result<String, E> {
    all_or_nothing(conn, || {
        // The row comes first: its insert takes the write lock, so that of two consumers the later
        // one sees what the earlier one committed.
        if !enter(conn, source, message_id, now)? {
            return Ok(first_result(conn, source, message_id)?);
        }
        let result = f(conn)?;
        finish(conn, source, message_id, &result)?;
        Ok(result)
    })
}

const ENTER: &str = "
    INSERT INTO main.outbox_inbox (source, message_id, result, handled_at)
    VALUES (?1, ?2, NULL, ?3) ON CONFLICT (source, message_id) DO NOTHING";

/// Returns whether the message is new.
fn enter(conn: &Connection, source: &str, message_id: &str, now: i64) -> Result<bool> {
    Ok(execute(conn, ENTER, (source, message_id, now))? == 1)
}

pub(crate) const RESULT: &str = "
    SELECT result FROM main.outbox_inbox WHERE source = ?1 AND message_id = ?2";

fn first_result(conn: &Connection, source: &str, message_id: &str) -> Result<String> {
    seen(conn, source, message_id)?.ok_or_else(|| {
        let text = format!(
            "message {message_id:?} of {source:?} has no result yet: it is being handled in this \
             very transaction, or its handler committed halfway; then delete its row to have it \
             handled again"
        );
        Error::new(ErrorKind::Refused, text)
    })
}

/// The first result of a message; `None` where it was not handled to the end.
pub(crate) fn seen(conn: &Connection, source: &str, message_id: &str) -> Result<Option<String>> {
    let found = query_row(conn, RESULT, [source, message_id], |row| columns::lossy_option(row, 0))
        .optional()?;
    Ok(found.flatten())
}

pub(crate) const FINISH: &str = "
    UPDATE main.outbox_inbox SET result = ?3
    WHERE source = ?1 AND message_id = ?2 AND result IS NULL";

fn finish(conn: &Connection, source: &str, message_id: &str, result: &str) -> Result<()> {
    let is_stored = conn.prepare_cached(FINISH)?.execute((source, message_id, result))? == 1;
    // Where `f` committed, the message is handled, and has its result, all the same.
    if is_stored && !conn.is_autocommit() {
        return Ok(());
    }
    let text = format!(
        "the transaction in which message {message_id:?} of {source:?} was handled has ended \
         before its result was stored; leave COMMIT and ROLLBACK to the caller"
    );
    Err(Error::new(ErrorKind::NoTransaction, text))
}

pub(crate) const PRUNE: &str = "
    DELETE FROM main.outbox_inbox
    WHERE (source, message_id) IN (
        SELECT source, message_id FROM main.outbox_inbox INDEXED BY outbox_inbox_age
        WHERE handled_at < ?1 ORDER BY handled_at LIMIT ?2)";

/// Deletes messages handled before this time, chunk by chunk, each in a transaction of its own.
pub(crate) fn prune(conn: &Connection, before: i64) -> Result<u64> {
    let mut total = 0;
    loop {
        let deleted = execute(conn, PRUNE, (before, CHUNK))?;
        total += deleted as u64;
        if deleted < CHUNK as usize {
            return Ok(total);
        }
    }
}
