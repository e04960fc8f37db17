//! What a person may do to an intent, and on which terms: withdraw it, stop it, let others pass it.

use rusqlite::{Connection, OptionalExtension};

use crate::core::backoff::Backoff;
use crate::core::contract::Downstream;
use crate::core::decide::{Facts, Policy};
use crate::core::outcome::Receipt;
use crate::core::status::Status;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, EventKind};
use crate::store::columns;
use crate::store::tables::audit::{NewEvent, insert_event};
use crate::store::tables::contract::Contract;
use crate::store::tables::settled::Settlement;
use crate::store::tables::{ordering, settled};

/// Who acts, and why.
pub(crate) type By<'a> = (&'a str, Option<&'a str>);

/// Withdraws an intent in the caller's transaction.
pub(crate) fn cancel(conn: &Connection, id: i64, by: By<'_>, now: i64) -> Result<()> {
    let row = find(conn, id)?;
    row.check_withdrawable()?;
    withdraw(conn, &row, EventKind::Cancelled, by, now)
}

/// Settles a row as cancelled, for a person or for the version that takes its place.
pub(crate) fn withdraw(
    conn: &Connection,
    row: &OperatorRow,
    kind: EventKind,
    by: By<'_>,
    now: i64,
) -> Result<()> {
    row.settle(conn, Status::Cancelled, None, now)?;
    row.record(conn, kind, Status::Cancelled, by, now)?;
    Ok(())
}

/// Withdraws an intent, or where it is too late for that, sees to it that it is not tried again.
/// Returns where it stands then.
pub(crate) fn request_cancel(conn: &Connection, id: i64, by: By<'_>, now: i64) -> Result<Status> {
    let row = find(conn, id)?;
    if row.check_withdrawable().is_ok() {
        withdraw(conn, &row, EventKind::Cancelled, by, now)?;
        return Ok(Status::Cancelled);
    }
    // A look-up, or a person, may still find that it was not applied: then it is withdrawn.
    let in_doubt = row.facts.in_doubt_since.is_some();
    if row.status.is_settled() || row.status == Status::NeedsReview && !in_doubt {
        row.check_withdrawable()?;
    }
    let mut statement = conn.prepare_cached(
        "UPDATE main.outbox_lease SET cancel_requested_at = ?2
         WHERE id = ?1 AND cancel_requested_at IS NULL",
    )?;
    if statement.execute((id, now))? > 0 {
        row.record(conn, EventKind::CancelRequested, row.status, by, now)?;
    }
    Ok(row.status)
}

/// Lets later intents of its ordering key go on without this one.
pub(crate) fn skip(conn: &Connection, id: i64, by: By<'_>, now: i64) -> Result<()> {
    let row = find(conn, id)?;
    let refused = |why: &str| {
        let text = format!("intent {id} is {}: {why}", row.status);
        Err(Error::new(ErrorKind::Refused, text))
    };
    if !matches!(row.status, Status::Dead | Status::Unknown | Status::NeedsReview) {
        return refused("only what is dead, unknown or needs review blocks its ordering key");
    }
    if !row.is_keyed {
        return refused("it has no ordering key, so it blocks nothing");
    }
    if !ordering::leave(conn, id)? {
        return refused("later intents of its ordering key go on without it already");
    }
    row.record(conn, EventKind::Skipped, row.status, by, now)?;
    Ok(())
}

/// The rules for a person are the stored contract alone; no relay's configuration is known here.
/// The claim asks again with the relay's own figures.
pub(crate) fn cautious(contract: Option<&Contract>) -> Policy {
    let time_limit = contract.and_then(|contract| contract.time_limit);
    Policy {
        downstream: contract.map_or(Downstream::Unprotected, |contract| contract.downstream),
        backoff: Backoff::default(),
        attempts_max: 1,
        give_up_after: std::time::Duration::MAX,
        retry_after_max: std::time::Duration::MAX,
        time_limit: time_limit.unwrap_or(std::time::Duration::from_secs(60)),
        reconciles: contract.is_some_and(|contract| contract.reconciles),
        settle_delay: std::time::Duration::ZERO,
        lookups_max: u32::MAX,
    }
}

/// An intent as the verbs of persons see it.
#[derive(Debug)]
pub(crate) struct OperatorRow {
    pub id: i64,
    pub operation: String,
    pub is_keyed: bool,
    pub status: Status,
    pub facts: Facts,
}

impl OperatorRow {
    /// Whether it surely was not applied, and so can still be withdrawn.
    pub fn check_withdrawable(&self) -> Result<()> {
        let in_doubt = self.facts.in_doubt_since.is_some();
        let (kind, why) = match self.status {
            Status::Dead => return Ok(()),
            Status::Pending if !in_doubt => return Ok(()),
            Status::NeedsReview if !in_doubt => {
                (ErrorKind::Refused, "a person must look: resolve it as dead, then cancel it")
            }
            Status::Pending | Status::NeedsReview | Status::Unknown => {
                (ErrorKind::TooLate, "it may have been applied")
            }
            Status::InFlight => (ErrorKind::TooLate, "it is being sent"),
            Status::Succeeded | Status::Cancelled => (ErrorKind::TooLate, "it is settled"),
        };
        Err(Error::new(kind, format!("intent {} is {}: {why}", self.id, self.status)))
    }

    /// Settles it, whatever claim it is under: whoever holds that finds it gone.
    pub fn settle(
        &self,
        conn: &Connection,
        status: Status,
        receipt: Option<&Receipt>,
        now: i64,
    ) -> Result<()> {
        // A queued row has no lease row.
        conn.prepare_cached("DELETE FROM main.outbox_lease WHERE id = ?1")?.execute([self.id])?;
        let settlement = Settlement {
            id: self.id,
            status,
            attempts: self.facts.attempts,
            receipt,
            is_keyed: self.is_keyed,
            was_in_doubt: true,
            now,
        };
        settled::write(conn, &settlement)?;
        settled::count(conn, &self.operation, status.as_str(), 1)
    }

    /// Puts a move on record.
    pub fn record(
        &self,
        conn: &Connection,
        kind: EventKind,
        to: Status,
        by: By<'_>,
        now: i64,
    ) -> Result<Event> {
        insert_event(conn, &self.line(kind, to, by, now))
    }

    /// The line for it, to be filled in further.
    pub fn line<'a>(
        &self,
        kind: EventKind,
        to: Status,
        (actor, reason): By<'a>,
        now: i64,
    ) -> NewEvent<'a> {
        NewEvent {
            known: None,
            outbox_id: self.id,
            at: now,
            kind,
            from: self.status,
            to,
            attempt: self.facts.attempts,
            claimed_at: None,
            token: None,
            actor: Some(actor),
            error_class: None,
            reason,
            downstream_id: None,
        }
    }
}

pub(crate) fn find(conn: &Connection, id: i64) -> Result<OperatorRow> {
    let mut statement = conn.prepare_cached(
        "SELECT o.operation, o.ordering_key IS NOT NULL, coalesce(r.status, l.state, 'pending'),
                coalesce(l.attempts, r.attempts, 0), l.in_doubt_since, l.cancel_requested_at
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
                operation: columns::lossy(row, 0)?,
                is_keyed: row.get(1)?,
                status: columns::lossy(row, 2)?.parse().unwrap_or(Status::NeedsReview),
                facts: Facts {
                    attempts: columns::counter(row, 3)?,
                    in_doubt_since: row.get(4)?,
                    cancel_requested: row.get::<_, Option<i64>>(5)?.is_some(),
                    ..Facts::default()
                },
            })
        })
        .optional()?;
    found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no intent {id}")))
}
