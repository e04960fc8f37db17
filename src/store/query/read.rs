//! Reading back. Text is read lossily: a hand-edited row must still be listed.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, named_params};

use crate::core::{Entry, Filter, OperationStats, Receipt, Status, key};
use crate::error::{Error, ErrorKind, Result};
use crate::store::columns::{counter, lossy, lossy_option};
use crate::store::statement::query_row;
use crate::store::tables::answer;
use crate::store::tables::settled::DUPLICATE_EFFECT;
use crate::store::tables::{binding, settled, wire_key};

/// The intent with this row id, and its receipt.
pub(crate) fn entry(conn: &Connection, id: i64) -> Result<Option<Entry>> {
    let Some(mut entry) = bare_entry(conn, id)? else { return Ok(None) };
    if entry.status.is_settled() {
        let sql = "SELECT receipt FROM main.outbox_receipt WHERE id = ?1";
        let text = query_row(conn, sql, [id], |row| lossy_option(row, 0)).optional()?.flatten();
        entry.receipt = text.map(|text| Receipt::from_json(entry.downstream_id.clone(), &text));
    }
    entry.last_answer = answer::of(conn, id)?;
    read_request(conn, &mut entry)?;
    Ok(Some(entry))
}

/// Reads the request without what may be secret: no payload, and no header's value.
fn read_request(conn: &Connection, entry: &mut Entry) -> Result<()> {
    let sql =
        "SELECT o.method, o.content_type, length(CAST(o.payload AS BLOB)), o.headers, o.expires_at,
                (SELECT h.id FROM main.outbox_keyed k CROSS JOIN main.outbox_keyed h
                     ON h.tenant_id = k.tenant_id AND h.ordering_key = k.ordering_key
                 WHERE k.id = o.id ORDER BY h.position, h.id LIMIT 1),
                (SELECT revises FROM main.outbox_revision v WHERE v.id = o.id),
                (SELECT id FROM main.outbox_revision v WHERE v.revises = o.id)
         FROM main.outbox o WHERE o.id = ?1";
    Ok(query_row(conn, sql, [entry.id], |row| {
        entry.method = lossy_option(row, 0)?;
        entry.content_type = lossy_option(row, 1)?;
        let bytes: Option<i64> = row.get(2)?;
        entry.payload_bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
        let headers: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&lossy(row, 3)?).unwrap_or_default();
        entry.header_names = headers.into_iter().map(|(name, _)| name).collect();
        entry.expires_at = row.get(4)?;
        entry.waits_behind = row.get::<_, Option<i64>>(5)?.filter(|head| *head != entry.id);
        entry.revises = row.get(6)?;
        entry.revised_by = row.get(7)?;
        Ok(())
    })?)
}

pub(crate) fn entry_by_key(conn: &Connection, tenant: &str, key: &str) -> Result<Option<Entry>> {
    id_of_either_key(conn, tenant, key)?.map_or(Ok(None), |id| entry(conn, id))
}

/// The intent of a tenant with this key, as it is stored or as it was sent.
pub(crate) fn id_of_either_key(conn: &Connection, tenant: &str, key: &str) -> Result<Option<i64>> {
    if let Some(id) = id_of_key(conn, tenant, key)? {
        return Ok(Some(id));
    }
    Ok(query_row(conn, wire_key::SENT_AS, [tenant, key], |row| row.get(0)).optional()?)
}

/// The intent whose effect a provider knows under this id: the id is bound to it, or in its
/// receipt. Without a provider, those of all providers are meant.
pub(crate) fn entry_by_downstream_id(
    conn: &Connection,
    provider: Option<&str>,
    downstream_id: &str,
) -> Result<Option<Entry>> {
    let mut ids = binding::ids_of(conn, provider, downstream_id)?;
    // A provider gives an id once; under another provider, a receipt may have the same.
    if provider.is_none() || ids.is_empty() {
        ids.extend(settled::ids_of(conn, provider, downstream_id)?);
    }
    ids.sort_unstable();
    ids.dedup();
    match ids[..] {
        [] => Ok(None),
        [id] => entry(conn, id),
        [first, second, ..] => {
            let text = format!(
                "the id {downstream_id:?} is that of intent {first} and of intent {second}: name \
                 the provider, or the key"
            );
            Err(Error::new(ErrorKind::Conflict, text))
        }
    }
}

pub(crate) const ID_OF_KEY: &str = "
    SELECT id FROM main.outbox WHERE tenant_id = ?1 AND idempotency_key = ?2";

pub(crate) fn id_of_key(conn: &Connection, tenant: &str, key: &str) -> Result<Option<i64>> {
    Ok(conn.prepare_cached(ID_OF_KEY)?.query_row([tenant, key], |row| row.get(0)).optional()?)
}

/// The intents that match, by id, without their receipts.
pub(crate) fn list(conn: &Connection, filter: &Filter) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for id in ids(conn, filter)? {
        entries.extend(bare_entry(conn, id)?);
    }
    Ok(entries)
}

fn bare_entry(conn: &Connection, id: i64) -> Result<Option<Entry>> {
    let sql =
        "SELECT id, tenant_id, operation, entity_id, intent_version, idempotency_key, endpoint,
                ordering_key, status, attempts, next_attempt_at, locked_until, locked_by,
                last_error, downstream_id, created_at, finished_at, registered, next_lookup_at
         FROM main.outbox_status WHERE id = ?1";
    let found = query_row(conn, sql, [id], |row| {
        let [tenant_id, operation, idempotency_key] =
            [lossy(row, 1)?, lossy(row, 2)?, lossy(row, 5)?];
        Ok(Entry {
            id: row.get(0)?,
            entity_id: lossy(row, 3)?,
            intent_version: row.get(4)?,
            wire_key: key::wire_key(&tenant_id, &operation, &idempotency_key).into_owned(),
            tenant_id,
            operation,
            idempotency_key,
            endpoint: lossy_option(row, 6)?,
            ordering_key: lossy_option(row, 7)?,
            status: lossy(row, 8)?.parse().unwrap_or(Status::NeedsReview),
            attempts: counter(row, 9)?,
            next_attempt_at: row.get(10)?,
            locked_until: row.get(11)?,
            locked_by: lossy_option(row, 12)?,
            last_error: lossy_option(row, 13)?,
            downstream_id: lossy_option(row, 14)?,
            created_at: row.get(15)?,
            finished_at: row.get(16)?,
            registered: row.get(17)?,
            next_lookup_at: row.get(18)?,
            receipt: None,
            last_answer: None,
            method: None,
            content_type: None,
            payload_bytes: None,
            header_names: Vec::new(),
            expires_at: None,
            waits_behind: None,
            revises: None,
            revised_by: None,
        })
    });
    Ok(found.optional()?)
}

/// The ids that match, rising. Reads the small tables first, and never a payload.
pub(crate) fn ids(conn: &Connection, filter: &Filter) -> Result<Vec<i64>> {
    let source = match filter.status {
        None => "SELECT id FROM main.outbox",
        Some(Status::Pending) => {
            "SELECT id FROM main.outbox_lease WHERE state = 'pending'
             UNION ALL
             SELECT k.id FROM main.outbox_keyed k
             WHERE NOT EXISTS (SELECT 1 FROM main.outbox_lease l WHERE l.id = k.id)"
        }
        Some(status @ (Status::InFlight | Status::Unknown)) => {
            &format!("SELECT id FROM main.outbox_lease WHERE state = '{status}'")
        }
        Some(status @ (Status::NeedsReview | Status::Dead)) => &format!(
            "SELECT id FROM main.outbox_lease INDEXED BY outbox_lease_parked
             WHERE state = '{status}' AND due_at IS NULL"
        ),
        Some(status @ (Status::Succeeded | Status::Cancelled)) => {
            &format!("SELECT id FROM main.outbox_receipt WHERE status = '{status}'")
        }
    };
    let named = serde_json::json!(filter.ids).to_string();
    let source = if filter.ids.is_empty() {
        source.to_owned()
    } else {
        format!("SELECT value AS id FROM json_each(:ids) WHERE value IN ({source})")
    };
    let source = match filter.run {
        Some(_) => format!("SELECT id FROM main.outbox_run WHERE run = :run AND id IN ({source})"),
        None => source,
    };
    let sql = format!(
        "SELECT s.id FROM ({source}) AS s CROSS JOIN main.outbox o ON o.id = s.id
         WHERE s.id > :after AND :ids IS NOT NULL AND (:run IS NULL OR :run <> '')
           AND (:operation IS NULL OR o.operation = :operation)
           AND (:tenant IS NULL OR o.tenant_id = :tenant)
           AND (:entity IS NULL OR o.entity_id = :entity)
           AND (:since IS NULL OR o.created_at >= :since)
         ORDER BY s.id LIMIT :limit"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map(
        named_params! {
            ":ids": named,
            ":after": filter.after.unwrap_or(0),
            ":operation": filter.operation,
            ":tenant": filter.tenant,
            ":run": filter.run,
            ":entity": filter.entity,
            ":since": filter.created_since,
            ":limit": filter.limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX)),
        },
        |row| row.get(0),
    )?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(crate) const STATS: &str = "
    SELECT operation, status, total, CASE WHEN first_due_at <= ?1 THEN first_due_at END
    FROM main.outbox_backlog
    UNION ALL
    SELECT operation, status, total, NULL FROM main.outbox_settled
    UNION ALL
    SELECT operation, NULL, 0, NULL FROM main.outbox_operation";

/// Counts by operation. Settled intents are counted where they are settled, not here.
pub(crate) fn stats(conn: &Connection, now: i64) -> Result<Vec<OperationStats>> {
    let mut all: BTreeMap<String, OperationStats> = BTreeMap::new();
    let mut statement = conn.prepare_cached(STATS)?;
    let mut rows = statement.query([now])?;
    while let Some(row) = rows.next()? {
        let operation = lossy(row, 0)?;
        let line = all.entry(operation.clone()).or_insert_with(|| OperationStats {
            operation,
            registered: false,
            counts: [0; 7],
            oldest_due_at: None,
            duplicate_effects: 0,
        });
        let word = lossy_option(row, 1)?;
        match word.as_deref().map(str::parse::<Status>) {
            None => line.registered = true,
            Some(_) if word.as_deref() == Some(DUPLICATE_EFFECT) => {
                line.duplicate_effects = u64::try_from(row.get::<_, i64>(2)?).unwrap_or(0);
            }
            Some(status) => {
                let status = status.unwrap_or(Status::NeedsReview);
                line.counts[status as usize] += u64::try_from(row.get::<_, i64>(2)?).unwrap_or(0);
                line.oldest_due_at = line.oldest_due_at.or(row.get(3)?);
            }
        }
    }
    Ok(all.into_values().collect())
}
