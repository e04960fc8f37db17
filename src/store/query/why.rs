//! Why an intent is not sent now. Asks what the claim asks, of the same figures, and changes
//! nothing.

use rusqlite::{Connection, OptionalExtension, named_params};

use crate::core::hold::Admission;
use crate::core::why::Rule;
use crate::core::{CLOCK_SLACK_MS, Closed, Fit, Gate, Settled, Shard, Status, Why, decide};
use crate::error::{Error, Result};
use crate::store::columns;
use crate::store::statement::query_row;
use crate::store::tables::gates::gates_of;
use crate::store::tables::hold::{Place, holds_on};
use crate::store::tables::ledger::{Asking, Ledger};
use crate::store::tables::ordering::{HEAD, OVERTAKEN};
use crate::store::tables::{candidate, contract, hold, pause, unrecorded};

/// The first rule that keeps this intent from being sent now.
pub(crate) fn why(conn: &Connection, id: i64, shard: Option<Shard>, now: i64) -> Result<Why> {
    // One view of the file for all the questions.
    let tx = conn.unchecked_transaction()?;
    let row = find(&tx, id)?;
    let unrecorded = unrecorded::of(&tx, id)?.map(Why::unrecorded);
    let of_status =
        || Why::of_status(row.status, row.settled.as_ref(), &row.last_error, row.due_at);
    if let Some(why) = unrecorded.or_else(of_status) {
        return Ok(why);
    }
    if row.status == Status::InFlight {
        let until = row.due_at.unwrap_or(now);
        return Ok(Why::in_flight(&row.owner, row.claimed_at, until, now));
    }
    if let Some(held) = row.held_by.map(|held| hold::of_id(&tx, held)).transpose()?.flatten() {
        return Ok(Why::held(&held));
    }
    let Some(due_at) = row.due_at else {
        return waits_aside(&tx, &row);
    };
    // An operation is registered by a relay with a default once it has something due.
    if due_at > now {
        let is_ahead = row.created_at > now.saturating_add(CLOCK_SLACK_MS);
        return Ok(Why::not_due(due_at, &row.last_error, is_ahead.then_some(row.created_at)));
    }
    let Some(contract) = contract::of(&tx, &row.operation)? else {
        let text = format!(
            "no relay has ever registered the operation {:?}: start one that names it, or one with \
             a default",
            row.operation
        );
        return Ok(Why::new(Rule::NotRegistered, text));
    };
    let Some(candidate) = candidate::candidate(&tx, id, &row.operation)? else {
        return Ok(Why::queued(None));
    };
    let intent = match &candidate.intent {
        Ok(intent) => intent,
        Err(reason) => {
            let text =
                format!("it cannot be read, and the next claim parks it for review: {reason}");
            return Ok(Why::new(Rule::Unreadable, text));
        }
    };
    let promise = contract::promise(Some(&contract));
    if let Some(withheld) = decide::withheld(&candidate.facts, promise, now) {
        let (facts, is_expired) = (&candidate.facts, withheld == decide::Withheld::Expired);
        let at = if is_expired { facts.expires_at } else { facts.in_doubt_since };
        return Ok(Why::withheld(withheld, promise.downstream, at.unwrap_or(now)));
    }
    if let Some(max) = contract.attempts_max.filter(|&max| candidate.facts.attempts >= max) {
        let text = format!("its attempts are used up: {} of {max}", candidate.facts.attempts);
        return Ok(Why::new(Rule::Attempts, text));
    }
    if let Some(why) = held_back(&tx, &row, due_at, shard, contract.uses_network, now)? {
        return Ok(why);
    }
    let holds = holds_on(&tx, id, &row.operation, Place::of(intent))?;
    if let Some(hold) = holds.iter().find(|hold| hold.admits(id, now) == Admission::Behind) {
        return Ok(Why::held(hold));
    }
    let (tenant_id, cost) = (&intent.tenant_id, intent.cost);
    let asking = Asking { id, tenant_id, cost, deduplicates: promise.deduplicates() };
    let ledger = Ledger::open(&tx, &row.operation, &contract.limits, now)?;
    let unfit = of_fit(&row.operation, cost, ledger.fit(&tx, asking)?);
    Ok(unfit.unwrap_or_else(|| of_relay(id, shard)))
}

/// The rule of a row that has no due time: behind a hold, or behind others of its ordering key.
fn waits_aside(conn: &Connection, row: &Waiting) -> Result<Why> {
    let hold = row.held_by.map(|id| hold::of_id(conn, id)).transpose()?.flatten();
    Ok(match hold {
        Some(hold) => Why::held(&hold),
        None => Why::queued(before(conn, row)?),
    })
}

/// The budget that the row does not fit, where there is one.
fn of_fit(operation: &str, cost: i64, fit: Fit) -> Option<Why> {
    match fit {
        Fit::Fits => None,
        Fit::PutOff(used_up) | Fit::Waits(used_up) => {
            let until = Some(used_up.until);
            Some(Why::closed(operation, &Closed::Budget(used_up), until))
        }
        Fit::Never(budget) => {
            let text = format!(
                "it costs {cost}, which is more than the whole budget {budget}; the next claim \
                 sets it aside for a person"
            );
            Some(Why::new(Rule::Budget, text))
        }
    }
}

/// The rule of a relay that would send the row next: its shard, or none.
fn of_relay(id: i64, shard: Option<Shard>) -> Why {
    if let Some(shard) = shard.filter(|shard| !shard.holds(id)) {
        let count = shard.count();
        let own = id.checked_rem(i64::from(count)).unwrap_or_default();
        let text = format!("it is of shard {own}/{count}, which a relay of {shard} skips");
        return Why::new(Rule::OtherShard, text);
    }
    Why::new(Rule::Next, "nothing keeps it: the next claim of a relay sends it")
}

/// The rule of the row's operation that keeps the row back: a pause, a limit, or the row's turn.
fn held_back(
    conn: &Connection,
    row: &Waiting,
    due_at: i64,
    shard: Option<Shard>,
    uses_network: bool,
    now: i64,
) -> Result<Option<Why>> {
    let operation = &row.operation;
    let mut flow = pause::load(conn, operation)?.unwrap_or_default();
    flow.end_pause(now);
    // The turn is among the rows that the same relay sees.
    let shard = shard.filter(|shard| shard.holds(row.id)).unwrap_or_default();
    let ledger = Ledger::open(conn, operation, &flow.limits, now)?;
    let network = pause::network(conn, uses_network)?;
    let gates = gates_of(conn, &flow, &ledger, network.as_ref(), shard)?;
    Ok(match if row.own_endpoint { gates.elsewhere } else { gates.configured } {
        Gate::Closed { until, why } => Some(Why::closed(operation, &why, until)),
        Gate::Open(usize::MAX) => None,
        Gate::Open(limit) => {
            let (ahead, _) = due(conn, row, due_at, shard, now)?;
            let others = if ahead == 1 { "other is" } else { "others are" };
            let text =
                format!("{ahead} {others} due before it of {operation:?}, and {limit} may go now");
            (ahead >= limit).then(|| Why::new(Rule::Turn, text))
        }
        Gate::Probe(passed_over) => {
            let (ahead, all) = due(conn, row, due_at, shard, now)?;
            let probe = if all > passed_over { passed_over } else { 0 };
            let text = format!(
                "{operation:?} is paused, and another intent will try whether it can go on"
            );
            (ahead != probe).then(|| Why::new(Rule::Turn, text))
        }
    })
}

/// How many rows are due before this one, and how many at all, in the order of the claim.
fn due(
    conn: &Connection,
    row: &Waiting,
    due_at: i64,
    shard: Shard,
    now: i64,
) -> Result<(usize, usize)> {
    let sql = "SELECT count(*) FILTER (WHERE (due_at, id) < (:due_at, :id)), count(*)
               FROM main.outbox_lease INDEXED BY outbox_lease_due
               WHERE operation = :operation AND state = 'pending' AND due_at <= :now
                 AND id % :count = :index";
    let values = named_params! {
        ":operation": row.operation,
        ":now": now,
        ":count": shard.count(),
        ":index": shard.index(),
        ":due_at": due_at,
        ":id": row.id,
    };
    let counts =
        query_row(conn, sql, values, |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))?;
    let number = |count: i64| usize::try_from(count).unwrap_or(usize::MAX);
    Ok((number(counts.0), number(counts.1)))
}

/// An intent as the small tables have it.
struct Waiting {
    id: i64,
    operation: String,
    key: Option<(String, String)>,
    status: Status,
    settled: Option<Settled>,
    due_at: Option<i64>,
    owner: String,
    claimed_at: i64,
    last_error: String,
    own_endpoint: bool,
    held_by: Option<i64>,
    created_at: i64,
}

fn find(conn: &Connection, id: i64) -> Result<Waiting> {
    let sql =
        "SELECT o.operation, o.tenant_id, o.ordering_key, coalesce(r.status, l.state, 'pending'),
                r.finished_at, r.downstream_id, l.due_at, l.owner, l.claimed_at, l.last_error,
                o.endpoint IS NOT NULL, l.held_by, o.created_at
         FROM main.outbox o
         LEFT JOIN main.outbox_lease l ON l.id = o.id
         LEFT JOIN main.outbox_receipt r ON r.id = o.id
         WHERE o.id = ?1";
    let found = query_row(conn, sql, [id], |row| {
        let settled_at: Option<i64> = row.get(4)?;
        let downstream_id = columns::lossy_option(row, 5)?;
        let ordering_key = columns::lossy_option(row, 2)?;
        let tenant = columns::lossy(row, 1)?;
        Ok(Waiting {
            id,
            operation: columns::lossy(row, 0)?,
            key: ordering_key.map(|key| (tenant, key)),
            status: columns::lossy(row, 3)?.parse().unwrap_or(Status::NeedsReview),
            settled: settled_at.map(|at| Settled { at, downstream_id }),
            due_at: row.get(6)?,
            owner: columns::lossy(row, 7)?,
            claimed_at: row.get::<_, Option<i64>>(8)?.unwrap_or_default(),
            last_error: columns::lossy(row, 9)?,
            own_endpoint: row.get(10)?,
            held_by: row.get(11)?,
            created_at: row.get(12).unwrap_or_default(),
        })
    });
    found.optional()?.ok_or_else(|| Error::no_intent(id))
}

/// The intent of the same ordering key that a queued one waits for: the first in line, or where
/// that is itself, a later one that is on the way.
fn before(conn: &Connection, row: &Waiting) -> Result<Option<(i64, Status)>> {
    let Some((tenant, key)) = &row.key else { return Ok(None) };
    let head: Option<i64> =
        conn.prepare_cached(HEAD)?.query_row([tenant, key], |row| row.get(0)).optional()?;
    let mut before = head.filter(|&head| head != row.id);
    if before.is_none() {
        before =
            conn.prepare_cached(OVERTAKEN)?.query_row([row.id], |row| row.get(0)).optional()?;
    }
    before.map(|id| Ok((id, find(conn, id)?.status))).transpose()
}

#[cfg(test)]
mod tests;
