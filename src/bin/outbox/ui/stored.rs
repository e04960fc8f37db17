//! What the file holds about one intent beyond its status, as `show` prints it.

use serde::Serialize;
use sqlite_outbox::{Entry, Outbox};

use crate::ui::failure::Result;

/// The frozen request, without what may be secret: no payload, no header's value.
#[derive(Serialize)]
pub struct Request<'a> {
    pub method: Option<&'a str>,
    pub content_type: Option<&'a str>,
    /// Absent where the payload of a settled intent was stripped.
    pub payload_bytes: Option<u64>,
    pub header_names: &'a [String],
    pub expires_at: Option<i64>,
    /// The first unsettled intent of its ordering key, where that is another one.
    pub waits_behind: Option<i64>,
    /// The intent whose place it took, and the one that took its place.
    pub revises: Option<i64>,
    pub revised_by: Option<i64>,
}

/// What the file says about the operation's downstream.
#[derive(Serialize)]
pub struct Contract {
    pub downstream: &'static str,
    pub key_window_ms: Option<u64>,
    pub on_dead: &'static str,
    pub provider: Option<String>,
    /// Whether some relay can ask what became of an intent in doubt.
    pub reconciles: bool,
    /// Whether the ids in its receipts name what was created.
    pub binds_ids: bool,
    #[serde(skip)]
    pub is_paused: bool,
}

pub fn request(entry: &Entry) -> Request<'_> {
    Request {
        method: entry.method.as_deref(),
        content_type: entry.content_type.as_deref(),
        payload_bytes: entry.payload_bytes,
        header_names: &entry.header_names,
        expires_at: entry.expires_at,
        waits_behind: entry.waits_behind,
        revises: entry.revises,
        revised_by: entry.revised_by,
    }
}

pub fn contract(outbox: &Outbox, operation: &str) -> Result<Option<Contract>> {
    let stored = outbox.operations()?.into_iter().find(|stored| stored.operation == operation);
    Ok(stored.map(|stored| Contract {
        downstream: stored.downstream.as_str(),
        key_window_ms: stored
            .downstream
            .window()
            .and_then(|window| u64::try_from(window.as_millis()).ok()),
        on_dead: stored.on_dead.as_str(),
        reconciles: stored.reconciles,
        binds_ids: stored.binds_ids,
        is_paused: stored.paused.is_some(),
        provider: stored.provider,
    }))
}
