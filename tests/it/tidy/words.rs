//! Words of the sources: the field's terms in names, and sentences with a subject in comments.

use std::collections::BTreeSet;

use super::{bare, files, root, shipped};

/// Names of an earlier language of this code, each with the field's word for it.
const METAPHORS: &[(&str, &str)] = &[
    ("Step", "RelayTx"),
    ("Space", "Capacity"),
    ("Patience", "Outage"),
    ("Trouble", "Outage"),
    ("Doubts", "DoubtClock"),
    ("Purse", "Ledger"),
    ("Told", "Reported"),
    ("learn", "on_outcome"),
    ("let_go", "unhold"),
    ("give_back", "return_unstarted"),
    ("take_back", "reclaim_unstarted"),
    ("give_up_on", "abandon"),
    ("hire", "spawn_worker"),
    ("staff", "resize"),
    ("go_home", "exit"),
    ("put_off", "defer"),
    ("wants_idle", "waits_for_idle_worker"),
    ("stood", "was_paused"),
    ("set_neglected_aside", "park_stale_lookups"),
];

/// The same for files.
const FILES: &[(&str, &str)] = &[
    ("step", "tx"),
    ("space", "capacity"),
    ("patience", "outage"),
    ("doubts", "doubt_clock"),
    ("line", "ordering"),
    ("settle", "settled"),
    ("lost", "lost_lease"),
    ("inspect", "list"),
    ("operate", "decide"),
];

#[test]
fn names_are_the_fields_terms() {
    let mut found = BTreeSet::new();
    for source in shipped() {
        let stem = source.name.rsplit('/').next().unwrap().trim_end_matches(".rs");
        for (old, new) in FILES.iter().filter(|(old, _)| *old == stem) {
            found.insert(format!("src/{}: a file named {old} rather than {new}", source.name));
        }
        let code = bare(&source.code);
        for word in code.split(|c: char| !c.is_alphanumeric() && c != '_') {
            for (old, new) in METAPHORS.iter().filter(|(old, _)| *old == word) {
                found.insert(format!("src/{}: {old} rather than {new}", source.name));
            }
        }
    }
    let found: Vec<String> = found.into_iter().collect();
    assert!(found.is_empty(), "{} names:\n{}", found.len(), found.join("\n"));
}

/// Words that a comment does not begin with, because they leave its subject open.
const SUBJECTLESS: [&str; 5] = ["It", "What", "One", "Whoever", "That"];

/// A reader who meets one comment must understand it without those before.
#[test]
fn doc_comments_begin_with_their_subject() {
    let mut found = Vec::new();
    for path in ["src", "tests", "benches", "examples"].iter().flat_map(|f| files(f, &["rs"])) {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(root()).unwrap().display();
        let (mut before, mut is_paragraph) = ("", true);
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_start();
            let marker = ["///", "//!"].into_iter().find(|marker| line.starts_with(marker));
            if let Some(marker) = marker {
                let first = line[marker.len()..].split_whitespace().next().unwrap_or_default();
                let first = first.split('\'').next().unwrap_or_default();
                if (before != marker || is_paragraph) && SUBJECTLESS.contains(&first) {
                    found.push(format!("{name}:{}: {line}", number + 1));
                }
            }
            // Only the first paragraph of a comment is read without what is before it.
            is_paragraph = false;
            before = marker.unwrap_or_default();
        }
    }
    assert!(found.is_empty(), "{} comments:\n{}", found.len(), found.join("\n"));
}
