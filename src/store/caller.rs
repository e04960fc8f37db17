//! Checks of a caller's connection, so that its writes and the outbox's are atomic together.

use rusqlite::Connection;

use crate::error::{Error, ErrorKind, Result};
use crate::store::connection::is_same_file;
use crate::store::statement::query_row;

/// Refuses a connection whose writes to the outbox would not be atomic with the caller's own.
pub(crate) fn check_transaction(conn: &Connection, ours: &str) -> Result<()> {
    let theirs = conn.path().unwrap_or("");
    if !is_same_file(ours, theirs) {
        let theirs = if theirs.is_empty() { "an in-memory database" } else { theirs };
        let text = format!(
            "the connection is on {theirs}, but the outbox is in {ours}; open the \
             outbox in the file that holds the business data"
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
