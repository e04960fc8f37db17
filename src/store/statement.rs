//! Statements that a connection keeps prepared.

use rusqlite::{Connection, Params, Row};

use crate::error::Result;

/// Runs a statement. Returns how many rows it has changed.
pub(crate) fn execute(conn: &Connection, sql: &str, values: impl Params) -> Result<usize> {
    Ok(conn.prepare_cached(sql)?.execute(values)?)
}

/// Reads the one row that a statement finds.
pub(crate) fn query_row<T>(
    conn: &Connection,
    sql: &str,
    values: impl Params,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    conn.prepare_cached(sql)?.query_row(values, read)
}
