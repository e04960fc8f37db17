//! Answers about an intent: a person's finding, the provider's own record, and the provider's id.

use rusqlite::{Connection, TransactionBehavior, named_params};

use crate::core::{Actor, Receipt, Resolution, Status, verbs};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, EventKind};
use crate::store::query::read::id_of_either_key;
use crate::store::standing;
use crate::store::statement::query_row;
use crate::store::tables::lost_lease::{self, IsAlive, Senders};
use crate::store::tables::settled::DUPLICATE_EFFECT;
use crate::store::tables::{binding, contract};
use crate::store::transitions::{Author, Transitions};
use crate::store::verbs::withdraw::note;

/// Settles or sends back an intent that may have been applied, on a person's word. Returns its new
/// status.
pub(crate) fn resolve(
    conn: &mut Connection,
    id: i64,
    resolution: &Resolution,
    actor: &Actor,
    is_alive: IsAlive<'_>,
    now: i64,
) -> Result<Status> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = standing::of(&tx, id, now)?;
    let decision = found.allowed(verbs::resolve(found.status, &found.facts, resolution, now))?;
    let mut moves = Transitions::new(&tx, Author::Actor(actor), now);
    let mut receipt = None;
    match resolution {
        Resolution::Applied { downstream_id } => {
            let proof = receipt.insert(Receipt::new());
            if let Some(downstream_id) = downstream_id {
                binding::check(downstream_id)?;
                if let Some(taken) = moves.taken(found.row(), Some(downstream_id))? {
                    return Err(Error::new(ErrorKind::Conflict, taken));
                }
                proof.downstream_id = Some(downstream_id.clone());
            }
        }
        Resolution::NotApplied => {
            refuse_living_sender(&tx, id, is_alive)?;
            lost_lease::forget(&tx, id)?;
        }
        Resolution::Dead => {}
    }
    if !moves.apply(found.row(), Some(EventKind::Resolved), &decision, receipt.as_ref())? {
        return Err(found.changed());
    }
    moves.finish()?;
    tx.commit()?;
    Ok(decision.status)
}

fn refuse_living_sender(conn: &Connection, id: i64, is_alive: IsAlive<'_>) -> Result<()> {
    let Senders::Alive(owner) = lost_lease::senders(conn, id, is_alive)? else { return Ok(()) };
    let text = format!(
        "intent {id} may still be on its way: {owner} lost its lease on it, is alive, and has not \
         said how it went; stop that relay first, or wait for it"
    );
    Err(Error::new(ErrorKind::Refused, text))
}

/// Settles an intent in any unsettled status, because the provider's own record has its effect.
/// Returns its event, or `None` where the effect was known.
pub(crate) fn confirm(
    conn: &Connection,
    (tenant, key): (&str, &str),
    receipt: &Receipt,
    actor: &Actor,
    now: i64,
) -> Result<Option<Event>> {
    let downstream_id = receipt.downstream_id.as_deref();
    downstream_id.map_or(Ok(()), binding::check)?;
    let id = id_of_either_key(conn, tenant, key)?.ok_or_else(|| {
        let of = if tenant.is_empty() { String::new() } else { format!(" of tenant {tenant:?}") };
        Error::no_intent(format_args!("with the key {key:?}{of}"))
    })?;
    let found = standing::of(conn, id, now)?;
    let decision = verbs::confirm(found.status, &found.facts);
    let kind = EventKind::Confirmed;
    let mut moves = Transitions::new(conn, Author::Actor(actor), now);
    if found.status.is_settled() {
        if is_on_record(conn, id, downstream_id)? {
            return Ok(None);
        }
        let known = found.downstream_id.clone();
        moves.beside_settled(found.row(), kind, &decision, receipt, known)?;
    } else if !moves.apply(found.row(), Some(kind), &decision, Some(receipt))? {
        return Err(found.changed());
    }
    Ok(moves.finish()?.pop())
}

/// Whether an earlier webhook or late success has put this on record: webhooks are delivered more
/// than once. A late event without an id is that of a failure.
fn is_on_record(conn: &Connection, id: i64, downstream_id: Option<&str>) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM main.outbox_event
                              WHERE outbox_id = :id AND downstream_id IS :downstream_id
                                AND (kind IN ('confirmed', :duplicate)
                                     OR kind = 'late' AND downstream_id IS NOT NULL))";
    let values = named_params! {
        ":id": id, ":downstream_id": downstream_id, ":duplicate": DUPLICATE_EFFECT,
    };
    Ok(query_row(conn, sql, values, |row| row.get(0))?)
}

/// Gives an id to an intent before it is sent.
pub(crate) fn bind(
    conn: &Connection,
    id: i64,
    downstream_id: &str,
    actor: &Actor,
    now: i64,
) -> Result<()> {
    binding::check(downstream_id)?;
    let found = standing::of(conn, id, now)?;
    let known = binding::id_of(conn, id)?;
    if !found.allowed(verbs::bind(found.status, known.as_deref(), downstream_id))? {
        return Ok(());
    }
    let stored = contract::of(conn, &found.operation)?;
    let operation = found.operation.as_str();
    let provider = stored.as_ref().map_or(operation, |stored| stored.provider(operation));
    if let Some(other) = binding::bind(conn, provider, downstream_id, id)? {
        let text =
            format!("the id {downstream_id:?} belongs to intent {other}, not to intent {id}");
        return Err(Error::new(ErrorKind::Conflict, text));
    }
    let receipt = Receipt::new().downstream_id(downstream_id);
    note(conn, &found, EventKind::Bound, Some(&receipt), actor, now)
}
