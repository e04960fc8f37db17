//! Tenants and agent runs: one that does too much holds up no other.

use std::time::Duration;

use sqlite_outbox::{Filter, Intent, Part, Status};

use super::budget::enqueue_many;
use crate::support::world::{DEDUPLICATES, START, World, pay, relay_on};

const MINUTE: Duration = Duration::from_secs(60);

fn of_run(entity: &str, run: &str) -> Intent {
    pay(entity).header("X-Agent-Run", run)
}

fn hot_loop(world: &World, count: usize) {
    let mut intents: Vec<_> = (0..count).map(|n| of_run(&format!("hot-{n}"), "hot")).collect();
    intents.extend((0..3).map(|n| of_run(&format!("calm-{n}"), "calm")));
    intents.push(pay("no run"));
    enqueue_many(world, &intents);
}

const ASIDE: &str = "SELECT count(*) FROM outbox_lease WHERE held_by IS NOT NULL";

#[test]
fn run_over_its_budget_waits_and_others_go_on() {
    let world = World::new();
    hot_loop(&world, 700);
    let relay = relay_on(&world.outbox, world.operation(DEDUPLICATES).max_per_run(3, MINUTE));
    assert_eq!(relay.drain().unwrap().succeeded, 3 + 3 + 1);
    assert_eq!(world.number(ASIDE), 697);
    assert_eq!(world.number("SELECT count(*) FROM outbox_hold"), 1);
    let (rule, told) = world.outbox.why(4, None).unwrap();
    assert!(rule == "held" && told.contains("max_per_run (3 in 1m)"), "{told}");
    assert_eq!(relay.drain().unwrap().attempts, 0);
    for round in 1..=3 {
        world.advance(60);
        assert_eq!(relay.drain().unwrap().succeeded, 3, "round {round}");
    }
    assert_eq!(world.entry(12).status, Status::Succeeded);
    assert_eq!(world.entry(13).status, Status::Pending);
}

#[test]
fn run_has_a_budget_of_cost() {
    let world = World::new();
    let intents = [
        of_run("1", "a").cost(6),
        of_run("2", "a").cost(6),
        of_run("3", "b").cost(6),
        of_run("4", "a").cost(4),
        pay("5").cost(10),
    ];
    enqueue_many(&world, &intents);
    let relay = relay_on(&world.outbox, world.operation(DEDUPLICATES).max_cost_per_run(10, MINUTE));
    relay.drain().unwrap();
    let states = || [1, 2, 3, 4, 5].map(|id| world.entry(id).status == Status::Succeeded);
    assert_eq!(states(), [true, false, true, true, true]);
    world.advance(60);
    relay.drain().unwrap();
    assert_eq!(states(), [true; 5]);
}

#[test]
fn part_is_paused_and_resumed_by_a_person() {
    for part in [Part::Run("hot".into()), Part::Tenant("hot".into())] {
        let world = World::new();
        let named = |n: usize| of_run(&n.to_string(), "hot").tenant("hot");
        enqueue_many(&world, &(0..40).map(named).collect::<Vec<_>>());
        enqueue_many(&world, &[pay("a").tenant("calm"), of_run("b", "calm")]);
        let relay = relay_on(&world.outbox, world.operation(DEDUPLICATES));
        world.outbox.pause_part(&part, None, None, "ann").unwrap();
        assert_eq!(relay.drain().unwrap().succeeded, 2, "{part}");
        assert_eq!(world.number(ASIDE), 40);
        let (rule, told) = world.outbox.why(1, None).unwrap();
        assert!(rule == "held" && told.contains("paused by ann"), "{told}");
        world.advance(1_000_000);
        assert_eq!(relay.drain().unwrap().attempts, 0);
        assert!(world.outbox.resume_part(&part, Some("pay"), "ann").unwrap());
        assert!(!world.outbox.resume_part(&part, None, "ann").unwrap());
        for _ in 0..10 {
            relay.drain().unwrap();
            world.advance(1);
        }
        assert_eq!(world.number(ASIDE), 0);
        assert_eq!(world.number("SELECT count(*) FROM outbox_receipt"), 42);
        assert_eq!(world.number("SELECT count(*) FROM outbox_hold"), 0);
        let trail = "SELECT group_concat(kind) = 'paused,resumed' FROM outbox_operation_event
                     WHERE actor = 'ann' AND cause LIKE '%\"hot\"'";
        assert_eq!(world.number(trail), 1);
    }
}

#[test]
fn part_is_paused_for_a_time() {
    let world = World::new();
    hot_loop(&world, 3);
    let relay = relay_on(&world.outbox, world.operation(DEDUPLICATES));
    let hot = Part::Run("hot".into());
    world.outbox.pause_part(&hot, Some("pay"), Some(MINUTE), "ann").unwrap();
    assert_eq!(relay.drain().unwrap().succeeded, 4);
    world.pass_until(START + 59_999);
    assert_eq!(relay.drain().unwrap().attempts, 0);
    for second in 60..63 {
        world.pass_until(START + second * 1000);
        relay.drain().unwrap();
    }
    assert_eq!(world.number("SELECT count(*) FROM outbox_receipt"), 7);
    assert!(world.outbox.pause_part(&hot, Some("pya"), None, "ann").is_err());
}

/// A person who sends one row at once has not resumed the others.
#[test]
fn retry_of_a_row_in_a_paused_part_resumes_nothing() {
    let world = World::new();
    hot_loop(&world, 4);
    let relay = relay_on(&world.outbox, world.operation(DEDUPLICATES));
    world.outbox.pause_part(&Part::Run("hot".into()), None, None, "ann").unwrap();
    assert_eq!(relay.drain().unwrap().succeeded, 4);
    world.outbox.retry(1, "bob").unwrap();
    for _ in 0..5 {
        assert_eq!(relay.drain().unwrap().attempts, 0);
        world.advance(60);
    }
    assert_eq!(world.number(ASIDE), 4);
    assert!(world.outbox.resume_part(&Part::Run("hot".into()), None, "ann").unwrap());
}

#[test]
fn run_is_listed_and_cancelled() {
    let world = World::new();
    hot_loop(&world, 1200);
    let hot = Filter::default().run("hot");
    assert_eq!(world.outbox.list(&hot).unwrap().len(), 1200);
    assert_eq!(world.outbox.list(&hot.clone().status(Status::Dead)).unwrap().len(), 0);
    assert_eq!(world.outbox.list(&hot.clone().ids([1, 1201])).unwrap().len(), 1);
    world.drain(DEDUPLICATES);
    enqueue_many(&world, &[of_run("again", "hot"), of_run("more", "hot"), pay("other")]);
    let cancelled = world.outbox.cancel_all(&hot, "ann").unwrap();
    let states: Vec<_> = cancelled.iter().map(|(id, now)| (*id, *now.as_ref().unwrap())).collect();
    assert_eq!(states, [(1205, Status::Cancelled), (1206, Status::Cancelled)]);
    assert_eq!(world.entry(1207).status, Status::Pending);
    let of_tenant = Filter::default().tenant("");
    assert_eq!(world.outbox.cancel_all(&of_tenant, "ann").unwrap().len(), 1);
}

/// An intent that names no run costs no row; one that is deleted leaves none.
#[test]
fn run_is_kept_with_its_intent() {
    let world = World::new();
    hot_loop(&world, 2);
    world.drain(DEDUPLICATES);
    assert_eq!(world.number("SELECT count(*) FROM outbox_run"), 5);
    world.sql("DELETE FROM outbox WHERE id <= 2");
    assert_eq!(world.number("SELECT count(*) FROM outbox_run"), 3);
}

#[test]
fn operation_that_nobody_registered_is_refused_where_that_is_switched_on() {
    let world = World::new();
    let mail = Intent::new("mail", "a");
    world.enqueue(&mail);
    world.outbox.only_registered(true, "ann").unwrap();
    world.outbox.only_registered(true, "ann").unwrap();
    let error = world.try_enqueue(&Intent::new("mail", "b")).unwrap_err().to_string();
    assert!(error.contains("operation") && error.contains("not registered"), "{error}");
    let insert = "INSERT INTO outbox (operation, entity_id, idempotency_key, payload)
                  VALUES ('mail', 'c', 'c', '{}')";
    let conn = sqlite_outbox::rusqlite::Connection::open(world.path()).unwrap();
    let error = conn.execute(insert, []).unwrap_err().to_string();
    assert!(error.starts_with("outbox.operation: is not registered"), "{error}");
    // What is there already is the same intent; a relay's operation is taken.
    assert!(!world.try_enqueue(&mail).unwrap().is_new());
    drop(relay_on(&world.outbox, world.operation(DEDUPLICATES)));
    world.enqueue(&pay("a"));
    world.outbox.only_registered(false, "ann").unwrap();
    conn.execute(insert, []).unwrap();
    let trail = "SELECT count(*) FROM outbox_operation_event
                 WHERE kind = 'limited' AND actor = 'ann' AND operation = ''";
    assert_eq!(world.number(trail), 2);
}

/// A row that waits for its tenant's budget lets another tenant's try the origin.
#[test]
fn row_over_its_budget_holds_back_no_other_of_its_origin() {
    let world = World::new();
    let to = |entity: &str, tenant: &str, path: &str| {
        pay(entity).tenant(tenant).endpoint(format!("https://{path}"))
    };
    world.enqueue(&to("1", "greedy", "b.example/1"));
    let budget = world.operation(DEDUPLICATES).max_per_tenant(1, Duration::from_secs(86_400));
    let relay = relay_on(&world.outbox, budget);
    assert_eq!(relay.drain().unwrap().succeeded, 1);
    // The next row that comes due is to try this origin.
    world.sql(&format!(
        "INSERT INTO outbox_hold (operation, domain, name, cause, since, reason)
         VALUES ('pay', 'origin', 'https://a.example', 'breaker', {START}, 'refused')"
    ));
    world.enqueue(&to("2", "greedy", "a.example/2"));
    world.enqueue(&to("3", "modest", "a.example/3"));
    for _ in 0..3 {
        relay.drain().unwrap();
        world.advance(60);
    }
    assert_eq!(world.entry(3).status, Status::Succeeded);
    assert_eq!(world.entry(2).status, Status::Pending);
}
