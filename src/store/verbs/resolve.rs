//! What a person found out about an intent, and what the provider's own record says of it.

use rusqlite::{Connection, TransactionBehavior, named_params};

use crate::core::contract::OnDead;
use crate::core::outcome::{Receipt, Resolution};
use crate::core::status::Status;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, EventKind};
use crate::store::columns;
use crate::store::tables::audit::{NewEvent, insert_event};
use crate::store::tables::lost_lease::{IsAlive, Senders};
use crate::store::tables::settled::DUPLICATE_EFFECT;
use crate::store::tables::{binding, contract, lost_lease, ordering, settled};
use crate::store::verbs::enqueue;
use crate::store::verbs::replay::send_again;
use crate::store::verbs::withdraw::{By, OperatorRow, find, withdraw};

/// Settles or sends back what may have been applied, on a person's word. Returns where it stands then.
pub(crate) fn resolve(
    conn: &mut Connection,
    id: i64,
    resolution: &Resolution,
    by: By<'_>,
    is_alive: IsAlive<'_>,
    now: i64,
) -> Result<Status> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let row = find(&tx, id)?;
    let is_open = matches!(row.status, Status::Unknown | Status::NeedsReview);
    let is_given_up = row.status == Status::Dead
        && match resolution {
            Resolution::Applied { .. } => true,
            // What was surely not applied is replayed.
            Resolution::NotApplied => row.facts.in_doubt_since.is_some(),
            Resolution::Dead => false,
        };
    if !is_open && !is_given_up {
        let why = "only what is unknown, needs review, or was given up in doubt is resolved; what is \
                   dead also as applied";
        let text = format!("intent {id} is {}: {why}", row.status);
        return Err(Error::new(ErrorKind::Refused, text));
    }
    let status = match resolution {
        Resolution::Applied { downstream_id } => {
            applied(&tx, &row, downstream_id.as_deref(), by, now)?;
            Status::Succeeded
        }
        Resolution::NotApplied => {
            if let Senders::Alive(owner) = lost_lease::senders(&tx, id, is_alive)? {
                let text = format!(
                    "intent {id} may still be on its way: {owner} lost its lease on it, is alive, and \
                     has not said how it went; stop that relay first, or wait for it"
                );
                return Err(Error::new(ErrorKind::Refused, text));
            }
            lost_lease::forget(&tx, id)?;
            if row.facts.cancel_requested {
                // Now it is known that it can still be withdrawn, as somebody wanted.
                withdraw(&tx, &row, EventKind::Resolved, by, now)?;
                Status::Cancelled
            } else {
                send_again(&tx, &row, true, now)?;
                row.record(&tx, EventKind::Resolved, Status::Pending, by, now)?;
                Status::Pending
            }
        }
        Resolution::Dead => {
            bury(&tx, &row, by, now)?;
            Status::Dead
        }
    };
    tx.commit()?;
    Ok(status)
}

fn applied(
    conn: &Connection,
    row: &OperatorRow,
    downstream_id: Option<&str>,
    by: By<'_>,
    now: i64,
) -> Result<()> {
    let receipt = match downstream_id {
        Some(id) => Receipt::new().downstream_id(id),
        None => Receipt::new(),
    };
    if let Some(id) = downstream_id {
        binding::check(id)?;
        if let Some(other) = bind_where_it_binds(conn, row, id)? {
            return Err(binding::conflict(row.id, id, other));
        }
    }
    let line = row.line(EventKind::Resolved, Status::Succeeded, by, now);
    settle_as_applied(conn, row, &receipt, &NewEvent { downstream_id, ..line })?;
    Ok(())
}

/// Settles a row as succeeded. Where it is known under another id, it was carried out twice.
fn settle_as_applied(
    conn: &Connection,
    row: &OperatorRow,
    receipt: &Receipt,
    line: &NewEvent<'_>,
) -> Result<Event> {
    let known = match line.downstream_id {
        Some(id) => known_otherwise(conn, row.id, id)?,
        None => None,
    };
    row.settle(conn, Status::Succeeded, Some(receipt), line.at)?;
    let event = insert_event(conn, line)?;
    match known.as_deref().zip(line.downstream_id) {
        Some(ids) => {
            let again = NewEvent { from: Status::Succeeded, to: Status::Succeeded, ..*line };
            settled::duplicate_effect(conn, &row.operation, &again, ids)
        }
        None => Ok(event),
    }
}

/// Gives up on a row, without saying whether it was applied.
fn bury(conn: &Connection, row: &OperatorRow, by: By<'_>, now: i64) -> Result<()> {
    let mut statement = conn.prepare_cached(
        "UPDATE main.outbox_lease SET state = 'dead', due_at = NULL, token = NULL, owner = NULL
         WHERE id = ?1",
    )?;
    statement.execute([row.id])?;
    let stored = contract::of(conn, &row.operation)?;
    if row.is_keyed && stored.is_some_and(|stored| stored.on_dead() == OnDead::Continue) {
        ordering::leave(conn, row.id)?;
    }
    row.record(conn, EventKind::Resolved, Status::Dead, by, now)?;
    Ok(())
}

/// Settles an intent in any unsettled status, because the provider's own record has its effect.
/// Returns what that put on record; nothing where it was known.
pub(crate) fn confirm(
    conn: &Connection,
    (tenant, key): (&str, &str),
    receipt: &Receipt,
    by: By<'_>,
    now: i64,
) -> Result<Option<Event>> {
    let downstream_id = receipt.downstream_id.as_deref();
    downstream_id.map_or(Ok(()), binding::check)?;
    let id = enqueue::id_of_key(conn, tenant, key)?.ok_or_else(|| {
        let of = if tenant.is_empty() { String::new() } else { format!(" of tenant {tenant:?}") };
        Error::new(ErrorKind::NotFound, format!("there is no intent with the key {key:?}{of}"))
    })?;
    let row = find(conn, id)?;
    let line = NewEvent { downstream_id, ..row.line(EventKind::Confirmed, row.status, by, now) };
    if row.status.is_settled() {
        return confirm_settled(conn, &row, &line, downstream_id);
    }
    if let Some(downstream_id) = downstream_id
        && let Some(other) = bind_where_it_binds(conn, &row, downstream_id)?
    {
        let reason = binding::taken(id, downstream_id, other);
        set_aside(conn, &row, &reason, now)?;
        let (to, error_class) = (Status::NeedsReview, Some("duplicate_id"));
        let line = NewEvent { to, error_class, reason: Some(&reason), ..line };
        return insert_event(conn, &line).map(Some);
    }
    settle_as_applied(conn, &row, receipt, &NewEvent { to: Status::Succeeded, ..line }).map(Some)
}

/// It changes nothing any more; but it may say that the effect happened twice, or after all.
fn confirm_settled(
    conn: &Connection,
    row: &OperatorRow,
    line: &NewEvent<'_>,
    downstream_id: Option<&str>,
) -> Result<Option<Event>> {
    if is_on_record(conn, row.id, downstream_id)? {
        return Ok(None);
    }
    if let Some(id) = downstream_id
        && let Some(other) = bind_where_it_binds(conn, row, id)?
    {
        let reason = binding::taken(row.id, id, other);
        let error_class = Some("duplicate_id");
        return insert_event(conn, &NewEvent { error_class, reason: Some(&reason), ..*line })
            .map(Some);
    }
    if row.status == Status::Cancelled {
        let reason = "it was cancelled, but the provider says that it was carried out";
        return insert_event(conn, &NewEvent { reason: Some(reason), ..*line }).map(Some);
    }
    let Some(id) = downstream_id else { return Ok(None) };
    match known_otherwise(conn, row.id, id)? {
        Some(known) => {
            settled::duplicate_effect(conn, &row.operation, line, (&known, id)).map(Some)
        }
        None if settled::has_heard_of(conn, row.id, id)? => Ok(None),
        None => insert_event(conn, line).map(Some),
    }
}

/// Whether it was told before that this was carried out: webhooks are delivered more than once.
/// A late line without an id is that of a failure.
fn is_on_record(conn: &Connection, id: i64, downstream_id: Option<&str>) -> Result<bool> {
    let mut statement = conn.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM main.outbox_event
                        WHERE outbox_id = :id AND downstream_id IS :downstream_id
                          AND (kind IN ('confirmed', :duplicate)
                               OR kind = 'late' AND downstream_id IS NOT NULL))",
    )?;
    let values = named_params! {
        ":id": id, ":downstream_id": downstream_id, ":duplicate": DUPLICATE_EFFECT,
    };
    Ok(statement.query_row(values, |row| row.get(0))?)
}

/// Another id than this one under which the provider knows it, as far as that was recorded: in its
/// receipt, by an attempt that was late, or up front. One that was heard of before is no news.
fn known_otherwise(conn: &Connection, id: i64, downstream_id: &str) -> Result<Option<String>> {
    if settled::has_heard_of(conn, id, downstream_id)? {
        return Ok(None);
    }
    let mut statement = conn.prepare_cached(
        "SELECT coalesce((SELECT downstream_id FROM main.outbox_receipt WHERE id = ?1),
                         (SELECT late_id FROM main.outbox_lease WHERE id = ?1))",
    )?;
    let recorded = statement.query_row([id], |row| columns::lossy_option(row, 0))?;
    match recorded.filter(|recorded| recorded != downstream_id) {
        Some(recorded) => Ok(Some(recorded)),
        None => binding::other_id(conn, id, downstream_id),
    }
}

/// Parks a row for a person, whatever claim it is under.
fn set_aside(conn: &Connection, row: &OperatorRow, reason: &str, now: i64) -> Result<()> {
    lost_lease::note_in_flight(conn, row.id)?;
    let mut statement = conn.prepare_cached(
        "INSERT INTO main.outbox_lease (id, operation, state, in_doubt_since, error_class, last_error)
         VALUES (:id, :operation, 'needs_review', :now, 'duplicate_id', :reason)
         ON CONFLICT (id) DO UPDATE
         SET state = 'needs_review', due_at = NULL, token = NULL, owner = NULL, late_id = NULL,
             late_receipt = NULL,
             in_doubt_since = coalesce(in_doubt_since, CASE state WHEN 'in_flight' THEN claimed_at END, :now),
             error_class = 'duplicate_id',
             last_error = :reason",
    )?;
    statement.execute(named_params! {
        ":id": row.id, ":operation": row.operation, ":now": now, ":reason": reason,
    })?;
    if row.is_keyed && row.status == Status::InFlight {
        ordering::yield_to_earlier(conn, row.id, now)?;
    }
    Ok(())
}

/// Gives an id to a row whose operation binds them. Returns whose it is already.
fn bind_where_it_binds(
    conn: &Connection,
    row: &OperatorRow,
    downstream_id: &str,
) -> Result<Option<i64>> {
    let stored = contract::of(conn, &row.operation)?;
    if !binding::binds(stored.as_ref()) {
        return Ok(None);
    }
    let provider = binding::provider(&row.operation, stored.as_ref());
    binding::bind(conn, provider, downstream_id, row.id)
}

/// Gives an id to an intent before it is sent.
pub(crate) fn bind(
    conn: &Connection,
    id: i64,
    downstream_id: &str,
    by: By<'_>,
    now: i64,
) -> Result<()> {
    binding::check(downstream_id)?;
    let row = find(conn, id)?;
    if row.status.is_settled() {
        let text = format!("intent {id} is {}: its receipt says what its id is", row.status);
        return Err(Error::new(ErrorKind::TooLate, text));
    }
    match binding::id_of(conn, id)? {
        Some(known) if known == downstream_id => return Ok(()),
        Some(known) => {
            let text = format!("intent {id} has the id {known:?} already, not {downstream_id:?}");
            return Err(Error::new(ErrorKind::Conflict, text));
        }
        None => {}
    }
    let stored = contract::of(conn, &row.operation)?;
    let provider = binding::provider(&row.operation, stored.as_ref());
    if let Some(other) = binding::bind(conn, provider, downstream_id, id)? {
        let text =
            format!("the id {downstream_id:?} belongs to intent {other}, not to intent {id}");
        return Err(Error::new(ErrorKind::Conflict, text));
    }
    let line = row.line(EventKind::Bound, row.status, by, now);
    insert_event(conn, &NewEvent { downstream_id: Some(downstream_id), ..line })?;
    Ok(())
}
