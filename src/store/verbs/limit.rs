//! The limits of an operation, and which operations a file takes, set by a person.

use rusqlite::{Connection, TransactionBehavior, named_params};

use crate::core::limit::{Bounds, Limit};
use crate::core::{Actor, millis};
use crate::error::{Error, ErrorKind, Result};
use crate::store::statement::execute;
use crate::store::tables::{budget, contract};

/// Sets limits in place of what is stored, and says so in the operation's own trail.
pub(crate) fn limit(
    conn: &mut Connection,
    operation: &str,
    limits: &[Limit],
    actor: &Actor,
    now: i64,
) -> Result<()> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let Some(contract) = contract::of(&tx, operation)? else {
        let text = format!("operation {operation:?} is not registered by any relay");
        return Err(Error::new(ErrorKind::NotFound, text));
    };
    let before = Bounds { limits: contract.limits, budgets: budget::load(&tx, operation)? };
    let mut after = before.clone();
    limits.iter().try_for_each(|limit| after.set(limit))?;
    let sql = "UPDATE main.outbox_operation
               SET max_in_flight = :max_in_flight, rate_count = :count, rate_ms = :per
               WHERE operation = :operation";
    let (max, rate) = (after.limits.max_in_flight, after.limits.rate);
    let values = named_params! {
        ":operation": operation,
        ":max_in_flight": max.map(|max| i64::try_from(max).unwrap_or(i64::MAX)),
        ":count": rate.map(|rate| rate.count),
        ":per": rate.map(|rate| millis(rate.per).max(1)),
    };
    execute(&tx, sql, values)?;
    budget::replace(&tx, operation, &after.budgets, now)?;
    budget::insert_changes(&tx, operation, &before.changes(&after), actor, now)?;
    Ok(tx.commit()?)
}

/// Whether only intents of registered operations may be enqueued in this file.
pub(crate) fn only_registered(
    conn: &mut Connection,
    is_on: bool,
    actor: &Actor,
    now: i64,
) -> Result<()> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let sql = "UPDATE main.outbox_meta SET only_registered = ?1 WHERE only_registered <> ?1";
    if execute(&tx, sql, [is_on])? > 0 {
        let change = format!("only_registered: now {}", if is_on { "on" } else { "off" });
        budget::insert_changes(&tx, "", &[change], actor, now)?;
    }
    Ok(tx.commit()?)
}
