//! What the file holds about one intent beyond its status. Read by the columns of `schema.sql`,
//! which are public, on a connection that cannot write.

use serde::Serialize;
use sqlite_outbox::rusqlite::types::ValueRef;
use sqlite_outbox::rusqlite::{self, Connection, OpenFlags, OptionalExtension, Row};
use sqlite_outbox::{Downstream, OnDead, Outbox};

use crate::failure::Result;

/// The frozen request, without what may be secret: no payload, no header's value.
#[derive(Serialize)]
pub struct Request {
    pub method: String,
    pub content_type: String,
    /// Absent where the payload of a settled intent was stripped.
    pub payload_bytes: Option<i64>,
    pub header_names: Vec<String>,
    pub expires_at: Option<i64>,
    /// The first unsettled intent of its ordering key, where that is another one.
    pub waits_behind: Option<i64>,
}

/// What the file says about the operation's downstream.
#[derive(Serialize)]
pub struct Contract {
    pub downstream: &'static str,
    pub key_window_ms: Option<u64>,
    pub on_dead: &'static str,
    pub provider: Option<String>,
}

pub fn request(outbox: &Outbox, id: i64) -> Result<Option<Request>> {
    Ok(read(outbox.path(), id).map_err(sqlite_outbox::Error::from)?)
}

fn read(path: &str, id: i64) -> rusqlite::Result<Option<Request>> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    let sql = "SELECT o.method, o.content_type, length(CAST(o.payload AS BLOB)), o.headers,
                      o.expires_at,
                      (SELECT h.id FROM main.outbox_keyed k CROSS JOIN main.outbox_keyed h
                       ON h.tenant_id = k.tenant_id AND h.ordering_key = k.ordering_key
                       WHERE k.id = o.id ORDER BY h.position, h.id LIMIT 1)
               FROM main.outbox o WHERE o.id = ?1";
    let found = conn.query_row(sql, [id], |row| {
        Ok(Request {
            method: lossy(row, 0)?,
            content_type: lossy(row, 1)?,
            payload_bytes: row.get(2)?,
            header_names: names(&lossy(row, 3)?),
            expires_at: row.get(4)?,
            waits_behind: row.get::<_, Option<i64>>(5)?.filter(|head| *head != id),
        })
    });
    found.optional()
}

/// A row that was edited by hand must still be shown.
fn lossy(row: &Row<'_>, index: usize) -> rusqlite::Result<String> {
    Ok(match row.get_ref(index)? {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            String::from_utf8_lossy(bytes).into_owned()
        }
        _ => String::new(),
    })
}

fn names(headers: &str) -> Vec<String> {
    let headers: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(headers).unwrap_or_default();
    headers.into_iter().map(|(name, _)| name).collect()
}

pub fn contract(outbox: &Outbox, operation: &str) -> Result<Option<Contract>> {
    let stored = outbox.operations()?.into_iter().find(|stored| stored.operation == operation);
    Ok(stored.map(|stored| Contract {
        downstream: match stored.downstream {
            Downstream::DeduplicatesByKey { .. } => "deduplicates",
            Downstream::Unprotected => "unprotected",
        },
        key_window_ms: match stored.downstream {
            Downstream::DeduplicatesByKey { window } => u64::try_from(window.as_millis()).ok(),
            Downstream::Unprotected => None,
        },
        on_dead: match stored.on_dead {
            OnDead::Block => "block",
            OnDead::Continue => "continue",
        },
        provider: stored.provider,
    }))
}
