//! The budgets of operations, and the ledger of what was spent of them.
//!
//! Everything is read and written in the transaction that claims, under the write lock, so that
//! relays that race cannot overspend.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use rusqlite::{Connection, OptionalExtension, Row, ToSql, named_params};

use crate::core::budget::judge;
use crate::core::{Budget, Fit, Kind, Left, Scope, Shard, UsedUp};
use crate::error::Result;
use crate::handler::Delivery;
use crate::store::statement::{execute, query_row};

/// The most entries outside all windows that one claim deletes.
const FORGET_MAX: i64 = 500;

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

/// Makes rows due that were deferred for their tenant's budget.
pub(crate) fn ask_again(conn: &Connection, operation: &str, now: i64) -> Result<()> {
    let sql = "UPDATE main.outbox_lease SET due_at = :now
               WHERE operation = :operation AND state = 'pending' AND due_at > :now
                 AND error_class = 'budget'";
    execute(conn, sql, named_params! { ":operation": operation, ":now": now }).map(drop)
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

/// A row that asks whether it may be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asking<'a> {
    pub id: i64,
    pub tenant_id: &'a str,
    pub cost: i64,
}

/// The budgets of one operation and what is spent of them, as a transaction has left them.
#[derive(Debug)]
pub(crate) struct Ledger {
    operation: String,
    now: i64,
    budgets: Vec<Budget>,
    /// Sums spent, by the place of the budget and, where it is the tenant's, the tenant.
    spent: BTreeMap<(usize, String), i64>,
}

impl Ledger {
    pub fn open(conn: &Connection, operation: &str, now: i64) -> Result<Self> {
        let budgets = load(conn, operation)?;
        Ok(Self { operation: operation.to_owned(), now, budgets, spent: BTreeMap::new() })
    }

    /// The rest of the operation's own budgets. The next due row of the shard counts: where it has
    /// to wait for the operation's budget, so have all rows behind it.
    pub fn left(&mut self, conn: &Connection, shard: Shard) -> Result<Left> {
        let mut left = Left::default();
        for place in 0..self.budgets.len() {
            let budget = self.budgets[place];
            if (budget.scope, budget.kind) == (Scope::Operation, Kind::Sends) {
                let spent = self.spent(conn, place, "")?;
                let sends = budget.amount.saturating_sub(spent).max(0);
                left.sends = usize::try_from(sends).unwrap_or(usize::MAX);
                left.used_up = self.used_up(conn, place, "", 0)?;
            }
        }
        if left.used_up.is_none()
            && let Some(Fit::Waits(used_up)) = self.next_fit(conn, shard)?
        {
            left.used_up = Some(used_up);
        }
        Ok(left)
    }

    /// Whether this row fits all budgets.
    pub fn fit(&mut self, conn: &Connection, asking: Asking<'_>) -> Result<Fit> {
        let cost = self.to_enter(conn, asking)?;
        if let Some(budget) = self.budgets.iter().find(|budget| !budget.can_ever(cost)) {
            return Ok(Fit::Never(*budget));
        }
        let mut used_up = Vec::new();
        for place in 0..self.budgets.len() {
            used_up.extend(self.used_up(conn, place, asking.tenant_id, cost)?);
        }
        Ok(judge(&used_up))
    }

    /// Enters a claim. The intent's cost is entered once, whatever number of attempts it takes.
    pub fn enter(&mut self, conn: &Connection, asking: Asking<'_>, token: i64) -> Result<()> {
        if self.budgets.is_empty() {
            return Ok(());
        }
        let cost = self.to_enter(conn, asking)?;
        let sql = "INSERT INTO main.outbox_spend (operation, at, id, token, tenant_id, cost)
                   VALUES (:operation, :at, :id, :token, :tenant_id, :cost)";
        let values = named_params! {
            ":operation": self.operation,
            ":at": self.now,
            ":id": asking.id,
            ":token": token,
            ":tenant_id": asking.tenant_id,
            ":cost": cost,
        };
        execute(conn, sql, values)?;
        for ((place, tenant), spent) in &mut self.spent {
            let budget = self.budgets[*place];
            if budget.scope == Scope::Operation || tenant == asking.tenant_id {
                *spent = spent.saturating_add(budget.kind.weight(cost));
            }
        }
        Ok(())
    }

    /// Deletes entries older than the longest window, few at a time so that the lock is short.
    pub fn forget(&self, conn: &Connection) -> Result<()> {
        let Some(begins) = self.budgets.iter().map(|budget| budget.begins(self.now)).min() else {
            return Ok(());
        };
        conn.prepare_cached(FORGET)?.execute(named_params! {
            ":operation": self.operation, ":begins": begins, ":limit": FORGET_MAX,
        })?;
        Ok(())
    }

    /// The cost that a claim of this row would enter.
    fn to_enter(&self, conn: &Connection, asking: Asking<'_>) -> Result<i64> {
        if asking.cost == 0 || self.budgets.is_empty() {
            return Ok(asking.cost);
        }
        let is_entered: bool =
            conn.prepare_cached(IS_ENTERED)?.query_row([asking.id], |row| row.get(0))?;
        Ok(if is_entered { 0 } else { asking.cost })
    }

    /// The budget at this place, where it has too little left for a send of this cost.
    fn used_up(
        &mut self,
        conn: &Connection,
        place: usize,
        tenant: &str,
        cost: i64,
    ) -> Result<Option<UsedUp>> {
        let budget = self.budgets[place];
        let excess = budget.excess(self.spent(conn, place, tenant)?, cost);
        if excess <= 0 {
            return Ok(None);
        }
        let values: [&dyn ToSql; 3] = [&self.operation, &budget.begins(self.now), &tenant];
        let (sql, values) = match budget.scope {
            Scope::Operation => (ENTRIES, &values[..2]),
            Scope::Tenant => (TENANT_ENTRIES, &values[..]),
        };
        let mut statement = conn.prepare_cached(sql)?;
        let weigh = |row: &Row<'_>| Ok((row.get(0)?, budget.kind.weight(row.get(1)?)));
        let until = budget.frees_at(excess, statement.query_map(values, weigh)?)?;
        let until = until.unwrap_or_else(|| budget.leaves(self.now));
        Ok(Some(UsedUp { budget, until }))
    }

    /// The sum spent of the budget at this place.
    fn spent(&mut self, conn: &Connection, place: usize, tenant: &str) -> Result<i64> {
        let budget = self.budgets[place];
        let values: [&dyn ToSql; 3] = [&self.operation, &budget.begins(self.now), &tenant];
        let (sql, values, tenant) = match budget.scope {
            Scope::Operation => (SPENT, &values[..2], ""),
            Scope::Tenant => (TENANT_SPENT, &values[..], tenant),
        };
        let known = match self.spent.entry((place, tenant.to_owned())) {
            Entry::Occupied(known) => return Ok(*known.get()),
            Entry::Vacant(unknown) => unknown,
        };
        let (count, high, low): (i64, i64, i64) = conn
            .prepare_cached(sql)?
            .query_row(values, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let cost = (i128::from(high) << 32) + i128::from(low);
        let spent = match budget.kind {
            Kind::Sends => count,
            Kind::Cost => i64::try_from(cost).unwrap_or(i64::MAX),
        };
        Ok(*known.insert(spent))
    }

    /// Whether the next due row fits, where there is one that could be sent at all.
    fn next_fit(&mut self, conn: &Connection, shard: Shard) -> Result<Option<Fit>> {
        // Sends are checked already; without a budget of costs no row can wait.
        let is_asked =
            |budget: &Budget| (budget.scope, budget.kind) == (Scope::Operation, Kind::Cost);
        if !self.budgets.iter().any(is_asked) {
            return Ok(None);
        }
        let values = (&self.operation, self.now, shard.count(), shard.index());
        let next = query_row(conn, NEXT_COST, values, |row| {
            // A row that cannot be read is parked by the claim.
            Ok((row.get(0)?, row.get::<_, String>(1).ok(), row.get::<_, i64>(2).ok()))
        })
        .optional()?;
        let Some((id, Some(tenant_id), Some(cost))) = next else { return Ok(None) };
        self.fit(conn, Asking { id, tenant_id: &tenant_id, cost }).map(Some)
    }
}

/// Deletes the entry of a delivery's claim. Returns whether there was one.
pub(crate) fn refund(conn: &Connection, delivery: &Delivery) -> Result<bool> {
    let Delivery { operation, facts, id, token, .. } = delivery;
    Ok(conn.prepare_cached(REFUND)?.execute((operation, facts.claimed_at, id, token))? > 0)
}

pub(crate) const REFUND: &str = "
    DELETE FROM main.outbox_spend
    WHERE operation = ?1 AND at = ?2 AND id = ?3 AND token = ?4";

/// Deletes the entries of every claim since a delivery's row is in doubt.
pub(crate) fn refund_doubt(conn: &Connection, delivery: &Delivery, now: i64) -> Result<()> {
    let values = (&delivery.operation, delivery.facts.in_doubt_since, now, delivery.id);
    execute(conn, REFUND_DOUBT, values).map(drop)
}

pub(crate) const REFUND_DOUBT: &str = "
    DELETE FROM main.outbox_spend
    WHERE operation = ?1 AND at BETWEEN ?2 AND ?3 AND id = ?4";

/// How many entries are in the window, and their cost as the sums of its upper and its lower
/// half, neither of which can overflow.
pub(crate) const SPENT: &str = "
    SELECT count(*), coalesce(sum(cost >> 32), 0), coalesce(sum(cost & 4294967295), 0)
    FROM main.outbox_spend WHERE operation = ?1 AND at > ?2";

pub(crate) const TENANT_SPENT: &str = "
    SELECT count(*), coalesce(sum(cost >> 32), 0), coalesce(sum(cost & 4294967295), 0)
    FROM main.outbox_spend INDEXED BY outbox_spend_tenant
    WHERE operation = ?1 AND tenant_id = ?3 AND at > ?2";

pub(crate) const ENTRIES: &str = "
    SELECT at, cost FROM main.outbox_spend WHERE operation = ?1 AND at > ?2 ORDER BY at";

pub(crate) const TENANT_ENTRIES: &str = "
    SELECT at, cost FROM main.outbox_spend INDEXED BY outbox_spend_tenant
    WHERE operation = ?1 AND tenant_id = ?3 AND at > ?2 ORDER BY at";

pub(crate) const IS_ENTERED: &str = "
    SELECT EXISTS (SELECT 1 FROM main.outbox_spend INDEXED BY outbox_spend_cost
                   WHERE id = ?1 AND cost > 0)";

/// The row that a claim would look at first; an expired row costs nothing.
pub(crate) const NEXT_COST: &str = "
    SELECT l.id, o.tenant_id, CASE WHEN o.expires_at <= ?2 THEN 0 ELSE o.cost END
    FROM main.outbox_lease l INDEXED BY outbox_lease_due
    LEFT JOIN main.outbox o ON o.id = l.id
    WHERE l.operation = ?1 AND l.state = 'pending' AND l.due_at <= ?2 AND l.id % ?3 = ?4
    ORDER BY l.due_at, l.id LIMIT 1";

pub(crate) const FORGET: &str = "
    DELETE FROM main.outbox_spend
    WHERE operation = :operation AND at <= :begins
      AND at <= coalesce((SELECT at FROM main.outbox_spend
                          WHERE operation = :operation AND at <= :begins
                          ORDER BY at LIMIT 1 OFFSET :limit), :begins)";
