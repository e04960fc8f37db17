//! Fields of an intent: their limits, and what is stored of them.

use std::time::Duration;

use sqlite_outbox::{Enqueued, ErrorKind, Intent, Status};

use crate::support::world::{DEDUPLICATES, START, World, pay};

#[test]
fn intent_is_pending_and_due_at_once() {
    let world = World::new();
    let intent =
        pay("a").tenant("acme").endpoint("https://api.example.com/pay").header("X-Trace", "t1");
    let Enqueued::New { id, key, unsettled_version, .. } = world.try_enqueue(&intent).unwrap()
    else {
        panic!("it is new");
    };
    let other = world.enqueue(&pay("b"));
    let entry = world.entry(id);
    assert_eq!(unsettled_version, None);
    assert_eq!((entry.status, entry.attempts), (Status::Pending, 0));
    assert_eq!((entry.created_at, entry.next_attempt_at), (START, Some(START)));
    assert_eq!(entry.tenant_id, "acme");
    assert_eq!(entry.endpoint.as_deref(), Some("https://api.example.com/pay"));
    assert_eq!(entry.idempotency_key, key);
    assert_eq!(world.outbox.entry_by_key("acme", &key).unwrap().unwrap().id, id);
    assert_eq!(world.outbox.entry_by_key("", &key).unwrap(), None);
    assert_ne!(id, other);
    world.drain(DEDUPLICATES);
    let seen = world.script.seen();
    assert_eq!(seen[0].headers(), [("x-trace".to_owned(), "t1".to_owned())]);
    assert_eq!(seen[0].payload(), r#"{"amount":4200}"#);
    assert_eq!((seen[0].method(), seen[0].content_type()), ("POST", "application/json"));
}

#[test]
fn delay_and_expiry_are_counted_from_now() {
    let world = World::new();
    let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3600));
    let id = world.enqueue(&pay("a").delay(minute).expires_in(hour));
    world.enqueue(&pay("b").delay(hour));
    assert_eq!(world.entry(id).next_attempt_at, Some(START + 60_000));
    assert_eq!(world.number("SELECT expires_at FROM outbox WHERE id = 1"), START + 3_600_000);
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 0);
    world.advance(60);
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 1);
}

/// A clock behind SQLite's own must not keep an intent from being due: all stamps of a row come
/// from one clock.
#[test]
fn clock_that_lags_does_not_fail_the_caller() {
    let world = World::new();
    world.clock.set(1_700_000_000_000);
    let (a, b) = (world.enqueue(&pay("a")), world.enqueue(&pay("b")));
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 2);
    assert_eq!(world.entry(a).finished_at, Some(1_700_000_000_000));
    assert_eq!(world.entry(b).created_at, 1_700_000_000_000);
}

#[test]
fn field_out_of_range_is_named_and_nothing_is_written() {
    let world = World::new();
    let long = |count: usize| "x".repeat(count);
    let text = |payload: &str| pay("a").content_type("text/plain").payload(payload);
    let bad: Vec<(&str, Intent)> = vec![
        ("operation", Intent::new("", "a")),
        ("operation", Intent::new("pay now", "a")),
        ("operation", Intent::new("pay:now", "a")),
        ("operation", Intent::new("zahlung.ä", "a")),
        ("operation", Intent::new(long(129), "a")),
        ("entity", pay("")),
        ("entity", pay(&long(1025))),
        ("entity", pay("a\0b")),
        ("tenant", pay("a").tenant(long(256))),
        ("tenant", pay("a").tenant("\0")),
        ("version", pay("a").version(0)),
        ("version", pay("a").version(-1)),
        ("version", pay("a").version(i64::MIN)),
        ("method", pay("a").method("post")),
        ("method", pay("a").method("HEAD")),
        ("method", pay("a").method("")),
        ("content_type", pay("a").content_type("")),
        ("content_type", pay("a").content_type("json")),
        ("content_type", pay("a").content_type("/json")),
        ("content_type", pay("a").content_type("application/json\r\nx: y")),
        ("content_type", pay("a").content_type(format!("a/{}", long(254)))),
        ("ordering_key", pay("a").ordering_key("")),
        ("ordering_key", pay("a").ordering_key(long(256))),
        ("ordering_key", pay("a").ordering_key("\0")),
        ("endpoint", pay("a").endpoint("")),
        ("endpoint", pay("a").endpoint("ftp://example.com/")),
        ("endpoint", pay("a").endpoint("https://example.com/a b")),
        ("endpoint", pay("a").endpoint(format!("https://example.com/{}", long(2040)))),
        ("idempotency_key", pay("a").key("")),
        ("idempotency_key", pay("a").key(long(256))),
        ("idempotency_key", pay("a").key("a b")),
        ("idempotency_key", pay("a").key("a\n")),
        ("idempotency_key", pay("a").key("a\u{7f}")),
        ("idempotency_key", pay("a").key("schlüssel")),
        ("idempotency_key", pay("a").key(format!("pay:{}", "0".repeat(40)))),
        ("payload", pay("a").payload("{")),
        ("payload", pay("a").payload("")),
        ("payload", pay("a").payload("{} x")),
        ("payload", pay("a").payload("{\"a\":\"\0\"}")),
        ("payload", text("a\0b")),
        ("payload", pay("a").content_type("application/vnd.api+json").payload("no")),
        ("payload", pay("a").content_type("Application/JSON; charset=utf-8").payload("no")),
        ("payload", pay("a").content_type("text/plain")),
        ("args", pay("a").args_json("{")),
        ("args", pay("a").args_json("")),
        ("args", pay("a").args_json("NaN")),
        ("args", pay("a").args_json("1e999")),
        ("args", pay("a").args_json("18446744073709551616")),
        ("args", pay("a").args_json(r#""\ud800""#)),
        ("args", pay("a").args_json("\"a\0\"")),
        ("args", Intent::new("pay", "a").content_type("text/plain").payload("hello")),
        ("delay", pay("a").delay(Duration::MAX)),
        ("expires_in", pay("a").expires_in(Duration::MAX)),
        ("expires_in", pay("a").expires_in(Duration::ZERO)),
        ("expires_in", pay("a").delay(Duration::from_secs(9)).expires_in(Duration::from_secs(9))),
    ];
    for (field, intent) in bad {
        let error = world.try_enqueue(&intent).expect_err(field);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{field}: {error}");
        let named = error.to_string();
        assert!(named.starts_with(field), "{field} is not named first: {named}");
        assert!(named.len() < 3000 && !named.contains("SQLite"), "{named}");
    }
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 0);
    assert_eq!(world.number("SELECT count(*) FROM outbox_lease"), 0);
}

#[test]
fn field_at_its_limit_is_accepted() {
    let world = World::new();
    let long = |count: usize| "x".repeat(count);
    let umlauts = |count: usize| "ü".repeat(count);
    let good = [
        Intent::new(long(128), "a"),
        pay(&umlauts(1024)),
        pay("a").tenant(umlauts(255)),
        pay("b").version(i64::MAX),
        pay("c").ordering_key(umlauts(255)),
        pay("d").key(long(255)),
        pay("e").key("!~"),
        pay("f").content_type("text/plain; charset=utf-8").payload("Grüße, \u{1F600}"),
        pay("g").content_type("a/b").payload(""),
        pay("h").method("GET"),
        pay("i").method("DELETE").payload(""),
        pay("j").payload("7"),
    ];
    for intent in &good {
        assert!(world.try_enqueue(intent).unwrap().is_new(), "{intent:?}");
    }
    let report = world.drain(DEDUPLICATES);
    // The first is of another operation, which this relay does not know.
    assert_eq!(report.succeeded, good.len() as u64 - 1);
    let bodies: Vec<String> = world.script.seen().iter().map(|d| d.payload().to_owned()).collect();
    assert!(bodies.contains(&"Grüße, \u{1F600}".to_owned()));
    assert_eq!(bodies.iter().filter(|body| body.is_empty()).count(), 3);
}

/// A key was measured in characters where the store counts bytes, and blew up later.
#[test]
fn brought_key_is_measured_in_bytes() {
    let world = World::new();
    for (key, fits) in [
        ("k".repeat(255), true),
        ("k".repeat(256), false),
        ("\u{1F511}".repeat(63), false),
        ("ж".repeat(127), false),
    ] {
        let result = world.try_enqueue(&pay(&key).key(key.clone()));
        assert_eq!(result.is_ok(), fits, "{result:?}");
    }
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 1);
}

#[test]
fn payload_of_the_largest_size_fits_and_one_byte_more_does_not() {
    let world = World::new();
    let max = usize::try_from(world.number("SELECT payload_max FROM outbox_meta")).unwrap();
    let text = |entity: &str, bytes: usize| {
        pay(entity)
            .content_type("text/plain")
            .payload("ü".repeat(bytes / 2) + &"x".repeat(bytes % 2))
    };
    world.enqueue(&text("a", max));
    let error = world.try_enqueue(&text("b", max + 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().starts_with("payload: "), "{error}");
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 1);
    world.drain(DEDUPLICATES);
    assert_eq!(world.script.seen()[0].payload().len(), max);
}

/// A message that held a NUL escape was refused by the store and lost, or quietly altered.
#[test]
fn characters_arrive_unchanged_or_are_refused() {
    let world = World::new();
    let bodies = [
        r#"{"a":"\u0000"}"#,
        "{\"a\":\"\u{2028}\u{2029}\u{FFFF}\u{7F}\"}",
        "{\"\u{FFFF}\":1,\"\u{10000}\":2,\"\u{E000}\":3}",
        r#"{"a":"\ud83d\ude00"}"#,
        r#"{ "b" : 1.0 , "a" : [ ] }"#,
    ];
    for (place, body) in bodies.iter().enumerate() {
        world.enqueue(&Intent::new("pay", place.to_string()).payload(*body));
    }
    for lone in [r#"{"a":"\ud800"}"#, r#"{"a":"\udc00\ud800"}"#] {
        let error = world.try_enqueue(&Intent::new("pay", "lone").payload(lone)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    world.drain(DEDUPLICATES);
    let seen: Vec<String> = world.script.seen().iter().map(|d| d.payload().to_owned()).collect();
    assert_eq!(seen, bodies);
}

/// Integers beyond the signed 64 bits became doubles on the way to storage.
#[test]
fn integers_keep_every_digit() {
    let world = World::new();
    let body = r#"{"id":18446744073709551615,"low":-9223372036854775808}"#;
    let id = world.enqueue(&Intent::new("pay", "a").args_json(body));
    let near = r#"{"id":18446744073709551614,"low":-9223372036854775808}"#;
    let error = world.try_enqueue(&Intent::new("pay", "a").args_json(near)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    world.enqueue(&Intent::new("pay", "b").args_json(near));
    world.drain(DEDUPLICATES);
    let seen = world.script.seen();
    assert_eq!((seen[0].id(), seen[0].payload()), (id, body));
    assert_eq!(seen[1].payload(), near);
}

/// The same action spelled differently, as an agent does that runs its step again.
#[test]
fn spelling_does_not_make_another_action() {
    let world = World::new();
    let first = Intent::new("pay", "a").args_json(r#"{"b":1.50,"a":"\u00e9"}"#);
    let again = Intent::new("pay", "a").args_json("{ \"a\": \"é\",\n \"b\": 1.5 }");
    let id = world.enqueue(&first);
    assert_eq!(world.enqueue(&again), id);
    let next = world.try_enqueue(&again.version(2)).unwrap();
    assert!(
        matches!(next, Enqueued::New { unsettled_version: Some(earlier), .. } if earlier == id)
    );
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 2);
}

#[test]
fn enqueue_all_writes_all_or_nothing() {
    let world = World::new();
    let good: Vec<Intent> = (0..5).map(|n| pay(&n.to_string())).collect();
    let all = world.outbox.transact(|tx| world.outbox.enqueue_all(tx, &good)).unwrap();
    assert_eq!(all.len(), 5);
    assert!(all.iter().all(Enqueued::is_new));
    let again = world.outbox.transact(|tx| world.outbox.enqueue_all(tx, &good)).unwrap();
    assert!(
        again.iter().zip(&all).all(|(again, first)| !again.is_new() && again.id() == first.id())
    );

    let mut bad: Vec<Intent> = (5..8).map(|n| pay(&n.to_string())).collect();
    bad.insert(2, pay("x").method("PURGE"));
    let mut conn = world.app();
    let tx = crate::support::world::immediate(&mut conn);
    tx.execute("INSERT INTO orders VALUES ('o', 'paid')", []).unwrap();
    let kept = world.outbox.enqueue(&tx, &pay("kept")).unwrap().id();
    let error = world.outbox.enqueue_all(&tx, &bad).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("[2]") && error.to_string().contains("method"), "{error}");
    tx.commit().unwrap();
    assert_eq!(world.number("SELECT count(*) FROM outbox"), 6);
    assert_eq!(world.number("SELECT count(*) FROM orders"), 1);
    assert_eq!(world.entry(kept).status, Status::Pending);
    let none: [Intent; 0] = [];
    assert!(world.outbox.transact(|tx| world.outbox.enqueue_all(tx, &none)).unwrap().is_empty());
}
