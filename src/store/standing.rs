//! The standing of one intent, read from the small tables in one query.

use rusqlite::{Connection, OptionalExtension};

use crate::core::{Facts, OnDead, Refusal, Status};
use crate::error::{Error, ErrorKind, Result};
use crate::store::columns::{counter, lossy, lossy_option};
use crate::store::statement::query_row;
use crate::store::transitions::Row;

/// An intent as a verb, or an outcome that came late, finds it.
#[derive(Debug)]
pub(crate) struct Standing {
    pub id: i64,
    pub operation: String,
    pub is_keyed: bool,
    pub status: Status,
    /// Complete, so that a decision can write them back.
    pub facts: Facts,
    /// The provider's id that is known: of the receipt, or of a proof that came late.
    pub downstream_id: Option<String>,
    /// Why its outcome, which is known, could not be recorded.
    pub unrecorded: Option<String>,
    token: Option<i64>,
    has_lease: bool,
}

impl Standing {
    /// The row under whatever claim it is now.
    pub fn row(&self) -> Row<'_> {
        Row {
            id: self.id,
            operation: &self.operation,
            is_keyed: self.is_keyed,
            status: self.status,
            token: self.token,
            has_lease: self.has_lease,
            // A person brings no configuration: the stored contract alone decides.
            on_dead: OnDead::Continue,
            delivery: None,
        }
    }

    /// Passes on what a verb is allowed, or its refusal as an error with the intent and its status.
    /// What is known of an intent's outcome is not overruled.
    pub fn allowed<T>(&self, verb: Result<T, Refusal>) -> Result<T> {
        if let Some(error) = &self.unrecorded {
            let text = format!(
                "intent {}: its outcome is known and kept, but recording it failed: {error}; mend \
                 that, and replay the intent",
                self.id
            );
            return Err(Error::new(ErrorKind::Refused, text));
        }
        verb.map_err(|Refusal { kind, why }| {
            Error::new(kind, format!("intent {} is {}: {why}", self.id, self.status))
        })
    }

    /// The row is not where this transaction has read it: the tables were changed by hand.
    pub fn changed(&self) -> Error {
        Error::new(ErrorKind::Database, format!("intent {} changed meanwhile", self.id))
    }
}

pub(crate) const STANDING: &str = "
    SELECT o.operation, o.ordering_key IS NOT NULL, coalesce(r.status, l.state, 'pending'),
           coalesce(l.attempts, r.attempts, 0), coalesce(l.tries, 0), coalesce(l.lost, 0),
           l.in_doubt_since, l.first_sent_at, l.claimed_at, coalesce(l.lookups, 0),
           l.cancel_requested_at IS NOT NULL, o.expires_at, coalesce(r.downstream_id, l.late_id),
           l.token, l.id IS NOT NULL, l.doubt_boot,
           (SELECT u.error FROM main.outbox_unrecorded u
            WHERE u.id = o.id AND u.outcome IS NOT NULL LIMIT 1)
    FROM main.outbox o
    LEFT JOIN main.outbox_lease l ON l.id = o.id
    LEFT JOIN main.outbox_receipt r ON r.id = o.id
    WHERE o.id = ?1";

/// The intent with this row id, or `None`. Hand-edited text does not keep a verb from acting on it.
pub(crate) fn find(conn: &Connection, id: i64, now: i64) -> Result<Option<Standing>> {
    let found = query_row(conn, STANDING, [id], |row| {
        let status = lossy(row, 2)?.parse().unwrap_or(Status::NeedsReview);
        let claimed_at: Option<i64> = row.get(8)?;
        Ok(Standing {
            id,
            operation: lossy(row, 0)?,
            is_keyed: row.get(1)?,
            status,
            facts: Facts {
                attempts: counter(row, 3)?,
                tries: counter(row, 4)?,
                lost: counter(row, 5)?,
                in_doubt_since: row.get(6)?,
                first_sent_at: row.get(7)?,
                // A doubt begins with the attempt that is on the way, or else now.
                claimed_at: claimed_at.filter(|_| status == Status::InFlight).unwrap_or(now),
                lookups: counter(row, 9)?,
                cancel_requested: row.get(10)?,
                expires_at: row.get(11).unwrap_or_default(),
                doubt_boot: row.get(15)?,
                older_by: 0,
            }
            .aged(now, None),
            downstream_id: lossy_option(row, 12)?,
            token: row.get(13)?,
            has_lease: row.get(14)?,
            unrecorded: lossy_option(row, 16)?,
        })
    });
    Ok(found.optional()?)
}

/// The intent with this row id.
pub(crate) fn of(conn: &Connection, id: i64, now: i64) -> Result<Standing> {
    find(conn, id, now)?.ok_or_else(|| Error::no_intent(id))
}
