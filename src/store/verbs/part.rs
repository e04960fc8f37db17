//! Pausing the intents of one tenant or one agent run, while those of others go on.

use rusqlite::{Connection, TransactionBehavior, named_params};

use crate::core::Actor;
use crate::core::hold::{Cause, Hold, Part};
use crate::error::{Error, ErrorKind, Result};
use crate::store::statement::execute;
use crate::store::tables::{contract, hold};

/// Pauses a part of one operation, or of all that are registered, until a time or until it is
/// resumed.
pub(crate) fn pause(
    conn: &mut Connection,
    part: &Part,
    operation: Option<&str>,
    until: Option<i64>,
    actor: &Actor,
    now: i64,
) -> Result<()> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let reason = actor.why().map_or_else(String::new, |why| format!(": {why}"));
    for operation in operations(&tx, operation)? {
        let (domain, name) = part.domain();
        let known = hold::find(&tx, &operation, domain, name)?;
        let held = Hold {
            cause: Some(Cause::Operator),
            since: now,
            until,
            culprit: None,
            reason: format!("paused by {}{reason}", actor.name()),
            probe: None,
            ..known.unwrap_or_else(|| Hold::new(&operation, domain, name.to_owned()))
        };
        hold::save(&tx, &held)?;
        insert_move(&tx, &operation, "paused", part, until, actor, now)?;
    }
    Ok(tx.commit()?)
}

/// Ends the pause of a part. Returns whether there was one.
pub(crate) fn resume(
    conn: &mut Connection,
    part: &Part,
    operation: Option<&str>,
    actor: &Actor,
    now: i64,
) -> Result<bool> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut was_paused = false;
    for operation in operations(&tx, operation)? {
        let (domain, name) = part.domain();
        let held = hold::find(&tx, &operation, domain, name)?;
        if let Some(held) = held.filter(|held| held.cause == Some(Cause::Operator)) {
            hold::save(&tx, &Hold { cause: None, until: Some(now), probes: 0, ..held })?;
            insert_move(&tx, &operation, "resumed", part, None, actor, now)?;
            was_paused = true;
        }
    }
    tx.commit()?;
    Ok(was_paused)
}

fn operations(conn: &Connection, operation: Option<&str>) -> Result<Vec<String>> {
    let all = contract::all(conn)?.into_iter().map(|(name, _)| name);
    let named: Vec<String> = all.filter(|name| operation.is_none_or(|only| only == name)).collect();
    match operation {
        Some(operation) if named.is_empty() => {
            let text = format!("operation {operation:?} is not registered by any relay");
            Err(Error::new(ErrorKind::NotFound, text))
        }
        None if named.is_empty() => {
            let text = "no relay has registered an operation yet, so a tenant or a run has \
                        nothing to pause: start a relay first, and pause it then";
            Err(Error::new(ErrorKind::NotFound, text))
        }
        _ => Ok(named),
    }
}

fn insert_move(
    conn: &Connection,
    operation: &str,
    kind: &str,
    part: &Part,
    until: Option<i64>,
    actor: &Actor,
    now: i64,
) -> Result<()> {
    let sql =
        "INSERT INTO main.outbox_operation_event (at, operation, kind, cause, until, actor, reason)
         VALUES (:at, :operation, :kind, :part, :until, :actor, :reason)";
    let values = named_params! {
        ":at": now,
        ":operation": operation,
        ":kind": kind,
        ":part": part.to_string(),
        ":until": until,
        ":actor": actor.name(),
        ":reason": actor.why(),
    };
    execute(conn, sql, values).map(drop)
}
