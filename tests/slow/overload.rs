//! Limits and the breaker over several relay processes, some of which are killed.

use std::time::{Duration, Instant};

use sqlite_outbox::PauseKind;
use sqlite_outbox::rusqlite::Connection;

use crate::support::process::Process;
use crate::support::scene::Scene;
use crate::support::world::pay;

/// A scene with so many intents.
fn scene(rows: usize, cost: u64) -> Scene {
    let scene = Scene::new();
    let intents: Vec<_> = (0..rows).map(|n| pay(&n.to_string()).cost(cost)).collect();
    scene.outbox.transact(|tx| scene.outbox.enqueue_all(tx, &intents)).unwrap();
    scene
}

impl Scene {
    fn careful_relay_process(&self) -> Process {
        let mut relay = Process::careful_relay(&self.path, &self.downstream.url("/slow/20"));
        relay.waits_until_it_says("started");
        relay
    }

    fn unsettled(&self) -> i64 {
        self.number("SELECT count(*) FROM outbox_lease")
    }

    fn wait_until_settled(&self, within: Duration) {
        let deadline = Instant::now() + within;
        while self.unsettled() > 0 {
            assert!(Instant::now() < deadline, "{} rows are left", self.unsettled());
            let seen = self.downstream.requests().len();
            self.downstream.wait_for(seen + 1, Duration::from_millis(100));
        }
    }
}

/// Never more at once and never more a second than allowed, whoever dies; and never stuck after.
#[test]
fn limits_hold_over_processes_and_a_kill() {
    let scene = scene(300, 1);
    let mut relays = [scene.careful_relay_process(), scene.careful_relay_process()];
    for (kill, seen) in [50, 120].into_iter().enumerate() {
        assert!(scene.downstream.wait_for(seen, Duration::from_secs(20)));
        relays[kill].kill();
        relays[kill] = scene.careful_relay_process();
    }
    scene.wait_until_settled(Duration::from_secs(60));
    assert!(scene.downstream.active_max() <= 3, "{}", scene.downstream.active_max());
    let at: Vec<Instant> = scene.downstream.requests().iter().map(|request| request.at).collect();
    for (first, began) in at.iter().enumerate() {
        let within = at[first..].iter().take_while(|at| **at - *began < Duration::from_secs(1));
        // The rate, and what was claimed and had not been sent yet.
        assert!(within.count() <= 100 + 3);
    }
}

/// Two relays find out together that the downstream is gone, and together that it is back.
#[test]
fn breaker_is_one_for_all_processes() {
    let scene = scene(200, 1);
    scene.downstream.set_down(true);
    let mut relays = [scene.careful_relay_process(), scene.careful_relay_process()];
    let deadline = Instant::now() + Duration::from_secs(20);
    let paused = || scene.outbox.operations().unwrap()[0].paused;
    while paused() != Some(PauseKind::Breaker) {
        assert!(Instant::now() < deadline);
        let seen = scene.downstream.requests().len();
        scene.downstream.wait_for(seen + 1, Duration::from_millis(100));
    }
    relays[0].kill();
    relays[0] = scene.careful_relay_process();
    // While it is open, one probe at a time.
    let seen = scene.downstream.requests().len();
    assert!(seen <= 10 + 8, "{seen}");
    assert!(scene.downstream.wait_for(seen + 1, Duration::from_secs(20)));
    scene.downstream.set_down(false);
    scene.wait_until_settled(Duration::from_secs(60));
    assert_eq!(paused(), None);
    assert_eq!(scene.downstream.distinct_keys().len(), 200);
    assert!(scene.downstream.requests().len() <= seen + 1 + 200 + 10);
}

/// Two relays race for what is left, and one dies with what it had taken: never more than the
/// budget in any second, never more spent than there is, and what is known to be unused comes back.
#[test]
fn budgets_hold_over_processes_and_a_kill() {
    let scene = scene(200, 2);
    let start = || {
        let mut relay = Process::thrifty_relay(&scene.path);
        relay.waits_until_it_says("started");
        relay
    };
    let mut relays = [start(), start()];
    let conn = Connection::open(&scene.path).unwrap();
    let number = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut killed = false;
    // 300 at 2 each are 150 intents.
    while number("SELECT count(*) FROM outbox_spend") < 150 {
        assert!(Instant::now() < deadline, "{}", number("SELECT count(*) FROM outbox_spend"));
        if !killed && number("SELECT count(*) FROM outbox_receipt") >= 60 {
            relays[0].kill();
            relays[0] = start();
            killed = true;
        }
        std::thread::park_timeout(Duration::from_millis(2));
    }
    drop(relays);
    assert_eq!(number("SELECT sum(cost) FROM outbox_spend"), 300);
    let most = "SELECT max((SELECT count(*) FROM outbox_spend b
                            WHERE b.at > a.at - 1000 AND b.at <= a.at))
                FROM outbox_spend a";
    assert!(number(most) <= 40, "{}", number(most));
    let (id, _) = scene.outbox.why(200, None).unwrap();
    assert_eq!(id, "budget");
}
