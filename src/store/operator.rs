//! What a person may do to an intent.

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, named_params};

use super::contract::{self, Contract};
use super::read;
use super::step::{NewEvent, add_settled, insert_event};
use crate::core::backoff::Backoff;
use crate::core::contract::Downstream;
use crate::core::decide::{self, Facts, Policy};
use crate::core::entry::Filter;
use crate::core::status::Status;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;

/// What a bulk replay did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayReport {
    /// The intents that are pending again, with a fresh budget; on a dry run, those that would be.
    pub replayed: Vec<i64>,
    /// The intents that matched but may not be replayed, and why.
    pub refused: Vec<(i64, String)>,
}

/// How many rows one transaction replays: nobody waits long for the lock.
const CHUNK: usize = 500;

/// Replays everything that matches, chunk by chunk.
pub(crate) fn replay(
    conn: &mut Connection,
    filter: &Filter,
    actor: &str,
    reason: Option<&str>,
    now: i64,
    dry_run: bool,
) -> Result<ReplayReport> {
    let mut report = ReplayReport::default();
    let mut page = Filter { limit: Some(CHUNK), ..filter.clone() };
    loop {
        let left = filter.limit.map_or(CHUNK, |max| max - report.replayed.len());
        page.limit = Some(left.min(CHUNK));
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let ids = read::ids(&tx, &page)?;
        for &id in &ids {
            let done = if dry_run {
                check_replay(&tx, id, now).map(drop)
            } else {
                replay_in(&tx, id, actor, reason, now)
            };
            match done {
                Ok(()) => report.replayed.push(id),
                Err(error) if error.kind() == ErrorKind::Refused => {
                    report.refused.push((id, error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        tx.commit()?;
        let Some(&last) = ids.last() else { return Ok(report) };
        page.after = Some(last);
        if filter.limit.is_some_and(|max| report.replayed.len() >= max) {
            return Ok(report);
        }
    }
}

/// Replays one intent.
pub(crate) fn replay_one(
    conn: &mut Connection,
    id: i64,
    actor: &str,
    reason: Option<&str>,
    now: i64,
) -> Result<()> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    replay_in(&tx, id, actor, reason, now)?;
    tx.commit()?;
    Ok(())
}

fn replay_in(
    conn: &Connection,
    id: i64,
    actor: &str,
    reason: Option<&str>,
    now: i64,
) -> Result<()> {
    let row = check_replay(conn, id, now)?;
    let must_wait = row.is_keyed && take_place(conn, id)?;
    let due_at = (!must_wait).then_some(now);
    let mut statement = conn.prepare_cached(
        "UPDATE main.outbox_lease
         SET state = 'pending', due_at = :due_at, resume_at = NULL, attempts = 0, tries = 0, lost = 0,
             first_sent_at = NULL
         WHERE id = :id AND state = :state",
    )?;
    let changed = statement.execute(named_params! {
        ":id": id, ":due_at": due_at, ":state": row.status.as_str(),
    })?;
    if changed != 1 {
        return Err(Error::new(ErrorKind::Database, format!("intent {id} changed meanwhile")));
    }
    let event = operator_event(&row, EventKind::Replayed, Status::Pending, actor, reason, now);
    insert_event(conn, &event)
}

/// Reads an intent and refuses it unless it may be replayed.
pub(crate) fn check_replay(conn: &Connection, id: i64, now: i64) -> Result<OperatorRow> {
    let row = find(conn, id)?;
    let policy = cautious(contract::of(conn, &row.operation)?.as_ref());
    if decide::may_replay(row.status, &row.facts, &policy, now) {
        return Ok(row);
    }
    let why = match row.status {
        Status::NeedsReview => {
            "it may have been applied, and a second request is not safe: the downstream does not \
             deduplicate, or may have forgotten the key"
        }
        Status::Unknown => "it may have been applied; find out first",
        _ => "only dead intents, and some that need review, are replayed",
    };
    Err(Error::new(ErrorKind::Refused, format!("intent {id} is {}: {why}", row.status)))
}

/// The rules for a person are the stored contract alone; no relay's configuration is known here.
/// The claim asks again with the relay's own figures.
pub(super) fn cautious(contract: Option<&Contract>) -> Policy {
    let time_limit = contract.and_then(|contract| contract.time_limit);
    Policy {
        downstream: contract.map_or(Downstream::Unprotected, |contract| contract.downstream),
        backoff: Backoff::default(),
        attempts_max: 1,
        give_up_after: std::time::Duration::MAX,
        retry_after_max: std::time::Duration::MAX,
        time_limit: time_limit.unwrap_or(std::time::Duration::from_secs(60)),
    }
}

/// Puts a row that later ones had passed back into its key's line. Returns whether it must wait:
/// for an earlier one, or for one that is on the way.
fn take_place(conn: &Connection, id: i64) -> Result<bool> {
    let mut insert = conn.prepare_cached(
        "INSERT INTO main.outbox_keyed (tenant_id, ordering_key, position, id)
         SELECT tenant_id, ordering_key, id, id FROM main.outbox
         WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM main.outbox_keyed WHERE id = ?1)",
    )?;
    insert.execute([id])?;
    let mut first = conn.prepare_cached(
        "SELECT k.id FROM main.outbox_keyed own
         CROSS JOIN main.outbox_keyed k
             ON k.tenant_id = own.tenant_id AND k.ordering_key = own.ordering_key
         WHERE own.id = ?1 ORDER BY k.position, k.id LIMIT 1",
    )?;
    let first: i64 = first.query_row([id], |row| row.get(0))?;
    if first != id {
        return Ok(true);
    }
    let mut acting = conn.prepare_cached(
        "SELECT l.id, l.state = 'in_flight' FROM main.outbox_keyed own
         CROSS JOIN main.outbox_keyed k
             ON k.tenant_id = own.tenant_id AND k.ordering_key = own.ordering_key
         CROSS JOIN main.outbox_lease l ON l.id = k.id
         WHERE own.id = ?1 AND k.id <> own.id
           AND (l.state = 'in_flight' OR l.state = 'pending' AND l.due_at IS NOT NULL)
         LIMIT 1",
    )?;
    let acting: Option<(i64, bool)> =
        acting.query_row([id], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let Some((acting, in_flight)) = acting else { return Ok(false) };
    if !in_flight {
        let mut queue = conn.prepare_cached(
            "UPDATE main.outbox_lease SET resume_at = due_at, due_at = NULL
             WHERE id = ?1 AND state = 'pending' AND due_at IS NOT NULL",
        )?;
        queue.execute([acting])?;
    }
    Ok(in_flight)
}

/// Withdraws an intent in the caller's transaction.
pub(crate) fn cancel(
    conn: &Connection,
    id: i64,
    actor: &str,
    reason: Option<&str>,
    now: i64,
) -> Result<()> {
    let row = find(conn, id)?;
    let why = match row.status {
        Status::Dead | Status::Pending if row.facts.in_doubt_since.is_none() => None,
        Status::Pending | Status::Unknown | Status::NeedsReview => Some("it may have been applied"),
        Status::InFlight => Some("it is being sent"),
        _ => Some("it is settled"),
    };
    if let Some(why) = why {
        return Err(Error::new(
            ErrorKind::Refused,
            format!("intent {id} is {}: {why}", row.status),
        ));
    }
    // A queued row has no lease row.
    conn.prepare_cached("DELETE FROM main.outbox_lease WHERE id = ?1")?.execute([id])?;
    conn.prepare_cached(
        "INSERT INTO main.outbox_receipt (id, status, finished_at, attempts) VALUES (?1, 'cancelled', ?2, ?3)",
    )?
    .execute((id, now, row.facts.attempts))?;
    conn.prepare_cached("DELETE FROM main.outbox_keyed WHERE id = ?1")?.execute([id])?;
    add_settled(conn, &row.operation, Status::Cancelled, 1)?;
    let event = operator_event(&row, EventKind::Cancelled, Status::Cancelled, actor, reason, now);
    insert_event(conn, &event)
}

fn operator_event<'a>(
    row: &OperatorRow,
    kind: EventKind,
    to: Status,
    actor: &'a str,
    reason: Option<&'a str>,
    now: i64,
) -> NewEvent<'a> {
    NewEvent {
        outbox_id: row.id,
        at: now,
        kind,
        from: row.status,
        to,
        attempt: row.facts.attempts,
        claimed_at: None,
        token: None,
        actor: Some(actor),
        error_class: None,
        reason,
        downstream_id: None,
    }
}

pub(crate) struct OperatorRow {
    id: i64,
    operation: String,
    is_keyed: bool,
    status: Status,
    facts: Facts,
}

fn find(conn: &Connection, id: i64) -> Result<OperatorRow> {
    let mut statement = conn.prepare_cached(
        "SELECT o.operation, o.ordering_key IS NOT NULL, coalesce(r.status, l.state, 'pending'),
                coalesce(l.attempts, r.attempts, 0), l.in_doubt_since
         FROM main.outbox o
         LEFT JOIN main.outbox_lease l ON l.id = o.id
         LEFT JOIN main.outbox_receipt r ON r.id = o.id
         WHERE o.id = ?1",
    )?;
    let found = statement
        .query_row([id], |row| {
            Ok(OperatorRow {
                id,
                // Hand-edited text must not keep an operator from acting on the row.
                operation: read::lossy(row, 0)?,
                is_keyed: row.get(1)?,
                status: Status::parse(&read::lossy(row, 2)?).unwrap_or(Status::NeedsReview),
                facts: Facts {
                    attempts: read::counter(row, 3)?,
                    in_doubt_since: row.get(4)?,
                    ..Facts::default()
                },
            })
        })
        .optional()?;
    found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no intent {id}")))
}
