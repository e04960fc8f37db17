//! Waiting for an intent to be settled, across processes.

use rusqlite::Connection;

use crate::core::entry::Entry;
use crate::error::Result;
use crate::store::query::read;
use crate::store::statement::query_row;

/// A connection that notices commits of others.
pub(crate) struct Watch {
    conn: Connection,
    seen: Option<i64>,
}

impl Watch {
    pub(crate) fn new(conn: Connection) -> Self {
        Self { conn, seen: None }
    }

    /// Whether anything was committed since this was asked last.
    pub fn has_changed(&mut self) -> Result<bool> {
        let sql = "PRAGMA main.data_version";
        let version: i64 = query_row(&self.conn, sql, [], |row| row.get(0))?;
        Ok(self.seen.replace(version) != Some(version))
    }

    pub fn entry(&self, id: i64) -> Result<Option<Entry>> {
        read::entry(&self.conn, id)
    }
}
