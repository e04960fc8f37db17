//! The stored contract of each operation, which every relay on this file obeys.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, named_params};

use super::budget;
use crate::core::budget::Budget;
use crate::core::contract::{Downstream, OnDead};
use crate::core::millis;
use crate::error::Result;

/// What `outbox_operation` holds about one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contract {
    pub downstream: Downstream,
    pub on_dead: OnDead,
    pub provider: Option<String>,
}

/// Stores what a relay says about an operation and returns what holds: the stricter of that and
/// what was stored. `weaken` lets the relay's word stand where it promises more. The budgets take
/// the place of those that were stored.
pub(crate) fn register(
    conn: &mut Connection,
    operation: &str,
    own: &Contract,
    budgets: &[Budget],
    weaken: bool,
    now: i64,
) -> Result<Contract> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let stored = of(&tx, operation)?;
    let downstream = match &stored {
        Some(stored) if !weaken => own.downstream.stricter(stored.downstream),
        _ => own.downstream,
    };
    let effective = Contract { downstream, ..own.clone() };
    if stored.as_ref() != Some(&effective) {
        let (word, window_ms) = match downstream {
            Downstream::DeduplicatesByKey { window } => ("deduplicates", Some(millis(window))),
            Downstream::Unprotected => ("unprotected", None),
        };
        tx.execute(
            "INSERT INTO main.outbox_operation
                 (operation, downstream, window_ms, on_dead, provider, registered_at)
             VALUES (:operation, :downstream, :window_ms, :on_dead, :provider, :now)
             ON CONFLICT (operation) DO UPDATE
             SET downstream = excluded.downstream, window_ms = excluded.window_ms,
                 on_dead = excluded.on_dead, provider = excluded.provider",
            named_params! {
                ":operation": operation,
                ":downstream": word,
                ":window_ms": window_ms,
                ":on_dead": match own.on_dead { OnDead::Block => "block", OnDead::Continue => "continue" },
                ":provider": own.provider,
                ":now": now,
            },
        )?;
    }
    budget::replace(&tx, operation, budgets)?;
    // A relay that starts may have new credentials: it tries them at once.
    tx.execute(
        "UPDATE main.outbox_operation SET paused_until = :now
         WHERE operation = :operation AND paused_kind = 'auth' AND paused_until > :now",
        named_params! { ":operation": operation, ":now": now },
    )?;
    tx.commit()?;
    Ok(effective)
}

/// The contract of one operation, where a relay has registered it.
pub(crate) fn of(conn: &Connection, operation: &str) -> Result<Option<Contract>> {
    let mut statement = conn.prepare_cached(
        "SELECT downstream, window_ms, on_dead, provider FROM main.outbox_operation WHERE operation = ?1",
    )?;
    Ok(statement.query_row([operation], |row| read(row, 0)).optional()?)
}

/// All contracts, by operation.
pub(crate) fn all(conn: &Connection) -> Result<Vec<(String, Contract)>> {
    let mut statement = conn.prepare_cached(
        "SELECT operation, downstream, window_ms, on_dead, provider
         FROM main.outbox_operation ORDER BY operation",
    )?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, read(row, 1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn read(row: &Row<'_>, first: usize) -> rusqlite::Result<Contract> {
    let window: Option<i64> = row.get(first + 1)?;
    let downstream = match (row.get_ref(first)?.as_str()?, window) {
        ("deduplicates", Some(window)) => Downstream::DeduplicatesByKey {
            window: Duration::from_millis(window.try_into().unwrap_or(0)),
        },
        // Whatever else stands there, the careful reading is that nothing is promised.
        _ => Downstream::Unprotected,
    };
    let on_dead = match row.get_ref(first + 2)?.as_str()? {
        "continue" => OnDead::Continue,
        _ => OnDead::Block,
    };
    Ok(Contract { downstream, on_dead, provider: row.get(first + 3)? })
}
