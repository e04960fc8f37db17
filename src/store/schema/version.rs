//! The schema's version: of this build, and of a file.

use rusqlite::{Connection, OptionalExtension};

use crate::error::{Error, ErrorKind, Result};

/// The schema this build reads and writes.
pub(crate) const VERSION: i64 = 5;

pub(super) const SCHEMA: &str = include_str!("../../../schema.sql");

/// The meaning of a file's version number to this build.
pub(super) enum Found {
    Current,
    /// A version that can be migrated, also where a migration has begun and not ended.
    Older(i64),
}

/// Reads the version in the file. A negative one says that a migration from it has begun.
pub(super) fn found(conn: &Connection) -> Result<Found> {
    let version: Option<i64> = conn
        .query_row("SELECT schema_version FROM main.outbox_meta WHERE id = 1", [], |row| row.get(0))
        .optional()
        .map_err(|error| {
            let text = "outbox_meta is not sqlite-outbox's; rename that table or use another file";
            Error::new(ErrorKind::Schema, text).with_source(error)
        })?;
    let text = match version {
        Some(VERSION) => return Ok(Found::Current),
        Some(older) if (1..VERSION).contains(&older.saturating_abs()) => {
            return Ok(Found::Older(older.saturating_abs()));
        }
        Some(0) => "its outbox schema is version 0, which no build has written; restore \
                    outbox_meta from a backup"
            .to_owned(),
        Some(newer) if newer < 0 => "a newer build has begun to migrate its outbox; use a newer \
                                     build"
            .to_owned(),
        Some(newer) => format!(
            "its outbox schema is version {newer}, this build knows up to {VERSION}; use a newer \
             build"
        ),
        None => "outbox_meta has no row; the file needs to be restored".to_owned(),
    };
    Err(Error::new(ErrorKind::Schema, text))
}

pub(super) fn older(version: i64) -> Error {
    let text = format!(
        "its outbox schema is version {version} of an earlier build, this one needs {VERSION}; \
         `outbox init`, or a relay of this build, migrates it"
    );
    Error::new(ErrorKind::Schema, text)
}
