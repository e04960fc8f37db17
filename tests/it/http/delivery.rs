//! Intents that travel over a real connection, from the file to the downstream and back.

use std::time::Duration;

use sqlite_outbox::{Downstream, ErrorKind, Finding, Http, Operation, Relay, Status, Timeouts};

use crate::support::downstream::Downstream as Server;
use crate::support::world::{DEDUPLICATES, World, exact_backoff, pay};

fn http() -> Http {
    let short = Duration::from_millis(300);
    Http::new().timeouts(Timeouts::default().response(short).body(short))
}

fn relay(world: &World, downstream: Downstream, http: Http) -> Relay {
    Relay::builder(&world.outbox)
        .operation("pay", Operation::new(downstream, http).backoff(exact_backoff()))
        .workers(1)
        .build()
        .unwrap()
}

#[test]
fn answer_lost_is_retried_with_the_same_key_and_bytes() {
    let (world, server) = (World::new(), Server::start());
    let relay = relay(&world, DEDUPLICATES, http().endpoint(&server.url("/lostdedupe/1")));
    let id = world.enqueue(&pay("order-1"));
    relay.drain().unwrap();
    assert_eq!(world.entry(id).status, Status::Pending);
    world.advance(2);
    relay.drain().unwrap();

    let entry = world.entry(id);
    assert_eq!(entry.status, Status::Succeeded);
    assert_eq!(entry.downstream_id.as_deref(), Some("eff_1_1"));
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0].key, requests[1].key);
    assert_eq!(requests[0].body, requests[1].body);
    assert_eq!(server.effects(&requests[0].key), 1);
}

#[test]
fn unprotected_downstream_gets_no_second_request() {
    for path in ["/lost/1", "/cut/1", "/reset", "/silent", "/garbage", "/status/500", "/close"] {
        let (world, server) = (World::new(), Server::start());
        let http = http().endpoint(&server.url(path));
        let relay = relay(&world, Downstream::Unprotected, http);
        let id = world.enqueue(&pay("order-1"));
        for _ in 0..3 {
            relay.drain().unwrap();
            world.advance(3600);
        }
        let status = world.entry(id).status;
        assert!(matches!(status, Status::Unknown | Status::NeedsReview), "{path}: {status}");
        assert_eq!(server.connections(), 1, "{path}");
    }
}

#[test]
fn request_that_never_left_is_retried_even_unprotected() {
    let (world, server) = (World::new(), Server::start());
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let id = world.enqueue(&pay("order-1"));
    let nobody = http().endpoint(&format!("http://{free}/ok"));
    relay(&world, Downstream::Unprotected, nobody).drain().unwrap();
    assert_eq!(world.entry(id).status, Status::Pending);
    world.advance(2);
    let somebody = http().endpoint(&server.url("/naive"));
    relay(&world, Downstream::Unprotected, somebody).drain().unwrap();
    assert_eq!(world.entry(id).status, Status::Succeeded);
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn endpoint_of_an_intent_on_a_private_address_is_dead_at_once() {
    let (world, server) = (World::new(), Server::start());
    let relay = relay(&world, DEDUPLICATES, http());
    let inside = world.enqueue(&pay("order-1").endpoint(server.url("/ok")));
    let nowhere = world.enqueue(&pay("order-2"));
    relay.drain().unwrap();
    assert_eq!(world.entry(inside).status, Status::Dead);
    // Where none is configured it is the relay that lacks something, not the intent.
    let waits = world.entry(nowhere);
    assert_eq!((waits.status, waits.attempts), (Status::Pending, 0));
    assert_eq!(server.connections(), 0);
}

#[test]
fn headers_of_the_intent_and_its_key_reach_the_wire() {
    let (world, server) = (World::new(), Server::start());
    let http = http().endpoint(&server.url("/ok")).header("authorization", "Bearer secret");
    let relay = relay(&world, DEDUPLICATES, http);
    let id = world.enqueue(&pay("order-1").header("traceparent", "00-1-2-01"));
    relay.drain().unwrap();
    let request = server.requests().remove(0);
    assert_eq!(request.key, world.entry(id).idempotency_key);
    assert_eq!(request.header("traceparent"), Some("00-1-2-01"));
    assert_eq!(request.header("authorization"), Some("Bearer secret"));
    assert_eq!(request.body, r#"{"amount":4200}"#);
    let stored = "SELECT (SELECT count(*) FROM outbox WHERE headers LIKE '%secret%')
                       + (SELECT count(*) FROM outbox_receipt WHERE receipt LIKE '%secret%')";
    assert_eq!(world.number(stored), 0);
}

/// Setters never fail: the mistake is named when the relay is built, with its operation.
#[test]
fn http_mistake_is_named_when_the_relay_is_built() {
    let world = World::new();
    let faulty = || Http::new().endpoint("api.example.com").header("authorization", "");
    let looked_up = Operation::new(DEDUPLICATES, faulty()).reconcile(|_| Finding::NotApplied);
    for operation in [Operation::new(DEDUPLICATES, faulty()), looked_up] {
        let built = Relay::builder(&world.outbox).operation("pay", operation).build();
        let Err(error) = built else { panic!("it was built") };
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let text = error.to_string();
        assert!(text.starts_with("operation \"pay\": endpoint: "), "{text}");
    }
}
