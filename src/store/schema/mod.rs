//! Creating, checking and migrating the tables.

mod migrate;
mod shape;
mod version;

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::error::{Error, ErrorKind, Result};

pub(crate) use migrate::Waiting;
pub(crate) use version::VERSION;
use version::{Found, SCHEMA, found};

/// The facts in `outbox_meta`.
pub(crate) struct Meta {
    pub database_id: String,
    pub payload_max: usize,
}

/// The changes that opening a file may make.
pub(crate) struct Opening<'a> {
    /// The tables may be created.
    pub create: bool,
    /// An older file may be migrated, which waits as this says; `None` refuses it.
    pub migrate: Option<Waiting<'a>>,
}

/// Creates the tables where there are none and that is allowed, migrates older ones where that is
/// allowed, refuses what is not ours or newer, and checks that nothing is missing.
pub(crate) fn ensure(conn: &Connection, path: &Path, opening: &Opening<'_>) -> Result<Meta> {
    let ensured = || {
        if !has_meta(conn)? {
            if !opening.create {
                return Err(Error::new(ErrorKind::Schema, "has no outbox"));
            }
            create(conn)?;
        }
        check_encoding(conn)?;
        if let Found::Older(version) = found(conn)? {
            match &opening.migrate {
                Some(waiting) => migrate::migrate(conn, waiting)?,
                None => return Err(version::older(version)),
            }
        }
        shape::check(conn, SCHEMA)?;
        meta(conn)
    };
    ensured().map_err(|error: Error| error.context(path.display()))
}

fn meta(conn: &Connection) -> Result<Meta> {
    let sql = "SELECT database_id, payload_max FROM main.outbox_meta WHERE id = 1";
    Ok(conn.query_row(sql, [], |row| {
        let payload_max: i64 = row.get(1)?;
        let payload_max = usize::try_from(payload_max).unwrap_or(0);
        Ok(Meta { database_id: row.get(0)?, payload_max })
    })?)
}

fn create(conn: &Connection) -> Result<()> {
    let tx = rusqlite::Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    // Another process may have created them while this one waited for the lock.
    if !has_meta(&tx)? {
        refuse_foreign(&tx)?;
        tx.execute_batch(SCHEMA)?;
    }
    Ok(tx.commit()?)
}

fn has_meta(conn: &Connection) -> Result<bool> {
    let exists = "SELECT EXISTS (SELECT 1 FROM main.sqlite_schema
                                 WHERE type = 'table' AND name = 'outbox_meta')";
    Ok(conn.query_row(exists, [], |row| row.get(0))?)
}

/// Refuses a file in which the application uses one of our names for something else.
fn refuse_foreign(conn: &Connection) -> Result<()> {
    for object in shape::defined(SCHEMA)? {
        let sql = "SELECT type FROM main.sqlite_schema WHERE name = ?1 COLLATE NOCASE";
        let taken = conn.query_row(sql, [&object.name], |row| row.get::<_, String>(0));
        if let Some(kind) = taken.optional()? {
            let text = format!(
                "the file has its own {kind} {}, which is not sqlite-outbox's; rename it or use \
                 another file",
                object.name
            );
            return Err(Error::new(ErrorKind::Schema, text));
        }
    }
    Ok(())
}

/// The guards count bytes, which are those of UTF-8.
fn check_encoding(conn: &Connection) -> Result<()> {
    let encoding: String = conn.query_row("PRAGMA main.encoding", [], |row| row.get(0))?;
    if encoding == "UTF-8" {
        return Ok(());
    }
    let text = format!("the file's text is {encoding}, but an outbox needs UTF-8");
    Err(Error::new(ErrorKind::Schema, text))
}
