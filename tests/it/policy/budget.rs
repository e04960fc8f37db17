//! Budgets: how much may be sent in any stretch of time, whoever sends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{
    Actor, BudgetName, Clock, Delivery, Intent, Limit, Operation, Relay, Shard, Status,
};

use crate::support::world::{
    DEDUPLICATES, START, World, maybe_sent, pay, relay_on, succeeded, until,
};

const MINUTE: Duration = Duration::from_secs(60);
const MINUTE_MS: i64 = 60_000;

pub fn enqueue_many(world: &World, intents: &[Intent]) {
    world.outbox.transact(|tx| world.outbox.enqueue_all(tx, intents)).unwrap();
}

pub fn numbered(count: usize) -> Vec<Intent> {
    (0..count).map(|n| pay(&n.to_string())).collect()
}

/// Two relays on handles of their own, as in two processes, for the same operation.
pub fn two_relays(world: &World, configure: impl Fn(Operation) -> Operation) -> [Relay; 2] {
    let relay = || relay_on(&world.second(), configure(world.operation(DEDUPLICATES)));
    [relay(), relay()]
}

fn settled(world: &World) -> i64 {
    world.number("SELECT count(*) FROM outbox_receipt")
}

pub fn entries(world: &World) -> i64 {
    world.number("SELECT count(*) FROM outbox_spend")
}

pub fn spent(world: &World) -> i64 {
    world.number("SELECT coalesce(sum(cost), 0) FROM outbox_spend")
}

/// Whether any stretch of a minute, wherever it begins, holds more than `most`.
fn assert_holds(sent: &[(i64, i64)], most: i64) {
    for &(begins, _) in sent {
        let within = sent.iter().filter(|(at, _)| (begins..begins + MINUTE_MS).contains(at));
        let sum: i64 = within.map(|(_, weight)| weight).sum();
        assert!(sum <= most, "{sum} in the minute from {}: {sent:?}", begins - START);
    }
}

#[test]
fn budget_of_sends_holds_in_every_window_over_two_relays() {
    let world = World::new();
    enqueue_many(&world, &numbered(60));
    let relays = two_relays(&world, |operation| operation.max_per(7, MINUTE));
    let (mut sent, mut before) = (Vec::new(), 0);
    // Uneven steps, so that entries and windows begin anywhere.
    for step in 0..400_u64 {
        for relay in &relays {
            relay.drain().unwrap();
            let now = settled(&world);
            sent.push((world.clock.now(), now - before));
            before = now;
        }
        world.clock.advance(Duration::from_millis(700 + step * 37 % 1900));
    }
    assert_holds(&sent, 7);
    assert_eq!(before, 60);
    // It is used: seven at once, and again as soon as those have left.
    let done = sent.iter().rfind(|(_, count)| *count > 0).unwrap().0;
    assert!(done <= START + 8 * (MINUTE_MS + 3000), "{}", done - START);
    // What no window holds any more is forgotten.
    enqueue_many(&world, &[pay("last")]);
    relays[0].drain().unwrap();
    assert!(entries(&world) <= 7);
}

#[test]
fn budget_of_cost_holds_in_every_window_over_two_relays() {
    let world = World::new();
    let intents: Vec<_> = (0..80_u64).map(|n| pay(&n.to_string()).cost(n * 13 % 29 + 1)).collect();
    enqueue_many(&world, &intents);
    let cost = Arc::new(AtomicU64::new(0));
    let script = |cost: Arc<AtomicU64>| {
        move |delivery: &Delivery| {
            let n: u64 = delivery.entity().parse().unwrap();
            cost.fetch_add(n * 13 % 29 + 1, Ordering::Relaxed);
            succeeded("ok")
        }
    };
    let relays = [(); 2].map(|()| {
        let operation = Operation::new(DEDUPLICATES, script(Arc::clone(&cost)));
        relay_on(&world.second(), operation.max_cost(100, MINUTE))
    });
    let (mut sent, mut before) = (Vec::new(), 0);
    for step in 0..1000_u64 {
        relays[usize::from(step % 3 == 0)].drain().unwrap();
        let now = cost.load(Ordering::Relaxed);
        sent.push((world.clock.now(), i64::try_from(now - before).unwrap()));
        before = now;
        world.clock.advance(Duration::from_millis(500 + step * 41 % 1700));
    }
    assert_holds(&sent, 100);
    assert_eq!(settled(&world), 80);
    let ids = world.number(
        "SELECT count(*) FROM outbox_receipt a JOIN outbox_receipt b ON b.id = a.id + 1
         WHERE b.finished_at < a.finished_at",
    );
    assert_eq!(ids, 0, "in order, the costly ones too");
}

#[test]
fn budget_is_not_overspent_by_racing_threads() {
    let world = World::new();
    let intents: Vec<_> = (0..200).map(|n| pay(&n.to_string()).cost(3)).collect();
    enqueue_many(&world, &intents);
    let sent = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let count = Arc::clone(&sent);
            let world = &world;
            scope.spawn(move || {
                let operation = Operation::new(DEDUPLICATES, move |_: &Delivery| {
                    count.fetch_add(1, Ordering::Relaxed);
                    succeeded("ok")
                });
                let operation = operation.max_per(50, MINUTE).max_cost(100, MINUTE);
                let relay = Relay::builder(&world.second()).operation("pay", operation).workers(2);
                relay.build().unwrap().drain().unwrap();
            });
        }
    });
    // The cost is what is used up first: 33 of 3.
    assert_eq!(sent.load(Ordering::Relaxed), 33);
    assert_eq!((entries(&world), spent(&world)), (33, 99));
}

/// A relay that waits for a budget must not ask the file over and over for the lock.
#[test]
fn budget_wait_does_not_poll_and_ends_to_the_millisecond() {
    let world = World::new();
    let intents = [pay("a").cost(6), pay("b").cost(6), pay("c").cost(1)];
    enqueue_many(&world, &intents);
    let relays = two_relays(&world, |operation| operation.max_cost(10, MINUTE));
    relays[0].drain().unwrap();
    assert_eq!(settled(&world), 1);
    let token = world.number("SELECT token FROM outbox_meta");
    let events = world.number("SELECT count(*) FROM outbox_event");
    let version = Connection::open(world.path()).unwrap();
    let commits = || version.query_row("PRAGMA data_version", [], |r| r.get::<_, i64>(0)).unwrap();
    let before = commits();
    for at in [START + 1, START + 30_000, START + MINUTE_MS - 1] {
        world.pass_until(at);
        // The small one would fit, but waits behind the big one.
        for relay in &relays {
            assert_eq!(relay.drain().unwrap().attempts, 0);
        }
    }
    assert_eq!(commits(), before, "no step was made");
    assert_eq!(world.number("SELECT token FROM outbox_meta"), token);
    assert_eq!(world.number("SELECT count(*) FROM outbox_event"), events);
    assert_eq!(world.number("SELECT max(attempts) + max(tries) FROM outbox_lease"), 0);
    world.pass_until(START + MINUTE_MS);
    assert_eq!(relays[1].drain().unwrap().succeeded, 2);
}

#[test]
fn budget_lets_a_running_relay_sleep_until_it_frees() {
    let world = World::new();
    let outbox = world.on_real_time();
    outbox.transact(|tx| outbox.enqueue_all(tx, &numbered(3))).unwrap();
    let operation = world.operation(DEDUPLICATES).max_per(1, Duration::from_millis(400));
    let relay = relay_on(&outbox, operation);
    let began = std::time::Instant::now();
    let handle = relay.start().unwrap();
    until(|| settled(&world) == 3);
    assert!(began.elapsed() >= Duration::from_millis(780), "{:?}", began.elapsed());
    // One claim for each send: nothing else takes a token.
    assert_eq!(world.number("SELECT token FROM outbox_meta"), 3);
    handle.shutdown(Duration::from_secs(5)).unwrap();
}

#[test]
fn tenant_over_budget_is_deferred_and_others_go_on() {
    let world = World::new();
    let mut intents = Vec::new();
    for n in 0..1200 {
        intents.push(pay(&format!("a{n}")).tenant("a").delay(Duration::ZERO));
    }
    for n in 0..3 {
        intents.push(pay(&format!("b{n}")).tenant("b"));
    }
    enqueue_many(&world, &intents);
    let other = Intent::new("mail", "m").tenant("a");
    world.enqueue(&other);
    let script = world.script.clone();
    let relay = Relay::builder(&world.outbox)
        .operation("pay", world.operation(DEDUPLICATES).max_per_tenant(2, MINUTE))
        .operation("mail", Operation::new(DEDUPLICATES, move |d: &Delivery| script.answer(d)))
        .workers(1)
        .build()
        .unwrap();
    world.clock.advance(Duration::from_secs(5));
    assert_eq!(relay.drain().unwrap().succeeded, 2 + 2 + 1);
    // Who waits says why and until when; it has cost neither a try nor an event, and the backlog
    // one marker.
    let waiting = world.entry(3);
    assert_eq!((waiting.status, waiting.attempts), (Status::Pending, 0));
    let (rule, told) = world.outbox.why(3, None).unwrap();
    assert_eq!(rule, "held");
    assert!(told.contains("max_per_tenant (2 in 1m)"), "{told}");
    assert!(told.contains("until 2027-01-15T08:01:05Z"), "{told}");
    let aside = "SELECT count(*) FROM outbox_lease WHERE held_by IS NOT NULL AND tries = 0";
    assert_eq!(world.number(aside), 1198 + 1);
    assert_eq!(world.number("SELECT count(*) FROM outbox_hold WHERE cause = 'budget'"), 2);
    assert_eq!(world.number("SELECT count(*) FROM outbox_event"), 5);
    // Nothing is due any more: no step is made for those that wait.
    let token = world.number("SELECT token FROM outbox_meta");
    assert_eq!(relay.drain().unwrap().attempts, 0);
    assert_eq!(world.number("SELECT token FROM outbox_meta"), token);
    world.advance(60);
    assert_eq!(relay.drain().unwrap().succeeded, 3);
    // Oldest first, through any number of windows.
    assert_eq!(
        (world.entry(3).status, world.entry(4).status),
        (Status::Succeeded, Status::Succeeded)
    );
    assert_eq!(world.entry(5).status, Status::Pending);
}

#[test]
fn tenant_budget_counts_its_own_cost() {
    let world = World::new();
    let paid = |entity: &str, tenant: &str, cost| pay(entity).tenant(tenant).cost(cost);
    let intents = [
        paid("1", "a", 8),
        paid("2", "a", 8),
        paid("3", "b", 8),
        paid("4", "a", 2),
        paid("5", "b", 8),
    ];
    enqueue_many(&world, &intents);
    let [relay, other] = two_relays(&world, |operation| {
        operation.max_cost_per_tenant(10, MINUTE).max_cost(20, MINUTE)
    });
    relay.drain().unwrap();
    other.drain().unwrap();
    let states = || [1, 2, 3, 4, 5].map(|id| world.entry(id).status == Status::Succeeded);
    assert_eq!(states(), [true, false, true, true, false]);
    assert!(world.outbox.why(5, None).unwrap().1.contains("max_cost_per_tenant (10 in 1m)"));
    world.advance(60);
    other.drain().unwrap();
    assert_eq!(states(), [true; 5]);
}

#[test]
fn cost_above_the_budget_needs_review() {
    for (per_tenant, name) in [(false, "max_cost (10 in 1m)"), (true, "max_cost_per_tenant (10")] {
        let world = World::new();
        enqueue_many(&world, &[pay("1").cost(11), pay("2").cost(10), pay("3").cost(0)]);
        let [relay, _] = two_relays(&world, |operation| {
            if per_tenant {
                operation.max_cost_per_tenant(10, MINUTE)
            } else {
                operation.max_cost(10, MINUTE)
            }
        });
        let report = relay.drain().unwrap();
        assert_eq!((report.needs_review, report.succeeded, report.attempts), (1, 2, 2));
        let told = world.entry(1).last_error.unwrap();
        assert!(told.contains("costs 11") && told.contains(name), "{told}");
        assert_eq!(world.story(1), ["withheld:pending>needs_review"]);
        assert_eq!(spent(&world), 10);
    }
}

#[test]
fn ordering_key_head_deferred_by_the_budget_stays_its_head() {
    let world = World::new();
    let keyed = |n: usize| pay(&n.to_string()).tenant("a").ordering_key("k");
    enqueue_many(&world, &(0..4).map(keyed).collect::<Vec<_>>());
    let [relay, other] = two_relays(&world, |operation| operation.max_per_tenant(1, MINUTE));
    for done in 1..=4 {
        relay.drain().unwrap();
        other.drain().unwrap();
        let states: Vec<bool> =
            (1..=4).map(|id| world.entry(id).status == Status::Succeeded).collect();
        assert_eq!(states, (1..=4).map(|id| id <= done).collect::<Vec<_>>());
        world.advance(60);
    }
}

/// A second relay with another configuration cannot lift a limit by itself.
#[test]
fn smaller_of_stored_and_configured_budget_holds() {
    let world = World::new();
    enqueue_many(&world, &numbered(10));
    let relay =
        |most| relay_on(&world.second(), world.operation(DEDUPLICATES).max_per(most, MINUTE));
    let first = relay(5);
    drop(relay(2));
    assert_eq!(first.drain().unwrap().succeeded, 2, "it obeys what is stored");
    assert_eq!(relay(4).drain().unwrap().succeeded, 0);
    // Lowered below what is spent: until enough of it has left.
    let low = relay(1);
    world.advance(59);
    assert_eq!(low.drain().unwrap().succeeded, 0);
    world.advance(1);
    assert_eq!(low.drain().unwrap().succeeded, 1);
    // One that names no budget leaves what is stored, unless it says that it means it.
    assert_eq!(world.drain(DEDUPLICATES).succeeded, 0);
    let lifted = world.operation(DEDUPLICATES).weaken_stored_contract();
    assert_eq!(relay_on(&world.outbox, lifted).drain().unwrap().succeeded, 7);
    assert_eq!(world.number("SELECT count(*) FROM outbox_budget"), 0);
    let told = "SELECT count(*) FROM outbox_operation_event
                WHERE kind = 'limited' AND actor = 'relay' AND reason = 'weaken_stored_contract'
                  AND cause = 'max_per: 1 in 1m, now none'";
    assert_eq!(world.number(told), 1);
}

#[test]
fn budgets_of_different_windows_all_hold() {
    let world = World::new();
    enqueue_many(&world, &numbered(10));
    let minute = relay_on(&world.second(), world.operation(DEDUPLICATES).max_per(2, MINUTE));
    let hour = world.operation(DEDUPLICATES).max_per(5, 60 * MINUTE).max_per(4, 24 * 60 * MINUTE);
    let hour = relay_on(&world.second(), hour);
    for expected in [2, 2, 0] {
        assert_eq!(minute.drain().unwrap().succeeded, expected);
        assert_eq!(hour.drain().unwrap().succeeded, 0);
        world.advance(60);
    }
    let stored = &world.outbox.operations().unwrap()[0].max_per;
    assert_eq!(*stored, [(2, MINUTE), (5, 60 * MINUTE), (4, 24 * 60 * MINUTE)]);
}

#[test]
fn person_sets_a_limit_that_no_configuration_lifts() {
    let world = World::new();
    enqueue_many(&world, &numbered(20));
    let relay = || {
        let operation = world.operation(DEDUPLICATES).max_per(2, MINUTE).max_in_flight(9);
        relay_on(&world.second(), operation.rate(1000, Duration::from_secs(1)))
    };
    let running = relay();
    assert_eq!(running.drain().unwrap().succeeded, 2);
    let per = |amounts: &[(u64, Duration)]| Limit::Budget(BudgetName::MaxPer, amounts.to_vec());
    let raise = [per(&[(5, MINUTE), (6, 60 * MINUTE)]), Limit::Rate(None)];
    world.outbox.limit("pay", &raise, Actor::new("ann").reason("launch day")).unwrap();
    assert_eq!(running.drain().unwrap().succeeded, 3, "also the relay that runs");
    let trail = "SELECT count(*) FROM outbox_operation_event
                 WHERE kind = 'limited' AND actor = 'ann' AND reason = 'launch day'
                   AND cause IN ('rate: 1000 in 1s, now none',
                                 'max_per: 2 in 1m, now 5 in 1m and 6 in 1h')";
    assert_eq!(world.number(trail), 2);
    // A relay that starts with the smaller number makes it hold again; the other window stays.
    drop(relay());
    let known = &world.outbox.operations().unwrap()[0];
    assert_eq!(known.max_per, [(2, MINUTE), (6, 60 * MINUTE)]);
    world.outbox.limit("pay", &[per(&[])], "ann").unwrap();
    assert_eq!(running.drain().unwrap().succeeded, 15);
    for (limits, told) in [
        (Limit::MaxInFlight(Some(0)), "max_in_flight"),
        (Limit::Rate(Some((1, Duration::ZERO))), "rate"),
        (per(&[(0, MINUTE)]), "max_per"),
    ] {
        let error = world.outbox.limit("pay", &[limits], "ann").unwrap_err().to_string();
        assert!(error.starts_with(told), "{error}");
    }
    assert!(world.outbox.limit("pya", &[], "ann").is_err());
}

#[test]
fn budget_is_shared_by_shards() {
    let world = World::new();
    enqueue_many(&world, &numbered(20));
    let shard = |index| {
        let operation = world.operation(DEDUPLICATES).max_per(6, MINUTE);
        let relay = Relay::builder(&world.second()).operation("pay", operation);
        relay.shard(Shard::new(index, 2).unwrap()).workers(1).build().unwrap()
    };
    let relays = [shard(0), shard(1)];
    for round in 1..=3 {
        for relay in &relays {
            relay.drain().unwrap();
        }
        assert_eq!(settled(&world), round * 6);
        world.advance(60);
    }
}

/// Probes of a paused operation are sends, and the row they would try may not fit.
#[test]
fn budget_holds_for_probes() {
    let world = World::new();
    let intents: Vec<_> = (0..30).map(|n| pay(&n.to_string()).cost(n % 3 * 4 + 1)).collect();
    enqueue_many(&world, &intents);
    world.script.times(14, &maybe_sent());
    let [relay, other] = two_relays(&world, |operation| operation.max_cost(60, MINUTE));
    for _ in 0..600 {
        relay.drain().unwrap();
        other.drain().unwrap();
        let sql = format!(
            "SELECT coalesce(sum(cost), 0) FROM outbox_spend WHERE at > {}",
            world.clock.now() - MINUTE_MS
        );
        assert!(world.number(&sql) <= 60);
        world.advance(5);
    }
    assert_eq!(settled(&world), 30);
}

#[test]
fn budgets_and_costs_out_of_range_are_refused_by_name() {
    let world = World::new();
    let operation = || world.operation(DEDUPLICATES);
    for (name, operation) in [
        ("max_per", operation().max_per(0, MINUTE)),
        ("max_cost", operation().max_cost(1, Duration::ZERO)),
        ("max_per_tenant", operation().max_per_tenant(1, Duration::from_micros(10))),
        ("max_cost_per_tenant", operation().max_cost_per_tenant(0, MINUTE)),
    ] {
        let relay = Relay::builder(&world.outbox).operation("pay", operation).build();
        let error = relay.err().unwrap().to_string();
        assert!(error.contains(name) && error.contains("pay"), "{error}");
    }
    let error = world.try_enqueue(&pay("a").cost(u64::MAX)).unwrap_err().to_string();
    assert!(error.starts_with("cost"), "{error}");
    let conn = Connection::open(world.path()).unwrap();
    for cost in ["-1", "1.5", "'x'", "NULL"] {
        let sql = format!(
            "INSERT INTO outbox (operation, entity_id, idempotency_key, payload, cost)
             VALUES ('pay', 'a', 'k', '{{}}', {cost})"
        );
        let error = conn.execute(&sql, []).unwrap_err().to_string();
        assert!(error.contains("outbox.cost"), "{cost}: {error}");
    }
    // The cost is no part of the key: the same action with another cost is the same action.
    let id = world.enqueue(&pay("a").cost(5));
    let again = world.try_enqueue(&pay("a").cost(6)).unwrap();
    assert!(!again.is_new() && again.id() == id);
    let change = format!("UPDATE outbox SET cost = 1, payload = NULL WHERE id = {id}");
    assert!(conn.execute(&change, []).is_err());
    // The largest ones add up without an error.
    world.enqueue(&pay("b").cost(i64::MAX.unsigned_abs()));
    world.enqueue(&pay("c").cost(i64::MAX.unsigned_abs()));
    relay_on(&world.outbox, operation().max_per(10, MINUTE)).drain().unwrap();
    world.enqueue(&pay("d").cost(1));
    let relay = relay_on(&world.outbox, operation().max_cost(u64::MAX, MINUTE));
    assert_eq!(relay.drain().unwrap().attempts, 0);
    world.advance(60);
    assert_eq!(relay.drain().unwrap().succeeded, 1);
}
