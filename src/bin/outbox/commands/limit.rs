//! `outbox limit`: a person sets the stored limits of an operation.

use std::time::Duration;

use serde_json::json;
use sqlite_outbox::{BudgetName, Limit, Outbox};

use crate::args::{LimitArgs, LimitValues};
use crate::commands::operations::limits;
use crate::commands::relay::{Budgets, Per};
use crate::ui::failure::{Failure, Result};
use crate::ui::output::{Out, escape};

pub fn run(out: Out, outbox: &Outbox, args: &LimitArgs) -> Result<()> {
    let operation = &args.operation;
    outbox.limit(operation, &given(&args.values)?, args.by.actor())?;
    let mut known = outbox.operations()?.into_iter();
    let Some(known) = known.find(|known| known.operation == *operation) else { return Ok(()) };
    if out.is_json {
        return out.json(&json!({ "operation": operation, "outcome": "limited", "now": known }));
    }
    let limits = limits(&known);
    let said = if limits.is_empty() { "no limits" } else { &limits };
    out.line(format_args!("operation {}: {said}", escape(operation)))
}

fn given(values: &LimitValues) -> Result<Vec<Limit>> {
    let mut limits = Vec::new();
    if let Some(text) = &values.max_in_flight {
        let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is not a number"));
        limits.push(Limit::MaxInFlight(or_none("max-in-flight", text, number)?));
    }
    if let Some(text) = &values.rate {
        limits.push(Limit::Rate(or_none("rate", text, |text| {
            Per::try_from(text.to_owned()).map(|Per(count, per)| (count, per))
        })?));
    }
    for (name, text) in [
        (BudgetName::MaxPer, &values.max_per),
        (BudgetName::MaxCost, &values.max_cost),
        (BudgetName::MaxPerTenant, &values.max_per_tenant),
        (BudgetName::MaxCostPerTenant, &values.max_cost_per_tenant),
        (BudgetName::MaxPerRun, &values.max_per_run),
        (BudgetName::MaxCostPerRun, &values.max_cost_per_run),
    ] {
        let Some(text) = text else { continue };
        let all = or_none(&name.as_str().replace('_', "-"), text, budgets)?;
        limits.push(Limit::Budget(name, all.unwrap_or_default()));
    }
    Ok(limits)
}

/// Amounts in times, with commas between them.
fn budgets(text: &str) -> std::result::Result<Vec<(u64, Duration)>, String> {
    let Budgets(all) = Budgets::try_from(text.to_owned())?;
    Ok(all.into_iter().map(|Per(amount, per)| (amount, per)).collect())
}

fn or_none<T>(
    flag: &str,
    text: &str,
    parse: impl Fn(&str) -> std::result::Result<T, String>,
) -> Result<Option<T>> {
    if text == "none" {
        return Ok(None);
    }
    parse(text).map(Some).map_err(|why| Failure::usage(format!("--{flag}: {why}, or none")))
}
