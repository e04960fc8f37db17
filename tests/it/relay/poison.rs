//! Rows that cannot be read: each is parked with its error, and the others go on.

use sqlite_outbox::{Filter, Status};

use crate::support::world::{DEDUPLICATES, World, pay};

/// A row that did not parse once made the loop throw before anything was recorded: nothing
/// behind it moved, for ever.
#[test]
fn unreadable_row_is_parked() {
    for (column, bad, word) in [
        ("payload", "CAST(X'FF00FE' AS TEXT)", "payload"),
        ("payload", "'{'", "payload"),
        ("payload", "''", "payload"),
        ("payload", "NULL", "payload"),
        ("headers", "'[]'", "headers"),
        ("headers", "'{\"a\":null}'", "headers"),
        ("headers", "'nonsense'", "headers"),
        ("headers", "CAST(X'FF' AS TEXT)", "headers"),
        ("entity_id", "CAST(X'FF' AS TEXT)", "entity_id"),
        ("tenant_id", "CAST(X'FF' AS TEXT)", "tenant_id"),
        ("idempotency_key", "CAST(X'FF' AS TEXT)", "idempotency_key"),
        ("endpoint", "CAST(X'FF' AS TEXT)", "endpoint"),
        ("content_type", "CAST(X'FF' AS TEXT)", "content_type"),
        ("ordering_key", "CAST(X'FF' AS TEXT)", "ordering_key"),
    ] {
        let world = World::new();
        let bad_one = world.enqueue(&pay("1").tenant("acme").ordering_key("k"));
        for n in 2..=5 {
            world.enqueue(&pay(&n.to_string()));
        }
        world.batch(&format!(
            "DROP TRIGGER outbox_update_guard;
             UPDATE outbox SET {column} = {bad} WHERE id = {bad_one};"
        ));
        let report = world.drain(DEDUPLICATES);
        assert_eq!((report.needs_review, report.succeeded), (1, 4), "{column} = {bad}");
        let entry = world.entry(bad_one);
        assert_eq!((entry.status, entry.attempts), (Status::NeedsReview, 0));
        let error = entry.last_error.unwrap();
        assert!(error.contains(word) && error.contains("pay"), "{column} = {bad}: {error}");
        assert_eq!(world.story(bad_one), ["unreadable:pending>needs_review"]);
        assert_eq!(world.script.seen().len(), 4);
        // It is still listed, shown, counted, and may be acted on.
        let parked = Filter::default().status(Status::NeedsReview);
        assert_eq!(world.outbox.list(&parked).unwrap().len(), 1);
        assert_eq!(world.outbox.list(&Filter::default()).unwrap().len(), 5);
        assert_eq!(world.outbox.stats().unwrap().len(), 1);
        world.outbox.replay(bad_one, "alice").unwrap();
        assert_eq!(world.drain(DEDUPLICATES).needs_review, 1);
    }
}

#[test]
fn unreadable_bookkeeping_does_not_stop_the_others() {
    for edit in [
        "last_error = CAST(X'FF' AS TEXT)",
        "error_class = CAST(X'FF' AS TEXT)",
        "attempts = -1",
        "tries = 5000000000",
        "lost = -7",
    ] {
        let world = World::new();
        world.enqueue(&pay("1"));
        world.enqueue(&pay("2"));
        world.sql(&format!("UPDATE outbox_lease SET {edit} WHERE id = 1"));
        world.drain(DEDUPLICATES);
        assert_eq!(world.entry(2).status, Status::Succeeded, "{edit}");
        assert_ne!(world.entry(1).status, Status::InFlight, "{edit}");
        assert_eq!(world.outbox.list(&Filter::default()).unwrap().len(), 2);
    }
}

/// A foreign row made the whole listing fail.
#[test]
fn unreadable_rows_are_listed() {
    let world = World::new();
    world.batch(
        "INSERT INTO outbox (operation, entity_id, idempotency_key, payload) VALUES
             ('a', '1', 'k1', 'null'), ('b', '1', 'k2', '7'), ('c', '1', 'k3', '[]');
         INSERT INTO outbox (operation, entity_id, idempotency_key, payload, content_type)
         VALUES ('c', '2', 'k4', 'free text', 'text/plain');",
    );
    assert_eq!(world.outbox.list(&Filter::default()).unwrap().len(), 4);
    let only = Filter::default().operation("c");
    assert_eq!(world.outbox.list(&only).unwrap().len(), 2);
    assert_eq!(world.outbox.stats().unwrap().len(), 3);
}
