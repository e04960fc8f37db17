use super::*;

/// Every version has its migration, so that a file of any earlier build finds its way.
#[test]
fn migrations_are_without_gaps() {
    let from: Vec<i64> = MIGRATIONS.iter().map(|migration| migration.from).collect();
    assert_eq!(from, (1..VERSION).collect::<Vec<_>>());
}

/// A relay that was suspended past its lease may still report a success, in the tables it knows.
#[test]
fn relay_that_lost_its_lease_and_is_alive_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/schema_1.db"), &path)
        .unwrap();
    let conn = Connection::open(path).unwrap();
    conn.execute("INSERT INTO outbox_lost (id, token, owner) VALUES (8, 1, 'suspended')", [])
        .unwrap();
    let is_alive = |owner: &str| owner == "suspended";
    let waiting = Waiting { at_most: Duration::ZERO, is_alive: &is_alive };
    let error = migrate(&conn, &waiting).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("suspended"), "{error}");
    assert!(matches!(found(&conn), Ok(Found::Older(1))));
    conn.execute("DELETE FROM outbox_lost WHERE owner = 'suspended'", []).unwrap();
    migrate(&conn, &waiting).unwrap();
}
