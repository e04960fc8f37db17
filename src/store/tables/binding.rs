//! Bindings of a provider's ids to intents. The primary key decides where two intents claim one.

use rusqlite::{Connection, OptionalExtension};

use crate::error::{Error, Result};
use crate::store::columns;
use crate::store::statement::{execute, query_row};

/// Gives an id to an intent forever. Returns the other intent that has it already.
pub(crate) fn bind(
    conn: &Connection,
    provider: &str,
    downstream_id: &str,
    id: i64,
) -> Result<Option<i64>> {
    let sql = "INSERT INTO main.outbox_binding (provider, downstream_id, id) VALUES (?1, ?2, ?3)
               ON CONFLICT (provider, downstream_id) DO NOTHING";
    if execute(conn, sql, (provider, downstream_id, id))? > 0 {
        return Ok(None);
    }
    let sql = "SELECT id FROM main.outbox_binding WHERE provider = ?1 AND downstream_id = ?2";
    let owner: i64 = query_row(conn, sql, [provider, downstream_id], |row| row.get(0))?;
    Ok((owner != id).then_some(owner))
}

/// An id of this intent other than `downstream_id`, where there is one.
pub(crate) fn other_id(conn: &Connection, id: i64, downstream_id: &str) -> Result<Option<String>> {
    let sql = "SELECT downstream_id FROM main.outbox_binding INDEXED BY outbox_binding_intent
               WHERE id = ?1 AND downstream_id <> ?2 LIMIT 1";
    Ok(query_row(conn, sql, (id, downstream_id), |row| columns::lossy(row, 0)).optional()?)
}

/// The id that was given to an intent, where there is one.
pub(crate) fn id_of(conn: &Connection, id: i64) -> Result<Option<String>> {
    other_id(conn, id, "")
}

/// Finds an id under any provider: a look into the index for each that there is.
pub(crate) const BOUND_TO: &str = "
    WITH RECURSIVE providers (name) AS (
        SELECT min(provider) FROM main.outbox_binding
        UNION ALL
        SELECT (SELECT min(provider) FROM main.outbox_binding WHERE provider > name)
        FROM providers WHERE name IS NOT NULL)
    SELECT b.id FROM providers p CROSS JOIN main.outbox_binding b
        ON b.provider = p.name AND b.downstream_id = ?2
    WHERE ?1 IS NULL OR p.name = ?1";

/// The intents to which an id is bound, one for each provider that is meant.
pub(crate) fn ids_of(
    conn: &Connection,
    provider: Option<&str>,
    downstream_id: &str,
) -> Result<Vec<i64>> {
    let mut statement = conn.prepare_cached(BOUND_TO)?;
    let rows = statement.query_map((provider, downstream_id), |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Moves ids to their provider that were bound before a relay had named it.
pub(crate) fn name_provider(conn: &Connection, operation: &str, provider: &str) -> Result<()> {
    let sql = "UPDATE OR IGNORE main.outbox_binding SET provider = ?2 WHERE provider = ?1";
    execute(conn, sql, [operation, provider]).map(drop)
}

/// The longest id, in bytes.
const ID_MAX: usize = 1024;

pub(crate) fn check(downstream_id: &str) -> Result<()> {
    if downstream_id.is_empty() || downstream_id.len() > ID_MAX || downstream_id.contains('\0') {
        return Err(Error::invalid("downstream_id", "must be text of 1 to 1024 bytes without NUL"));
    }
    Ok(())
}

/// The sentence that an id belongs to another intent; it names both.
pub(crate) fn taken(id: i64, downstream_id: &str, other: i64) -> String {
    format!(
        "intent {id} was answered with the id {downstream_id:?}, which belongs to intent {other}: \
         one of the two was not carried out, or the id does not name what was created"
    )
}
