//! The style of the sources, as far as a machine can see it.

use std::path::{Path, PathBuf};

/// A source of the library or the binary.
struct Source {
    /// Its name below `src/`, with slashes.
    name: String,
    /// Its text without the tests at its end.
    code: String,
    lines: usize,
}

fn sources() -> Vec<Source> {
    fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    collect(&root, &mut paths);
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned();
        Source { name, code, lines: text.lines().count() }
    };
    paths.into_iter().map(read).collect()
}

/// Sources that are part of what is shipped, not tests beside it.
fn shipped() -> impl Iterator<Item = Source> {
    sources().into_iter().filter(|source| {
        !source.name.ends_with("tests.rs")
            && !source.name.contains("/tests/")
            && !source.name.starts_with("store/machine/")
            && source.name != "store/plan.rs"
    })
}

fn code_lines(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    let lines = source.code.lines().enumerate();
    lines.map(|(n, line)| (n + 1, line)).filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn is_in(source: &Source, places: &[&str]) -> bool {
    places
        .iter()
        .any(|place| source.name == *place || source.name.starts_with(&format!("{place}/")))
}

/// Names every line of a shipped source outside `places` that `is_wrong`.
fn refuse(what: &str, places: &[&str], is_wrong: impl Fn(&str) -> bool) {
    let mut wrong = Vec::new();
    for source in shipped().filter(|source| !is_in(source, places)) {
        for (number, line) in code_lines(&source) {
            if is_wrong(line) {
                wrong.push(format!("src/{}:{number}: {}", source.name, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
}

/// Where a module stands; an arrow never points up.
fn level(module: &str) -> Option<usize> {
    Some(match module {
        "core" | "error" => 0,
        "clock" | "lease" | "handler" | "event" => 1,
        "store" | "http" | "liveness" => 2,
        "outbox" | "relay" | "inbox" | "testing" => 3,
        "lib" => 4,
        _ => return None,
    })
}

#[test]
fn arrows_point_down() {
    let mut wrong = Vec::new();
    for source in shipped().filter(|source| !source.name.starts_with("bin/")) {
        let module = source.name.split(['/', '.']).next().unwrap();
        let from = level(module).unwrap_or_else(|| panic!("src/{}: which layer?", source.name));
        for (number, line) in code_lines(&source) {
            for (at, _) in line.match_indices("crate::") {
                let rest = &line[at + "crate::".len()..];
                let target: String =
                    rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                // Names such as `crate::Error` are re-exports, which only lib.rs may make.
                let Some(to) = level(&target) else { continue };
                if to > from
                    || (to == from && target != module && to >= 2 && !is_known(module, &target))
                {
                    wrong.push(format!("src/{}:{number}: {}", source.name, line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "these point up:\n{}", wrong.join("\n"));
}

/// Arrows within a layer.
fn is_known(from: &str, to: &str) -> bool {
    matches!((from, to), ("relay" | "inbox" | "testing", "outbox"))
}

#[test]
fn the_binary_uses_the_public_interface_alone() {
    for source in shipped().filter(|source| source.name.starts_with("bin/")) {
        for (number, line) in code_lines(&source) {
            let uses = line.trim_start().starts_with("use sqlite_outbox::");
            assert!(
                !uses || !line.contains("::core::") && !line.contains("::store::"),
                "src/{}:{number}",
                source.name
            );
        }
    }
}

#[test]
fn files_and_functions_are_short() {
    const FILE_MAX: usize = 500;
    const FUNCTION_MAX: usize = 70;
    for source in sources() {
        assert!(source.lines <= FILE_MAX, "src/{} has {} lines", source.name, source.lines);
        let mut began: Option<(usize, usize, &str)> = None;
        for (number, line) in source.code.lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let words = line.trim_start();
            let is_function = words.contains("fn ")
                && !words.starts_with("//")
                && !words.ends_with(';')
                && ["fn ", "pub", "const fn", "async fn"].iter().any(|w| words.starts_with(w));
            if is_function && began.is_none() {
                began = Some((number, indent, words));
            }
            if let Some((first, outer, name)) = began
                && indent == outer
                && words.starts_with('}')
            {
                let length = number - first + 1;
                assert!(length <= FUNCTION_MAX, "src/{}: {length} lines: {name}", source.name);
                began = None;
            }
        }
    }
}

#[test]
fn sql_is_in_the_store() {
    let words = [
        "SELECT ",
        "INSERT ",
        "UPDATE ",
        "DELETE FROM",
        "PRAGMA ",
        "CREATE TABLE",
        "BEGIN IMMEDIATE\"",
        "SAVEPOINT ",
    ];
    // The demo plays the application, which has a table of its own.
    let places = ["store", "bin/outbox/commands/demo"];
    refuse("SQL outside the store", &places, |line| words.iter().any(|word| line.contains(word)));
}

#[test]
fn the_clock_is_read_at_the_rim() {
    let rim =
        ["clock.rs", "relay", "http", "http.rs", "outbox/wait.rs", "store/connection.rs", "bin"];
    refuse("a clock is read in the middle", &rim, |line| {
        line.contains("SystemTime") || line.contains("Instant::now") || line.contains("Utc::now")
    });
}

#[test]
fn the_network_is_in_one_place() {
    // The command knows the names of its log targets, to cap them.
    let places = ["http", "http.rs", "bin/outbox/ui/logging.rs"];
    refuse("ureq outside http", &places, |line| line.contains("ureq"));
}

#[test]
fn threads_are_in_the_relay() {
    let places = ["relay", "http", "http.rs", "outbox/wait.rs", "store/connection.rs", "bin"];
    refuse("a thread outside the relay", &places, |line| {
        line.contains("thread::") && !line.contains("thread::LocalKey")
    });
}

#[test]
fn the_core_is_pure() {
    let pure = |source: &Source| source.name.starts_with("core/");
    let mut wrong = Vec::new();
    for source in shipped().filter(pure) {
        for (number, line) in code_lines(&source) {
            if ["rusqlite", "std::fs", "std::net", "fastrand", "std::env", "crossbeam", "log::"]
                .iter()
                .any(|word| line.contains(word))
            {
                wrong.push(format!("src/{}:{number}: {}", source.name, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nothing_panics_on_purpose() {
    let words = [
        ".unwrap()",
        ".expect(\"",
        "panic!(",
        "todo!(",
        "unimplemented!(",
        "dbg!(",
        "unreachable!(",
    ];
    // An assertion of the testing kit is there to panic.
    refuse("this can panic", &["testing.rs"], |line| words.iter().any(|word| line.contains(word)));
}

/// POSIX locks are per process: opening and closing the database by any other way than SQLite's
/// drops them.
#[test]
fn the_database_is_never_opened_as_a_file() {
    let places = ["bin", "liveness.rs"];
    refuse("std::fs near the database", &places, |line| {
        line.contains("std::fs") || line.contains("File::open")
    });
}

#[test]
fn the_public_surface_is_small() {
    let lib = sources().into_iter().find(|source| source.name == "lib.rs").unwrap().code;
    let names: usize = lib
        .split(';')
        .filter_map(|item| {
            item.trim_start().rsplit("pub use ").next().filter(|_| item.contains("pub use "))
        })
        .map(|item| item.matches(',').count() + 1)
        .sum();
    assert!((20..40).contains(&names), "{names} public names");
}
