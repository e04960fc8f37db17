//! Reading a due row, which may hold anything that other hands have written.

use std::sync::Arc;

use rusqlite::Row as SqlRow;
use rusqlite::types::FromSql;

use super::read;
use crate::core::decide::Facts;

/// A due row that was found.
pub(super) struct Candidate {
    pub id: i64,
    pub token: Option<i64>,
    pub facts: Facts,
    /// The intent, or why it cannot be read.
    pub intent: Result<StoredIntent, String>,
}

/// An intent as the file holds it.
pub(super) struct StoredIntent {
    pub tenant_id: String,
    pub entity_id: String,
    pub intent_version: i64,
    pub idempotency_key: String,
    pub args_hash: Option<String>,
    pub endpoint: Option<String>,
    pub method: String,
    pub content_type: String,
    pub payload: Arc<str>,
    pub headers: Vec<(String, String)>,
    pub ordering_key: Option<String>,
    pub created_at: i64,
    pub cost: i64,
}

pub(super) fn read_candidate(row: &SqlRow<'_>, operation: &str) -> rusqlite::Result<Candidate> {
    let intent = read_intent(row).map_err(|why| format!("{operation}: {why}"));
    Ok(Candidate { id: row.get("id")?, token: row.get("token")?, facts: read_facts(row)?, intent })
}

pub(super) fn read_facts(row: &SqlRow<'_>) -> rusqlite::Result<Facts> {
    Ok(Facts {
        attempts: read::counter(row, "attempts")?,
        tries: read::counter(row, "tries")?,
        lost: read::counter(row, "lost")?,
        in_doubt_since: row.get("in_doubt_since")?,
        first_sent_at: row.get("first_sent_at")?,
        expires_at: row.get("expires_at").unwrap_or_default(),
        claimed_at: row.get::<_, Option<i64>>("claimed_at")?.unwrap_or_default(),
    })
}

/// The intent, or which column is not as the schema lets it be written.
fn read_intent(row: &SqlRow<'_>) -> Result<StoredIntent, String> {
    let intent = StoredIntent {
        tenant_id: column(row, "tenant_id")?,
        entity_id: column(row, "entity_id")?,
        intent_version: column(row, "intent_version")?,
        idempotency_key: column(row, "idempotency_key")?,
        args_hash: column(row, "args_hash")?,
        endpoint: column(row, "endpoint")?,
        method: column(row, "method")?,
        content_type: column(row, "content_type")?,
        payload: column(row, "payload")?,
        headers: read_headers(&column::<String>(row, "headers")?)?,
        ordering_key: column(row, "ordering_key")?,
        created_at: column(row, "created_at")?,
        cost: column(row, "cost")?,
    };
    if column(row, "is_sound")? {
        return Ok(intent);
    }
    Err("outbox.payload is not the JSON that outbox.content_type says it is".into())
}

fn column<T: FromSql>(row: &SqlRow<'_>, name: &str) -> Result<T, String> {
    row.get(name).map_err(|error| match error {
        rusqlite::Error::InvalidColumnType(_, _, kind) => format!("outbox.{name} holds {kind}"),
        other => format!("outbox.{name}: {other}"),
    })
}

fn read_headers(text: &str) -> Result<Vec<(String, String)>, String> {
    use serde_json::{Map, Value};
    if text == "{}" {
        return Ok(Vec::new());
    }
    let object: Map<String, Value> =
        serde_json::from_str(text).map_err(|_| "outbox.headers is no JSON object")?;
    let pair = |(name, value): (String, Value)| match value {
        Value::String(value) => Ok((name, value)),
        _ => Err("outbox.headers holds a value that is no string".to_owned()),
    };
    object.into_iter().map(pair).collect()
}
