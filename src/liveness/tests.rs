use super::*;

fn folder_of(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().join("app.db")
}

#[test]
fn relay_is_alive_for_as_long_as_it_holds_its_lifeline() {
    let dir = tempfile::tempdir().unwrap();
    let database = &folder_of(&dir);
    assert_eq!(look(database, "relay-1"), Life::Unknown, "there never was one");
    let first = Lifeline::hold(database, "relay-1").unwrap();
    let second = Lifeline::hold(database, "relay-2").unwrap();
    assert!(is_alive(database, "relay-1") && is_alive(database, "relay-2"));
    assert_eq!(dead(database), Vec::<String>::new());
    drop(first);
    assert_eq!(look(database, "relay-1"), Life::Unknown);
    assert!(is_alive(database, "relay-2"));
    drop(second);
    assert_eq!(fs::read_dir(folder(database)).unwrap().count(), 0, "nothing is left over");
}

/// A look used to remove the file, so that the next one, which was to take the leases back, found
/// nothing.
#[test]
fn dead_relay_is_seen_until_its_file_is_swept() {
    let dir = tempfile::tempdir().unwrap();
    let database = &folder_of(&dir);
    let _living = Lifeline::hold(database, "relay-2").unwrap();
    fs::write(folder(database).join("relay-1"), "").unwrap();
    fs::write(folder(database).join("relay-1.json"), "{}").unwrap();
    for _ in 0..2 {
        assert_eq!(look(database, "relay-1"), Life::Dead);
        assert_eq!(dead(database), ["relay-1"]);
        assert!(!is_alive(database, "relay-1"));
    }
    sweep(database, "relay-1");
    assert_eq!(look(database, "relay-1"), Life::Unknown);
    for path in ["../app.db", "..\\app.db", "C:app.db"] {
        assert_eq!(look(database, path), Life::Unknown, "no way out of the folder");
    }
}

/// A living relay whose file is removed, or replaced by an unlocked copy, would be taken for dead.
/// Windows does not let a file go that is open.
#[cfg(unix)]
#[test]
fn lost_file_is_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let database = &folder_of(&dir);
    let relay = Lifeline::hold(database, "relay-1").unwrap();
    relay.restore();
    assert!(is_alive(database, "relay-1"), "there was nothing to restore");
    let opened_before = File::open(folder(database).join("relay-1")).unwrap();
    fs::remove_dir_all(folder(database)).unwrap();
    assert_eq!(look(database, "relay-1"), Life::Unknown);
    relay.restore();
    assert_eq!(look(database, "relay-1"), Life::Alive);
    assert!(opened_before.try_lock_shared().is_err(), "the lost one is locked as well");
    let copy = folder(database).join("copy");
    fs::write(&copy, "").unwrap();
    fs::rename(&copy, folder(database).join("relay-1")).unwrap();
    assert_eq!(look(database, "relay-1"), Life::Dead);
    relay.restore();
    assert_eq!(look(database, "relay-1"), Life::Alive);
    assert_eq!(dead(database), Vec::<String>::new());
}
