//! Checks of a caller's connection, so that its writes and the outbox's are atomic together.

use std::path::Path;

use rusqlite::Connection;

use crate::error::{Error, ErrorKind, Result};
use crate::store::connection::{file_of, is_same_file};
use crate::store::statement::query_row;

/// Refuses a connection whose writes to the outbox would not be atomic with the caller's own.
pub(crate) fn check_transaction(conn: &Connection, ours: &Path) -> Result<()> {
    let theirs = file_of(conn);
    if !theirs.as_deref().is_some_and(|theirs| is_same_file(ours, theirs)) {
        let theirs = theirs.unwrap_or_else(|| "an in-memory database".into());
        let text = format!(
            "the connection is on {}, but the outbox is in {}; open the outbox in the file that \
             holds the business data",
            theirs.display(),
            ours.display()
        );
        return Err(Error::new(ErrorKind::WrongFile, text));
    }
    if conn.is_autocommit() {
        let text = "the connection is not in a transaction, so nothing would be atomic with your \
                    writes; BEGIN IMMEDIATE first (if you did, SQLite has rolled it back after an \
                    earlier error)";
        return Err(Error::new(ErrorKind::NoTransaction, text));
    }
    Ok(())
}

/// Reads how durable the caller's commit will be; refuses `OFF`. Returns whether it is below
/// `FULL`, where a power cut may undo the commit.
pub(crate) fn check_durability(conn: &Connection) -> Result<bool> {
    let sql = "PRAGMA main.synchronous";
    match query_row(conn, sql, [], |row| row.get::<_, i64>(0))? {
        0 => {
            let text = "the connection runs synchronous=OFF, under which a crash can lose the \
                        commit or corrupt the file; set PRAGMA synchronous=FULL";
            Err(Error::new(ErrorKind::NotDurable, text))
        }
        level => Ok(level < 2),
    }
}
