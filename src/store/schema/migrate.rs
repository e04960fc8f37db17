//! Moving a file of an earlier build to this build's schema, in one transaction.
//!
//! Relays of the earlier build stop first: the file says a version they do not know, so that they
//! claim no more rows, record those they have in flight, and end.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use rusqlite::{
    Connection, Error as SqlError, OptionalExtension, Transaction, TransactionBehavior,
};

use super::shape::{self, Object, is_same};
use super::version::{Found, SCHEMA, VERSION, found};
use crate::core::key;
use crate::error::{Error, ErrorKind, Result};
use crate::store::columns;

/// How long a migration waits for rows that living relays have in flight.
pub(crate) struct Waiting<'a> {
    pub at_most: Duration,
    /// Says whether the relay that signs its leases with this name is alive.
    pub is_alive: &'a dyn Fn(&str) -> bool,
}

/// The change from a version to the next, and the names of objects that it removes.
struct Migration {
    from: i64,
    /// Changes tables and their rows. Indexes, triggers and views are made anew from schema.sql.
    sql: &'static str,
    removes: &'static [&'static str],
}

const MIGRATIONS: &[Migration] = &[
    Migration { from: 1, sql: include_str!("from_1.sql"), removes: &[] },
    Migration { from: 2, sql: include_str!("from_2.sql"), removes: &[] },
    Migration { from: 3, sql: include_str!("from_3.sql"), removes: &[] },
    Migration { from: 4, sql: include_str!("from_4.sql"), removes: &[] },
];

const POLL: Duration = Duration::from_millis(20);

/// Migrates a file to this build's schema.
pub(super) fn migrate(conn: &Connection, waiting: &Waiting<'_>) -> Result<()> {
    let deadline = Instant::now().checked_add(waiting.at_most);
    turn_sign(conn, 1..=VERSION - 1)?;
    // A renamed table must not change what the application's views and keys say of it. A dropped
    // one must not cascade into the application's rows, nor be kept by them.
    let foreign_keys: i64 = conn.query_row("PRAGMA foreign_keys", [], |row| row.get(0))?;
    conn.execute_batch("PRAGMA legacy_alter_table = ON; PRAGMA foreign_keys = OFF")?;
    let migrated = loop {
        match attempt(conn, waiting) {
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
            Ok(Some(owner)) if deadline.is_some_and(|at| Instant::now() >= at) => {
                break Err(still_held(&owner));
            }
            Ok(Some(_)) => std::thread::sleep(POLL),
        }
    };
    conn.execute_batch(&format!(
        "PRAGMA legacy_alter_table = OFF; PRAGMA foreign_keys = {foreign_keys}"
    ))?;
    if migrated.is_err() {
        turn_sign(conn, 1 - VERSION..=-1)?;
    }
    migrated
}

/// Turns the sign of a version in this range. A negative version says that a migration has begun:
/// no relay of an earlier build claims then. A failed migration turns it back, and they go on.
fn turn_sign(conn: &Connection, versions: RangeInclusive<i64>) -> Result<()> {
    let sql = "UPDATE main.outbox_meta SET schema_version = -schema_version
               WHERE id = 1 AND schema_version BETWEEN ?1 AND ?2";
    Ok(conn.execute(sql, [versions.start(), versions.end()]).map(drop)?)
}

fn still_held(owner: &str) -> Error {
    let text = format!(
        "the file is of an earlier build and cannot be migrated yet: {owner} is alive and has \
         intents in flight; stop that relay, and open the file again"
    );
    Error::new(ErrorKind::Busy, text)
}

/// Migrates under the write lock, or returns the relay that must be waited for.
fn attempt(conn: &Connection, waiting: &Waiting<'_>) -> Result<Option<String>> {
    let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    // Another process may have migrated it while this one waited for the lock.
    let Found::Older(version) = found(&tx)? else { return Ok(None) };
    if let Some(owner) = living_owner(&tx, waiting)? {
        return Ok(Some(owner));
    }
    let migrations: Vec<&Migration> = MIGRATIONS.iter().filter(|m| m.from >= version).collect();
    let removed: Vec<&str> = migrations.iter().flat_map(|m| m.removes).copied().collect();
    let defined = shape::defined(SCHEMA)?;
    // A trigger names its table as the application wrote it, in whatever case.
    let is_ours = |name: &str| {
        let mut ours = removed.iter().copied().chain(defined.iter().map(|o| o.name.as_str()));
        ours.any(|our| our.eq_ignore_ascii_case(name))
    };
    let failed_before: Vec<String> =
        failing_writes(&tx, &defined)?.into_iter().map(|(write, _)| write).collect();
    let applications = dependents(&tx, is_ours)?;
    drop_all(&tx, is_ours)?;
    for Migration { from, sql, .. } in migrations {
        tx.execute_batch(sql).map_err(|error| {
            Error::from(error).context(format_args!("migrating from version {from}"))
        })?;
    }
    create_missing(&tx, &defined)?;
    fill_wire_keys(&tx)?;
    create_missing(&tx, &applications)?;
    let failing = failing_writes(&tx, &defined)?;
    if let Some((write, error)) = failing.into_iter().find(|(w, _)| !failed_before.contains(w)) {
        let doing = format!("a trigger of the application on {write} cannot be kept");
        return Err(Error::from(error).context(doing));
    }
    tx.execute("UPDATE main.outbox_meta SET schema_version = ?1 WHERE id = 1", [VERSION])?;
    shape::check(&tx, SCHEMA)?;
    tx.commit()?;
    log::info!("the outbox schema was migrated from version {version} to {VERSION}");
    Ok(None)
}

/// Keeps the keys as they were sent that differ from the stored ones: SQL has no SHA-256.
fn fill_wire_keys(conn: &Connection) -> Result<()> {
    let mut statement = conn.prepare(
        "SELECT id, tenant_id, operation, idempotency_key FROM main.outbox
         WHERE tenant_id <> '' AND NOT is_derived",
    )?;
    let mut insert = conn.prepare("INSERT INTO main.outbox_wire_key VALUES (?1, ?2)")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let [tenant, operation, stored] = [1, 2, 3].map(|column| columns::lossy(row, column));
        let (tenant, operation, stored) = (tenant?, operation?, stored?);
        insert.execute((row.get::<_, i64>(0)?, key::wire_key(&tenant, &operation, &stored)))?;
    }
    Ok(())
}

/// A relay that is alive and has intents in flight, or has lost its lease on one and not reported:
/// it could not report to tables it does not know.
fn living_owner(conn: &Connection, waiting: &Waiting<'_>) -> Result<Option<String>> {
    let mut statement = conn.prepare(
        "SELECT owner FROM main.outbox_lease WHERE owner IS NOT NULL
         UNION SELECT owner FROM main.outbox_lost",
    )?;
    let owners = statement.query_map([], |row| columns::lossy(row, 0))?;
    for owner in owners {
        let owner = owner?;
        if (waiting.is_alive)(&owner) {
            return Ok(Some(owner));
        }
    }
    Ok(None)
}

/// The application's own indexes and triggers on our tables, which go when a table is rebuilt.
fn dependents(conn: &Connection, is_ours: impl Fn(&str) -> bool) -> Result<Vec<Object>> {
    let mut statement = conn.prepare(
        "SELECT type, name, sql, tbl_name FROM main.sqlite_schema
         WHERE type IN ('index', 'trigger') AND sql IS NOT NULL",
    )?;
    let rows = statement.query_map([], |row| {
        let object = Object { kind: row.get(0)?, name: row.get(1)?, sql: row.get(2)? };
        Ok((object, row.get::<_, String>(3)?))
    })?;
    let mut found = Vec::new();
    for row in rows {
        let (object, table) = row?;
        if is_ours(&table) && !is_ours(&object.name) {
            found.push(object);
        }
    }
    Ok(found)
}

/// Drops our views, triggers and indexes, and the application's triggers on our tables: none of
/// them may act while rows are moved.
fn drop_all(conn: &Connection, is_ours: impl Fn(&str) -> bool) -> Result<()> {
    let applications: Vec<String> =
        dependents(conn, &is_ours)?.into_iter().map(|object| object.name).collect();
    for Object { kind, name, .. } in shape::objects(conn)? {
        let goes =
            is_ours(&name) && kind != "table" || kind == "trigger" && applications.contains(&name);
        if goes {
            let quoted = name.replace('"', "\"\"");
            conn.execute_batch(&format!("DROP {kind} main.\"{quoted}\""))?;
        }
    }
    Ok(())
}

fn create_missing(conn: &Connection, objects: &[Object]) -> Result<()> {
    for Object { kind, name, sql } in objects {
        let stored = "SELECT sql FROM main.sqlite_schema WHERE type = ?1 AND name = ?2";
        let there = conn.query_row(stored, [kind, name], |row| row.get::<_, String>(0));
        match there.optional()? {
            Some(there) if kind == "table" || is_same(&there, sql) => {}
            _ => conn.execute_batch(sql).map_err(|error| {
                Error::from(error).context(format_args!("the {kind} {name} cannot be made again"))
            })?,
        }
    }
    Ok(())
}

/// Compiles every kind of write to our tables, and with it the application's triggers: SQLite
/// accepts a trigger that names a column which is gone, and fails when it fires. Returns those that
/// do not compile: here, where the application's own functions are unknown, that is not yet wrong.
fn failing_writes(conn: &Connection, defined: &[Object]) -> Result<Vec<(String, SqlError)>> {
    let mut failing = Vec::new();
    for Object { name, .. } in defined.iter().filter(|object| object.kind == "table") {
        let mut statement = conn.prepare(
            "SELECT group_concat(format('%w = %w', name, name)) FROM pragma_table_info(?1)",
        )?;
        // An older file may not have the table.
        let columns: Option<String> = statement.query_row([name], |row| row.get(0))?;
        let Some(columns) = columns else { continue };
        for (kind, write) in [
            ("insert", format!("INSERT INTO main.{name} DEFAULT VALUES")),
            ("update", format!("UPDATE main.{name} SET {columns}")),
            ("delete", format!("DELETE FROM main.{name}")),
        ] {
            if let Err(error) = conn.prepare(&write) {
                failing.push((format!("{name} ({kind})"), error));
            }
        }
    }
    Ok(failing)
}

#[cfg(test)]
mod tests;
