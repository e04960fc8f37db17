//! The style of the sources, as far as a machine can see it.

mod graph;
mod words;

use std::path::{Path, PathBuf};

use graph::Graph;

/// A source of the library or the binary.
#[derive(Clone)]
struct Source {
    /// Its name below `src/`, with slashes.
    name: String,
    /// Its text without the tests at its end.
    code: String,
    lines: usize,
}

/// Files below a folder of the package whose names end so.
fn files(folder: &str, extensions: &[&str]) -> Vec<PathBuf> {
    fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                collect(&path, found);
            } else {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    collect(&root().join(folder), &mut found);
    found.retain(|path| path.extension().is_some_and(|e| extensions.iter().any(|x| e == *x)));
    found.sort();
    found
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<Source> {
    let src = root().join("src");
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(&src).unwrap().to_str().unwrap().replace('\\', "/");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned();
        Source { name, code, lines: text.lines().count() }
    };
    files("src", &["rs"]).into_iter().map(read).collect()
}

/// Code without comments and without the contents of texts.
fn bare(code: &str) -> String {
    let (mut bare, mut is_text, mut is_raw) = (String::new(), false, false);
    for line in code.lines() {
        let mut chars = line.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' if is_text && !is_raw => drop(chars.next()),
                '"' if is_raw && !line[at + 1..].starts_with('#') => {}
                '"' if is_text => (is_text, is_raw) = (false, false),
                '"' if line[..at].ends_with('\'') => {}
                '"' => (is_text, is_raw) = (true, line[..at].ends_with("r#")),
                _ if is_text => {}
                '/' if line[at..].starts_with("//") => break,
                _ => bare.push(c),
            }
        }
        bare.push('\n');
    }
    bare
}

/// Sources that are part of what is shipped, not tests beside it.
fn shipped() -> impl Iterator<Item = Source> {
    sources().into_iter().filter(|source| {
        !source.name.ends_with("tests.rs")
            && !source.name.contains("/tests/")
            && source.name != "store/query_plan.rs"
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
        "lib" | "guide" => 4,
        _ => return None,
    })
}

fn top(file: &str) -> &str {
    file.split(['/', '.']).next().unwrap()
}

fn library() -> Graph {
    let sources: Vec<Source> = shipped().filter(|s| !s.name.starts_with("bin/")).collect();
    Graph::of(&sources, "", &["lib.rs"])
}

#[test]
fn layers_point_down() {
    let mut wrong = Vec::new();
    for (file, uses) in library().uses {
        let from = level(top(&file)).unwrap_or_else(|| panic!("src/{file}: which layer?"));
        for used in uses {
            let to = level(top(&used)).unwrap_or_else(|| panic!("src/{used}: which layer?"));
            let is_across = to == from && to >= 2 && top(&file) != top(&used);
            if to > from || is_across && !is_known(top(&file), top(&used)) {
                wrong.push(format!("src/{file} -> src/{used}"));
            }
        }
    }
    assert!(wrong.is_empty(), "these point up:\n{}", wrong.join("\n"));
}

/// Arrows within a layer.
fn is_known(from: &str, to: &str) -> bool {
    matches!((from, to), ("relay" | "inbox" | "testing", "outbox") | ("store", "liveness"))
}

/// Where a file of the store stands. Relays and persons have two wings of one house: both stand on
/// transitions, queries and tables, and neither on the other.
fn wing(file: &str) -> Option<(usize, &str)> {
    let (wing, _) = file.strip_prefix("store/")?.split_once('/').unwrap_or(("", ""));
    Some(match wing {
        "relay" | "verbs" => (3, wing),
        "query" => (2, wing),
        "" if file == "store/transitions.rs" || file == "store/standing.rs" => (2, wing),
        "tables" => (1, wing),
        _ => (0, wing),
    })
}

#[test]
fn wings_of_the_store_stand_on_tables() {
    let mut wrong = Vec::new();
    for (file, uses) in library().uses {
        // The store's own page hands on what the wings have.
        let Some((from, own)) = wing(&file).filter(|_| file != "store/mod.rs") else { continue };
        for used in uses.iter().filter(|used| *used != "store/mod.rs") {
            let Some((to, other)) = wing(used) else { continue };
            if to > from || to == from && to > 0 && own != other {
                wrong.push(format!("src/{file} -> src/{used}"));
            }
        }
    }
    assert!(wrong.is_empty(), "these point up or across:\n{}", wrong.join("\n"));
}

/// Files that use each other cannot be read one after the other.
#[test]
fn circles_of_files_are_absent() {
    let binary: Vec<Source> = shipped().filter(|s| s.name.starts_with("bin/")).collect();
    let mut circles = library().circles();
    circles.extend(Graph::of(&binary, "bin/outbox/", &["main.rs"]).circles());
    let told: Vec<String> = circles.iter().map(|arrows| arrows.join("\n")).collect();
    assert!(told.is_empty(), "{} circles of files:\n{}", told.len(), told.join("\n\n"));
}

/// rustfmt leaves comments and texts as wide as they are.
#[test]
fn lines_are_at_most_100_wide() {
    const WIDTH: usize = 100;
    let mut wide = Vec::new();
    let mut paths = vec![root().join("schema.sql")];
    for folder in ["src", "tests", "benches", "examples"] {
        paths.extend(files(folder, &["rs", "sql"]));
    }
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(root()).unwrap().display();
        for (number, line) in text.lines().enumerate() {
            let width = line.chars().count();
            // SQL has no way to break a text, and the tables are compared with their texts.
            let is_sql = path.extension().is_some_and(|ending| ending == "sql");
            let is_text = is_sql && line.trim_start().starts_with('\'');
            if width > WIDTH && !is_text {
                wide.push(format!("{name}:{}: {width}", number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "{} wide lines:\n{}", wide.len(), wide.join("\n"));
}

#[test]
fn binary_uses_the_public_interface_alone() {
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

/// A migration waits for the rows that living relays have in flight.
const MIGRATION: &str = "store/schema/migrate.rs";

#[test]
fn clock_is_read_at_the_rim() {
    let rim =
        ["clock.rs", "relay", "http", "outbox/wait.rs", "store/connection.rs", MIGRATION, "bin"];
    refuse("a clock is read in the middle", &rim, |line| {
        line.contains("SystemTime") || line.contains("Instant::now") || line.contains("Utc::now")
    });
}

#[test]
fn network_is_in_one_place() {
    // The command knows the names of its log targets, to cap them.
    let places = ["http", "bin/outbox/ui/logging.rs"];
    refuse("ureq outside http", &places, |line| line.contains("ureq"));
}

#[test]
fn threads_are_in_the_relay() {
    let places = ["relay", "http", "outbox/wait.rs", "store/connection.rs", MIGRATION, "bin"];
    refuse("a thread outside the relay", &places, |line| {
        line.contains("thread::") && !line.contains("thread::LocalKey")
    });
}

#[test]
fn core_is_pure() {
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
fn panics_are_absent() {
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
/// drops them. The clock reads what the kernel says of its start.
#[test]
fn database_is_never_opened_as_a_file() {
    let places = ["bin", "clock.rs", "liveness.rs"];
    refuse("std::fs near the database", &places, |line| {
        line.contains("std::fs") || line.contains("File::open")
    });
}

#[test]
fn public_surface_is_small() {
    let lib = sources().into_iter().find(|source| source.name == "lib.rs").unwrap().code;
    let names: usize = lib
        .split(';')
        .filter_map(|item| {
            item.trim_start().rsplit("pub use ").next().filter(|_| item.contains("pub use "))
        })
        .map(|item| item.matches(',').count() + 1)
        .sum();
    assert!((20..=51).contains(&names), "{names} public names");
}
