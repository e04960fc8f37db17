//! The budgets of operations: how much may be sent in which time.

use rusqlite::{Connection, named_params};

use crate::core::{Actor, Budget, Kind, Scope};
use crate::error::Result;
use crate::store::statement::execute;

/// Stores the budgets of an operation in place of those that were there.
pub(crate) fn replace(
    conn: &Connection,
    operation: &str,
    budgets: &[Budget],
    now: i64,
) -> Result<()> {
    let stored = load(conn, operation)?;
    if stored.len() == budgets.len() && stored.iter().all(|budget| budgets.contains(budget)) {
        return Ok(());
    }
    conn.execute("DELETE FROM main.outbox_budget WHERE operation = ?1", [operation])?;
    let mut statement = conn.prepare_cached(
        "INSERT INTO main.outbox_budget (operation, scope, kind, amount, window_ms)
         VALUES (:operation, :scope, :kind, :amount, :window_ms)",
    )?;
    for budget in budgets {
        statement.execute(named_params! {
            ":operation": operation,
            ":scope": budget.scope.as_str(),
            ":kind": budget.kind.as_str(),
            ":amount": budget.amount,
            ":window_ms": budget.window_ms,
        })?;
    }
    ask_again(conn, operation, now)
}

/// Writes changes of an operation's limits into its own trail.
pub(crate) fn insert_changes(
    conn: &Connection,
    operation: &str,
    changes: &[String],
    actor: &Actor,
    now: i64,
) -> Result<()> {
    let sql = "INSERT INTO main.outbox_operation_event (at, operation, kind, cause, actor, reason)
               VALUES (:at, :operation, 'limited', :change, :actor, :reason)";
    for change in changes {
        let values = named_params! {
            ":at": now,
            ":operation": operation,
            ":change": change,
            ":actor": actor.name(),
            ":reason": actor.why(),
        };
        execute(conn, sql, values)?;
    }
    Ok(())
}

/// Lets the tenants and runs that wait for a budget be looked at again.
pub(crate) fn ask_again(conn: &Connection, operation: &str, now: i64) -> Result<()> {
    let sql = "UPDATE main.outbox_hold SET until = ?2
               WHERE operation = ?1 AND cause = 'budget' AND until > ?2";
    execute(conn, sql, (operation, now)).map(drop)
}

pub(crate) const BUDGETS: &str = "
    SELECT scope, kind, amount, window_ms FROM main.outbox_budget WHERE operation = ?1";

pub(crate) fn load(conn: &Connection, operation: &str) -> Result<Vec<Budget>> {
    let mut statement = conn.prepare_cached(BUDGETS)?;
    let rows = statement.query_map([operation], |row| {
        let scope = row.get_ref(0)?.as_str()?.parse::<Scope>().ok();
        let kind = row.get_ref(1)?.as_str()?.parse::<Kind>().ok();
        let (amount, window_ms) = (row.get(2)?, row.get(3)?);
        Ok(scope.zip(kind).map(|(scope, kind)| Budget { scope, kind, amount, window_ms }))
    })?;
    let budgets: Vec<Option<Budget>> = rows.collect::<Result<_, _>>()?;
    Ok(budgets.into_iter().flatten().collect())
}
