//! How much of an operation may be sent in a time, over all relays, and what follows where that
//! is used up. The arithmetic of the sliding window is here; the ledger is in the store.
//!
//! A window is `(now - window, now]`: what was entered at `t` leaves it at `t + window`, so that
//! no stretch of that length, wherever it begins, holds more than the budget.

use std::fmt;
use std::time::Duration;

use super::word::words;
use super::{length, millis, utc};

/// A number of sends, or an amount of cost, in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    pub scope: Scope,
    pub kind: Kind,
    /// At least 1.
    pub amount: i64,
    /// At least 1.
    pub window_ms: i64,
}

words! {
    /// Whose sends a budget counts.
    pub(crate) enum Scope, "scope" {
        Operation = "operation",
        Tenant = "tenant",
        Run = "run",
    }
}

words! {
    /// The figure that a budget adds up.
    pub(crate) enum Kind, "kind" {
        Sends = "sends",
        Cost = "cost",
        /// Sends too, spread evenly over the window by the bucket of the rate.
        Rate = "rate",
    }
}

impl Kind {
    /// How much one send of this cost takes from a budget of this kind.
    pub const fn weight(self, cost: i64) -> i64 {
        match self {
            Self::Sends | Self::Rate => 1,
            Self::Cost => cost,
        }
    }
}

impl Budget {
    /// The amount, and the time it is for.
    pub fn as_stored(&self) -> (u64, Duration) {
        let plain = |number: i64| u64::try_from(number).unwrap_or(0);
        (plain(self.amount), Duration::from_millis(plain(self.window_ms)))
    }

    /// The name by which the budget is configured.
    pub const fn name(&self) -> &'static str {
        match (self.scope, self.kind) {
            (_, Kind::Rate) => "rate",
            (Scope::Operation, Kind::Sends) => "max_per",
            (Scope::Operation, Kind::Cost) => "max_cost",
            (Scope::Tenant, Kind::Sends) => "max_per_tenant",
            (Scope::Tenant, Kind::Cost) => "max_cost_per_tenant",
            (Scope::Run, Kind::Sends) => "max_per_run",
            (Scope::Run, Kind::Cost) => "max_cost_per_run",
        }
    }

    /// Whether the two count the same sends in windows of the same length.
    pub fn is_like(&self, other: &Self) -> bool {
        (self.scope, self.kind, self.window_ms) == (other.scope, other.kind, other.window_ms)
    }

    /// Entries later than this are in the window.
    pub const fn begins(&self, now: i64) -> i64 {
        now.saturating_sub(self.window_ms)
    }

    /// When an entry leaves the window.
    pub const fn leaves(&self, at: i64) -> i64 {
        at.saturating_add(self.window_ms)
    }

    /// Whether a send of this cost fits an empty window.
    pub const fn can_ever(&self, cost: i64) -> bool {
        self.kind.weight(cost) <= self.amount
    }

    /// By how much a send of this cost is beyond what is left; nothing or less says that it fits.
    /// What takes nothing always fits, also where the budget was lowered below what is spent.
    pub const fn excess(&self, spent: i64, cost: i64) -> i64 {
        let weight = self.kind.weight(cost);
        if weight == 0 { 0 } else { spent.saturating_sub(self.amount).saturating_add(weight) }
    }

    /// When an attempt that is claimed at `now` counts until it has reported: where costs are
    /// added up, at the last time at which it may have its effect.
    pub fn enters(budgets: &[Self], cost: i64, now: i64, time_limit: Duration) -> i64 {
        if counts_cost(budgets, cost) { now.saturating_add(millis(time_limit)) } else { now }
    }

    /// When an attempt counts that began at `sent_at` and has reported at `now`.
    pub fn reported(budgets: &[Self], cost: i64, sent_at: i64, now: i64) -> i64 {
        if counts_cost(budgets, cost) { now } else { sent_at }
    }

    /// When enough of the entries have left the window to free this much. The entries are those in
    /// the window, oldest first, as their time and their weight.
    pub fn frees_at<E>(
        &self,
        excess: i64,
        entries: impl IntoIterator<Item = Result<(i64, i64), E>>,
    ) -> Result<Option<i64>, E> {
        let (mut left, mut last) = (excess, None);
        for entry in entries {
            let (at, weight) = entry?;
            left = left.saturating_sub(weight);
            last = Some(self.leaves(at));
            if left <= 0 {
                break;
            }
        }
        Ok(last)
    }
}

fn counts_cost(budgets: &[Budget], cost: i64) -> bool {
    cost > 0 && budgets.iter().any(|budget| budget.kind == Kind::Cost)
}

/// All budgets of both, and of two that are alike the smaller.
pub(crate) fn stricter(stored: &[Budget], own: &[Budget]) -> Vec<Budget> {
    let mut all: Vec<Budget> = Vec::new();
    for budget in stored.iter().chain(own) {
        match all.iter_mut().find(|other| other.is_like(budget)) {
            Some(other) => other.amount = other.amount.min(budget.amount),
            None => all.push(*budget),
        }
    }
    all
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let window = Duration::from_millis(self.window_ms.unsigned_abs());
        write!(f, "{} ({} in {})", self.name(), self.amount, length(window))
    }
}

/// A budget that a row does not fit now, and from when it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UsedUp {
    pub budget: Budget,
    pub until: i64,
}

impl fmt::Display for UsedUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the budget {} is used up until {}", self.budget, utc(self.until))
    }
}

/// The verdict of the budgets on one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    Fits,
    /// The row costs more than the whole of this budget.
    Never(Budget),
    /// The row's tenant or agent run has used up its own budget; rows of others go on.
    PutOff(UsedUp),
    /// The operation's budget is used up, or has too little left for this row. Later rows wait
    /// behind the row even if they fit, or a row that costs much would never go.
    Waits(UsedUp),
}

/// The verdict on a row that does not fit these budgets: the last to free counts, and one of a
/// tenant or run comes before the operation's, since it must not hold up rows of others.
pub(crate) fn judge(used_up: &[UsedUp]) -> Fit {
    let last_of = |is_whole: bool| {
        let of_scope = used_up.iter().filter(|u| (u.budget.scope == Scope::Operation) == is_whole);
        of_scope.max_by_key(|used| used.until).copied()
    };
    match (last_of(false), last_of(true)) {
        (Some(part), _) => Fit::PutOff(part),
        (None, Some(operation)) => Fit::Waits(operation),
        (None, None) => Fit::Fits,
    }
}

/// The sends that the budgets of an operation leave now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    /// At most so many sends.
    pub sends: usize,
    /// The budget that keeps every row back, if any does.
    pub used_up: Option<UsedUp>,
}

impl Default for Left {
    fn default() -> Self {
        Self { sends: usize::MAX, used_up: None }
    }
}

#[cfg(test)]
mod tests;
