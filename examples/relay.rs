//! Sends the charges in a file to a service over HTTP, until Enter is pressed.
//!
//! `cargo run --example relay -- app.db https://api.example.com/v1/charges`
//!
//! The example `enqueue` writes charges, also while the relay runs. An endpoint that cannot be
//! reached leaves them pending, and they are retried for as long as it takes.

use std::error::Error;
use std::time::Duration;

use sqlite_outbox::{Downstream, Http, Operation, Outbox, Relay};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [db, endpoint] = &words[..] else { return Err("usage: relay DB ENDPOINT".into()) };

    let mut http = Http::new().endpoint(endpoint);
    if let Ok(key) = std::env::var("STRIPE_KEY") {
        http = http.header("authorization", &format!("Bearer {key}")); // sent, and never stored
    }
    // The provider remembers a key for a day: a request may be repeated within it.
    let window = Duration::from_secs(24 * 3600);
    let charges = Operation::new(Downstream::DeduplicatesByKey { window }, http);

    let outbox = Outbox::open(db)?;
    let relay = Relay::builder(&outbox)
        .operation("stripe.charge", charges)
        .observe(|event| println!("intent {}: {}", event.outbox_id, event.status))
        .build()?
        .start()?;
    println!("sending what is in {db}; press Enter to stop");
    std::io::stdin().read_line(&mut String::new())?;
    let report = relay.shutdown(Duration::from_secs(10))?; // finishes what is on the way
    println!("{} succeeded, {} left", report.totals.succeeded, report.left);
    Ok(())
}
