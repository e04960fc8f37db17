//! The contracts of operations as callers read them, with budgets and pauses.

use rusqlite::Connection;

use crate::core::StoredContract;
use crate::core::hold::{Domain, Hold};
use crate::core::limit::BudgetName;
use crate::error::Result;
use crate::store::statement::query_row;
use crate::store::tables::{budget, contract, hold, pause};

/// All registered operations, by name.
pub(crate) fn operations(conn: &Connection, now: i64) -> Result<Vec<StoredContract>> {
    let holds = hold::all(conn)?;
    let mut operations = Vec::new();
    for (operation, contract) in contract::all(conn)? {
        let flow = pause::load(conn, &operation)?.unwrap_or_default();
        let throttled_until = flow.throttled_until(now);
        let throttled = throttled_until.is_some();
        let concerns = |hold: &&Hold| match hold.domain {
            Domain::Network => contract.uses_network,
            _ => hold.operation == operation,
        };
        let holds = holds.iter().filter(concerns).filter_map(Hold::stored).collect();
        let pause = flow.pause;
        let budgets = budget::load(conn, &operation)?;
        let budget = |name: BudgetName| name.among(&budgets);
        operations.push(StoredContract {
            operation,
            downstream: contract.downstream,
            on_dead: contract.on_dead(),
            provider: contract.provider,
            owner: contract.owner,
            key_recipe: contract.key_recipe,
            reconciles: contract.reconciles,
            binds_ids: contract.binds,
            repeat_safe: contract.repeats.reads,
            repeat_rules: contract.repeats.rules.unwrap_or_default().to_vec(),
            max_in_flight: contract.limits.max_in_flight,
            rate: contract.limits.rate.map(|rate| (rate.count, rate.per)),
            max_per: budget(BudgetName::MaxPer),
            max_cost: budget(BudgetName::MaxCost),
            max_per_tenant: budget(BudgetName::MaxPerTenant),
            max_cost_per_tenant: budget(BudgetName::MaxCostPerTenant),
            max_per_run: budget(BudgetName::MaxPerRun),
            max_cost_per_run: budget(BudgetName::MaxCostPerRun),
            paused: pause.as_ref().map(|pause| pause.kind),
            paused_until: pause.as_ref().and_then(|pause| pause.until),
            paused_since: pause.as_ref().map(|pause| pause.since),
            paused_by: pause.as_ref().map(|pause| pause.actor.clone()),
            paused_culprit: pause.as_ref().and_then(|pause| pause.culprit),
            throttled_until,
            throttled_since: flow.throttled_since.filter(|_| throttled),
            throttled_by: flow.throttled_by.filter(|_| throttled),
            holds,
            paused_reason: pause.map(|pause| pause.reason),
        });
    }
    Ok(operations)
}

/// Whether the file takes only intents of operations that a relay has registered.
pub(crate) fn takes_only_registered(conn: &Connection) -> Result<bool> {
    let sql = "SELECT only_registered FROM main.outbox_meta WHERE id = 1";
    Ok(query_row(conn, sql, [], |row| row.get(0))?)
}
