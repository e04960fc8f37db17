//! Writes that are undone together, inside a transaction of the caller.

use rusqlite::Connection;

use crate::error::{Error, Result};

/// Runs `f` inside a savepoint of the caller's transaction, and leaves no savepoint behind. A
/// savepoint of the caller may have the same name: SQLite means the innermost.
pub(crate) fn all_or_nothing<T, E: From<Error>>(
    conn: &Connection,
    f: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    conn.execute_batch("SAVEPOINT outbox_all_or_nothing").map_err(Error::from)?;
    let undo = Undo(conn);
    let value = f()?;
    std::mem::forget(undo);
    conn.execute_batch("RELEASE outbox_all_or_nothing").map_err(Error::from)?;
    Ok(value)
}

/// Rolls back everything since the savepoint, also while unwinding.
struct Undo<'a>(&'a Connection);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        let undo = "ROLLBACK TO outbox_all_or_nothing; RELEASE outbox_all_or_nothing";
        // Where SQLite has rolled back the whole transaction there is nothing to undo.
        if !self.0.is_autocommit()
            && let Err(error) = self.0.execute_batch(undo)
        {
            log::error!("a savepoint cannot be undone: {error}");
        }
    }
}
