//! Other languages enqueue with nothing but their own SQLite and the key rule.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use sqlite_outbox::{Filter, IdempotencyKey, Status};

use crate::node;
use crate::world::{DEDUPLICATES, World};

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

/// Runs a client and returns the keys it says it enqueued.
fn run(command: &mut Command) -> Vec<String> {
    let output = command.output().expect("the client starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// What a client enqueued has the key the library derives, and a relay delivers it.
fn assert_delivered(world: &World, prefix: &str, keys: &[String]) {
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

#[test]
fn python_enqueues_with_plain_sql() {
    let world = World::new();
    let mut python = Command::new("python3");
    let keys = run(python.arg(script("enqueue.py")).arg(world.path()).args(["0", "20"]));
    assert_delivered(&world, "py", &keys);
}

#[test]
fn the_readmes_python_example_enqueues_once_and_refuses_other_arguments() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/enqueue.py");
    let world = World::new();
    let python = |amount| {
        let mut command = Command::new("python3");
        command.arg(&example).arg(world.path()).args(["order-42", amount]);
        command
    };
    let args = r#"{"amount": 4200, "currency": "usd"}"#;
    let derived = IdempotencyKey::derive("acme", "stripe.charge", "order-42", 1, args).unwrap();
    assert_eq!(run(&mut python("4200")), [format!("enqueued {}", derived.key)]);
    assert_eq!(run(&mut python("4200")), [format!("asked before {}", derived.key)]);
    let output = python("4300").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("needs a new version"), "{errors}");
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 1);
    assert_eq!(world.number("SELECT count(*) FROM orders"), 1);
}

#[test]
fn node_enqueues_with_plain_sql() {
    let Some(modules) = node::modules() else {
        eprintln!("skipped: this machine has no npm");
        return;
    };
    let world = World::new();
    let mut node = Command::new("node");
    node.env("NODE_PATH", modules);
    let keys = run(node.arg(script("enqueue.cjs")).arg(world.path()).args(["0", "20"]));
    assert_delivered(&world, "js", &keys);
}
