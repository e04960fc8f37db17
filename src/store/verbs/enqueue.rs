//! Writing an intent in the caller's transaction.

use rusqlite::{Connection, ErrorCode, OptionalExtension, named_params};

use crate::core::{Entry, Prepared, canonical, key};
use crate::error::{Error, ErrorKind, Result};
use crate::store::query::read;
use crate::store::statement::query_row;

/// The result of enqueueing an intent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Enqueued {
    /// The intent was written. It will be sent once the caller's transaction is committed.
    #[non_exhaustive]
    New {
        /// The intent's row id.
        id: i64,
        /// The intent's idempotency key.
        key: String,
        /// The row id of an earlier version of the same action that is not settled yet: both
        /// will be carried out unless the earlier is cancelled.
        unsettled_version: Option<i64>,
    },
    /// An intent of the same action exists already: its status, and its receipt once it is settled.
    /// A dead or cancelled intent is reported as such, and enqueueing does not send it again.
    Existing(Box<Entry>),
}

impl Enqueued {
    /// The intent's row id.
    pub fn id(&self) -> i64 {
        match self {
            Self::New { id, .. } => *id,
            Self::Existing(entry) => entry.id,
        }
    }

    /// The intent's idempotency key.
    pub fn key(&self) -> &str {
        match self {
            Self::New { key, .. } => key,
            Self::Existing(entry) => &entry.idempotency_key,
        }
    }

    /// Whether this call wrote the intent.
    pub fn is_new(&self) -> bool {
        matches!(self, Self::New { .. })
    }
}

/// Inserts first and looks only if that is refused: most intents are new.
pub(crate) fn enqueue(conn: &Connection, prepared: &Prepared<'_>) -> Result<Enqueued> {
    let refused = match insert(conn, prepared) {
        Ok(id) => {
            return Ok(Enqueued::New {
                id,
                key: prepared.key.clone().into_owned(),
                unsettled_version: unsettled_version(conn, prepared)?,
            });
        }
        Err(refused) => refused,
    };
    if refused.sqlite_error_code() != Some(ErrorCode::ConstraintViolation) {
        let mut error = Error::from(refused);
        if conn.is_autocommit() {
            error = error.context("the transaction was rolled back by SQLite");
        }
        return Err(error.context("enqueue"));
    }
    if let Some(id) = read::id_of_key(conn, &prepared.intent.tenant_id, &prepared.key)? {
        return existing(conn, id, prepared);
    }
    if prepared.intent.brought_key.is_none()
        && let Some((id, key)) = id_of_version(conn, prepared)?
    {
        let text = format!(
            "{} {:?} version {} exists as intent {id} under key {key}, this one would have {}: the \
             arguments differ; a change needs a new version",
            prepared.intent.operation,
            prepared.intent.entity_id,
            prepared.intent.version,
            prepared.key
        );
        return Err(Error::new(ErrorKind::Conflict, text));
    }
    Err(explain(refused, &prepared.intent.operation))
}

fn insert(conn: &Connection, prepared: &Prepared<'_>) -> rusqlite::Result<i64> {
    let intent = prepared.intent;
    let mut statement = conn.prepare_cached(
        "INSERT INTO main.outbox
             (tenant_id, operation, entity_id, intent_version, idempotency_key, args_hash, endpoint,
              method, content_type, payload, headers, ordering_key, available_at, expires_at,
              created_at, cost)
         VALUES (:tenant_id, :operation, :entity_id, :intent_version, :idempotency_key, :args_hash,
              :endpoint, :method, :content_type, :payload, :headers, :ordering_key, :available_at,
              :expires_at, :created_at, :cost)",
    )?;
    statement.insert(named_params! {
        ":tenant_id": intent.tenant_id,
        ":operation": intent.operation,
        ":entity_id": intent.entity_id,
        ":intent_version": intent.version,
        ":idempotency_key": prepared.key,
        ":args_hash": prepared.args_hash,
        ":endpoint": intent.endpoint,
        ":method": intent.method,
        ":content_type": intent.content_type,
        ":payload": prepared.payload,
        ":headers": prepared.headers,
        ":ordering_key": intent.ordering_key,
        ":available_at": prepared.available_at,
        ":expires_at": prepared.expires_at,
        ":created_at": prepared.created_at,
        ":cost": prepared.cost,
    })
}

/// Compares what is stored under the key with what is asked for.
fn existing(conn: &Connection, id: i64, prepared: &Prepared<'_>) -> Result<Enqueued> {
    let entry = read::entry(conn, id)?
        .ok_or_else(|| Error::new(ErrorKind::Database, format!("intent {id} cannot be read")))?;
    let intent = prepared.intent;
    let (method, args_hash) = stored_content(conn, id)?;
    let differs = [
        ("operation", entry.operation != intent.operation),
        ("entity", entry.entity_id != intent.entity_id),
        ("version", entry.intent_version != intent.version),
        ("method", method != intent.method),
        ("endpoint", entry.endpoint != intent.endpoint),
    ];
    let named = |(name, differs): (&str, bool)| differs.then(|| name.to_owned());
    let mut differs: Vec<String> = differs.into_iter().filter_map(named).collect();
    if args_hash.as_deref() != Some(&prepared.args_hash) && !key_proves_args(&entry, prepared) {
        let theirs = args_hash.as_deref().unwrap_or("unknown");
        differs.push(format!("arguments (hash {theirs} there, {} here)", prepared.args_hash));
    }
    if differs.is_empty() {
        return Ok(Enqueued::Existing(Box::new(entry)));
    }
    let text = format!(
        "key {} belongs to intent {id} ({} {:?} version {}, {}), which differs in: {}",
        entry.idempotency_key,
        entry.operation,
        entry.entity_id,
        entry.intent_version,
        entry.status,
        differs.join(", ")
    );
    Err(Error::new(ErrorKind::Conflict, text))
}

/// A derived key is a hash of the arguments: the same key means the same arguments.
fn key_proves_args(entry: &Entry, prepared: &Prepared<'_>) -> bool {
    prepared.intent.brought_key.is_none()
        && key::has_derived_shape(&entry.operation, &entry.idempotency_key)
}

/// The method and the arguments' hash of a stored intent. A row that plain SQL wrote without
/// `args_hash` has its payload for arguments.
fn stored_content(conn: &Connection, id: i64) -> Result<(String, Option<String>)> {
    let sql = "SELECT method, args_hash, CASE WHEN args_hash IS NULL THEN payload END
               FROM main.outbox WHERE id = ?1";
    let (method, args_hash, payload) = query_row(conn, sql, [id], |row| {
        Ok((row.get(0)?, row.get::<_, Option<String>>(1)?, row.get::<_, Option<String>>(2)?))
    })?;
    let hash_of = |payload: String| {
        canonical::canonical_text("payload", &payload).ok().map(|args| key::sha256(&args))
    };
    Ok((method, args_hash.or_else(|| payload.and_then(hash_of))))
}

pub(crate) const ID_OF_VERSION: &str = "
    SELECT id, idempotency_key FROM main.outbox
    WHERE tenant_id = ?1 AND operation = ?2 AND entity_id = ?3 AND intent_version = ?4
      AND is_derived";

fn id_of_version(conn: &Connection, prepared: &Prepared<'_>) -> Result<Option<(i64, String)>> {
    let intent = prepared.intent;
    let values = (&intent.tenant_id, &intent.operation, &intent.entity_id, intent.version);
    let found = query_row(conn, ID_OF_VERSION, values, |row| Ok((row.get(0)?, row.get(1)?)));
    Ok(found.optional()?)
}

pub(crate) const UNSETTLED_VERSION: &str = "
    SELECT id FROM main.outbox o
    WHERE tenant_id = ?1 AND operation = ?2 AND entity_id = ?3 AND intent_version < ?4
      AND is_derived AND NOT EXISTS (SELECT 1 FROM main.outbox_receipt r WHERE r.id = o.id)
    ORDER BY intent_version DESC LIMIT 1";

/// The latest earlier version of the same action that is not settled.
pub(crate) fn unsettled_version(conn: &Connection, prepared: &Prepared<'_>) -> Result<Option<i64>> {
    let intent = prepared.intent;
    if intent.version == 1 {
        return Ok(None);
    }
    let values = (&intent.tenant_id, &intent.operation, &intent.entity_id, intent.version);
    let found = query_row(conn, UNSETTLED_VERSION, values, |row| row.get(0));
    Ok(found.optional()?)
}

/// The schema's guards name the field themselves, and cannot name its value.
fn explain(refused: rusqlite::Error, operation: &str) -> Error {
    let text = match &refused {
        rusqlite::Error::SqliteFailure(_, Some(text)) => text.clone(),
        other => other.to_string(),
    };
    let mut text = text.strip_prefix("outbox.").unwrap_or(&text).to_owned();
    if text.starts_with("operation: is not registered") {
        text = format!(
            "operation: {operation:?} is not registered, and this file takes registered operations \
             only; start a relay that names it, or let all in with \
             `outbox operations --only-registered=off`"
        );
    }
    Error::new(ErrorKind::Invalid, text).with_source(refused)
}
