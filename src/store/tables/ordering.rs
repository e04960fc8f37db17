//! The line of an ordering key: only its first row may act.

use rusqlite::{Connection, OptionalExtension};

use crate::error::Result;
use crate::store::statement::execute;

pub(crate) const HEAD: &str = "
    SELECT id FROM main.outbox_keyed WHERE tenant_id = ?1 AND ordering_key = ?2
    ORDER BY position, id LIMIT 1";

/// Takes a row out of its key's line; the schema lets the next one act. Returns whether it was in.
pub(crate) fn leave(conn: &Connection, id: i64) -> Result<bool> {
    let sql = "DELETE FROM main.outbox_keyed WHERE id = ?1";
    Ok(execute(conn, sql, [id])? > 0)
}

/// The first row of the line that a row stands in.
pub(crate) const FIRST: &str = "
    SELECT k.id FROM main.outbox_keyed own
    CROSS JOIN main.outbox_keyed k
        ON k.tenant_id = own.tenant_id AND k.ordering_key = own.ordering_key
    WHERE own.id = ?1 ORDER BY k.position, k.id LIMIT 1";

/// Lets a row that is no longer in flight give way to an earlier row of its key that was replayed
/// or revised meanwhile.
pub(crate) fn yield_to_earlier(conn: &Connection, id: i64, now: i64) -> Result<()> {
    let first =
        conn.prepare_cached(FIRST)?.query_row([id], |row| row.get::<_, i64>(0)).optional()?;
    let Some(first) = first.filter(|&first| first != id) else { return Ok(()) };
    queue(conn, id)?;
    let_act(conn, first, now)
}

/// Lets the first row of its line come due. A row that was never first has no lease row yet.
pub(crate) fn let_act(conn: &Connection, id: i64, now: i64) -> Result<()> {
    let sql = "INSERT INTO main.outbox_lease (id, operation, state, due_at, own_endpoint)
               SELECT id, operation, 'pending', available_at, endpoint IS NOT NULL
               FROM main.outbox WHERE id = ?1
               ON CONFLICT (id) DO UPDATE
               SET due_at = coalesce(resume_at, ?2), resume_at = NULL, held_by = NULL
               WHERE state = 'pending' AND outbox_lease.due_at IS NULL";
    execute(conn, sql, (id, now)).map(drop)
}

/// Gives a queued row a lease row that is not due, so that its status can be written there.
pub(crate) fn enter(conn: &Connection, id: i64) -> Result<()> {
    let sql = "INSERT INTO main.outbox_lease (id, operation, state, own_endpoint)
               SELECT id, operation, 'pending', endpoint IS NOT NULL
               FROM main.outbox WHERE id = ?1
               ON CONFLICT (id) DO NOTHING";
    execute(conn, sql, [id]).map(drop)
}

/// Lets a row wait for its turn, and keeps when it was due.
pub(crate) fn queue(conn: &Connection, id: i64) -> Result<()> {
    let sql = "UPDATE main.outbox_lease
               SET resume_at = coalesce(due_at, resume_at), due_at = NULL, held_by = NULL
               WHERE id = ?1 AND state = 'pending'
                 AND (due_at IS NOT NULL OR held_by IS NOT NULL)";
    execute(conn, sql, [id]).map(drop)
}

/// Puts a row that later ones had passed back into its key's line. Returns whether it must wait:
/// for an earlier one, or for one that is on the way.
pub(crate) fn take_place(conn: &Connection, id: i64) -> Result<bool> {
    let sql = "INSERT INTO main.outbox_keyed (tenant_id, ordering_key, position, id)
               SELECT tenant_id, ordering_key,
                      coalesce((SELECT position FROM main.outbox_revision WHERE id = ?1), id), id
               FROM main.outbox
               WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM main.outbox_keyed WHERE id = ?1)";
    execute(conn, sql, [id])?;
    let first: i64 = conn.prepare_cached(FIRST)?.query_row([id], |row| row.get(0))?;
    if first != id {
        return Ok(true);
    }
    let acting = conn.prepare_cached(ACTING)?.query_row([id], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?, row.get::<_, bool>(2)?))
    });
    match acting.optional()? {
        Some((second, true, _)) => {
            let sql = "UPDATE main.outbox_keyed SET overtaken = 1 WHERE id = ?1";
            execute(conn, sql, [second])?;
            Ok(true)
        }
        Some((second, false, true)) => queue(conn, second).map(|()| false),
        _ => Ok(conn.prepare_cached(OVERTAKEN)?.query_row([id], |_| Ok(())).optional()?.is_some()),
    }
}

/// The row behind the first one, and whether it is in flight, or pending and not queued: it was the
/// first until another took its place.
pub(crate) const ACTING: &str = "
    SELECT k.id, l.state IS 'in_flight',
           l.state IS 'pending' AND (l.due_at IS NOT NULL OR l.held_by IS NOT NULL)
    FROM main.outbox_keyed own
    CROSS JOIN main.outbox_keyed k
        ON k.tenant_id = own.tenant_id AND k.ordering_key = own.ordering_key
    LEFT JOIN main.outbox_lease l ON l.id = k.id
    WHERE own.id = ?1 ORDER BY k.position, k.id LIMIT 1 OFFSET 1";

/// A row in flight of this row's line that is not the first there.
pub(crate) const OVERTAKEN: &str = "
    SELECT k.id FROM main.outbox_keyed own
    CROSS JOIN main.outbox_keyed k INDEXED BY outbox_keyed_overtaken
        ON k.tenant_id = own.tenant_id AND k.ordering_key = own.ordering_key AND k.overtaken = 1
    CROSS JOIN main.outbox_lease l ON l.id = k.id
    WHERE own.id = ?1 AND k.id <> own.id AND l.state = 'in_flight' LIMIT 1";
