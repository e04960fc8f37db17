//! Clients of npm packages, which are installed over the network the first time.

use std::process::Command;

use crate::node;
use crate::support::clients::{assert_delivered, run, script};
use crate::support::world::World;

#[test]
fn node_enqueues_with_plain_sql() {
    let Some(modules) = node::modules() else { return };
    let world = World::new();
    let mut node = Command::new("node");
    node.env("NODE_PATH", modules);
    let keys = run(node.arg(script("enqueue.cjs")).arg(world.path()).args(["0", "20"]));
    assert_delivered(&world, "js", &keys);
}
