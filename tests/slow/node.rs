//! Packages of npm that the clients in JavaScript and TypeScript need.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::needs;

/// Packages, each with a file that is there once it is installed.
const PACKAGES: [(&str, &str); 5] = [
    ("better-sqlite3@12", "better-sqlite3/build/Release/better_sqlite3.node"),
    ("tsx@4", ".bin/tsx"),
    ("typescript@5", ".bin/tsc"),
    ("@types/node@20", "@types/node/package.json"),
    ("@types/better-sqlite3@7", "@types/better-sqlite3/package.json"),
];

/// The folder of the installed packages; installs them where they are not. Without npm the calling
/// test is reported as skipped.
pub fn modules() -> Option<&'static Path> {
    static MODULES: OnceLock<PathBuf> = OnceLock::new();
    needs::has("npm").then(|| MODULES.get_or_init(install).as_path())
}

fn install() -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("node-clients");
    let modules = home.join("node_modules");
    if PACKAGES.iter().all(|(_, file)| modules.join(file).exists()) {
        return modules;
    }
    std::fs::create_dir_all(&home).unwrap();
    let output = Command::new("npm")
        .args(["install", "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--prefix"])
        .arg(&home)
        .args(PACKAGES.map(|(package, _)| package))
        .output()
        .unwrap();
    assert!(output.status.success(), "npm: {}", String::from_utf8_lossy(&output.stderr));
    modules
}
