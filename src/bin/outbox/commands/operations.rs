//! `outbox operations`, `pause` and `resume`: the stored contracts, and holding operations back.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use sqlite_outbox::{Outbox, Part, StoredContract};

use crate::args::{ActorArgs, PausedArgs};
use crate::ui::failure::{Failure, Result};
use crate::ui::output::{Out, count, duration, escape, shorten, table, time};

/// So many holds of an operation are shown as text.
const HOLDS_SHOWN_MAX: usize = 20;

pub fn pause(
    out: Out,
    outbox: &Outbox,
    what: &PausedArgs,
    length: Option<Duration>,
    by: &ActorArgs,
) -> Result<()> {
    if length.is_some_and(|length| length.is_zero()) {
        return Err(Failure::usage("--for: must be longer than nothing"));
    }
    let operation = what.operation.as_deref();
    let mut until = None;
    if let Some(part) = part(what) {
        outbox.pause_part(&part, operation, length, by.actor())?;
    } else if let Some(operation) = operation {
        outbox.pause(operation, length, by.actor())?;
        let mut known = outbox.operations()?.into_iter();
        let paused = known.find(|known| known.operation == operation);
        until = paused.and_then(|known| known.paused_until);
    }
    if out.is_json {
        let mut said = named(what, "paused");
        said["paused_until"] = json!(until);
        return out.json(&said);
    }
    let until = match (until, length) {
        (Some(until), _) => format!("until {}", time(until)),
        (None, Some(length)) => format!("for {}", duration(length)),
        (None, None) => "until it is resumed".into(),
    };
    out.line(format_args!("{}: paused {until}", words(what)))
}

pub fn resume(out: Out, outbox: &Outbox, what: &PausedArgs, by: &ActorArgs) -> Result<()> {
    let operation = what.operation.as_deref();
    let was_paused = match part(what) {
        Some(part) => outbox.resume_part(&part, operation, by.actor())?,
        None => outbox.resume(operation.unwrap_or_default(), by.actor())?,
    };
    if out.is_json {
        return out.json(&named(what, if was_paused { "resumed" } else { "not_paused" }));
    }
    let said = if was_paused { "resumed" } else { "was not paused" };
    out.line(format_args!("{}: {said}", words(what)))
}

/// The tenant or the run whose intents are named.
fn part(what: &PausedArgs) -> Option<Part> {
    let tenant = what.tenant.clone().map(Part::Tenant);
    tenant.or_else(|| what.run.clone().map(Part::Run))
}

fn words(what: &PausedArgs) -> String {
    let operation = what.operation.as_ref().map(|name| format!("operation {}", escape(name)));
    let part = part(what).map(|part| part.to_string());
    [operation, part].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The outcome, under the names of what was paused or resumed.
fn named(what: &PausedArgs, outcome: &str) -> serde_json::Value {
    let mut said = json!({ "outcome": outcome });
    for (key, name) in
        [("operation", &what.operation), ("tenant_id", &what.tenant), ("run", &what.run)]
    {
        if let Some(name) = name {
            said[key] = json!(name);
        }
    }
    said
}

pub fn only_registered(out: Out, outbox: &Outbox, is_on: bool, by: &ActorArgs) -> Result<()> {
    outbox.only_registered(is_on, by.actor())?;
    if out.is_json {
        return out.json(&json!({ "only_registered": is_on }));
    }
    out.line(if is_on {
        "intents of operations that no relay has registered are refused"
    } else {
        "intents of all operations are taken"
    })
}

/// Tells that the file refuses intents of other operations, where it does. In JSON the lines of
/// operations say so, and this where there are none.
pub fn print_switch(out: Out, is_on: bool) -> Result<()> {
    if !is_on {
        return Ok(());
    }
    if out.is_json {
        return out.json(&json!({ "only_registered": true }));
    }
    out.line(
        "\nintents of operations that no relay has registered are refused; \
         `outbox operations --only-registered=off` ends that",
    )
}

/// A stored contract, and the switch of its file.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    known: &'a StoredContract,
    only_registered: bool,
}

pub fn list(out: Out, outbox: &Outbox) -> Result<()> {
    let (known, only_registered) = (outbox.operations()?, outbox.takes_only_registered()?);
    if known.is_empty() {
        if !out.is_json {
            out.line("no relay has registered an operation yet")?;
        }
        return print_switch(out, only_registered);
    }
    if out.is_json {
        return known.iter().try_for_each(|known| out.json(&Listed { known, only_registered }));
    }
    let fit = |text: Option<&str>, max| text.map_or_else(dash, |text| shorten(&escape(text), max));
    let mut table = table(&[
        "OPERATION",
        "DOWNSTREAM",
        "WINDOW",
        "ON DEAD",
        "LOOKUP",
        "IDS",
        "LIMITS",
        "PROVIDER",
        "OWNER",
        "KEY RECIPE",
        "PAUSED",
    ]);
    for known in &known {
        table.add_row([
            escape(&known.operation),
            known.downstream.to_string(),
            known.downstream.window().map_or_else(dash, duration),
            known.on_dead.to_string(),
            if known.reconciles { "yes".into() } else { dash() },
            if known.binds_ids { "bound".into() } else { dash() },
            Some(limits(known)).filter(|text| !text.is_empty()).unwrap_or_else(dash),
            fit(known.provider.as_deref(), 24),
            fit(known.owner.as_deref(), 24),
            fit(known.key_recipe.as_deref(), 60),
            fit(known.pause_in_words().as_deref(), 80),
        ]);
    }
    out.line(table.trim_fmt())?;
    for known in &known {
        print_repeats(out, known)?;
        print_holds(out, known)?;
    }
    print_switch(out, only_registered)
}

/// Prints when a request of an operation is repeated, or is not, though it may have been applied.
fn print_repeats(out: Out, known: &StoredContract) -> Result<()> {
    let operation = escape(&known.operation);
    for rule in &known.repeat_rules {
        out.line(format_args!("\n{operation}: not applied, by {}", escape(rule)))?;
    }
    if known.repeat_safe {
        return Ok(());
    }
    out.line(format_args!("\n{operation}: a GET is not repeated"))
}

/// Prints a line for each part of an operation that is held back, as far as a person reads on.
pub fn print_holds(out: Out, known: &StoredContract) -> Result<()> {
    let (holds, operation) = (known.holds_in_words(), escape(&known.operation));
    for words in holds.iter().take(HOLDS_SHOWN_MAX) {
        out.line(format_args!("\n{operation}: {}", escape(words)))?;
    }
    match holds.len().saturating_sub(HOLDS_SHOWN_MAX) {
        0 => Ok(()),
        more => out.line(format_args!("\n{operation}: {more} more; --json shows all")),
    }
}

/// The limits of an operation, in words; nothing where there are none.
pub fn limits(known: &StoredContract) -> String {
    let mut limits = Vec::new();
    if let Some(most) = known.max_in_flight {
        limits.push(format!("{most} in flight"));
    }
    if let Some((sends, per)) = known.rate {
        let per = duration(per);
        let is_unit = matches!(per.as_str(), "1s" | "1m" | "1h");
        limits.push(format!("rate {sends}/{}", if is_unit { &per[1..] } else { &per }));
    }
    let sends: fn(u64) -> String =
        |amount| count(usize::try_from(amount).unwrap_or(usize::MAX), "send");
    let cost: fn(u64) -> String = |amount| format!("cost {amount}");
    for (budgets, of, whose) in [
        (&known.max_per, sends, ""),
        (&known.max_cost, cost, ""),
        (&known.max_per_tenant, sends, " and tenant"),
        (&known.max_cost_per_tenant, cost, " and tenant"),
        (&known.max_per_run, sends, " and run"),
        (&known.max_cost_per_run, cost, " and run"),
    ] {
        for (amount, window) in budgets {
            limits.push(format!("{} per {}{whose}", of(*amount), duration(*window)));
        }
    }
    limits.join(", ")
}

fn dash() -> String {
    "-".into()
}
