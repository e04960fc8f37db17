//! Handles webhooks once each, however often they are delivered, and enqueues what follows.
//!
//! ```sh
//! event='{"id": "evt_1", "order": "order-42"}'
//! printf '%s\n' "$event" "$event" | cargo run --example webhook_inbox -- app.db
//! ```
//!
//! Standard input stands for the web server here: each line is one delivery. A web server answers
//! 2xx only after `handle` has returned, because the message is remembered from its commit on.

use std::error::Error;

use serde_json::{Value, json};
use sqlite_outbox::{Inbox, Intent, Outbox, Result};

/// Returns the key of the mail that this event, or its first delivery, enqueued.
fn handle(outbox: &Outbox, event: &str, order: &str) -> Result<String> {
    outbox.transact(|tx| {
        Inbox::new(outbox).once(tx, "stripe", event, |tx| {
            tx.execute("INSERT OR REPLACE INTO orders (id, state) VALUES (?1, 'paid')", [order])?;
            let mail = Intent::new("mail.send", order).args(json!({"to": "ada@example.com"}));
            Ok(outbox.enqueue(tx, &mail)?.key().to_owned())
        })
    })
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let db = std::env::args().nth(1).ok_or("usage: webhook_inbox DB < EVENTS")?;
    let outbox = Outbox::open(&db)?;
    let table = "CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT)";
    outbox.transact(|tx| tx.execute_batch(table).map_err(sqlite_outbox::Error::from))?;
    for line in std::io::stdin().lines() {
        let event: Value = serde_json::from_str(&line?)?;
        let (Some(id), Some(order)) = (event["id"].as_str(), event["order"].as_str()) else {
            return Err("an event has an id and an order".into());
        };
        println!("{id}: the mail is {}", handle(&outbox, id, order)?);
    }
    Ok(())
}
