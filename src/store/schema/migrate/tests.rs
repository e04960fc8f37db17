use super::*;

/// Every version has its migration, so that a file of any earlier build finds its way.
#[test]
fn migrations_are_without_gaps() {
    let from: Vec<i64> = MIGRATIONS.iter().map(|migration| migration.from).collect();
    assert_eq!(from, (1..VERSION).collect::<Vec<_>>());
}
