//! Which test holds each scenario that was distilled from public reports about similar systems.
//! A scenario is one example of a kind; the test named here is about the kind.

use std::collections::BTreeSet;
use std::path::Path;

/// Scenario and the test that holds it, as `file::test`.
const HELD: &[(&str, &str)] = &[];

/// Scenarios of other kinds of system, or held by the shape of this one: with the reason.
const EXCLUDED: &[(&str, &str)] = &[];

/// Every scenario about content, HTTP and delivery, and those about locks and savepoints.
const ALL: &[&str] = &[
    // content
    "R51", "R54", "R55", "R56", "R58", "R59", "R61", "R62", "R63", "R65", "R66", "R67", "R69",
    // HTTP
    "R71", "R72", "R73", "R159", "R162", "R163", "R164", "R165", "R167", // delivery
    "R01", "R02", "R04", "R05", "R08", "R09", "R10", "R11", "R12", "R15", "R16", "R17", "R18",
    "R19", "R20", "R21", "R24", "R25", "R26", "R27", "R28", "R29", "R31", "R47", "R48", "R50",
    "R74", "R76", "R77", "R79", "R80", "R81", "R94", "R95", "R96", "R97", "R98", "R100",
    // SQLite: busy, deferred begin, savepoint, rollback leaves row, pool deadlock
    "R101", "R102", "R103", "R106", "R107", "R113", "R114", "R116", "R118",
];

#[test]
fn every_scenario_is_held_by_a_test_that_exists() {
    let held: BTreeSet<&str> = HELD.iter().chain(EXCLUDED).map(|(case, _)| *case).collect();
    let missing: Vec<_> = ALL.iter().filter(|case| !held.contains(*case)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(EXCLUDED.len() <= 3);
    for (case, test) in HELD {
        let (file, name) = test.split_once("::").expect("file::test");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = if file.contains('/') { file.into() } else { format!("tests/it/{file}.rs") };
        let text = std::fs::read_to_string(root.join(&path)).expect(&path);
        let (before, _) = text.split_once(&format!("fn {name}(")).unwrap_or_else(|| {
            panic!("{case}: {path} has no test {name}");
        });
        let attributes = before.rsplit("\n\n").next().unwrap_or(before);
        assert!(
            attributes.contains("#[test]") || before.trim_end().ends_with("proptest! {"),
            "{case}: {test} is no test"
        );
    }
}
