//! The maker of `tests/fixtures`: a file with an intent in every status. Before the schema changes,
//! `OUTBOX_FIXTURE=tests/fixtures/schema_N.db cargo test --features cli,serde fixture` keeps it.

use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::testing::ManualClock;
use sqlite_outbox::{
    Actor, Backoff, Delivery, Downstream, Failure, Finding, Intent, Jitter, OnDead, Operation,
    Outbox, Outcome, Receipt, Relay, Status,
};

const START: i64 = 1_800_000_000_000;
const DAY: Duration = Duration::from_secs(24 * 3600);

fn answer(d: &Delivery) -> Outcome {
    let failure = |class: &'static str| Failure::new(class, "as the fixture says");
    match d.entity() {
        e if e.starts_with("ok") => {
            Outcome::Succeeded(Receipt::new().downstream_id(format!("id_{e}")).body("{\"id\":1}"))
        }
        e if e.starts_with("lost") => Outcome::MaybeSent(failure("timeout")),
        e if e.starts_with("refused") => Outcome::Rejected(failure("permanent")),
        e if e.starts_with("later") => Outcome::Transient(failure("transient")),
        _ => Outcome::NotSent(failure("connect")),
    }
}

fn pay() -> Operation {
    Operation::new(Downstream::DeduplicatesByKey { window: DAY }, answer)
        .backoff(MINUTES)
        .binds_ids()
        .provider("stripe")
        .owner("payments")
        .key_recipe("order and version")
        .max_in_flight(50)
        .max_per(1000, DAY)
        .max_cost_per_tenant(100_000, DAY)
        .on_dead(OnDead::Block)
}

fn mail() -> Operation {
    let no_answer = |_: &Delivery| Finding::Inconclusive(Failure::new("lookup", "no answer"));
    unprotected().reconcile(no_answer)
}

fn unprotected() -> Operation {
    Operation::new(Downstream::Unprotected, answer).backoff(MINUTES)
}

const MINUTES: Backoff =
    Backoff::Exponential { base: Duration::from_secs(60), cap: DAY, jitter: Jitter::None };

/// Objects of an application, also on the tables of the outbox.
const APPLICATION: &str = "
    CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT);
    CREATE TABLE app_log (line TEXT);
    CREATE INDEX app_by_time ON outbox (created_at);
    CREATE INDEX app_by_owner ON outbox_operation (owner);
    CREATE TRIGGER app_settled AFTER INSERT ON outbox_receipt
    BEGIN INSERT INTO app_log VALUES ('settled ' || NEW.id); END;
    CREATE TRIGGER app_registered AFTER UPDATE ON outbox_operation
    BEGIN INSERT INTO app_log VALUES ('operation ' || NEW.operation); END;
    CREATE VIEW app_open AS SELECT id, status FROM outbox_status WHERE finished_at IS NULL;";

#[test]
fn fixture_holds_an_intent_in_every_status() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let clock = ManualClock::at(START);
    let outbox = Outbox::builder().clock(clock.clone()).open(&path).unwrap();
    let app = Connection::open(&path).unwrap();
    app.execute_batch(APPLICATION).unwrap();
    let put = |intent: Intent| outbox.transact(|tx| outbox.enqueue(tx, &intent)).unwrap().id();
    let of = |operation: &str, entity: &str| {
        Intent::new(operation, entity)
            .tenant("acme")
            .args(serde_json::json!({"amount": 4200}))
            .header("x-agent-run", "run-1")
    };
    // settled
    put(of("pay", "ok-1").cost(10));
    put(of("pay", "ok-2").cost(20).ordering_key("acme-1"));
    put(of("mail", "ok-3"));
    let cancelled = put(of("pay", "away"));
    outbox
        .transact(|tx| outbox.cancel(tx, cancelled, Actor::new("ada").reason("ordered twice")))
        .unwrap();
    // dead head of a key, with one queued behind it
    put(of("pay", "refused-1").ordering_key("acme-2"));
    put(of("pay", "ok-behind").ordering_key("acme-2"));
    // unknown, needs review, pending in doubt, to be tried later
    put(of("mail", "lost-1"));
    put(of("post", "lost-2"));
    put(of("pay", "lost-3").cost(5));
    put(of("pay", "later-1").cost(7));
    put(of("post", "offline-1"));
    put(of("pay", "ok-delayed").delay(DAY));
    put(of("pay", "ok-expiring").delay(DAY * 2).expires_in(DAY * 3));
    let relay = Relay::builder(&outbox)
        .operation("pay", pay())
        .operation("mail", mail())
        .operation("post", unprotected())
        .workers(1)
        .seed(7)
        .build()
        .unwrap();
    relay.drain().unwrap();
    drop(relay);
    // revised, bound, and a request to cancel what is in doubt
    let old = put(of("pay", "ok-revised").ordering_key("acme-3").delay(DAY));
    let next = Intent::new("pay", "ok-revised")
        .tenant("acme")
        .args(serde_json::json!({"amount": 1}))
        .delay(DAY);
    outbox.transact(|tx| outbox.revise(tx, old, 1, &next, "desk")).unwrap();
    let bound = put(of("pay", "ok-bound").delay(DAY));
    outbox.transact(|tx| outbox.bind(tx, bound, "ch_bound", "app")).unwrap();
    app.execute(
        "INSERT INTO outbox_inbox (source, message_id, result) VALUES ('stripe', 'evt_1', 'done')",
        [],
    )
    .unwrap();
    outbox.pause("post", None, Actor::new("ada").reason("their maintenance")).unwrap();
    // in flight, with a relay that will never report
    put(of("pay", "flying-1").ordering_key("acme-4"));
    put(of("pay", "ok-behind-flying").ordering_key("acme-4"));
    let (began, has_begun) = channel();
    let (go, may_go) = channel::<()>();
    let gate = Arc::new(Mutex::new((began, may_go)));
    let held = Arc::clone(&gate);
    let stuck = move |_: &Delivery| {
        let gate = held.lock().unwrap();
        gate.0.send(()).unwrap();
        let _ = gate.1.recv();
        Outcome::MaybeSent(Failure::new("timeout", "x"))
    };
    let stuck = Operation::new(Downstream::DeduplicatesByKey { window: DAY }, stuck).binds_ids();
    let relay = Relay::builder(&outbox).operation("pay", stuck).workers(1).build().unwrap();
    let handle = relay.start().unwrap();
    has_begun.recv().unwrap();
    let kept = std::env::var_os("OUTBOX_FIXTURE").map(PathBuf::from);
    let kept = kept.unwrap_or_else(|| dir.path().join("kept.db"));
    let _ = std::fs::remove_file(&kept);
    app.execute("VACUUM INTO ?1", [kept.to_str().unwrap()]).unwrap();
    go.send(()).unwrap();
    handle.shutdown(Duration::from_secs(5)).unwrap();
    let file = Connection::open(&kept).unwrap();
    for &status in Status::ALL {
        let sql = "SELECT count(*) FROM outbox_status WHERE status = ?1";
        let count: i64 = file.query_row(sql, [status.as_str()], |row| row.get(0)).unwrap();
        assert!(count > 0, "{status}");
    }
}
