//! Records an order and the intent to charge for it, in one transaction of the application's file.
//!
//! `cargo run --example enqueue -- app.db order-42 4200`
//!
//! The second run with the same arguments writes nothing. Another amount for the same order is
//! refused: a change is another action and needs the next version.

use std::error::Error;
use std::process::ExitCode;

use serde_json::json;
use sqlite_outbox::rusqlite::{Connection, TransactionBehavior::Immediate};
use sqlite_outbox::{Enqueued, Intent, Outbox};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [db, order, amount] = &words[..] else {
        return Err("usage: enqueue DB ORDER CENTS".into());
    };
    let amount: u64 = amount.parse()?;

    let outbox = Outbox::open(db)?; // creates the outbox's tables where they are missing
    let mut conn = Connection::open(db)?; // the application's own connection
    conn.execute_batch("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT)")?;

    let charge = Intent::new("stripe.charge", order.as_str())
        .tenant("acme")
        .args(json!({"amount": amount, "currency": "usd"}));
    let tx = conn.transaction_with_behavior(Immediate)?;
    tx.execute("INSERT OR IGNORE INTO orders (id, state) VALUES (?1, 'paying')", [order])?;
    let enqueued = outbox.enqueue(&tx, &charge)?;
    tx.commit()?; // now both rows are durable, or on an error above neither exists

    match enqueued {
        Enqueued::Existing(entry) => println!("asked before, and {} now", entry.status),
        new => println!("enqueued {}", new.key()),
    }
    Ok(())
}
