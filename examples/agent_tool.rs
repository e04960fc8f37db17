//! A tool of an agent that charges for an order once, however often the model asks for it.
//!
//! usage: `cargo run -q --example agent_tool -- DB ORDER AMOUNT [--wait SECONDS]`
//!
//! Prints a JSON object for the model. Exit codes: 0 answered, 1 failed, 2 wrong usage, 3 refused
//! because the order was asked for with another amount. After a failure the same ask may simply be
//! repeated.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use sqlite_outbox::{Enqueued, Error, ErrorKind, Intent, Outbox, Result};

const TOOL_VERSION: &str = "1.0.0";

/// The tool. It sends nothing itself.
///
/// The model chooses `order` and `amount`. `version` is for code or a person who has decided that
/// this order is to be charged otherwise; a model that could choose it could charge twice.
fn charge(
    outbox: &Outbox,
    order: &str,
    amount: u32,
    version: i64,
    run: Option<&str>,
) -> Result<Enqueued> {
    // The key is derived from this, so it holds what the action is and nothing of how it was asked
    // for. With the id of a tool call, a trace id, the time or a random number in it, every ask
    // would be another action, and the order would be charged for each.
    let mut intent = Intent::new("stripe.charge", order)
        .tenant("acme")
        .version(version)
        .args(json!({"amount": amount, "currency": "usd"}));
    // Who asked goes into headers, which are no part of the key. Those of the first ask are sent.
    intent = intent.header("x-tool-version", TOOL_VERSION);
    if let Some(run) = run {
        intent = intent.header("x-agent-run", run);
    }
    // Only once this has returned, and so committed, may the model be answered.
    outbox.transact(|tx| {
        tx.execute_batch("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT)")?;
        // Your tool would look the order up and refuse one that is not there: a
        // misspelt order is another order, and charging for it another action.
        tx.execute("INSERT OR IGNORE INTO orders (id, state) VALUES (?1, 'paying')", [order])?;
        outbox.enqueue(tx, &intent)
    })
}

/// The answer for the model.
fn answer(db: &str, order: &str, amount: u32, wait: Duration) -> Result<serde_json::Value> {
    let outbox = Outbox::open(db)?;
    let run = std::env::var("AGENT_RUN").ok().filter(|run| !run.is_empty());
    let asked = charge(&outbox, order, amount, 1, run.as_deref())?;
    // Waiting sends nothing; without --wait it returns at once.
    let entry = outbox.wait(asked.id(), wait)?;
    Ok(json!({
        "status": entry.status.as_str(),
        "idempotency_key": asked.key(),
        "downstream_id": entry.downstream_id,
        "asked_before": !asked.is_new(),
    }))
}

/// The model's answer after a failure, and the exit code.
fn explain(error: &Error, order: &str) -> (String, u8) {
    if error.kind() != ErrorKind::Conflict {
        return (error.to_string(), 1);
    }
    let text = format!(
        "{order} was asked for before with another amount; nothing was changed. Do not try other \
         arguments: a change needs a new version, which a person decides on."
    );
    (text, 3)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (db, order, amount, wait) = match words[..] {
        [db, order, amount] => (db, order, amount, "0"),
        [db, order, amount, "--wait", seconds] => (db, order, amount, seconds),
        _ => return usage(),
    };
    let amount = amount.parse().ok().filter(|amount| (1..=99_999_999).contains(amount));
    let wait = wait.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let (Some(amount), Some(wait)) = (amount, wait) else { return usage() };
    match answer(db, order, amount, wait) {
        Ok(answer) => {
            println!("{answer}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let (text, code) = explain(&error, order);
            eprintln!("{}", json!({ "error": text }));
            ExitCode::from(code)
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: agent_tool DB ORDER AMOUNT [--wait SECONDS]");
    eprintln!("AMOUNT is a whole number of cents from 1 to 99999999");
    ExitCode::from(2)
}
