//! The limits of an operation together: which of two relays' hold, and what a person sets.

use std::time::Duration;

use super::budget::{self, Budget, Kind, Scope};
use super::flow::{Limits, Rate};
use super::word::words;
use super::{length, millis};
use crate::error::{Error, Result};

/// A limit of an operation that a person sets, in place of what is stored, for every relay on the
/// file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// At most so many in flight; `None` removes the limit.
    MaxInFlight(Option<usize>),
    /// At most so many sends in such a time; `None` removes the limit.
    Rate(Option<(u32, Duration)>),
    /// At most these amounts in any stretch of these times, all of which hold; none removes them.
    Budget(BudgetName, Vec<(u64, Duration)>),
}

words! {
    /// The name of a budget, as relay.toml has it.
    #[non_exhaustive]
    pub enum BudgetName, "budget" {
        /// Sends.
        MaxPer = "max_per",
        /// Cost.
        MaxCost = "max_cost",
        /// Sends of each tenant.
        MaxPerTenant = "max_per_tenant",
        /// Cost of each tenant.
        MaxCostPerTenant = "max_cost_per_tenant",
        /// Sends of each agent run.
        MaxPerRun = "max_per_run",
        /// Cost of each agent run.
        MaxCostPerRun = "max_cost_per_run",
    }
}

impl BudgetName {
    pub(crate) const fn of(self) -> (Scope, Kind) {
        match self {
            Self::MaxPer => (Scope::Operation, Kind::Sends),
            Self::MaxCost => (Scope::Operation, Kind::Cost),
            Self::MaxPerTenant => (Scope::Tenant, Kind::Sends),
            Self::MaxCostPerTenant => (Scope::Tenant, Kind::Cost),
            Self::MaxPerRun => (Scope::Run, Kind::Sends),
            Self::MaxCostPerRun => (Scope::Run, Kind::Cost),
        }
    }

    /// The budgets of this name among others, shortest window first.
    pub(crate) fn among(self, budgets: &[Budget]) -> Vec<(u64, Duration)> {
        let own = budgets.iter().filter(|budget| (budget.scope, budget.kind) == self.of());
        let mut found: Vec<_> = own.map(Budget::as_stored).collect();
        found.sort_by_key(|(_, window)| *window);
        found
    }
}

/// The longest time that a limit is over: a year.
const WINDOW_MAX_MS: i64 = 366 * 24 * 3_600_000;

/// All limits of one operation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub limits: Limits,
    pub budgets: Vec<Budget>,
}

impl Bounds {
    /// The limits that hold where both are to: of each the smaller. A rate that gives way to one
    /// over another time holds as a budget.
    pub fn stricter(&self, stored: &Self) -> Self {
        let limits = self.limits.stricter(stored.limits);
        let mut budgets = budget::stricter(&stored.budgets, &self.budgets);
        for rate in [self.limits.rate, stored.limits.rate].into_iter().flatten() {
            if limits.rate.is_some_and(|holds| holds.per != rate.per) {
                let other = Budget { kind: Kind::Sends, ..rate.budget() };
                budgets = budget::stricter(&budgets, &[other]);
            }
        }
        Self { limits, budgets }
    }

    /// The names of these limits that are higher than those that hold.
    pub fn overruled_by(&self, holds: &Self) -> Vec<&'static str> {
        let is_lower = |own: Budget| {
            holds.budgets.iter().any(|other| other.is_like(&own) && other.amount < own.amount)
        };
        let in_flight = self.limits.max_in_flight != holds.limits.max_in_flight;
        let rate = self.limits.rate != holds.limits.rate;
        let limits = [
            ("max_in_flight", self.limits.max_in_flight.is_some() && in_flight),
            ("rate", self.limits.rate.is_some() && rate),
        ];
        let limits = limits.into_iter().filter(|(_, is_lower)| *is_lower).map(|(name, _)| name);
        let budgets = self.budgets.iter().filter(|own| is_lower(**own)).map(Budget::name);
        limits.chain(budgets).collect()
    }

    /// Sets a limit in place of what there is.
    pub fn set(&mut self, limit: &Limit) -> Result<()> {
        match limit {
            Limit::MaxInFlight(max) => self.limits.max_in_flight = *max,
            Limit::Rate(rate) => self.limits.rate = rate.map(|(count, per)| Rate { count, per }),
            Limit::Budget(name, amounts) => {
                let (scope, kind) = name.of();
                self.budgets.retain(|other| (other.scope, other.kind) != (scope, kind));
                self.budgets.extend(amounts.iter().map(|&(amount, per)| Budget {
                    scope,
                    kind,
                    amount: i64::try_from(amount).unwrap_or(i64::MAX),
                    window_ms: millis(per),
                }));
            }
        }
        self.check()
    }

    /// Refuses limits that let nothing through, and times so long that they are a slip.
    pub fn check(&self) -> Result<()> {
        if self.limits.max_in_flight == Some(0) {
            return Err(Error::invalid("max_in_flight", "must be 1 or more"));
        }
        if self.limits.rate.is_some_and(|rate| rate.count == 0 || rate.per.is_zero()) {
            return Err(Error::invalid("rate", "must be at least one send in some time"));
        }
        if let Some(budget) = self.budgets.iter().find(|b| b.amount < 1 || b.window_ms < 1) {
            let why = "must be at least 1, in a time of at least a millisecond";
            return Err(Error::invalid(budget.name(), why));
        }
        let rate = self.limits.rate.map(Rate::budget);
        if let Some(long) = self.budgets.iter().chain(&rate).find(|b| b.window_ms > WINDOW_MAX_MS) {
            let (_, window) = long.as_stored();
            let why = format!("is over {}; the longest time is 366 days, 8784h", length(window));
            return Err(Error::invalid(long.name(), why));
        }
        Ok(())
    }

    /// The limits that are others in `after`, each as a sentence.
    pub fn changes(&self, after: &Self) -> Vec<String> {
        let (before, after) = (self.in_words(), after.in_words());
        let both = before.into_iter().zip(after).filter(|(before, after)| before != after);
        both.map(|((name, before), (_, after))| format!("{name}: {before}, now {after}")).collect()
    }

    fn in_words(&self) -> Vec<(&'static str, String)> {
        let per = |(amount, per): (u64, Duration)| format!("{amount} in {}", length(per));
        let none = || "none".to_owned();
        let max = self.limits.max_in_flight.map_or_else(none, |max| max.to_string());
        let rate = self.limits.rate.map(|rate| per((rate.count.into(), rate.per)));
        let mut all = vec![("max_in_flight", max), ("rate", rate.unwrap_or_else(none))];
        for name in BudgetName::ALL {
            let amounts: Vec<_> = name.among(&self.budgets).into_iter().map(per).collect();
            let text = if amounts.is_empty() { none() } else { amounts.join(" and ") };
            all.push((name.as_str(), text));
        }
        all
    }
}

#[cfg(test)]
mod tests;
