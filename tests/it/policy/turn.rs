//! A costly row waits in its turn for the operation's budget, and those behind it as well, but only
//! where nothing else keeps it: a fault stops its own domain and nothing else.

use std::time::Duration;

use sqlite_outbox::{Delivery, Intent, Operation, Outcome, Part, Relay, Status};

use super::budget::enqueue_many;
use crate::support::world::{
    DEDUPLICATES, START, World, exact_backoff, not_sent, pay, relay_on, sent, succeeded,
};

const HOUR: Duration = Duration::from_secs(3600);

fn to(host: &str, name: &str) -> Intent {
    pay(name).endpoint(format!("https://{host}/"))
}

fn small(count: usize) -> Vec<Intent> {
    (0..count).map(|n| to(&format!("h{n}"), &format!("small {n}")).cost(1)).collect()
}

/// Of 100 in an hour, what is left once a row has taken 60.
fn spend(world: &World) -> Relay {
    world.enqueue(&to("first", "first").cost(60));
    let relay = relay_on(&world.second(), world.operation(DEDUPLICATES).max_cost(100, HOUR));
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    relay
}

/// Answers of the configured endpoint, or of a host: the connection is refused; others succeed.
fn refusing(world: &World, host: Option<&'static str>) -> Operation {
    let script = world.script.clone();
    let handler = move |delivery: &Delivery| -> Outcome {
        let named = delivery.endpoint().and_then(|endpoint| endpoint.split('/').nth(2));
        if named == host {
            return not_sent();
        }
        script.answer(delivery)
    };
    Operation::new(DEDUPLICATES, handler).backoff(exact_backoff()).max_cost(100, HOUR)
}

fn waits(world: &World, id: i64) -> bool {
    world.entry(id).status == Status::Pending
}

#[test]
fn costly_row_of_a_paused_tenant_keeps_no_other_from_being_sent() {
    for part in [Part::Tenant("hot".into()), Part::Run("hot".into())] {
        let world = World::new();
        let relay = spend(&world);
        world.outbox.pause_part(&part, None, None, "ann").unwrap();
        let hot =
            |n: usize| pay(&format!("hot {n}")).tenant("hot").header("X-Agent-Run", "hot").cost(50);
        enqueue_many(&world, &(0..300).map(hot).collect::<Vec<_>>());
        enqueue_many(&world, &small(5));
        assert_eq!(relay.drain().unwrap().succeeded, 5, "{part}");
        // Once it can go, small ones behind it wait for it.
        world.outbox.resume_part(&part, None, "ann").unwrap();
        let late = world.enqueue(&to("h", "late").cost(1));
        assert_eq!(relay.drain().unwrap().attempts, 0);
        let (rule, told) = world.outbox.why(late, None).unwrap();
        assert!(rule == "budget" && told.contains("max_cost (100 in 1h)"), "{told}");
        world.advance(3600);
        assert_eq!(relay.drain().unwrap().succeeded, 2, "two of 50 are all of it");
        assert!(waits(&world, late));
    }
}

#[test]
fn costly_row_to_a_held_origin_keeps_no_other_from_being_sent() {
    let world = World::new();
    drop(spend(&world));
    let relay = relay_on(&world.outbox, refusing(&world, Some("dead")).breaker_after(3));
    let cheap: Vec<_> = (0..3).map(|n| to("dead", &format!("cheap {n}"))).collect();
    enqueue_many(&world, &cheap);
    relay.drain().unwrap();
    let costly: Vec<_> = (0..9).map(|n| to("dead", &format!("dear {n}")).cost(50)).collect();
    enqueue_many(&world, &costly);
    enqueue_many(&world, &small(5));
    assert_eq!(relay.drain().unwrap().succeeded, 5);
    // Nor where it is one of these that tries the origin.
    for round in 0..10 {
        world.advance(120);
        enqueue_many(&world, &[to("h", &format!("later {round}")).cost(1)]);
        assert_eq!(relay.drain().unwrap().succeeded, 1, "round {round}");
    }
}

#[test]
fn costly_row_for_a_dead_configured_endpoint_keeps_no_other_from_being_sent() {
    let world = World::new();
    drop(spend(&world));
    let relay = relay_on(&world.outbox, refusing(&world, None).breaker_after(3));
    let dear: Vec<_> = (0..5).map(|n| pay(&format!("dear {n}")).cost(50)).collect();
    // The breaker opens by rows that cost nothing.
    enqueue_many(&world, &(0..3).map(|n| pay(&format!("free {n}"))).collect::<Vec<_>>());
    relay.drain().unwrap();
    assert!(world.outbox.operations().unwrap()[0].paused.is_some());
    enqueue_many(&world, &dear);
    world.sql("UPDATE outbox_lease SET due_at = due_at + 3600000 WHERE attempts + tries > 0");
    enqueue_many(&world, &small(5));
    assert_eq!(relay.drain().unwrap().succeeded, 5);
    // The same where the time to try the endpoint has come, and a row that tries it does not fit.
    for round in 0..10 {
        world.advance(120);
        let later = to("h", &format!("later {round}")).cost(1);
        enqueue_many(&world, &[later]);
        assert_eq!(relay.drain().unwrap().succeeded, 1, "round {round}");
    }
    assert_eq!(world.number("SELECT count(*) FROM outbox_spend WHERE cost = 50"), 0);
}

/// A costly row to an endpoint of its own stands in front of the rows that would try the configured
/// one: they are behind it.
#[test]
fn costly_row_that_could_go_is_not_starved() {
    let world = World::new();
    let relay = spend(&world);
    let dear = world.enqueue(&to("h", "dear").cost(50));
    for round in 0..10 {
        world.enqueue(&pay(&format!("configured {round}")).cost(1));
        enqueue_many(&world, &[to("other", &format!("own {round}")).cost(1)]);
        assert_eq!(relay.drain().unwrap().attempts, 0);
        world.advance(300);
    }
    world.advance(600);
    assert_eq!(relay.drain().unwrap().succeeded, 21);
    assert_eq!(sent(&world)[1], "dear");
    assert_eq!(world.entry(dear).status, Status::Succeeded);
}

#[test]
fn what_waits_aside_for_a_budget_goes_once_there_is_enough_of_it() {
    let world = World::new();
    let relay = spend(&world);
    let until = START + 1000;
    world.sql(&format!(
        "INSERT INTO outbox_hold (operation, domain, name, cause, since, until, reason)
         VALUES ('pay', 'origin', 'https://dead', 'breaker', {START}, {until}, 'refused')"
    ));
    let dear = world.enqueue(&to("dead", "dear").cost(50));
    world.advance(1);
    world.script.then(succeeded("small"));
    world.enqueue(&to("h", "small").cost(1));
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    assert!(waits(&world, dear));
    let held = || world.outbox.operations().unwrap()[0].holds[0].until;
    assert_eq!(held(), Some(START + 901_000), "in case a budget is raised until then");
    for _ in 0..3 {
        world.pass_until(held().unwrap());
        assert_eq!(relay.drain().unwrap().attempts, 0);
    }
    assert_eq!(held(), Some(START + 3_600_000), "when the first has left the window");
    world.pass_until(START + 3_600_000);
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    assert_eq!(world.entry(dear).status, Status::Succeeded);
    assert_eq!(world.number("SELECT count(*) FROM outbox_hold"), 0);
}

#[test]
fn costly_row_that_can_only_be_set_aside_keeps_no_other_from_being_sent() {
    for gone in ["attempts = 1000", "cancel_requested_at = 1"] {
        let world = World::new();
        drop(spend(&world));
        let operation = world.operation(DEDUPLICATES).max_cost(100, HOUR).max_attempts(1000);
        let relay = relay_on(&world.second(), operation);
        let dear = world.enqueue(&to("h", "dear").cost(50));
        world.sql(&format!("UPDATE outbox_lease SET {gone} WHERE id = {dear}"));
        enqueue_many(&world, &small(5));
        assert_eq!(relay.drain().unwrap().succeeded, 5, "{gone}");
        assert!(!waits(&world, dear));
    }
}
