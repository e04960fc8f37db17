//! Clients in other languages, which know the file and the key rule and nothing of the library.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use sqlite_outbox::{Filter, IdempotencyKey, Status};

use crate::support::world::{DEDUPLICATES, World};

pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

/// Runs a client and returns the keys it says it enqueued.
pub fn run(command: &mut Command) -> Vec<String> {
    let output = command.output().expect("the client starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Intents of a client have the keys the library derives, and a relay delivers them.
pub fn assert_delivered(world: &World, prefix: &str, keys: &[String]) {
    assert_eq!(keys.len(), 20);
    for (n, key) in keys.iter().enumerate() {
        let args = json!({ "unit": "é", "amount": n }).to_string();
        let derived =
            IdempotencyKey::derive("acme", "pay", &format!("{prefix}-{n}"), 1, &args).unwrap();
        assert_eq!(*key, derived.key);
    }
    // Draining goes on for rows that come due one after the other in their line.
    assert_eq!(world.drain_now(DEDUPLICATES).succeeded, 20);
    let filter = Filter::default().status(Status::Succeeded);
    assert_eq!(world.outbox.list(&filter).unwrap().len(), 20);
    assert_eq!(world.number("SELECT count(*) FROM orders"), 20);
}
