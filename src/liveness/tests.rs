use super::*;

#[test]
fn relay_is_alive_for_as_long_as_it_holds_its_lifeline() {
    let dir = tempfile::tempdir().unwrap();
    let database = dir.path().join("app.db");
    let database = database.to_str().unwrap();
    assert!(!is_alive(database, "relay-1"), "there never was one");
    let first = Lifeline::hold(database, "relay-1").unwrap();
    let second = Lifeline::hold(database, "relay-2").unwrap();
    assert!(is_alive(database, "relay-1") && is_alive(database, "relay-2"));
    drop(first);
    assert!(!is_alive(database, "relay-1") && is_alive(database, "relay-2"));
    drop(second);
    assert_eq!(fs::read_dir(folder(database)).unwrap().count(), 0, "nothing is left over");
}

#[test]
fn lock_file_of_a_dead_process_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let database = dir.path().join("app.db");
    let database = database.to_str().unwrap();
    fs::create_dir(folder(database)).unwrap();
    fs::write(folder(database).join("relay-1"), "").unwrap();
    assert!(!is_alive(database, "relay-1"));
    assert_eq!(fs::read_dir(folder(database)).unwrap().count(), 0);
    for path in ["../app.db", "..\\app.db", "C:app.db"] {
        assert!(!is_alive(database, path), "no way out of the folder");
    }
    fs::write(folder(database).join("relay-2"), "").unwrap();
    let _third = Lifeline::hold(database, "relay-3").unwrap();
    assert!(!folder(database).join("relay-2").exists(), "also where nobody asks for it");
}
