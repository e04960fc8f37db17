//! Tests that need a process of their own: for its environment, its logger or its memory.

use std::process::Command;

const CHILD: &str = "OUTBOX_TEST_CHILD";

/// Whether this process was started for one test alone.
pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs one test of this binary, by its full path, again in a process of its own, with these
/// variables set.
pub fn run(path: &str, variables: &[(&str, &str)]) {
    let (_crate, test) = path.split_once("::").expect("crate::module::test");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("1 passed"), "the test has another name: {printed}");
}
