//! The same action again, and what only looks like it.

use std::sync::Barrier;

use sqlite_outbox::{Delivery, Enqueued, Entry, ErrorKind, Intent, Operation, Relay, Status};

use crate::support::world::{DEDUPLICATES, World, pay, rejected};

fn existing(world: &World, intent: &Intent) -> Entry {
    match world.try_enqueue(intent).unwrap() {
        Enqueued::Existing(entry) => *entry,
        new => panic!("{new:?}"),
    }
}

fn conflict(world: &World, intent: &Intent) -> String {
    let before = world.number("SELECT count(*) FROM outbox");
    let error = world.try_enqueue(intent).expect_err("it conflicts");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(world.number("SELECT count(*) FROM outbox"), before);
    error.to_string()
}

/// A failed or cancelled action that kept its key made a later call a false success.
#[test]
fn repeated_enqueue_tells_the_status() {
    let world = World::new();
    let other = world.enqueue(&pay("other").delay(std::time::Duration::from_secs(9_000_000)));
    let pending = world.enqueue(&pay("a"));
    assert_eq!(existing(&world, &pay("a")).status, Status::Pending);

    world.drain(DEDUPLICATES);
    let entry = existing(&world, &pay("a"));
    assert_eq!((entry.id, entry.status), (pending, Status::Succeeded));
    assert_eq!(entry.downstream_id, Some(format!("eff_{pending}")));
    assert_eq!(entry.receipt.unwrap().downstream_id, Some(format!("eff_{pending}")));

    world.script.then(rejected());
    let dead = world.enqueue(&pay("b"));
    world.drain(DEDUPLICATES);
    let entry = existing(&world, &pay("b"));
    assert_eq!((entry.id, entry.status), (dead, Status::Dead));
    assert!(entry.last_error.unwrap().contains("400"));

    let cancelled = world.enqueue(&pay("c"));
    world.outbox.transact(|tx| world.outbox.cancel(tx, cancelled, "alice")).unwrap();
    assert_eq!(existing(&world, &pay("c")).status, Status::Cancelled);
    assert_eq!(world.drain(DEDUPLICATES).attempts, 0);
    assert_eq!(world.entry(other).status, Status::Pending);
}

#[test]
fn repeated_enqueue_while_in_flight() {
    let world = World::new();
    let (id, other) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
    let outbox = world.outbox.clone();
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let (sees, script) = (seen.clone(), world.script.clone());
    let relay = Relay::builder(&world.outbox)
        .operation(
            "pay",
            Operation::new(DEDUPLICATES, move |delivery: &Delivery| {
                let again = outbox.transact(|tx| outbox.enqueue(tx, &pay(delivery.entity())));
                sees.lock().unwrap().push(again.unwrap());
                script.answer(delivery)
            }),
        )
        .workers(1)
        .build()
        .unwrap();
    relay.drain().unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.iter().map(Enqueued::id).collect::<Vec<_>>(), [id, other]);
    for answer in seen.iter() {
        let Enqueued::Existing(entry) = answer else { panic!("{answer:?}") };
        assert_eq!((entry.status, entry.attempts), (Status::InFlight, 1));
        assert!(entry.locked_until.is_some() && entry.locked_by.is_some());
    }
}

#[test]
fn brought_key_stands_for_one_content() {
    let world = World::new();
    let one = || pay("a").key("k1").endpoint("https://api.example.com/a");
    let id = world.enqueue(&one());
    assert_eq!(existing(&world, &one()).id, id);
    let cases = [
        (
            "operation",
            Intent::new("refund", "a")
                .args(serde_json::json!({ "amount": 4200 }))
                .key("k1")
                .endpoint("https://api.example.com/a"),
        ),
        ("entity", pay("b").key("k1").endpoint("https://api.example.com/a")),
        ("version", one().version(2)),
        ("method", one().method("PUT")),
        ("endpoint", one().endpoint("https://api.example.com/b")),
        ("endpoint", pay("a").key("k1")),
        ("arguments", one().args(serde_json::json!({ "amount": 4201 }))),
    ];
    for (field, intent) in &cases {
        let text = conflict(&world, intent);
        assert!(text.contains(field) && text.contains(&format!("intent {id}")), "{text}");
    }
    let text = conflict(&world, &cases[6].1);
    let named: Vec<&str> =
        text.split(|c: char| !c.is_ascii_hexdigit()).filter(|word| word.len() == 64).collect();
    assert_eq!(named.len(), 2, "both hashes are named: {text}");
    assert_ne!(named[0], named[1]);
    // In every status, also the settled ones.
    world.drain(DEDUPLICATES);
    assert!(conflict(&world, &cases[6].1).contains("succeeded"));
}

#[test]
fn arguments_that_differ_need_another_version() {
    let world = World::new();
    let with = |amount: i64| Intent::new("pay", "a").args(serde_json::json!({ "amount": amount }));
    let first = world.try_enqueue(&with(1)).unwrap();
    let text = conflict(&world, &with(2));
    let second = world.try_enqueue(&with(2).version(2)).unwrap();
    assert!(text.contains(first.key()) && text.contains("pay:"), "{text}");
    assert_eq!(text.matches("pay:").count(), 2, "both keys are named: {text}");
    assert!(text.contains("new version"), "{text}");
    let Enqueued::New { unsettled_version, .. } = second else { panic!("{second:?}") };
    assert_eq!(unsettled_version, Some(first.id()));
    world.drain(DEDUPLICATES);
    let Enqueued::New { unsettled_version, .. } = world.try_enqueue(&with(3).version(3)).unwrap()
    else {
        panic!("it is new")
    };
    assert_eq!(unsettled_version, None, "both earlier ones are settled");
    // Settled or not, the version is taken.
    assert!(conflict(&world, &with(4)).contains(first.key()));
}

/// The key space was global, so that one tenant could use up another's predictable key.
#[test]
fn tenants_have_separate_keys() {
    let world = World::new();
    let a = world.try_enqueue(&pay("a").tenant("A")).unwrap();
    let b = world.try_enqueue(&pay("a").tenant("B")).unwrap();
    let nobody = world.try_enqueue(&pay("a")).unwrap();
    assert!(a.is_new() && b.is_new() && nobody.is_new());
    assert!(a.key() != b.key() && b.key() != nobody.key());
    let brought_a = world.try_enqueue(&pay("b").tenant("A").key("same")).unwrap();
    let other_args = Intent::new("pay", "c").args(serde_json::json!(1)).tenant("B").key("same");
    let brought_b = world.try_enqueue(&other_args).unwrap();
    assert!(brought_a.is_new() && brought_b.is_new());
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 5);
    let mut wire: Vec<String> = world.script.seen().iter().map(Delivery::wire_key).collect();
    wire.sort();
    wire.dedup();
    assert_eq!(wire.len(), 5, "no two meet at a shared account: {wire:?}");
}

#[test]
fn plain_sql_row_has_its_payload_for_arguments() {
    let world = World::new();
    world.sql(
        r#"INSERT INTO outbox (operation, entity_id, idempotency_key, payload)
           VALUES ('pay', 'a', 'k1', '{"b": 1.0, "a": [2]}'), ('pay', 'b', 'k2', '{}')"#,
    );
    let same = Intent::new("pay", "a").key("k1").args_json(r#"{"a":[2],"b":1.0}"#);
    assert_eq!(existing(&world, &same).id, 1);
    let other = Intent::new("pay", "a").key("k1").args_json(r#"{"a":[2],"b":1.5}"#);
    assert!(conflict(&world, &other).contains("arguments"));
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 2);
    assert_eq!(existing(&world, &same).status, Status::Succeeded);
}

/// Two callers at once: the second waits for the first, then finds what it wrote.
#[test]
fn transactions_with_the_same_intent_write_one() {
    let world = World::new();
    world.app();
    for round in 0..20 {
        let entity = round.to_string();
        let start = Barrier::new(2);
        let answers: Vec<Enqueued> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut conn = world.app();
                        start.wait();
                        let tx = crate::support::world::immediate(&mut conn);
                        let answer = world.outbox.enqueue(&tx, &pay(&entity)).unwrap();
                        tx.commit().unwrap();
                        answer
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(answers.iter().filter(|answer| answer.is_new()).count(), 1);
        assert_eq!(answers[0].id(), answers[1].id());
    }
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 20);
}
