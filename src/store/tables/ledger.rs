//! The ledger of what was spent of budgets and rates.
//!
//! Everything is written in the transaction that claims, under the write lock, so that relays that
//! race cannot overspend. Running totals are kept by triggers, so that a claim reads a total and
//! what has left its window since, and never a whole window.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, ToSql, named_params};

use crate::core::budget::judge;
use crate::core::{Budget, Fit, Kind, Left, Limits, Rate, Scope, UsedUp};
use crate::error::Result;
use crate::handler::Delivery;
use crate::store::columns;
use crate::store::statement::{execute, query_row};
use crate::store::tables::budget::load;

/// The most entries outside all windows that one claim deletes.
const FORGET_MAX: i64 = 500;

/// The most rows of a tenant or run with a budget of costs that are let through at once.
const COSTLY_MAX: usize = 16;

/// A row that asks whether it may be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asking<'a> {
    pub id: i64,
    pub tenant_id: &'a str,
    pub cost: i64,
    /// Whether repeated requests have one effect, so that its cost moves to the last of them.
    pub deduplicates: bool,
}

/// The budgets of one operation, its rate among them, and the ledger of what is spent of them.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub operation: String,
    pub now: i64,
    budgets: Vec<Budget>,
    /// Whether running totals are written back: in a transaction that may write.
    is_written: bool,
}

/// The cost of a send, and the earlier entry of its row in the window, which it gives up.
#[derive(Clone, Copy, Default)]
struct Ask<'a> {
    cost: i64,
    own: Option<&'a Entered>,
}

/// Whose entries are counted: those of the operation, of a tenant or of an agent run.
#[derive(Debug, Clone, Copy)]
struct Account<'a> {
    scope: Scope,
    name: &'a str,
}

impl Account<'_> {
    fn key(self) -> String {
        match self.scope {
            Scope::Operation => String::new(),
            scope => format!("{}:{}", scope.as_str(), self.name),
        }
    }
}

impl Ledger {
    pub fn open(conn: &Connection, operation: &str, limits: &Limits, now: i64) -> Result<Self> {
        let mut budgets = load(conn, operation)?;
        budgets.extend(limits.rate.map(Rate::budget));
        Ok(Self { operation: operation.to_owned(), now, budgets, is_written: false })
    }

    /// The ledger in a transaction that holds the write lock.
    pub fn written(self) -> Self {
        Self { is_written: true, ..self }
    }

    pub fn has_budgets(&self) -> bool {
        !self.budgets.is_empty()
    }

    /// Whether the costs of the whole operation have a budget.
    pub fn counts_cost(&self) -> bool {
        let is_asked =
            |budget: &Budget| (budget.scope, budget.kind) == (Scope::Operation, Kind::Cost);
        self.budgets.iter().any(is_asked)
    }

    /// The sends that the operation's own budgets leave, whatever each costs.
    pub fn left(&self, conn: &Connection) -> Result<Left> {
        let mut left = Left::default();
        let of_all = Account { scope: Scope::Operation, name: "" };
        let is_of_sends = |b: &&Budget| b.scope == Scope::Operation && b.kind != Kind::Cost;
        for budget in self.budgets.iter().filter(is_of_sends) {
            let rest = budget.amount.saturating_sub(self.spent(conn, budget, of_all)?).max(0);
            left.sends = left.sends.min(usize::try_from(rest).unwrap_or(usize::MAX));
            let used_up = self.used_up(conn, budget, of_all, Ask::default())?;
            left.used_up = used_up.into_iter().chain(left.used_up).max_by_key(|used| used.until);
        }
        Ok(left)
    }

    /// Whether this row fits all budgets.
    pub fn fit(&self, conn: &Connection, asking: Asking<'_>) -> Result<Fit> {
        let cost = asking.cost;
        if let Some(budget) = self.budgets.iter().find(|budget| !budget.can_ever(cost)) {
            return Ok(Fit::Never(*budget));
        }
        let (run, own) = (self.run(conn, asking.id)?, self.entered(conn, asking)?);
        let mut used_up = Vec::new();
        for budget in &self.budgets {
            let name = match budget.scope {
                Scope::Operation => "",
                Scope::Tenant => asking.tenant_id,
                Scope::Run if run.is_empty() => continue,
                Scope::Run => &run,
            };
            let account = Account { scope: budget.scope, name };
            let own = own.as_ref().filter(|own| own.at > budget.begins(self.now));
            used_up.extend(self.used_up(conn, budget, account, Ask { cost, own })?);
        }
        Ok(judge(&used_up))
    }

    /// How many more rows of a tenant or run may be sent now, and otherwise when the next may.
    pub fn left_of(&self, conn: &Connection, scope: Scope, name: &str) -> Result<(usize, i64)> {
        let (mut left, mut until) = (usize::MAX, self.now);
        for budget in self.budgets.iter().filter(|budget| budget.scope == scope) {
            let account = Account { scope, name };
            let rest = budget.amount.saturating_sub(self.spent(conn, budget, account)?);
            let used_up = self.used_up(conn, budget, account, Ask { cost: 1, own: None })?;
            let next = used_up.map_or_else(|| budget.leaves(self.now), |used| used.until);
            until = until.max(next);
            // Of rows that have a cost, no more are tried at once than is cheap to put aside again.
            let most = if budget.kind == Kind::Cost { COSTLY_MAX } else { usize::MAX };
            left = left.min(usize::try_from(rest.max(0)).unwrap_or(usize::MAX)).min(most);
        }
        Ok((left, until))
    }

    /// Enters a claim. The cost of a row that is sent again moves to its new entry.
    pub fn enter(
        &self,
        conn: &Connection,
        asking: Asking<'_>,
        token: i64,
        time_limit: Duration,
    ) -> Result<()> {
        if self.budgets.is_empty() {
            return Ok(());
        }
        if self.entered(conn, asking)?.is_some() {
            let sql = "UPDATE main.outbox_spend SET cost = 0 WHERE id = ?1 AND cost > 0";
            execute(conn, sql, [asking.id])?;
        }
        let sql = "INSERT INTO main.outbox_spend (operation, at, id, token, tenant_id, cost, run)
                   VALUES (:operation, :at, :id, :token, :tenant_id, :cost, :run)";
        let values = named_params! {
            ":operation": self.operation,
            ":at": Budget::enters(&self.budgets, asking.cost, self.now, time_limit),
            ":id": asking.id,
            ":token": token,
            ":tenant_id": asking.tenant_id,
            ":cost": asking.cost,
            ":run": self.run(conn, asking.id)?,
        };
        execute(conn, sql, values).map(drop)
    }

    /// Corrects the entry of an attempt that has reported. Returns whether it leaves a window
    /// earlier than it was entered for.
    pub fn reported(&self, conn: &Connection, delivery: &Delivery) -> Result<bool> {
        if self.budgets.is_empty() {
            return Ok(false);
        }
        let sent_at = delivery.lease.sent_at().unwrap_or(delivery.facts.claimed_at);
        let at = Budget::reported(&self.budgets, delivery.intent.cost, sent_at, self.now);
        let values = (delivery.id, delivery.token, at);
        Ok(execute(
            conn,
            "UPDATE main.outbox_spend SET at = ?3 WHERE id = ?1 AND token = ?2 AND at <> ?3",
            values,
        )? > 0)
    }

    /// Deletes the entry of a claim that is proven to have applied nothing. Returns whether there
    /// was one. Where an earlier attempt of the row may have been applied, the cost stands with
    /// that one again.
    pub fn refund(&self, conn: &Connection, delivery: &Delivery) -> Result<bool> {
        if self.budgets.is_empty() {
            return Ok(false);
        }
        let is_refunded = execute(conn, REFUND, (delivery.id, delivery.token))? > 0;
        if is_refunded && delivery.intent.cost > 0 {
            execute(conn, GIVE_BACK, (delivery.id, delivery.intent.cost))?;
        }
        Ok(is_refunded)
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

    /// The agent run of a row, where runs have budgets; empty where it names none.
    pub fn run(&self, conn: &Connection, id: i64) -> Result<String> {
        if !self.budgets.iter().any(|budget| budget.scope == Scope::Run) {
            return Ok(String::new());
        }
        Ok(run_of(conn, id)?.unwrap_or_default())
    }

    /// The entry with which the row's cost stands, and from which another attempt takes it.
    fn entered(&self, conn: &Connection, asking: Asking<'_>) -> Result<Option<Entered>> {
        if asking.cost == 0 || !asking.deduplicates || self.budgets.is_empty() {
            return Ok(None);
        }
        let read =
            |row: &Row<'_>| Ok(Entered { id: asking.id, at: row.get(0)?, cost: row.get(1)? });
        Ok(query_row(conn, ENTERED, [asking.id], read).optional()?)
    }

    /// The budget, where it has too little left for a send of this cost. The row's own entry, where
    /// it has one in the window, is given up for the new one.
    fn used_up(
        &self,
        conn: &Connection,
        budget: &Budget,
        account: Account<'_>,
        Ask { cost, own }: Ask<'_>,
    ) -> Result<Option<UsedUp>> {
        let own = own.filter(|_| budget.kind == Kind::Cost);
        let spent = self.spent(conn, budget, account)?;
        let spent = spent.saturating_sub(own.map_or(0, |own| own.cost));
        let excess = budget.excess(spent, cost);
        if excess <= 0 {
            return Ok(None);
        }
        let values: [&dyn ToSql; 3] = [&self.operation, &budget.begins(self.now), &account.name];
        let (sql, values) = match account.scope {
            Scope::Operation => (ENTRIES, &values[..2]),
            Scope::Tenant => (TENANT_ENTRIES, &values[..]),
            Scope::Run => (RUN_ENTRIES, &values[..]),
        };
        let mut statement = conn.prepare_cached(sql)?;
        let weigh = |row: &Row<'_>| {
            let is_own = own.is_some_and(|own| row.get(2) == Ok(own.id));
            let weight = if is_own { 0 } else { budget.kind.weight(row.get(1)?) };
            Ok((row.get(0)?, weight))
        };
        let until = budget.frees_at(excess, statement.query_map(values, weigh)?)?;
        let until = until.unwrap_or_else(|| budget.leaves(self.now));
        Ok(Some(UsedUp { budget: *budget, until }))
    }

    /// The sum spent of a budget: the running total, less what has left the window since.
    fn spent(&self, conn: &Connection, budget: &Budget, account: Account<'_>) -> Result<i64> {
        let begins = budget.begins(self.now);
        let key = account.key();
        let stored = query_row(conn, TOTAL, (&self.operation, &key, budget.window_ms), |row| {
            Ok((row.get::<_, i64>(0)?, Sum::read(row, 1)?))
        })
        .optional()?;
        let total = match stored {
            Some((since, total)) if since <= begins => {
                total.plus(&self.sum(conn, account, since, begins)?, -1)
            }
            Some((since, total)) => total.plus(&self.sum(conn, account, begins, since)?, 1),
            None => self.sum(conn, account, begins, i64::MAX)?,
        };
        if self.is_written && stored.is_none_or(|(since, _)| since != begins) {
            execute(
                conn,
                SAVE_TOTAL,
                named_params! {
                    ":operation": self.operation,
                    ":name": key,
                    ":window_ms": budget.window_ms,
                    ":since": begins,
                    ":sends": total.sends,
                    ":high": total.high,
                    ":low": total.low,
                },
            )?;
        }
        Ok(total.of(budget.kind))
    }

    /// The entries later than `after`, and not later than `until`.
    fn sum(&self, conn: &Connection, account: Account<'_>, after: i64, until: i64) -> Result<Sum> {
        if after >= until {
            return Ok(Sum::default());
        }
        let values: [&dyn ToSql; 4] = [&self.operation, &after, &until, &account.name];
        let (sql, values) = match account.scope {
            Scope::Operation => (SPENT, &values[..3]),
            Scope::Tenant => (TENANT_SPENT, &values[..]),
            Scope::Run => (RUN_SPENT, &values[..]),
        };
        Ok(conn.prepare_cached(sql)?.query_row(values, |row| Sum::read(row, 0))?)
    }
}

/// An entry of the ledger with a cost.
struct Entered {
    id: i64,
    at: i64,
    cost: i64,
}

/// A number of sends and their cost, as the sums of its upper and its lower halves, neither of
/// which can overflow.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    sends: i64,
    high: i64,
    low: i64,
}

impl Sum {
    fn read(row: &Row<'_>, first: usize) -> rusqlite::Result<Self> {
        Ok(Self { sends: row.get(first)?, high: row.get(first + 1)?, low: row.get(first + 2)? })
    }

    fn plus(self, other: &Self, sign: i64) -> Self {
        Self {
            sends: self.sends + sign * other.sends,
            high: self.high + sign * other.high,
            low: self.low + sign * other.low,
        }
    }

    fn of(self, kind: Kind) -> i64 {
        let cost = (i128::from(self.high) << 32) + i128::from(self.low);
        match kind {
            Kind::Sends | Kind::Rate => self.sends,
            Kind::Cost => i64::try_from(cost).unwrap_or(i64::MAX),
        }
    }
}

/// The agent run that an intent names in its header.
pub(crate) fn run_of(conn: &Connection, id: i64) -> Result<Option<String>> {
    let sql = "SELECT run FROM main.outbox_run WHERE id = ?1";
    Ok(query_row(conn, sql, [id], |row| columns::lossy(row, 0)).optional()?)
}

pub(crate) const REFUND: &str = "DELETE FROM main.outbox_spend WHERE id = ?1 AND token = ?2";

/// The last attempt that is left has the cost again, where it had it before.
pub(crate) const GIVE_BACK: &str = "
    UPDATE main.outbox_spend SET cost = ?2
    WHERE id = ?1 AND cost = 0
      AND token = (SELECT max(token) FROM main.outbox_spend WHERE id = ?1)";

/// Deletes the entries of every claim since a delivery's row is in doubt.
pub(crate) fn refund_doubt(conn: &Connection, delivery: &Delivery) -> Result<()> {
    let values = (delivery.id, delivery.facts.in_doubt_since);
    execute(conn, REFUND_DOUBT, values).map(drop)
}

pub(crate) const REFUND_DOUBT: &str = "
    DELETE FROM main.outbox_spend INDEXED BY outbox_spend_intent WHERE id = ?1 AND at >= ?2";

pub(crate) const ENTERED: &str = "
    SELECT at, cost FROM main.outbox_spend INDEXED BY outbox_spend_intent
    WHERE id = ?1 AND cost > 0";

pub(crate) const TOTAL: &str = "
    SELECT since, sends, high, low FROM main.outbox_total
    WHERE operation = ?1 AND name = ?2 AND window_ms = ?3";

const SAVE_TOTAL: &str = "
    INSERT INTO main.outbox_total (operation, name, window_ms, since, sends, high, low)
    VALUES (:operation, :name, :window_ms, :since, :sends, :high, :low)
    ON CONFLICT (operation, name, window_ms) DO UPDATE
    SET since = excluded.since, sends = excluded.sends, high = excluded.high, low = excluded.low";

macro_rules! spent {
    ($of:literal) => {
        concat!(
            "SELECT count(*), coalesce(sum(cost >> 32), 0), coalesce(sum(cost & 4294967295), 0)
             FROM main.outbox_spend ",
            $of,
            " AND at > ?2 AND at <= ?3"
        )
    };
}

pub(crate) const SPENT: &str = spent!("WHERE operation = ?1");
pub(crate) const TENANT_SPENT: &str =
    spent!("INDEXED BY outbox_spend_tenant WHERE operation = ?1 AND tenant_id = ?4");
pub(crate) const RUN_SPENT: &str =
    spent!("INDEXED BY outbox_spend_run WHERE operation = ?1 AND run = ?4 AND run <> ''");

macro_rules! entries {
    ($of:literal) => {
        concat!("SELECT at, cost, id FROM main.outbox_spend ", $of, " AND at > ?2 ORDER BY at")
    };
}

pub(crate) const ENTRIES: &str = entries!("WHERE operation = ?1");
pub(crate) const TENANT_ENTRIES: &str =
    entries!("INDEXED BY outbox_spend_tenant WHERE operation = ?1 AND tenant_id = ?3");
pub(crate) const RUN_ENTRIES: &str =
    entries!("INDEXED BY outbox_spend_run WHERE operation = ?1 AND run = ?3 AND run <> ''");

pub(crate) const FORGET: &str = "
    DELETE FROM main.outbox_spend
    WHERE operation = :operation AND at <= :begins
      AND at <= coalesce((SELECT at FROM main.outbox_spend
                          WHERE operation = :operation AND at <= :begins
                          ORDER BY at LIMIT 1 OFFSET :limit), :begins)";
