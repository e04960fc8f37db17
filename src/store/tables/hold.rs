//! Holds: what stops one origin, endpoint, tenant or agent run of an operation, or its suspects,
//! and the rows that wait behind each.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, Row, named_params};

use crate::core::Shard;
use crate::core::endpoint::{endpoint_name, origin_of};
use crate::core::hold::{Cause, Domain, Hold};
use crate::error::Result;
use crate::handler::StoredIntent;
use crate::store::columns;
use crate::store::statement::{execute, query_row};
use crate::store::tables::ledger;
use crate::store::tables::unrecorded::may_move;

/// The holds of one operation as a transaction has read and left them.
#[derive(Default)]
pub(crate) struct Holds {
    /// The kinds of domain of which there are any.
    pub kinds: Vec<Domain>,
    pub known: HashMap<(Domain, String), Option<Hold>>,
}

macro_rules! holds {
    ($condition:literal) => {
        concat!(
            "SELECT operation, domain, name, cause, since, until, culprit, reason, failures, probes,
                    probe_id, probe_token, id
             FROM main.outbox_hold ",
            $condition
        )
    };
}

/// The hold on a domain, where there is one.
pub(crate) fn find(
    conn: &Connection,
    operation: &str,
    domain: Domain,
    name: &str,
) -> Result<Option<Hold>> {
    let key = (operation, domain.as_str(), name);
    let found = conn.prepare_cached(FIND)?.query_row(key, read).optional()?;
    let Some(mut hold) = found else { return Ok(None) };
    if let Some((id, token)) = hold.probe
        && !is_under_way(conn, id, token)?
    {
        hold.probe = None;
    }
    Ok(Some(hold))
}

pub(crate) const FIND: &str = holds!("WHERE operation = ?1 AND domain = ?2 AND name = ?3");

pub(crate) fn of_id(conn: &Connection, id: i64) -> Result<Option<Hold>> {
    Ok(query_row(conn, holds!("WHERE id = ?1"), [id], read).optional()?)
}

/// The holds on the domains of an intent.
pub(crate) fn holds_on(
    conn: &Connection,
    id: i64,
    operation: &str,
    place: Place<'_>,
) -> Result<Vec<Hold>> {
    let mut found = Vec::new();
    for kind in kinds(conn, operation)? {
        let name = match kind {
            Domain::Run => ledger::run_of(conn, id)?,
            kind => place.name_in(kind),
        };
        if let Some(name) = name {
            found.extend(find(conn, operation, kind, &name)?);
        }
    }
    Ok(found)
}

/// The part of an intent that says in which domains it is.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub tenant_id: &'a str,
    pub endpoint: Option<&'a str>,
}

impl<'a> Place<'a> {
    pub fn of(intent: &'a StoredIntent) -> Self {
        Self { tenant_id: &intent.tenant_id, endpoint: intent.endpoint.as_deref() }
    }

    /// The name of the domain of this kind that the intent is in; `None` where it is in none.
    pub fn name_in(self, kind: Domain) -> Option<String> {
        match kind {
            Domain::Origin => origin_of(self.endpoint?),
            Domain::Endpoint => endpoint_name(self.endpoint?),
            Domain::Tenant => Some(self.tenant_id.to_owned()),
            Domain::Run | Domain::Suspects | Domain::Network => None,
        }
    }
}

/// Whether the row that tries a hold is in flight under its claim, or due and not claimed yet.
pub(crate) fn is_under_way(conn: &Connection, id: i64, token: Option<i64>) -> Result<bool> {
    let sql = concat!(
        "SELECT EXISTS (SELECT 1 FROM main.outbox_lease l
                        WHERE id = ?1 AND due_at IS NOT NULL
                          AND CASE WHEN ?2 IS NULL THEN state = 'pending' AND ",
        may_move!(),
        "             ELSE token = ?2 AND state = 'in_flight' END)"
    );
    Ok(query_row(conn, sql, (id, token), |row| row.get(0))?)
}

/// The holds of an operation whose time has come, the first first; without those of which only
/// other shards have rows, which would stand before the others for as long as nobody serves those.
pub(crate) fn due(conn: &Connection, operation: &str, shard: Shard, now: i64) -> Result<Vec<Hold>> {
    let mut statement = conn.prepare_cached(DUE)?;
    let rows = statement.query_map((operation, now, shard.count(), shard.index()), read)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(crate) const DUE: &str = holds!(
    "INDEXED BY outbox_hold_until
     WHERE operation = ?1 AND until <= ?2
       AND (EXISTS (SELECT 1 FROM main.outbox_lease l INDEXED BY outbox_lease_held
                    WHERE l.held_by = outbox_hold.id AND l.id % ?3 = ?4)
            OR NOT EXISTS (SELECT 1 FROM main.outbox_lease l INDEXED BY outbox_lease_held
                           WHERE l.held_by = outbox_hold.id))
     ORDER BY until LIMIT 100"
);

/// The kinds of domain of which an operation has holds.
pub(crate) fn kinds(conn: &Connection, operation: &str) -> Result<Vec<Domain>> {
    let mut statement = conn.prepare_cached(KINDS)?;
    Ok(statement.query_row([operation], |row| {
        let mut kinds = Vec::new();
        for (place, kind) in OF_OPERATIONS.into_iter().enumerate() {
            if row.get(place)? {
                kinds.push(kind);
            }
        }
        Ok(kinds)
    })?)
}

/// The kinds of domain within an operation, in the order of `KINDS`.
const OF_OPERATIONS: [Domain; 5] =
    [Domain::Origin, Domain::Endpoint, Domain::Tenant, Domain::Run, Domain::Suspects];

pub(crate) const KINDS: &str = "
    SELECT EXISTS (SELECT 1 FROM main.outbox_hold WHERE operation = ?1 AND domain = 'origin'),
           EXISTS (SELECT 1 FROM main.outbox_hold WHERE operation = ?1 AND domain = 'endpoint'),
           EXISTS (SELECT 1 FROM main.outbox_hold WHERE operation = ?1 AND domain = 'tenant'),
           EXISTS (SELECT 1 FROM main.outbox_hold WHERE operation = ?1 AND domain = 'run'),
           EXISTS (SELECT 1 FROM main.outbox_hold WHERE operation = ?1 AND domain = 'suspects')";

/// The holds of all operations, for a person.
pub(crate) fn all(conn: &Connection) -> Result<Vec<Hold>> {
    let mut statement = conn.prepare_cached(holds!("ORDER BY operation, domain, name"))?;
    let rows = statement.query_map([], read)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Hold> {
    Ok(Hold {
        operation: columns::lossy(row, 0)?,
        // The schema allows no other word.
        domain: columns::lossy(row, 1)?.parse().unwrap_or(Domain::Origin),
        name: columns::lossy(row, 2)?,
        cause: columns::lossy_option(row, 3)?.and_then(|word| word.parse().ok()),
        since: row.get::<_, Option<i64>>(4)?.unwrap_or_default(),
        until: row.get(5)?,
        culprit: row.get(6)?,
        reason: columns::lossy(row, 7)?,
        failures: columns::counter(row, 8)?,
        probes: columns::counter(row, 9)?,
        probe: row.get::<_, Option<i64>>(10)?.zip(Some(row.get(11)?)),
        id: row.get(12)?,
    })
}

/// Writes a hold, and returns its id.
pub(crate) fn save(conn: &Connection, hold: &Hold) -> Result<i64> {
    let sql = "INSERT INTO main.outbox_hold (operation, domain, name, cause, since, until, culprit,
                                       reason, failures, probes, probe_id, probe_token)
         VALUES (:operation, :domain, :name, :cause, :since, :until, :culprit, :reason, :failures,
                 :probes, :probe_id, :probe_token)
         ON CONFLICT (operation, domain, name) DO UPDATE
         SET cause = excluded.cause, since = excluded.since, until = excluded.until,
             culprit = excluded.culprit, reason = excluded.reason, failures = excluded.failures,
             probes = excluded.probes, probe_id = excluded.probe_id,
             probe_token = excluded.probe_token";
    let values = named_params! {
        ":operation": hold.operation,
        ":domain": hold.domain.as_str(),
        ":name": hold.name,
        ":cause": hold.cause.map(Cause::as_str),
        ":since": hold.since,
        ":until": hold.until,
        ":culprit": hold.culprit,
        ":reason": hold.reason,
        ":failures": hold.failures,
        ":probes": hold.probes,
        ":probe_id": hold.probe.map(|(id, _)| id),
        ":probe_token": hold.probe.and_then(|(_, token)| token),
    };
    execute(conn, sql, values)?;
    let sql = "SELECT id FROM main.outbox_hold WHERE operation = ?1 AND domain = ?2 AND name = ?3";
    let key = (&hold.operation, hold.domain.as_str(), &hold.name);
    Ok(query_row(conn, sql, key, |row| row.get(0))?)
}

/// How many endpoints of an origin are left alone at `now`, of the first few.
pub(crate) fn throttled(
    conn: &Connection,
    operation: &str,
    origin: &str,
    now: i64,
) -> Result<usize> {
    let count: i64 = query_row(conn, THROTTLED, (operation, origin, now), |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or_default())
}

/// The name of an endpoint is its origin and, after a space, more.
pub(crate) const THROTTLED: &str = "
    SELECT count(*) FROM main.outbox_hold
    WHERE operation = ?1 AND domain = 'endpoint' AND name > ?2 || ' ' AND name < ?2 || '!'
      AND cause = 'throttled' AND +until > ?3";

/// Removes a hold behind which no row waits any more. Returns whether it is gone.
pub(crate) fn remove(conn: &Connection, hold: i64) -> Result<bool> {
    let sql = "DELETE FROM main.outbox_hold
               WHERE id = ?1
                 AND NOT EXISTS (SELECT 1 FROM main.outbox_lease WHERE held_by = ?1)";
    Ok(execute(conn, sql, [hold])? > 0)
}

/// Lets refused credentials be tried at once: a relay that starts may have new ones.
pub(crate) fn ask_again(conn: &Connection, operation: &str, now: i64) -> Result<()> {
    let sql = "UPDATE main.outbox_hold SET until = ?2
               WHERE operation = ?1 AND cause = 'auth' AND until > ?2";
    execute(conn, sql, (operation, now)).map(drop)
}

/// Ends what was learnt about origins and endpoints, as a person asks, and has the network tried at
/// once. Returns whether anything was held.
pub(crate) fn end_all(conn: &Connection, operation: &str, now: i64) -> Result<bool> {
    let sql = "UPDATE main.outbox_hold SET until = ?1 WHERE operation = '' AND probe_id IS NULL";
    execute(conn, sql, [now])?;
    let sql = "UPDATE main.outbox_hold
               SET cause = NULL, failures = 0, probes = 0, probe_id = NULL, probe_token = NULL,
                   until = ?2
               WHERE operation = ?1 AND domain IN ('origin', 'endpoint') AND cause IS NOT NULL";
    Ok(execute(conn, sql, (operation, now))? > 0)
}

/// Lets a due row wait behind a hold: without a try, without an event.
pub(crate) fn put_aside(conn: &Connection, id: i64, hold: i64) -> Result<()> {
    let sql = "UPDATE main.outbox_lease SET resume_at = due_at, due_at = NULL, held_by = ?2
               WHERE id = ?1 AND state = 'pending' AND due_at IS NOT NULL";
    execute(conn, sql, (id, hold)).map(drop)
}

/// Whether a row waits for a time, its own or that of a hold.
pub(crate) fn waits_for_time(conn: &Connection, id: i64) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM main.outbox_lease
                              WHERE id = ?1 AND (due_at IS NOT NULL OR held_by IS NOT NULL))";
    Ok(query_row(conn, sql, [id], |row| row.get(0))?)
}

/// Makes this row the one that tries the hold behind which it waits, unless another is under way. A
/// budget, a pause and an endpoint that is gone are not tried: they end by themselves, or as a
/// person says.
pub(crate) fn try_with(conn: &Connection, id: i64, now: i64) -> Result<()> {
    let sql = "UPDATE main.outbox_hold SET probe_id = ?1, until = ?2
               WHERE id = (SELECT held_by FROM main.outbox_lease WHERE id = ?1)
                 AND probe_token IS NULL AND cause NOT IN ('budget', 'gone', 'operator')";
    execute(conn, sql, (id, now)).map(drop)
}

/// Lets the oldest rows of a shard behind a hold come due again. Returns them.
pub(crate) fn release(
    conn: &Connection,
    hold: i64,
    shard: Shard,
    count: usize,
) -> Result<Vec<i64>> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let ids: Vec<i64> = conn
        .prepare_cached(OLDEST)?
        .query_map((hold, shard.count(), shard.index(), count), |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    ids.iter().try_for_each(|&id| come_due(conn, id))?;
    Ok(ids)
}

fn come_due(conn: &Connection, id: i64) -> Result<()> {
    let sql = "UPDATE main.outbox_lease
               SET due_at = resume_at, resume_at = NULL, held_by = NULL WHERE id = ?1";
    execute(conn, sql, [id]).map(drop)
}

/// The same for one row of those that name an endpoint of their own, or of those that do not.
pub(crate) fn release_one(
    conn: &Connection,
    hold: i64,
    shard: Shard,
    is_own: bool,
) -> Result<Option<i64>> {
    let sql = "SELECT id FROM main.outbox_lease INDEXED BY outbox_lease_held
               WHERE held_by = ?1 AND id % ?2 = ?3 AND own_endpoint = ?4
               ORDER BY resume_at, id LIMIT 1";
    let values = (hold, shard.count(), shard.index(), is_own);
    let id = query_row(conn, sql, values, |row| row.get(0)).optional()?;
    id.map_or(Ok(()), |id| come_due(conn, id))?;
    Ok(id)
}

/// Puts a row aside again that was let through, unless it is one of those. Returns whether it was
/// put aside.
pub(crate) fn reclaim_unstarted(
    conn: &Connection,
    id: i64,
    hold: i64,
    is_own: bool,
) -> Result<bool> {
    let sql = "UPDATE main.outbox_lease SET resume_at = due_at, due_at = NULL, held_by = ?2
               WHERE id = ?1 AND state = 'pending' AND due_at IS NOT NULL AND own_endpoint <> ?3";
    Ok(execute(conn, sql, (id, hold, is_own))? > 0)
}

/// A row that an object of the application keeps from moving tries nothing.
pub(crate) const OLDEST: &str = concat!(
    "SELECT id FROM main.outbox_lease l INDEXED BY outbox_lease_held
     WHERE held_by = ?1 AND id % ?2 = ?3 AND ",
    may_move!(),
    " ORDER BY resume_at, id LIMIT ?4"
);

/// Whether the time of a hold has come behind which rows of this shard wait.
pub(crate) fn has_due(conn: &Connection, operation: &str, shard: Shard, now: i64) -> Result<bool> {
    let values = (operation, now, shard.count(), shard.index());
    Ok(query_row(conn, HAS_DUE, values, |row| row.get(0))?)
}

pub(crate) const HAS_DUE: &str = concat!(
    "SELECT EXISTS (SELECT 1 FROM main.outbox_hold h INDEXED BY outbox_hold_until
                    WHERE h.operation = ?1 AND h.until <= ?2
                      AND EXISTS (SELECT 1 FROM main.outbox_lease l INDEXED BY outbox_lease_held
                                  WHERE l.held_by = h.id AND l.id % ?3 = ?4 AND ",
    may_move!(),
    "))"
);

/// When the next hold of an operation is to be tried, after `now`.
pub(crate) fn next_until(conn: &Connection, operation: &str, now: i64) -> Result<Option<i64>> {
    Ok(query_row(conn, NEXT_UNTIL, (operation, now), |row| row.get(0))?)
}

pub(crate) const NEXT_UNTIL: &str = "
    SELECT min(until) FROM main.outbox_hold INDEXED BY outbox_hold_until
    WHERE operation = ?1 AND until > ?2";

/// Whether a row of this shard waits behind a hold.
pub(crate) fn has_waiting(conn: &Connection, hold: i64, shard: Shard) -> Result<bool> {
    let values = (hold, shard.count(), shard.index(), 1);
    Ok(conn.prepare_cached(OLDEST)?.exists(values)?)
}

/// How many rows wait behind a hold.
pub(crate) fn waiting(conn: &Connection, hold: i64) -> Result<i64> {
    let sql =
        "SELECT count(*) FROM main.outbox_lease INDEXED BY outbox_lease_held WHERE held_by = ?1";
    Ok(query_row(conn, sql, [hold], |row| row.get(0))?)
}
