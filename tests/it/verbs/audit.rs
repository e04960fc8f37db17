//! The audit trail: what it says about who asked, who acted and what was learnt, and what it never
//! says.

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{
    Actor, Event, EventKind, Finding, Intent, Outbox, Receipt, Relay, Resolution, Status,
};

use crate::support::world::{
    DEDUPLICATES, START, World, maybe_sent, pay, rejected, relay_on, transient,
};

fn asked_for_by_an_agent(entity: &str) -> Intent {
    pay(entity)
        .header("X-Agent-Run", "run-7")
        .header("x-tool-version", "charge/2.1")
        .header("x-secret-note", "hunter2")
}

fn stream(world: &World) -> Vec<Event> {
    world.outbox.events(0, 0, 1000).unwrap()
}

#[test]
fn event_says_who_asked_who_acted_and_what_was_learnt() {
    let world = World::new();
    let enqueued = world.try_enqueue(&asked_for_by_an_agent("a")).unwrap();
    world.script.then(transient());
    let relay = world.relay(DEDUPLICATES);
    relay.drain().unwrap();
    let [event] = &world.outbox.audit(enqueued.id()).unwrap()[..] else { panic!("one attempt") };
    assert_eq!((event.position, event.seq, event.outbox_id), (1, 1, 1));
    assert_eq!((event.operation.as_str(), event.kind), ("pay", EventKind::Attempt));
    assert_eq!((event.from_status, event.status), (Status::InFlight, Status::Pending));
    assert_eq!((event.at, event.claimed_at), (START, Some(START)), "finished and claimed");
    assert_eq!((event.attempt, event.token), (1, Some(1)));
    assert!(event.actor.as_deref().unwrap().starts_with("relay-"));
    assert_eq!(event.error_class.as_deref(), Some("transient"));
    assert_eq!(event.reason.as_deref(), Some("answered 408"));
    assert_eq!(event.agent_run.as_deref(), Some("run-7"));
    assert_eq!(event.tool_version.as_deref(), Some("charge/2.1"));
    let hash = |column: &str| -> String {
        let conn = Connection::open(world.path()).unwrap();
        conn.query_row(&format!("SELECT {column} FROM outbox"), [], |row| row.get(0)).unwrap()
    };
    assert_eq!(event.args_hash.as_deref(), Some(hash("args_hash").as_str()));
    assert_eq!(event.key_hash.len(), 64);
    assert_ne!(event.key_hash, hash("idempotency_key"));
    // Observers are told the very same.
    let world = World::new();
    world.enqueue(&asked_for_by_an_agent("a"));
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = std::sync::Arc::clone(&told);
    Relay::builder(&world.outbox)
        .operation("pay", world.operation(DEDUPLICATES))
        .workers(1)
        .observe(move |event| sink.lock().unwrap().push(event.clone()))
        .build()
        .unwrap()
        .drain()
        .unwrap();
    assert_eq!(*told.lock().unwrap(), world.outbox.audit(1).unwrap());
}

/// An event of each verb, in the order of commits.
#[test]
fn event_of_every_verb_has_its_actor_and_reason() {
    let world = World::new();
    let outbox = &world.outbox;
    for entity in ["a", "b", "c", "d", "e", "f"] {
        world.enqueue(&pay(entity).ordering_key(entity));
    }
    let relay = world.relay(Unprotected);
    world.script.then(maybe_sent()).then(maybe_sent()).then(rejected()).then(rejected());
    relay.drain().unwrap();
    outbox
        .resolve(1, &Resolution::NotApplied, Actor::new("alice").reason("not in their list"))
        .unwrap();
    outbox.resolve(2, &Resolution::Dead, "alice").unwrap();
    outbox.transact(|tx| outbox.skip(tx, 3, Actor::new("bob").reason("goes on"))).unwrap();
    outbox.replay(4, Actor::new("bob").reason("mended")).unwrap();
    outbox.transact(|tx| outbox.cancel(tx, 1, "carol")).unwrap();
    let receipt = Receipt::new().downstream_id("ch_2");
    let key = world.entry(2).idempotency_key;
    let confirm = || outbox.transact(|tx| outbox.confirm(tx, ("", &key), &receipt, "webhook"));
    confirm().unwrap();
    world.enqueue(&pay("g"));
    outbox.transact(|tx| outbox.revise(tx, 7, 1, &pay("g").args(1), "app")).unwrap();

    let said: Vec<_> = stream(&world)
        .into_iter()
        .filter(|event| event.kind != EventKind::Attempt)
        .map(|e| {
            (e.outbox_id, e.kind.as_str(), e.status, e.actor.unwrap(), e.reason.unwrap_or_default())
        })
        .collect();
    let by = |actor: &str, reason: &str| (actor.to_owned(), reason.to_owned());
    let expected = [
        (1, "resolved", Status::Pending, by("alice", "not in their list")),
        (2, "resolved", Status::Dead, by("alice", "")),
        (3, "skipped", Status::Dead, by("bob", "goes on")),
        (4, "replayed", Status::Pending, by("bob", "mended")),
        (1, "cancelled", Status::Cancelled, by("carol", "")),
        (2, "confirmed", Status::Succeeded, by("webhook", "")),
        (7, "revised", Status::Cancelled, by("app", "revised by intent 8")),
    ];
    let expected = expected.map(|(id, kind, to, (actor, reason))| (id, kind, to, actor, reason));
    assert_eq!(said, expected);
}

#[test]
fn events_are_read_on_from_where_they_were_left() {
    let world = World::new();
    for n in 0..5 {
        world.enqueue(&pay(&n.to_string()));
    }
    world.drain(DEDUPLICATES);
    let all = stream(&world);
    assert_eq!(all.iter().map(|event| event.position).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!(world.outbox.events(0, 0, 2).unwrap(), all[..2]);
    assert_eq!(world.outbox.events(2, 0, 1000).unwrap(), all[2..]);
    assert_eq!(world.outbox.events(5, 0, 1000).unwrap(), []);
    assert_eq!(world.outbox.events(0, START + 1, 1000).unwrap(), []);
    // What was deleted leaves a gap: no position is given twice.
    world.batch("DELETE FROM outbox WHERE id = 5");
    world.enqueue(&pay("again"));
    world.drain(DEDUPLICATES);
    assert_eq!(world.outbox.events(4, 0, 1000).unwrap()[0].position, 6);
}

#[test]
fn audit_headers_can_be_chosen() {
    let world = World::new();
    let named = Outbox::builder().audit_headers("X-Run", "X-Tool").open(world.path()).unwrap();
    world.enqueue(
        &pay("a").header("x-run", "r1").header("X-TOOL", "t1").header("x-agent-run", "r2"),
    );
    world.drain(DEDUPLICATES);
    let event = named.audit(1).unwrap().remove(0);
    assert_eq!(
        (event.agent_run.as_deref(), event.tool_version.as_deref()),
        (Some("r1"), Some("t1"))
    );
    let error = Outbox::builder().audit_headers("x run", "x").open(world.path()).unwrap_err();
    assert!(error.to_string().starts_with("audit_headers: "), "{error}");
    // Whoever says nothing leaves what is stored.
    Outbox::open(world.path()).unwrap();
    let stored = "SELECT count(*) FROM outbox_meta WHERE agent_run_header = 'x-run'";
    assert_eq!(world.number(stored), 1);
}

/// Headers that were edited into something else keep nothing from being parked.
#[test]
fn audit_headers_that_cannot_be_read_say_nothing() {
    for headers in ["'['", "'[1]'", "X'00FF'", "'{\"x-agent-run\": [7]}'"] {
        let world = World::new();
        let id = world.enqueue(&asked_for_by_an_agent("a"));
        world.batch("DROP TRIGGER outbox_update_guard");
        world.batch(&format!(
            "PRAGMA ignore_check_constraints = ON; UPDATE outbox SET headers = {}",
            headers.replace("X'00FF'", "CAST(X'00FF' AS TEXT)")
        ));
        world.drain(DEDUPLICATES);
        assert_eq!(world.entry(id).status, Status::NeedsReview, "{headers}");
        let event = world.outbox.audit(id).unwrap().remove(0);
        assert_eq!((event.kind, event.agent_run), (EventKind::Unreadable, None), "{headers}");
    }
}

#[test]
fn audit_has_no_payload_and_no_other_header() {
    let world = World::new();
    let id = world
        .enqueue(&asked_for_by_an_agent("a").args(serde_json::json!({"card": "4242424242424242"})));
    let relay = relay_on(&world.outbox, world.operation(Unprotected));
    world.script.then(maybe_sent());
    relay.drain().unwrap();
    world.advance(121);
    world.script.then_find(Finding::NotApplied).then(rejected());
    relay.drain().unwrap();
    let told = format!("{:?}", world.outbox.audit(id).unwrap());
    for secret in ["4242", "hunter2", &world.entry(id).idempotency_key] {
        assert!(!told.contains(secret), "{told}");
    }
    let stored = "SELECT count(*) FROM outbox_event WHERE instr(quote(reason), 'hunter2')";
    assert_eq!(world.number(stored), 0);
}
