//! Other languages enqueue with nothing but their own SQLite and the key rule.

use std::path::Path;
use std::process::Command;

use sqlite_outbox::IdempotencyKey;

use crate::support::clients::{assert_delivered, run, script};
use crate::support::needs;
use crate::support::world::World;

#[test]
fn python_enqueues_with_plain_sql() {
    if !needs::has("python3") {
        return;
    }
    let world = World::new();
    let mut python = Command::new("python3");
    let keys = run(python.arg(script("enqueue.py")).arg(world.path()).args(["0", "20"]));
    assert_delivered(&world, "py", &keys);
}

#[test]
fn python_example_of_the_readme_enqueues_once_and_refuses_other_arguments() {
    if !needs::has("python3") {
        return;
    }
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
