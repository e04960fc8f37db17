//! The contracts of operations as callers read them, with budgets and pauses.

use rusqlite::Connection;

use crate::core::{Budget, Kind, Scope, StoredContract};
use crate::error::Result;
use crate::store::tables::{budget, contract, pause};

/// All registered operations, by name.
pub(crate) fn operations(conn: &Connection) -> Result<Vec<StoredContract>> {
    let mut operations = Vec::new();
    for (operation, contract) in contract::all(conn)? {
        let pause = pause::load(conn, &operation)?.and_then(|flow| flow.pause);
        let budgets = budget::load(conn, &operation)?;
        let budget = |scope, kind| {
            budgets.iter().find(|b| (b.scope, b.kind) == (scope, kind)).map(Budget::as_stored)
        };
        operations.push(StoredContract {
            operation,
            downstream: contract.downstream,
            on_dead: contract.on_dead(),
            provider: contract.provider,
            owner: contract.owner,
            key_recipe: contract.key_recipe,
            reconciles: contract.reconciles,
            binds_ids: contract.binds,
            max_in_flight: contract.limits.max_in_flight,
            rate: contract.limits.rate.map(|rate| (rate.count, rate.per)),
            max_per: budget(Scope::Operation, Kind::Sends),
            max_cost: budget(Scope::Operation, Kind::Cost),
            max_per_tenant: budget(Scope::Tenant, Kind::Sends),
            max_cost_per_tenant: budget(Scope::Tenant, Kind::Cost),
            paused: pause.as_ref().map(|pause| pause.kind),
            paused_until: pause.as_ref().and_then(|pause| pause.until),
            paused_since: pause.as_ref().map(|pause| pause.since),
            paused_by: pause.as_ref().map(|pause| pause.actor.clone()),
            paused_reason: pause.map(|pause| pause.reason),
        });
    }
    Ok(operations)
}
