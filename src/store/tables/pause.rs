//! The flow control of each operation in `outbox_operation`: its pause, throttle, probe and rate.

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, named_params};

use crate::core::hold::{Domain, Hold};
use crate::core::{Actor, FlowControl, FlowMove, Pause, PauseKind};
use crate::error::{Error, ErrorKind, Result};
use crate::store::columns;
use crate::store::statement::{execute, query_row};
use crate::store::tables::{budget, contract, hold};

/// The flow of an operation; `None` where no relay has registered it.
pub(crate) fn load(conn: &Connection, operation: &str) -> Result<Option<FlowControl>> {
    let sql = "SELECT paused_kind, paused_until, paused_since, paused_by, paused_reason, probe_id,
                      probe_token, probes, failures, throttled_until, resumed_at, bucket, bucket_at,
                      max_in_flight, rate_count, rate_ms, paused_culprit, refused, throttled_since,
                      throttled_by
               FROM main.outbox_operation WHERE operation = ?1";
    let flow = query_row(conn, sql, [operation], |row| {
        let kind = columns::lossy_option(row, 0)?.and_then(|word| word.parse().ok());
        let pause = match kind {
            Some(kind) => Some(Pause {
                kind,
                until: row.get(1)?,
                since: row.get::<_, Option<i64>>(2)?.unwrap_or_default(),
                culprit: row.get(16)?,
                actor: columns::lossy(row, 3)?,
                reason: columns::lossy(row, 4)?,
            }),
            None => None,
        };
        Ok(FlowControl {
            limits: contract::read_limits(row, 13)?,
            pause,
            probe: row.get::<_, Option<i64>>(5)?.zip(row.get::<_, Option<i64>>(6)?),
            probes: columns::counter(row, 7)?,
            failures: columns::counter(row, 8)?,
            refused: columns::lossy(row, 17)?
                .split_whitespace()
                .filter_map(|id| id.parse().ok())
                .collect(),
            throttled_until: row.get(9)?,
            throttled_since: row.get(18)?,
            throttled_by: row.get(19)?,
            resumed_at: row.get(10)?,
            bucket: row.get::<_, Option<i64>>(11)?.zip(row.get::<_, Option<i64>>(12)?),
        })
    })
    .optional()?;
    let Some(mut flow) = flow else { return Ok(None) };
    // A probe whose claim is gone, by whatever means, must not stand in the way forever.
    if let Some((id, token)) = flow.probe
        && !is_in_flight(conn, id, token)?
    {
        flow.probe = None;
    }
    Ok(Some(flow))
}

pub(crate) fn save(conn: &Connection, operation: &str, flow: &FlowControl) -> Result<()> {
    let sql = "UPDATE main.outbox_operation
         SET paused_kind = :kind, paused_until = :until, paused_since = :since, paused_by = :by,
             paused_reason = :reason, probe_id = :probe_id, probe_token = :probe_token,
             probes = :probes, failures = :failures, throttled_until = :throttled_until,
             resumed_at = :resumed_at, bucket = :bucket, bucket_at = :bucket_at,
             paused_culprit = :culprit, refused = :refused, throttled_since = :throttled_since,
             throttled_by = :throttled_by
         WHERE operation = :operation";
    let pause = flow.pause.as_ref();
    let refused: Vec<String> = flow.refused.iter().map(i64::to_string).collect();
    let values = named_params! {
        ":operation": operation,
        ":kind": pause.map(|pause| pause.kind.as_str()),
        ":until": pause.and_then(|pause| pause.until),
        ":since": pause.map(|pause| pause.since),
        ":by": pause.map(|pause| pause.actor.as_str()),
        ":reason": pause.map(|pause| pause.reason.as_str()),
        ":probe_id": flow.probe.map(|(id, _)| id),
        ":probe_token": flow.probe.map(|(_, token)| token),
        ":probes": flow.probes,
        ":failures": flow.failures,
        ":throttled_until": flow.throttled_until,
        ":resumed_at": flow.resumed_at,
        ":bucket": flow.bucket.map(|(left, _)| left),
        ":bucket_at": flow.bucket.map(|(_, at)| at),
        ":culprit": pause.and_then(|pause| pause.culprit),
        ":refused": (!refused.is_empty()).then(|| refused.join(" ")),
        ":throttled_since": flow.throttled_since,
        ":throttled_by": flow.throttled_by,
    };
    execute(conn, sql, values).map(drop)
}

/// The hold on everything that goes over the network, where that is asked for.
pub(crate) fn network(conn: &Connection, uses_network: bool) -> Result<Option<Hold>> {
    if uses_network { hold::find(conn, "", Domain::Network, "") } else { Ok(None) }
}

fn is_in_flight(conn: &Connection, id: i64, token: i64) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM main.outbox_lease
                              WHERE id = ?1 AND token = ?2 AND state = 'in_flight')";
    Ok(query_row(conn, sql, (id, token), |row| row.get(0))?)
}

/// Writes a move of the operation itself into its own trail.
pub(crate) fn insert_move(
    conn: &Connection,
    operation: &str,
    flow_move: FlowMove,
    pause: Option<&Pause>,
    actor: &Actor,
    now: i64,
) -> Result<()> {
    let sql =
        "INSERT INTO main.outbox_operation_event (at, operation, kind, cause, until, actor, reason)
         VALUES (:at, :operation, :kind, :cause, :until, :actor, :reason)";
    execute(conn, sql, named_params! {
        ":at": now,
        ":operation": operation,
        ":kind": match flow_move { FlowMove::Paused => "paused", FlowMove::Resumed => "resumed" },
        ":cause": pause.map_or("operator", |pause| pause.kind.as_str()),
        ":until": pause.and_then(|pause| pause.until),
        ":actor": actor.name(),
        ":reason": actor.why(),
    }).map(drop)
}

/// Pauses an operation by hand, until a time or until it is resumed.
pub(crate) fn pause(
    conn: &mut Connection,
    operation: &str,
    until: Option<i64>,
    actor: &Actor,
    now: i64,
) -> Result<()> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut flow = known(&tx, operation)?;
    let pause = Pause {
        kind: PauseKind::Operator,
        until,
        reason: actor.why().unwrap_or_default().to_owned(),
        actor: actor.name().to_owned(),
        since: now,
        culprit: None,
    };
    insert_move(&tx, operation, FlowMove::Paused, Some(&pause), actor, now)?;
    flow.pause(pause);
    save(&tx, operation, &flow)?;
    Ok(tx.commit()?)
}

/// Ends a pause of any kind. Returns whether there was one.
pub(crate) fn resume(
    conn: &mut Connection,
    operation: &str,
    actor: &Actor,
    now: i64,
) -> Result<bool> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut flow = known(&tx, operation)?;
    let before = flow.pause.clone();
    let was_paused = flow.resume(now);
    budget::ask_again(&tx, operation, now)?;
    if let Some(culprit) = before.as_ref().and_then(|pause| pause.culprit) {
        stand_back(&tx, culprit, now)?;
    }
    let was_paused = was_paused | hold::end_all(&tx, operation, now)?;
    if was_paused {
        insert_move(&tx, operation, FlowMove::Resumed, before.as_ref(), actor, now)?;
        save(&tx, operation, &flow)?;
    }
    tx.commit()?;
    Ok(was_paused)
}

/// Lets the intent that began a pause stand behind those that are due already, so that it is not
/// the first to be tried again.
fn stand_back(conn: &Connection, culprit: i64, now: i64) -> Result<()> {
    let sql = "UPDATE main.outbox_lease SET due_at = ?2
               WHERE id = ?1 AND state = 'pending' AND due_at < ?2";
    execute(conn, sql, (culprit, now)).map(drop)
}

fn known(conn: &Connection, operation: &str) -> Result<FlowControl> {
    load(conn, operation)?.ok_or_else(|| {
        let text = format!(
            "operation {operation:?} is not registered by any relay, so nothing of it is sent, and \
             there is no pause to end; `outbox operations` lists the names"
        );
        Error::new(ErrorKind::NotFound, text)
    })
}
