//! Creating, checking and migrating the tables.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::error::{Error, ErrorKind, Result};

/// The schema this build reads and writes.
pub(crate) const VERSION: i64 = 1;

const SCHEMA: &str = include_str!("../../schema.sql");

/// What `outbox_meta` says.
pub(crate) struct Meta {
    pub database_id: String,
    pub payload_max: usize,
}

/// Creates the tables where there are none and that is allowed, refuses what is not ours or
/// newer, and checks that nothing is missing.
pub(crate) fn ensure(conn: &Connection, path: &Path, may_create: bool) -> Result<Meta> {
    let shown = path.display();
    if !has_meta(conn).map_err(|e| e.context(&shown))? {
        if !may_create {
            return Err(Error::new(ErrorKind::Schema, format!("{shown}: has no outbox")));
        }
        create(conn).map_err(|e| e.context(&shown))?;
    }
    let found = version(conn).map_err(|e| e.context(&shown))?;
    match found {
        Some(VERSION) => {}
        Some(newer) => {
            let text = format!(
                "{shown}: its outbox schema is version {newer}, this build knows up to {VERSION}; \
                 use a newer build"
            );
            return Err(Error::new(ErrorKind::Schema, text));
        }
        None => {
            let text = format!("{shown}: outbox_meta has no row; the file needs to be restored");
            return Err(Error::new(ErrorKind::Schema, text));
        }
    }
    check_encoding(conn).map_err(|e| e.context(&shown))?;
    check_shape(conn).map_err(|e| e.context(&shown))?;
    conn.query_row(
        "SELECT database_id, payload_max FROM main.outbox_meta WHERE id = 1",
        [],
        |row| {
            let payload_max: i64 = row.get(1)?;
            Ok(Meta {
                database_id: row.get(0)?,
                payload_max: usize::try_from(payload_max).unwrap_or(0),
            })
        },
    )
    .map_err(Error::from)
}

fn create(conn: &Connection) -> Result<()> {
    let tx = rusqlite::Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    // Another process may have created them while this one waited for the lock.
    if !has_meta(&tx)? {
        refuse_foreign(&tx)?;
        tx.execute_batch(SCHEMA)?;
    }
    tx.commit()?;
    Ok(())
}

fn has_meta(conn: &Connection) -> Result<bool> {
    let exists = "SELECT EXISTS (SELECT 1 FROM main.sqlite_schema
                                 WHERE type = 'table' AND name = 'outbox_meta')";
    Ok(conn.query_row(exists, [], |row| row.get(0))?)
}

/// The version in the file, or `None` where the row that says it is gone.
fn version(conn: &Connection) -> Result<Option<i64>> {
    conn.query_row("SELECT schema_version FROM main.outbox_meta WHERE id = 1", [], |row| row.get(0))
        .optional()
        .map_err(|error| {
            let text = "outbox_meta is not sqlite-outbox's; rename that table or use another file";
            Error::new(ErrorKind::Schema, text).with_source(error)
        })
}

/// Refuses a file in which the application uses one of our names for something else.
fn refuse_foreign(conn: &Connection) -> Result<()> {
    for object in expected()? {
        let taken: Option<String> = conn
            .query_row(
                "SELECT type FROM main.sqlite_schema WHERE name = ?1 COLLATE NOCASE",
                [&object.name],
                |row| row.get(0),
            )
            .optional()?;
        if let Some(kind) = taken {
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

struct Object {
    kind: String,
    name: String,
    sql: String,
}

/// What a fresh file would hold.
fn expected() -> Result<Vec<Object>> {
    let fresh = Connection::open_in_memory()?;
    fresh.execute_batch(SCHEMA)?;
    objects(&fresh)
}

fn objects(conn: &Connection) -> Result<Vec<Object>> {
    let mut statement = conn.prepare(
        "SELECT type, name, sql FROM main.sqlite_schema
         WHERE sql IS NOT NULL AND name GLOB 'outbox*' ORDER BY type, name",
    )?;
    let rows = statement.query_map([], |row| {
        Ok(Object { kind: row.get(0)?, name: row.get(1)?, sql: row.get(2)? })
    })?;
    rows.collect::<Result<_, _>>().map_err(Error::from)
}

/// Compares the file with the schema: a version number alone may lie.
fn check_shape(conn: &Connection) -> Result<()> {
    let present = objects(conn)?;
    for object in expected()? {
        let found = present.iter().find(|p| p.name == object.name && p.kind == object.kind);
        let wrong = match found {
            None => "is missing",
            Some(found) if found.sql != object.sql => "is not as schema.sql defines it",
            Some(_) => continue,
        };
        let text = format!(
            "the {} {} {wrong}; restore it from a backup or from schema.sql",
            object.kind, object.name
        );
        return Err(Error::new(ErrorKind::Schema, text));
    }
    Ok(())
}
