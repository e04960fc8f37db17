//! Settling a row: its receipt is written, it leaves the line of its key, and it is counted.

use rusqlite::{Connection, named_params};

use crate::core::outcome::Receipt;
use crate::core::status::Status;
use crate::error::Result;
use crate::event::{Event, EventKind};
use crate::store::tables::audit::{NewEvent, insert_event};
use crate::store::tables::{lost_lease, ordering};

/// How a row is settled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settlement<'a> {
    pub id: i64,
    pub status: Status,
    pub attempts: u32,
    pub receipt: Option<&'a Receipt>,
    pub is_keyed: bool,
    /// Some attempt was in doubt, so that `outbox_lost` may have rows of it.
    pub was_in_doubt: bool,
    pub now: i64,
}

/// Writes what remains of a row whose place in `outbox_lease` was taken away by the caller.
pub(crate) fn write(conn: &Connection, settlement: &Settlement<'_>) -> Result<()> {
    let Settlement { id, receipt, .. } = *settlement;
    let mut statement = conn.prepare_cached(
        "INSERT INTO main.outbox_receipt (id, status, finished_at, attempts, downstream_id, receipt)
         VALUES (:id, :status, :finished_at, :attempts, :downstream_id, :receipt)",
    )?;
    statement.execute(named_params! {
        ":id": id,
        ":status": settlement.status.as_str(),
        ":finished_at": settlement.now,
        ":attempts": settlement.attempts,
        ":downstream_id": receipt.and_then(|r| r.downstream_id.as_deref()),
        ":receipt": receipt.map(Receipt::to_json),
    })?;
    if settlement.is_keyed {
        ordering::leave(conn, id)?;
    }
    if settlement.was_in_doubt {
        lost_lease::forget(conn, id)?;
    }
    Ok(())
}

/// Adds to the number of intents that were ever settled.
pub(crate) fn count(conn: &Connection, operation: &str, status: &str, number: i64) -> Result<()> {
    let mut statement = conn.prepare_cached(
        "INSERT INTO main.outbox_settled (operation, status, total) VALUES (?1, ?2, ?3)
         ON CONFLICT (operation, status) DO UPDATE SET total = total + excluded.total",
    )?;
    statement.execute((operation, status, number))?;
    Ok(())
}

/// The word under which effects that happened twice are counted.
pub(crate) const DUPLICATE_EFFECT: &str = "duplicate_effect";

/// Whether the trail of an intent has this id already. A second id is counted when it first comes.
pub(crate) fn has_heard_of(conn: &Connection, id: i64, downstream_id: &str) -> Result<bool> {
    let mut statement = conn.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM main.outbox_event
                        WHERE outbox_id = ?1 AND downstream_id = ?2)",
    )?;
    Ok(statement.query_row((id, downstream_id), |row| row.get(0))?)
}

/// Puts on record that one intent has two ids at its provider, which means two effects.
pub(crate) fn duplicate_effect(
    conn: &Connection,
    operation: &str,
    event: &NewEvent<'_>,
    (first, second): (&str, &str),
) -> Result<Event> {
    let reason = format!(
        "carried out twice: the provider knows it as {first:?} and as {second:?}; undo one of them \
         there"
    );
    count(conn, operation, DUPLICATE_EFFECT, 1)?;
    insert_event(
        conn,
        &NewEvent {
            kind: EventKind::DuplicateEffect,
            reason: Some(&reason),
            error_class: Some(DUPLICATE_EFFECT),
            downstream_id: Some(second),
            ..*event
        },
    )
}
