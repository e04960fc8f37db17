//! The stored contract of each operation, which every relay on this file obeys.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, named_params};
use serde_json::Value;

use crate::core::limit::Bounds;
use crate::core::{Actor, Budget, Downstream, Limits, OnDead, Promise, Rate, millis};
use crate::error::Result;
use crate::store::columns;
use crate::store::statement::execute;
use crate::store::tables::{binding, budget, hold};

/// The contract of one operation in `outbox_operation`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contract {
    pub downstream: Downstream,
    /// `None` leaves what is stored.
    pub on_dead: Option<OnDead>,
    pub provider: Option<String>,
    pub owner: Option<String>,
    pub key_recipe: Option<String>,
    pub limits: Limits,
    /// The longest one attempt takes, as far as that is known.
    pub time_limit: Option<Duration>,
    pub attempts_max: Option<u32>,
    pub give_up_after: Option<Duration>,
    /// Whether some relay can ask what became of an intent.
    pub reconciles: bool,
    /// Whether the ids in receipts name what was created.
    pub binds: bool,
    /// Whether it goes over the machine's network.
    pub uses_network: bool,
    pub repeats: Repeats,
}

/// When a request is repeated although it may have been applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Repeats {
    /// Whether a read is where the downstream is unprotected.
    pub reads: bool,
    /// The answers that are taken for word that nothing was applied, though by themselves they
    /// leave it open; `None` while no relay has said which.
    pub rules: Option<Arc<[String]>>,
}

impl Contract {
    /// The effect of a dead row on later rows of its key; the default where no relay has said.
    pub fn on_dead(&self) -> OnDead {
        self.on_dead.unwrap_or_default()
    }

    /// The provider under which the operation's ids are unique: by default the operation itself.
    pub fn provider<'a>(&'a self, operation: &'a str) -> &'a str {
        self.provider.as_deref().unwrap_or(operation)
    }

    /// The repeat rules that hold where `stored` is: those that both have. An unprotected operation
    /// gets none by itself; another keeps the first that a relay brings.
    fn rules_over(&self, stored: Option<&Self>) -> Arc<[String]> {
        let own = self.repeats.rules.clone().unwrap_or_default();
        let is_protected = |contract: &Self| contract.downstream != Downstream::Unprotected;
        let kept = stored
            .filter(|stored| !is_protected(stored) || is_protected(self))
            .and_then(|stored| stored.repeats.rules.as_deref());
        match kept {
            Some(kept) => own.iter().filter(|rule| kept.contains(rule)).cloned().collect(),
            None if is_protected(self) && stored.is_none_or(is_protected) => own,
            None => Arc::default(),
        }
    }

    /// The contract that holds where `stored` is stored already: the stricter promise, and stored
    /// values where this contract has none.
    fn over(&self, stored: &Self) -> Self {
        let own = self.clone();
        let stored_on_dead = stored.on_dead();
        Self {
            downstream: own.downstream.stricter(stored.downstream),
            on_dead: Some(own.on_dead.map_or(stored_on_dead, |own| own.stricter(stored_on_dead))),
            provider: own.provider.or_else(|| stored.provider.clone()),
            owner: own.owner.or_else(|| stored.owner.clone()),
            key_recipe: own.key_recipe.or_else(|| stored.key_recipe.clone()),
            limits: own.limits.stricter(stored.limits),
            time_limit: own.time_limit.or(stored.time_limit),
            attempts_max: own.attempts_max.or(stored.attempts_max),
            give_up_after: own.give_up_after.or(stored.give_up_after),
            reconciles: own.reconciles || stored.reconciles,
            binds: own.binds || stored.binds,
            uses_network: own.uses_network || stored.uses_network,
            repeats: Repeats {
                reads: own.repeats.reads && stored.repeats.reads,
                rules: Some(self.rules_over(Some(stored))),
            },
        }
    }
}

/// The promise a person's verb is judged by: the stored contract alone, read carefully. The claim
/// asks again with the relay's own figures.
pub(crate) fn promise(contract: Option<&Contract>) -> Promise {
    let time_limit = contract.and_then(|contract| contract.time_limit);
    Promise {
        downstream: contract.map_or(Downstream::Unprotected, |contract| contract.downstream),
        time_limit: time_limit.unwrap_or(Duration::from_secs(60)),
        reconciles: contract.is_some_and(|contract| contract.reconciles),
        repeat_safe: contract.is_some_and(|contract| contract.repeats.reads),
    }
}

/// Stores what a relay says about an operation and returns what holds: the stricter of that and
/// what was stored, limits and budgets too. `weaken` lets the relay's word stand where it promises
/// or allows more. Returns the names of the limits that the relay would have set higher as well.
pub(crate) fn register(
    conn: &mut Connection,
    operation: &str,
    own: &Contract,
    budgets: &[Budget],
    weaken: bool,
    now: i64,
) -> Result<(Contract, Vec<&'static str>)> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let stored = of(&tx, operation)?;
    let effective = match &stored {
        Some(stored) if !weaken => own.over(stored),
        _ if weaken => Contract { on_dead: Some(own.on_dead()), ..own.clone() },
        _ => Contract {
            on_dead: Some(own.on_dead()),
            repeats: Repeats { rules: Some(own.rules_over(None)), ..own.repeats.clone() },
            ..own.clone()
        },
    };
    if stored.as_ref() != Some(&effective) {
        save(&tx, operation, &effective, now)?;
    }
    if let Some(provider) = effective.provider.as_deref().filter(|name| *name != operation) {
        binding::name_provider(&tx, operation, provider)?;
    }
    let asked = Bounds { limits: own.limits, budgets: budgets.to_vec() };
    let before = Bounds {
        limits: stored.as_ref().map_or_else(Limits::default, |stored| stored.limits),
        budgets: budget::load(&tx, operation)?,
    };
    let holds = if weaken { asked.clone() } else { asked.stricter(&before) };
    budget::replace(&tx, operation, &holds.budgets, now)?;
    if weaken && stored.is_some() {
        let actor = Actor::new("relay").reason("weaken_stored_contract");
        budget::insert_changes(&tx, operation, &before.changes(&holds), &actor, now)?;
    }
    // A relay that starts may have new credentials: it tries them at once.
    tx.execute(
        "UPDATE main.outbox_operation SET paused_until = :now
         WHERE operation = :operation AND paused_kind = 'auth' AND paused_until > :now",
        named_params! { ":operation": operation, ":now": now },
    )?;
    hold::ask_again(&tx, operation, now)?;
    tx.commit()?;
    Ok((effective, asked.overruled_by(&holds)))
}

fn save(conn: &Connection, operation: &str, contract: &Contract, now: i64) -> Result<()> {
    let Limits { max_in_flight, rate } = contract.limits;
    let sql = "INSERT INTO main.outbox_operation
             (operation, downstream, window_ms, on_dead, provider, owner, key_recipe, max_in_flight,
              rate_count, rate_ms, time_limit_ms, attempts_max, give_up_ms, reconciles, binds_ids,
              uses_network, repeat_safe, repeat_rules, registered_at)
         VALUES (:operation, :downstream, :window_ms, :on_dead, :provider, :owner, :key_recipe,
                 :max_in_flight, :rate_count, :rate_ms, :time_limit_ms, :attempts_max, :give_up_ms,
                 :reconciles, :binds_ids, :uses_network, :repeat_safe, :repeat_rules, :now)
         ON CONFLICT (operation) DO UPDATE
         SET downstream = excluded.downstream, window_ms = excluded.window_ms,
             on_dead = excluded.on_dead, provider = excluded.provider, owner = excluded.owner,
             key_recipe = excluded.key_recipe, max_in_flight = excluded.max_in_flight,
             rate_count = excluded.rate_count, rate_ms = excluded.rate_ms,
             time_limit_ms = excluded.time_limit_ms, attempts_max = excluded.attempts_max,
             give_up_ms = excluded.give_up_ms, reconciles = excluded.reconciles,
             binds_ids = excluded.binds_ids,
             uses_network = excluded.uses_network, repeat_safe = excluded.repeat_safe,
             repeat_rules = excluded.repeat_rules";
    let rules = contract.repeats.rules.as_deref().map(Value::from);
    let values = named_params! {
        ":operation": operation,
        ":downstream": contract.downstream.as_str(),
        ":window_ms": contract.downstream.window().map(millis),
        ":on_dead": contract.on_dead().as_str(),
        ":provider": contract.provider,
        ":owner": contract.owner,
        ":key_recipe": contract.key_recipe,
        ":max_in_flight": max_in_flight.map(|max| i64::try_from(max).unwrap_or(i64::MAX)),
        ":rate_count": rate.map(|rate| rate.count),
        ":rate_ms": rate.map(|rate| millis(rate.per).max(1)),
        ":time_limit_ms": contract.time_limit.map(millis),
        ":attempts_max": contract.attempts_max,
        ":give_up_ms": contract.give_up_after.map(millis),
        ":reconciles": contract.reconciles,
        ":binds_ids": contract.binds,
        ":uses_network": contract.uses_network,
        ":repeat_safe": contract.repeats.reads,
        ":repeat_rules": rules.map(|rules| rules.to_string()),
        ":now": now,
    };
    execute(conn, sql, values).map(drop)
}

macro_rules! contracts {
    ($condition:literal) => {
        concat!(
            "SELECT downstream, window_ms, on_dead, provider, owner, key_recipe, time_limit_ms,
                    max_in_flight, rate_count, rate_ms, attempts_max, give_up_ms, reconciles,
                    binds_ids, operation, uses_network, repeat_safe, repeat_rules
             FROM main.outbox_operation ",
            $condition
        )
    };
}

/// The contract of one operation, where a relay has registered it.
pub(crate) fn of(conn: &Connection, operation: &str) -> Result<Option<Contract>> {
    let mut statement = conn.prepare_cached(contracts!("WHERE operation = ?1"))?;
    Ok(statement.query_row([operation], read_contract).optional()?)
}

/// All contracts, by operation.
pub(crate) fn all(conn: &Connection) -> Result<Vec<(String, Contract)>> {
    let mut statement = conn.prepare_cached(contracts!("ORDER BY operation"))?;
    let rows = statement.query_map([], |row| Ok((row.get(14)?, read_contract(row)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn read_contract(row: &Row<'_>) -> rusqlite::Result<Contract> {
    let duration =
        |ms: Option<i64>| ms.and_then(|ms| ms.try_into().ok()).map(Duration::from_millis);
    let downstream = Downstream::from_word(&columns::lossy(row, 0)?, duration(row.get(1)?));
    let on_dead = columns::lossy(row, 2)?.parse().unwrap_or_default();
    let attempts_max: Option<i64> = row.get(10)?;
    Ok(Contract {
        // The careful reading of any other text: nothing is promised.
        downstream: downstream.unwrap_or(Downstream::Unprotected),
        on_dead: Some(on_dead),
        provider: columns::lossy_option(row, 3)?,
        owner: columns::lossy_option(row, 4)?,
        key_recipe: columns::lossy_option(row, 5)?,
        time_limit: duration(row.get(6)?),
        attempts_max: attempts_max.and_then(|max| max.try_into().ok()),
        give_up_after: duration(row.get(11)?),
        reconciles: row.get::<_, i64>(12)? != 0,
        binds: row.get::<_, i64>(13)? != 0,
        uses_network: row.get::<_, i64>(15)? != 0,
        repeats: Repeats {
            reads: row.get::<_, i64>(16)? != 0,
            rules: columns::lossy_option(row, 17)?.map(|text| read_rules(&text)),
        },
        limits: read_limits(row, 7)?,
    })
}

/// The rules in a JSON array of texts; of any other text none.
fn read_rules(text: &str) -> Arc<[String]> {
    let rules = serde_json::from_str::<Vec<String>>(text);
    rules.unwrap_or_default().into()
}

/// The limits that hold over all relays, from three columns.
pub(crate) fn read_limits(row: &Row<'_>, first: usize) -> rusqlite::Result<Limits> {
    let max: Option<i64> = row.get(first)?;
    let count: Option<i64> = row.get(first + 1)?;
    let per: Option<i64> = row.get(first + 2)?;
    Ok(Limits {
        max_in_flight: max.map(|max| usize::try_from(max).unwrap_or(0)),
        rate: count.zip(per).map(|(count, per)| Rate {
            count: u32::try_from(count.max(0)).unwrap_or(u32::MAX),
            per: Duration::from_millis(per.try_into().unwrap_or(1)),
        }),
    })
}
