//! Another round for what a person sends back.

use rusqlite::{Connection, TransactionBehavior, named_params};

use crate::core::decide;
use crate::core::entry::Filter;
use crate::core::status::Status;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::store::query::read;
use crate::store::tables::{contract, ordering};
use crate::store::verbs::withdraw::{By, OperatorRow, cautious, find};

/// How many rows one transaction replays: nobody waits long for the lock.
const CHUNK: usize = 500;

/// Replays everything that matches, chunk by chunk. Returns each, with what became of it.
pub(crate) fn replay(
    conn: &mut Connection,
    filter: &Filter,
    by: By<'_>,
    now: i64,
    dry_run: bool,
) -> Result<Vec<(i64, Result<()>)>> {
    let (mut matched, mut replayed) = (Vec::new(), 0);
    let mut page = filter.clone();
    loop {
        page.limit = Some(filter.limit.map_or(CHUNK, |max| (max - replayed).min(CHUNK)));
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let ids = read::ids(&tx, &page)?;
        for &id in &ids {
            let done = if dry_run {
                check_replay(&tx, id, now).map(drop)
            } else {
                replay_in(&tx, id, by, now)
            };
            let done = match done {
                Err(error) if error.kind() != ErrorKind::Refused => return Err(error),
                done => done,
            };
            replayed += usize::from(done.is_ok());
            matched.push((id, done));
        }
        tx.commit()?;
        let Some(&last) = ids.last() else { return Ok(matched) };
        page.after = Some(last);
        if filter.limit.is_some_and(|max| replayed >= max) {
            return Ok(matched);
        }
    }
}

/// Replays one intent.
pub(crate) fn replay_one(conn: &mut Connection, id: i64, by: By<'_>, now: i64) -> Result<()> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    replay_in(&tx, id, by, now)?;
    tx.commit()?;
    Ok(())
}

fn replay_in(conn: &Connection, id: i64, by: By<'_>, now: i64) -> Result<()> {
    let row = check_replay(conn, id, now)?;
    send_again(conn, &row, false, now)?;
    row.record(conn, EventKind::Replayed, Status::Pending, by, now)?;
    Ok(())
}

/// Puts a row back to pending with a fresh budget. `is_sure` says that it was not applied.
pub(crate) fn send_again(
    conn: &Connection,
    row: &OperatorRow,
    is_sure: bool,
    now: i64,
) -> Result<()> {
    let must_wait = row.is_keyed && ordering::take_place(conn, row.id)?;
    let due_at = (!must_wait).then_some(now);
    let mut statement = conn.prepare_cached(
        "UPDATE main.outbox_lease
         SET state = 'pending', due_at = :due_at, resume_at = NULL, attempts = 0, tries = 0, lost = 0,
             lookups = 0, first_sent_at = NULL, cancel_requested_at = NULL, token = NULL, owner = NULL,
             late_id = NULL, late_receipt = NULL,
             in_doubt_since = CASE WHEN :is_sure THEN NULL ELSE in_doubt_since END
         WHERE id = :id AND state = :state",
    )?;
    let changed = statement.execute(named_params! {
        ":id": row.id, ":due_at": due_at, ":state": row.status.as_str(), ":is_sure": is_sure,
    })?;
    if changed == 1 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Database, format!("intent {} changed meanwhile", row.id)))
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
        Status::Dead => {
            "it was given up while in doubt, and a second request is not safe: resolve it first"
        }
        Status::Unknown => "it may have been applied; resolve it, or wait for the look-up",
        _ => "only dead intents, and some that need review, are replayed",
    };
    Err(Error::new(ErrorKind::Refused, format!("intent {id} is {}: {why}", row.status)))
}
