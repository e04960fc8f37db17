//! Finding and reading a due row, which may hold anything that other programs have written.

use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Row as SqlRow};

use crate::core::{Facts, header};
use crate::error::Result as Fallible;
use crate::handler::StoredIntent;
use crate::store::columns;
use crate::store::tables::shard::{shard_index, shard_rows};
use crate::store::tables::unrecorded::may_move;

/// The columns of a row's facts, first in every statement and in the order of `read_facts`. Columns
/// are read by their place, because a name is looked for among all of them in every row.
macro_rules! facts_columns {
    () => {
        "l.id, l.token, l.attempts, l.tries, l.lost, l.in_doubt_since, l.first_sent_at,
         l.claimed_at, l.lookups, l.cancel_requested_at,
         CASE WHEN o.created_at < 1000000000000 THEN o.expires_at + l.shift
              ELSE o.expires_at END,
         l.doubt_boot"
    };
}

pub(crate) use facts_columns;

/// The number of `facts_columns`.
pub(crate) const FACTS: usize = 12;

/// The columns that are read of a row before it is claimed, in the order of `read_intent`.
macro_rules! candidate_columns {
    () => {
        concat!(
            facts_columns!(),
            ", l.last_token,
             o.tenant_id, o.entity_id, o.intent_version, o.idempotency_key, o.args_hash, o.endpoint,
             o.method, o.content_type, o.payload, o.headers, o.ordering_key, o.created_at, o.cost,
             NOT (lower(o.content_type) GLOB 'application/json*'
                  OR lower(o.content_type) GLOB '*+json*')
                 OR o.payload = '' AND o.method IN ('GET', 'DELETE')
                 OR json_valid(o.payload) AS payload"
        )
    };
}

/// The statement that finds due rows. The state is a literal and the index is named, so that no
/// statistics can turn this into a scan; the join is written in the order it must run.
macro_rules! due {
    ($state:literal, $index:expr, $condition:literal, $order:literal) => {
        concat!(
            "SELECT ",
            candidate_columns!(),
            " FROM main.outbox_lease l INDEXED BY ",
            $index,
            " LEFT JOIN main.outbox o ON o.id = l.id
            WHERE l.operation = :operation AND l.state = '",
            $state,
            "' AND l.due_at <= :now AND l.id % :count = :index",
            shard_rows!(),
            " AND ",
            may_move!(),
            $condition,
            " ORDER BY ",
            $order,
            " LIMIT :limit OFFSET :passed_over"
        )
    };
    ($index:expr, $condition:literal) => {
        Candidates {
            oldest: due!("pending", $index, $condition, "l.due_at, l.id"),
            newest: due!("pending", $index, $condition, "l.due_at DESC, l.id DESC"),
        }
    };
}

/// The statements that find due rows of one kind, from either end.
pub(crate) struct Candidates {
    pub oldest: &'static str,
    pub newest: &'static str,
}

pub(crate) const CANDIDATES: Candidates = due!(shard_index!(), "");

/// Finds rows that name an endpoint of their own.
pub(crate) const CANDIDATES_OWN: Candidates = due!("outbox_lease_own", " AND l.own_endpoint");

/// Finds rows that name none.
pub(crate) const CANDIDATES_CONFIGURED: Candidates =
    due!(shard_index!(), " AND NOT l.own_endpoint");

/// Finds rows in doubt whose lookup is due, or whose lookup ended with its process.
pub(crate) const LOOKUPS: &str = due!("unknown", shard_index!(), "", "l.due_at, l.id");

/// The row as a claim would read it, to say whether it could.
pub(crate) fn candidate(
    conn: &Connection,
    id: i64,
    operation: &str,
) -> Fallible<Option<Candidate>> {
    let mut statement = conn.prepare_cached(concat!(
        "SELECT ",
        candidate_columns!(),
        " FROM main.outbox_lease l LEFT JOIN main.outbox o ON o.id = l.id WHERE l.id = ?1"
    ))?;
    Ok(statement.query_row([id], |row| read_candidate(row, operation)).optional()?)
}

/// A due row that was found.
pub(crate) struct Candidate {
    pub id: i64,
    pub token: Option<i64>,
    /// The claim of the last attempt.
    pub last_token: Option<i64>,
    pub facts: Facts,
    /// The intent, or why it cannot be read.
    pub intent: Result<StoredIntent, String>,
}

pub(crate) fn read_candidate(row: &SqlRow<'_>, operation: &str) -> rusqlite::Result<Candidate> {
    let intent = read_intent(row).map_err(|why| format!("{operation}: {why}"));
    Ok(Candidate {
        id: row.get(0)?,
        token: row.get(1)?,
        last_token: row.get(FACTS)?,
        facts: read_facts(row)?,
        intent,
    })
}

pub(crate) fn read_facts(row: &SqlRow<'_>) -> rusqlite::Result<Facts> {
    let facts = Facts {
        attempts: columns::counter(row, 2)?,
        tries: columns::counter(row, 3)?,
        lost: columns::counter(row, 4)?,
        in_doubt_since: row.get(5)?,
        first_sent_at: row.get(6)?,
        claimed_at: row.get::<_, Option<i64>>(7)?.unwrap_or_default(),
        lookups: columns::counter(row, 8)?,
        cancel_requested: row.get::<_, Option<i64>>(9)?.is_some(),
        expires_at: row.get(10).unwrap_or_default(),
        doubt_boot: row.get(11)?,
        older_by: 0,
    };
    Ok(facts.aged(0, None))
}

/// The intent, or which column is not as the schema lets it be written.
fn read_intent(row: &SqlRow<'_>) -> Result<StoredIntent, String> {
    let intent = StoredIntent {
        tenant_id: column(row, 0)?,
        entity_id: column(row, 1)?,
        intent_version: column(row, 2)?,
        idempotency_key: column(row, 3)?,
        args_hash: column(row, 4)?,
        endpoint: column(row, 5)?,
        method: column(row, 6)?,
        content_type: column(row, 7)?,
        payload: column(row, 8)?,
        headers: header::read(&column::<String>(row, 9)?)?,
        ordering_key: column(row, 10)?,
        created_at: column(row, 11)?,
        cost: column(row, 12)?,
    };
    if column(row, 13)? {
        return Ok(intent);
    }
    Err("outbox.payload is not the JSON that outbox.content_type says it is".into())
}

fn column<T: FromSql>(row: &SqlRow<'_>, place: usize) -> Result<T, String> {
    let place = FACTS + 1 + place;
    row.get(place).map_err(|error| {
        let name = row.as_ref().column_name(place).unwrap_or_default();
        match error {
            rusqlite::Error::InvalidColumnType(_, _, kind) => format!("outbox.{name} holds {kind}"),
            other => format!("outbox.{name}: {other}"),
        }
    })
}
