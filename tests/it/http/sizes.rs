//! Bodies and payloads of any size.

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::rusqlite::{Connection, Transaction};
use sqlite_outbox::{
    Delivery, ErrorKind, Filter, Intent, Operation, Outbox, Outcome, Receipt, Relay, Result, Status,
};

use crate::support::child;
use crate::support::wire::Wire;
use crate::support::world::{DEDUPLICATES, World, immediate, pay};

const PAYLOAD_MAX: usize = 1024 * 1024;

/// A limit on the response was applied after the whole body had been read into memory, so that it
/// bounded nothing. Here the body never ends and eight are read at once.
#[test]
fn body_without_end_takes_no_memory() {
    if !child::is_child() {
        return child::run(concat!(module_path!(), "::body_without_end_takes_no_memory"), &[]);
    }
    let wire = Wire::new();
    let ids: Vec<i64> = (0..8).map(|i| wire.world.enqueue(&pay(&format!("order-{i}")))).collect();
    let relay = Relay::builder(&wire.world.outbox)
        .operation("pay", Operation::new(DEDUPLICATES, wire.to("/endless")))
        .workers(8)
        .build()
        .unwrap();
    let before = peak_memory();
    relay.drain().unwrap();
    let grown = peak_memory() - before;
    assert!(grown < 32 * 1024, "{grown} KiB");
    for id in ids {
        let entry = wire.world.entry(id);
        assert_eq!(entry.status, Status::Succeeded);
        let receipt = entry.receipt.unwrap();
        assert!(receipt.truncated);
        assert_eq!(receipt.body.unwrap().len(), 16 * 1024);
    }
    assert_eq!(wire.server.requests().len(), 8);
}

/// The most memory this process has used, in KiB; nothing where the system does not say.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Enqueueing accepted what delivery could not handle. The limit is checked before the caller
/// commits, and a refusal costs the caller nothing but the intent.
#[test]
fn payloads_up_to_the_limit_arrive_and_larger_ones_are_refused() {
    let wire = Wire::new();
    let text = |entity: &str, size: usize| {
        Intent::new("pay", entity)
            .args(serde_json::json!({ "size": size }))
            .content_type("text/plain")
            .payload("x".repeat(size))
    };
    let sizes = [0, 1, 1_000_000, PAYLOAD_MAX];
    let ids: Vec<i64> = sizes
        .iter()
        .map(|&size| wire.world.enqueue(&text("order-1", size).version(size_version(size))))
        .collect();

    let mut app = wire.world.app();
    let tx = immediate(&mut app);
    tx.execute("INSERT INTO orders VALUES ('order-2', 'paying')", []).unwrap();
    for size in [PAYLOAD_MAX + 1, 100_000_000] {
        let refused = wire.world.outbox.enqueue(&tx, &text("order-2", size)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(refused.to_string().starts_with("payload: "), "{refused}");
        assert!(refused.to_string().len() < 200);
    }
    let small = wire.world.outbox.enqueue(&tx, &text("order-2", 2)).unwrap().id();
    tx.commit().unwrap();
    assert_eq!(wire.world.number("SELECT count(*) FROM orders"), 1);

    wire.drain(Unprotected, "/status/400");
    let replay = wire.world.outbox.replay_all(&Filter::default(), "test", false);
    assert_eq!(replay.unwrap().len(), 5);
    wire.drain(Unprotected, "/naive");
    for (id, size) in ids.into_iter().zip(sizes).chain([(small, 2)]) {
        let entry = wire.world.entry(id);
        assert_eq!(entry.status, Status::Succeeded);
        let requests = wire.server.requests_for(&entry.idempotency_key);
        assert_eq!(requests.len(), 2);
        assert!(requests.iter().all(|request| request.body == "x".repeat(size)));
    }
}

fn size_version(size: usize) -> i64 {
    i64::try_from(size).unwrap() + 1
}

/// The relay claimed by the number of rows alone, so that its memory was bounded by the batch times
/// the largest payload.
#[test]
fn payloads_bound_the_batch_by_their_size() {
    if !child::is_child() {
        return child::run(
            concat!(module_path!(), "::payloads_bound_the_batch_by_their_size"),
            &[],
        );
    }
    let world = World::new();
    let payload = "x".repeat(PAYLOAD_MAX);
    for i in 0..100 {
        world.enqueue(&pay(&format!("order-{i}")).content_type("text/plain").payload(&payload));
    }
    let relay = Relay::builder(&world.outbox)
        .operation(
            "pay",
            Operation::new(DEDUPLICATES, |_: &Delivery| Outcome::Succeeded(Receipt::new())),
        )
        .workers(4)
        .build()
        .unwrap();
    let before = peak_memory();
    assert_eq!(relay.drain().unwrap().succeeded, 100);
    let grown = peak_memory() - before;
    assert!(grown < 64 * 1024, "{grown} KiB");
}

/// Listing loaded every payload. What is listed holds none, and getting at it must not
/// lead over the pages of one either, as it would if a column stood behind the payload. The
/// application made the file, without the `auto_vacuum` that lets those pages be skipped.
#[test]
fn list_reads_no_payloads() {
    if !child::is_child() {
        return child::run(concat!(module_path!(), "::list_reads_no_payloads"), &[]);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let made = Connection::open(&path).unwrap();
    made.execute_batch("CREATE TABLE orders (id TEXT PRIMARY KEY)").unwrap();
    let outbox = Outbox::open(&path).unwrap();
    let payload = "x".repeat(PAYLOAD_MAX);
    let enqueue = |tx: &Transaction<'_>| -> Result<()> {
        for i in 0..64 {
            let intent = pay(&format!("order-{i}")).content_type("text/plain").payload(&payload);
            outbox.enqueue(tx, &intent)?;
        }
        Ok(())
    };
    outbox.transact(enqueue).unwrap();

    let before = bytes_read();
    let filter = Filter::default().created_since(1);
    assert_eq!(outbox.list(&filter).unwrap().len(), 64);
    let read = bytes_read() - before;
    assert!(read < 4 * PAYLOAD_MAX as u64, "{read} bytes");
}

/// How much this process has read, in bytes; nothing where the system does not say.
fn bytes_read() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find(|line| line.starts_with("rchar")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}
