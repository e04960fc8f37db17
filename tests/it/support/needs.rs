//! Programs that some tests need and not every machine has.

use std::io::Write;
use std::process::Command;

/// Whether a program such as `python3` can be started. Where it cannot, the test is reported as
/// skipped; on a CI machine it fails.
pub fn has(program: &str) -> bool {
    let has = Command::new(program).arg("--version").output().is_ok();
    if !has {
        assert!(std::env::var_os("CI").is_none(), "a CI machine has {program}");
        skipped(&format!("there is no {program}"));
    }
    has
}

/// Reports the calling test as skipped, past the harness, which hides what a test that passes
/// prints.
#[expect(clippy::explicit_write, reason = "the harness hides what eprintln! prints")]
pub fn skipped(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    writeln!(std::io::stderr(), "skipped: {test}: {why}").unwrap();
}
