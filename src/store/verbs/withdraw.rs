//! Withdrawing an intent, and letting others of its ordering key pass it.

use rusqlite::{Connection, TransactionBehavior};

use crate::core::{Actor, Cancellation, Decision, Filter, Receipt, Status, verbs};
use crate::error::Result;
use crate::event::EventKind;
use crate::store::standing::{self, Standing};
use crate::store::statement::execute;
use crate::store::tables::ordering;
use crate::store::transitions::{Author, Transitions};
use crate::store::verbs::matching::each_match;

/// Withdraws an intent in the caller's transaction.
pub(crate) fn cancel(conn: &Connection, id: i64, actor: &Actor, now: i64) -> Result<()> {
    let found = standing::of(conn, id, now)?;
    let decision = found.allowed(verbs::withdraw(found.status, &found.facts))?;
    apply(conn, &found, EventKind::Cancelled, &decision, actor, now)
}

/// Withdraws an intent or, where it is too late for that, asks that it is not tried again. Returns
/// its new status.
pub(crate) fn request_cancel(
    conn: &Connection,
    id: i64,
    actor: &Actor,
    now: i64,
) -> Result<Status> {
    let found = standing::of(conn, id, now)?;
    match found.allowed(verbs::request_cancel(found.status, &found.facts))? {
        Cancellation::Withdrawn(decision) => {
            apply(conn, &found, EventKind::Cancelled, &decision, actor, now)?;
            Ok(decision.status)
        }
        Cancellation::Requested => {
            let sql = "UPDATE main.outbox_lease SET cancel_requested_at = ?2
                       WHERE id = ?1 AND cancel_requested_at IS NULL";
            if execute(conn, sql, (id, now))? > 0 {
                note(conn, &found, EventKind::CancelRequested, None, actor, now)?;
            }
            Ok(found.status)
        }
    }
}

/// Asks for all intents that match that they are not sent any more; without a status, for those
/// that are pending or in flight. Returns each with its new status.
pub(crate) fn cancel_all(
    conn: &mut Connection,
    filter: &Filter,
    actor: &Actor,
    now: i64,
) -> Result<Vec<(i64, Result<Status>)>> {
    let mut matched = Vec::new();
    let both = [Status::Pending, Status::InFlight];
    for status in both.into_iter().filter(|_| filter.status.is_none()).chain(filter.status) {
        let filter = filter.clone().status(status);
        let act = |tx: &Connection, id| request_cancel(tx, id, actor, now);
        matched.extend(each_match(conn, &filter, TransactionBehavior::Immediate, act)?);
    }
    Ok(matched)
}

/// Lets later intents of its ordering key go on without this one.
pub(crate) fn skip(conn: &Connection, id: i64, actor: &Actor, now: i64) -> Result<()> {
    let mut found = standing::of(conn, id, now)?;
    found.unrecorded = None;
    found.allowed(verbs::skip(found.status, found.is_keyed))?;
    if !ordering::leave(conn, id)? {
        return found.allowed(Err(verbs::skipped_before()));
    }
    note(conn, &found, EventKind::Skipped, None, actor, now)
}

/// Applies the decision about an actor's verb.
pub(super) fn apply(
    conn: &Connection,
    found: &Standing,
    kind: EventKind,
    decision: &Decision,
    actor: &Actor,
    now: i64,
) -> Result<()> {
    let mut moves = Transitions::new(conn, Author::Actor(actor), now);
    if !moves.apply(found.row(), Some(kind), decision, None)? {
        return Err(found.changed());
    }
    moves.finish().map(drop)
}

/// Puts a verb on record that leaves the intent where it stands.
pub(super) fn note(
    conn: &Connection,
    found: &Standing,
    kind: EventKind,
    receipt: Option<&Receipt>,
    actor: &Actor,
    now: i64,
) -> Result<()> {
    let mut moves = Transitions::new(conn, Author::Actor(actor), now);
    let decision = Decision::plain(found.status, &found.facts);
    moves.event(found.row(), kind, found.status, &decision, receipt)?;
    moves.finish().map(drop)
}
