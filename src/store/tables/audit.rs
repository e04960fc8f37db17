//! The audit trail: written with every move, read back by intent or as a stream.

use rusqlite::{Connection, OptionalExtension, Row, named_params, params};

use crate::core::{Status, key};
use crate::error::Result;
use crate::event::{Event, EventKind};
use crate::handler::Delivery;
use crate::store::columns;
use crate::store::statement::{execute, query_row};

/// The columns of an event's intent. Headers that were edited into something else must not keep
/// a row from being parked.
pub(crate) const OF_INTENT: &str = "
    SELECT operation, idempotency_key, args_hash, tenant_id,
           CASE WHEN headers <> '{}' AND typeof(headers) = 'text' AND json_valid(headers)
                     AND json_type(headers) = 'object'
                THEN headers END
    FROM main.outbox WHERE id = ?1";

pub(crate) const INSERT_EVENT: &str = "
    INSERT INTO main.outbox_event
        (outbox_id, seq, at, kind, from_status, status, attempt, claimed_at, token, actor,
         error_class, reason, downstream_id, agent_run, tool_version)
    VALUES (?1, (SELECT coalesce(max(seq), 0) + 1 FROM main.outbox_event WHERE outbox_id = ?1),
            ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
    RETURNING position, seq";

/// Writes an event and completes it as it will be read back: with its position, and with its intent
/// as the delivery has it, where a relay holds one.
pub(crate) fn insert_event(
    conn: &Connection,
    mut event: Event,
    delivery: Option<&Delivery>,
) -> Result<Event> {
    let headers = match delivery.filter(|delivery| delivery.intent.headers.is_empty()) {
        Some(delivery) => {
            event.operation.clone_from(&delivery.operation);
            event.wire_key.clone_from(&delivery.other_key);
            event.key_hash = key::sha256(&delivery.intent.idempotency_key);
            event.args_hash.clone_from(&delivery.intent.args_hash);
            None
        }
        None => read_intent(conn, &mut event)?,
    };
    if let Some(headers) = headers {
        (event.agent_run, event.tool_version) = named_headers(conn, &headers)?;
    }
    // By place: every move writes an event, and looking names up takes longer than binding.
    let values = params![
        event.outbox_id,
        event.at,
        event.kind.as_str(),
        event.from_status.as_str(),
        event.status.as_str(),
        event.attempt,
        event.claimed_at,
        event.token,
        event.actor,
        event.error_class,
        event.reason,
        event.downstream_id,
        event.agent_run,
        event.tool_version,
    ];
    (event.position, event.seq) =
        query_row(conn, INSERT_EVENT, values, |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(event)
}

/// Reads an event's intent into the event. Returns the intent's headers, if it has any.
fn read_intent(conn: &Connection, event: &mut Event) -> Result<Option<String>> {
    let headers = query_row(conn, OF_INTENT, [event.outbox_id], |row| {
        event.operation = columns::lossy(row, 0)?;
        let stored = columns::lossy(row, 1)?;
        event.wire_key = key::other_wire_key(&columns::lossy(row, 3)?, &event.operation, &stored);
        event.key_hash = key::sha256(&stored);
        event.args_hash = columns::lossy_option(row, 2)?;
        columns::lossy_option(row, 4)
    });
    let headers = headers.optional()?;
    if headers.is_none() {
        event.key_hash = key::sha256("");
    }
    Ok(headers.flatten())
}

/// The values of the two headers that the audit trail keeps, cut to 255 characters.
fn named_headers(conn: &Connection, headers: &str) -> Result<(Option<String>, Option<String>)> {
    let sql = "WITH header(name, value) AS (
                   SELECT lower(key),
                          substr(iif(type = 'text', value, :headers -> fullkey), 1, 255)
                   FROM json_each(:headers) WHERE type NOT IN ('null', 'object', 'array'))
               SELECT (SELECT value FROM header WHERE name = m.agent_run_header),
                      (SELECT value FROM header WHERE name = m.tool_version_header)
               FROM main.outbox_meta m WHERE m.id = 1";
    Ok(query_row(conn, sql, named_params! { ":headers": headers }, |row| {
        Ok((columns::lossy_option(row, 0)?, columns::lossy_option(row, 1)?))
    })?)
}

/// Stores which two headers the audit trail keeps.
pub(crate) fn name_headers(conn: &Connection, agent_run: &str, tool_version: &str) -> Result<()> {
    let sql = "UPDATE main.outbox_meta
               SET agent_run_header = lower(?1), tool_version_header = lower(?2)
               WHERE id = 1 AND (agent_run_header, tool_version_header) <> (lower(?1), lower(?2))";
    execute(conn, sql, [agent_run, tool_version]).map(drop)
}

macro_rules! events {
    ($condition:literal) => {
        concat!(
            "SELECT e.position, e.outbox_id, e.seq, o.operation, e.at, e.kind, e.from_status,
                    e.status, e.attempt, e.claimed_at, e.token, e.actor, e.error_class, e.reason,
                    e.downstream_id, e.agent_run, e.tool_version, o.idempotency_key, o.args_hash,
                    o.tenant_id
             FROM main.outbox_event e LEFT JOIN main.outbox o ON o.id = e.outbox_id ",
            $condition
        )
    };
}

pub(crate) const OF_ONE: &str = events!("WHERE e.outbox_id = ?1 ORDER BY e.seq");

pub(crate) const STREAM: &str =
    events!("WHERE e.position > ?1 AND e.at >= ?2 ORDER BY e.position LIMIT ?3");

/// The audit trail of one intent, oldest first.
pub(crate) fn audit(conn: &Connection, id: i64) -> Result<Vec<Event>> {
    let mut statement = conn.prepare_cached(OF_ONE)?;
    let rows = statement.query_map([id], read_event)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Events of all intents behind a position and not before a time, in the order of commits.
pub(crate) fn stream(
    conn: &Connection,
    after: i64,
    since: i64,
    limit: usize,
) -> Result<Vec<Event>> {
    let mut statement = conn.prepare_cached(STREAM)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = statement.query_map((after, since, limit), read_event)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// A word that was edited by hand is read as what a person must look at.
fn read_event(row: &Row<'_>) -> rusqlite::Result<Event> {
    let status = |word: String| word.parse().unwrap_or(Status::NeedsReview);
    let (operation, stored) = (columns::lossy(row, 3)?, columns::lossy(row, 17)?);
    Ok(Event {
        position: row.get(0)?,
        outbox_id: row.get(1)?,
        seq: row.get(2)?,
        wire_key: key::other_wire_key(&columns::lossy(row, 19)?, &operation, &stored),
        operation,
        at: row.get(4)?,
        kind: columns::lossy(row, 5)?.parse().unwrap_or(EventKind::Unreadable),
        from_status: status(columns::lossy(row, 6)?),
        status: status(columns::lossy(row, 7)?),
        attempt: columns::counter(row, 8)?,
        claimed_at: row.get(9)?,
        token: row.get(10)?,
        actor: columns::lossy_option(row, 11)?,
        error_class: columns::lossy_option(row, 12)?,
        reason: columns::lossy_option(row, 13)?,
        downstream_id: columns::lossy_option(row, 14)?,
        agent_run: columns::lossy_option(row, 15)?,
        tool_version: columns::lossy_option(row, 16)?,
        key_hash: key::sha256(&stored),
        args_hash: columns::lossy_option(row, 18)?,
    })
}
