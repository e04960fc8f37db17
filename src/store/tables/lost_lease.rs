//! Attempts whose lease was lost, and whether they may still be on the way.

use rusqlite::Connection;

use crate::error::Result;
use crate::store::columns;
use crate::store::statement::execute;

/// Says whether the relay that signs with this name is alive.
pub(crate) type IsAlive<'a> = &'a dyn Fn(&str) -> bool;

/// Notes an attempt whose relay has not reported.
pub(crate) fn note(conn: &Connection, id: i64, token: i64, owner: &str) -> Result<()> {
    let sql = "INSERT INTO main.outbox_lost (id, token, owner) VALUES (?1, ?2, ?3)
               ON CONFLICT (id, token) DO NOTHING";
    execute(conn, sql, (id, token, owner)).map(drop)
}

/// Notes the attempt of this row that is in flight, whose claim is about to be ended.
pub(crate) fn note_in_flight(conn: &Connection, id: i64) -> Result<()> {
    let sql = "INSERT INTO main.outbox_lost (id, token, owner)
               SELECT id, token, owner FROM main.outbox_lease WHERE id = ?1 AND state = 'in_flight'
               ON CONFLICT (id, token) DO NOTHING";
    execute(conn, sql, [id]).map(drop)
}

/// Forgets an attempt whose relay has reported, or has not begun it. Returns whether it was noted.
pub(crate) fn heard_of(conn: &Connection, id: i64, token: i64) -> Result<bool> {
    let sql = "DELETE FROM main.outbox_lost WHERE id = ?1 AND token = ?2";
    Ok(execute(conn, sql, (id, token))? > 0)
}

/// Forgets all attempts of a row, where nothing more depends on them.
pub(crate) fn forget(conn: &Connection, id: i64) -> Result<()> {
    execute(conn, "DELETE FROM main.outbox_lost WHERE id = ?1", [id]).map(drop)
}

/// The relays that have lost their lease on a row and have not reported.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Senders {
    /// No such relay.
    None,
    /// All of them have died, at an unknown time.
    Dead,
    /// This relay is alive, and may still be sending.
    Alive(String),
}

pub(crate) fn senders(conn: &Connection, id: i64, is_alive: IsAlive<'_>) -> Result<Senders> {
    let mut statement =
        conn.prepare_cached("SELECT owner FROM main.outbox_lost WHERE id = ?1 ORDER BY token")?;
    let owners = statement.query_map([id], |row| columns::lossy(row, 0))?;
    let mut senders = Senders::None;
    for owner in owners {
        let owner = owner?;
        if is_alive(&owner) {
            return Ok(Senders::Alive(owner));
        }
        senders = Senders::Dead;
    }
    Ok(senders)
}
