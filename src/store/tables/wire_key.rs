//! Keys as they were sent, where they differ from the stored ones: a provider's record has them.

use rusqlite::Connection;

use crate::error::Result;
use crate::store::statement::execute;

/// Keeps the key under which an intent is sent.
pub(crate) fn keep(conn: &Connection, id: i64, sent_as: &str) -> Result<()> {
    let sql = "INSERT INTO main.outbox_wire_key (id, wire_key) VALUES (?1, ?2)
               ON CONFLICT (id) DO NOTHING";
    execute(conn, sql, (id, sent_as)).map(drop)
}

pub(crate) const SENT_AS: &str = "
    SELECT w.id FROM main.outbox_wire_key w INDEXED BY outbox_wire_key_sent
        CROSS JOIN main.outbox o ON o.id = w.id
    WHERE w.wire_key = ?2 AND o.tenant_id = ?1 LIMIT 1";
