//! The flow of each operation, read and written inside the step that acts on it.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, named_params};

use crate::core::budget::Left;
use crate::core::flow::{Closed, Flow, FlowMove, Gate, Pause, PauseKind, gate};
use crate::core::outcome::Outcome;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::Delivery;
use crate::store::columns;
use crate::store::relay::tx::{Rules, Step};
use crate::store::tables::{budget, contract};

/// The flow of an operation; `None` where no relay has registered it.
pub(crate) fn load(conn: &Connection, operation: &str) -> Result<Option<Flow>> {
    let mut statement = conn.prepare_cached(
        "SELECT paused_kind, paused_until, paused_since, paused_by, paused_reason, probe_id, probe_token,
                probes, failures, throttled_until, resumed_at, bucket, bucket_at,
                max_in_flight, rate_count, rate_ms
         FROM main.outbox_operation WHERE operation = ?1",
    )?;
    let flow = statement
        .query_row([operation], |row| {
            let kind = columns::lossy_option(row, 0)?.and_then(|word| word.parse().ok());
            let pause = match kind {
                Some(kind) => Some(Pause {
                    kind,
                    until: row.get(1)?,
                    since: row.get::<_, Option<i64>>(2)?.unwrap_or_default(),
                    actor: columns::lossy(row, 3)?,
                    reason: columns::lossy(row, 4)?,
                }),
                None => None,
            };
            Ok(Flow {
                limits: contract::read_limits(row, 13)?,
                pause,
                probe: row.get::<_, Option<i64>>(5)?.zip(row.get::<_, Option<i64>>(6)?),
                probes: columns::counter(row, 7)?,
                failures: columns::counter(row, 8)?,
                throttled_until: row.get(9)?,
                resumed_at: row.get(10)?,
                bucket: row.get::<_, Option<i64>>(11)?.zip(row.get::<_, Option<i64>>(12)?),
            })
        })
        .optional()?;
    let Some(mut flow) = flow else { return Ok(None) };
    // A probe whose claim is gone, by whatever means, must not stand in the way for ever.
    if let Some((id, token)) = flow.probe
        && !is_in_flight(conn, id, token)?
    {
        flow.probe = None;
    }
    Ok(Some(flow))
}

pub(crate) fn save(conn: &Connection, operation: &str, flow: &Flow) -> Result<()> {
    let mut statement = conn.prepare_cached(
        "UPDATE main.outbox_operation
         SET paused_kind = :kind, paused_until = :until, paused_since = :since, paused_by = :by,
             paused_reason = :reason, probe_id = :probe_id, probe_token = :probe_token, probes = :probes,
             failures = :failures, throttled_until = :throttled_until, resumed_at = :resumed_at,
             bucket = :bucket, bucket_at = :bucket_at
         WHERE operation = :operation",
    )?;
    let pause = flow.pause.as_ref();
    statement.execute(named_params! {
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
    })?;
    Ok(())
}

/// Whether an operation may send now: the same question for a claim, for a relay that looks
/// whether anything is due, and for a person who asks why a row waits.
pub(crate) fn gate_of(
    conn: &Connection,
    operation: &str,
    flow: &Flow,
    left: &Left,
    now: i64,
) -> Result<Gate> {
    let in_flight = if flow.needs_count(now) { count_in_flight(conn, operation)? } else { 0 };
    Ok(gate(flow, in_flight, left, now))
}

fn count_in_flight(conn: &Connection, operation: &str) -> Result<usize> {
    let mut statement = conn.prepare_cached(
        "SELECT count(*) FROM main.outbox_lease INDEXED BY outbox_lease_due
         WHERE operation = ?1 AND state = 'in_flight' AND due_at IS NOT NULL",
    )?;
    let count: i64 = statement.query_row([operation], |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

fn is_in_flight(conn: &Connection, id: i64, token: i64) -> Result<bool> {
    let mut statement = conn.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM main.outbox_lease WHERE id = ?1 AND token = ?2 AND state = 'in_flight')",
    )?;
    Ok(statement.query_row((id, token), |row| row.get(0))?)
}

/// Writes a move of the operation itself into its own trail.
pub(crate) fn insert_move(
    conn: &Connection,
    operation: &str,
    flow_move: FlowMove,
    pause: Option<&Pause>,
    (actor, reason): (&str, Option<&str>),
    now: i64,
) -> Result<()> {
    let mut statement = conn.prepare_cached(
        "INSERT INTO main.outbox_operation_event (at, operation, kind, cause, until, actor, reason)
         VALUES (:at, :operation, :kind, :cause, :until, :actor, :reason)",
    )?;
    statement.execute(named_params! {
        ":at": now,
        ":operation": operation,
        ":kind": match flow_move { FlowMove::Paused => "paused", FlowMove::Resumed => "resumed" },
        ":cause": pause.map_or("operator", |pause| pause.kind.as_str()),
        ":until": pause.and_then(|pause| pause.until),
        ":actor": actor,
        ":reason": reason,
    })?;
    Ok(())
}

impl Step<'_> {
    /// The operation's flow as this step has left it so far.
    fn flow(&mut self, operation: &str) -> Result<&mut Flow> {
        if !self.flows.contains_key(operation) {
            let flow = load(&self.tx, operation)?.unwrap_or_default();
            self.flows.insert(operation.to_owned(), (flow.clone(), flow));
        }
        match self.flows.get_mut(operation) {
            Some((_, flow)) => Ok(flow),
            None => Err(Error::new(ErrorKind::Database, "the flow of an operation is gone")),
        }
    }

    pub(crate) fn save_flows(&self) -> Result<()> {
        for (operation, (before, now)) in &self.flows {
            if before != now {
                save(&self.tx, operation, now)?;
            }
        }
        Ok(())
    }

    /// Whether rows of this operation may be claimed. Ends a pause whose time has come.
    pub(crate) fn gate(&mut self, rules: &Rules, shard: (u32, u32)) -> Result<Gate> {
        let now = self.now;
        if let Some(pause) = self.flow(&rules.operation)?.end_pause(now) {
            let why = ("relay", Some("its time was over"));
            insert_move(&self.tx, &rules.operation, FlowMove::Resumed, Some(&pause), why, now)?;
        }
        let flow = self.flow(&rules.operation)?.clone();
        let (conn, purse) = self.purse(&rules.operation)?;
        let left = purse.left(conn, shard)?;
        let gate = gate_of(&self.tx, &rules.operation, &flow, &left, now)?;
        if let Gate::Closed { why: Closed::Paused(_) | Closed::Throttled, .. } = &gate {
            // Another relay may have found out: what waits for a worker here must not be sent.
            self.stopped.insert(rules.operation.clone());
        }
        Ok(gate)
    }

    pub(crate) fn begin_probe(&mut self, operation: &str, delivery: Option<&Arc<Delivery>>) {
        if let (Some((_, flow)), Some(delivery)) = (self.flows.get_mut(operation), delivery) {
            flow.probe = Some((delivery.id, delivery.token));
        }
    }

    pub(crate) fn take_from_bucket(&mut self, rules: &Rules, count: usize) {
        if let Some((_, flow)) = self.flows.get_mut(&rules.operation).filter(|_| count > 0) {
            flow.take(count, self.now);
        }
    }

    pub(crate) fn forget_probe(&mut self, operation: &str, id: i64, token: i64) -> Result<()> {
        self.flow(operation)?.forget_probe((id, token));
        Ok(())
    }

    /// Whether this outcome is that of a probe and says that the pause must go on.
    pub(crate) fn is_failed_probe(
        &mut self,
        delivery: &Delivery,
        outcome: &Outcome,
    ) -> Result<bool> {
        let failed = matches!(
            outcome,
            Outcome::NotSent(_) | Outcome::MaybeSent(_) | Outcome::Unauthorized(_)
        );
        Ok(failed && self.flow(&delivery.operation)?.is_probe(delivery.id, delivery.token))
    }

    /// Takes into account what an outcome says about the downstream.
    pub(crate) fn learn(
        &mut self,
        (delivery, outcome, roll): (&Delivery, &Outcome, f64),
        rules: &Rules,
        due_at: Option<i64>,
    ) -> Result<()> {
        let (now, claim) = (self.now, (delivery.id, delivery.token));
        let names_endpoint = delivery.endpoint.is_some();
        let flow = self.flow(&rules.operation)?;
        let before = flow.pause.clone();
        let breaker_after = rules.breaker_after;
        let moved = flow.learn(outcome, claim, breaker_after, names_endpoint, (now, roll), due_at);
        if flow.throttled_until.is_some_and(|until| until > now) {
            // What waits for a worker must not be sent now.
            self.stopped.insert(rules.operation.clone());
        }
        let Some(moved) = moved else { return Ok(()) };
        let pause = self.flow(&rules.operation)?.pause.clone().or(before);
        let reason = match (moved, &pause) {
            (FlowMove::Paused, Some(pause)) => pause.reason.as_str(),
            _ => "the downstream answers again",
        };
        insert_move(
            &self.tx,
            &rules.operation,
            moved,
            pause.as_ref(),
            (self.owner, Some(reason)),
            now,
        )?;
        if moved == FlowMove::Paused {
            log::warn!("operation {:?} is paused: {reason}", rules.operation);
            self.stopped.insert(rules.operation.clone());
        } else {
            log::info!("operation {:?} goes on: {reason}", rules.operation);
        }
        Ok(())
    }
}

/// Pauses an operation by hand, until a time or until it is resumed.
pub(crate) fn pause(
    conn: &mut Connection,
    operation: &str,
    until: Option<i64>,
    (actor, reason): (&str, Option<&str>),
    now: i64,
) -> Result<()> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut flow = known(&tx, operation)?;
    let pause = Pause {
        kind: PauseKind::Operator,
        until,
        reason: reason.unwrap_or_default().to_owned(),
        actor: actor.to_owned(),
        since: now,
    };
    insert_move(&tx, operation, FlowMove::Paused, Some(&pause), (actor, reason), now)?;
    flow.pause(pause);
    save(&tx, operation, &flow)?;
    tx.commit()?;
    Ok(())
}

/// Ends a pause of any kind. Returns whether there was one.
pub(crate) fn resume(
    conn: &mut Connection,
    operation: &str,
    (actor, reason): (&str, Option<&str>),
    now: i64,
) -> Result<bool> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut flow = known(&tx, operation)?;
    let before = flow.pause.clone();
    let stood = flow.resume(now);
    budget::ask_again(&tx, operation, now)?;
    if stood {
        insert_move(&tx, operation, FlowMove::Resumed, before.as_ref(), (actor, reason), now)?;
        save(&tx, operation, &flow)?;
    }
    tx.commit()?;
    Ok(stood)
}

fn known(conn: &Connection, operation: &str) -> Result<Flow> {
    load(conn, operation)?.ok_or_else(|| {
        let text = format!(
            "operation {operation:?} is not registered by any relay, so nothing of it is sent anyway"
        );
        Error::new(ErrorKind::NotFound, text)
    })
}
