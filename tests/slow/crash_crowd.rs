//! A crowd of processes that are killed with SIGKILL all the time.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::Command;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{Filter, Status};

use crate::support::downstream::Downstream;
use crate::support::needs;
use crate::support::process::{Process, expire_leases};
use crate::support::scene::Scene;
use crate::support::world::pay;

/// Sends and records in a crowd: two relays and four enqueuers, one of them Python, while relays
/// are killed thirty times and more, some with a request in flight.
#[test]
fn crash_crowd_loses_and_doubles_nothing() {
    if !needs::has("python3") {
        return;
    }
    let seed: u64 = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let scene = Scene::new();
    Connection::open(&scene.path)
        .unwrap()
        .execute_batch("CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT)")
        .unwrap();
    // A few rows go to a place where the downstream holds the request, so that their relay can be
    // killed between sending and recording.
    let held = scene.downstream.url("/gate");
    for n in 0..8 {
        let intent = pay(&format!("held-{n}")).tenant("acme").endpoint(&held);
        scene.outbox.transact(|tx| scene.outbox.enqueue(tx, &intent)).unwrap();
    }
    let enqueuers: Vec<_> =
        ["r1", "r2", "r3"].map(|name| Process::enqueuer(&scene.path, name, 2500)).into();
    let python = python_enqueuer(&scene.path, 2500);
    let committed = std::thread::spawn(move || collect(enqueuers));

    let mut relays: Vec<_> = (0..2).map(|_| scene.relay_process("/ok", "deduplicates")).collect();
    let (mut kills, mut kills_in_flight) = (0, 0);
    while kills < 30 || kills_in_flight < 5 {
        let seen = scene.downstream.requests().len();
        let more = random.usize(50..250);
        // Where all is done, the rest of the kills hits idle relays, which is fine too.
        scene.downstream.wait_for(seen + more, std::time::Duration::from_millis(300));
        let victim = match held_by(&scene.downstream) {
            Some(pid) if kills_in_flight < 5 => {
                kills_in_flight += 1;
                relays.iter().position(|relay| relay.id() == pid)
            }
            _ => Some(random.usize(0..2)),
        };
        let Some(victim) = victim else { continue };
        relays[victim].kill();
        expire_leases(&scene.path, relays[victim].id());
        relays[victim] = scene.relay_process("/ok", "deduplicates");
        kills += 1;
    }
    scene.downstream.release();
    let committed = committed.join().unwrap();
    let python = python.wait_with_output().unwrap();
    assert!(python.status.success());
    drop(relays);
    finish(&scene);
    println!("{kills} kills, {kills_in_flight} of them in flight");
    assert_nothing_lost_or_doubled(&scene, &committed);
}

/// The relay whose request is held for the first time.
fn held_by(downstream: &Downstream) -> Option<u32> {
    let requests = downstream.requests();
    let held = requests.iter().rev().find(|r| r.path == "/gate")?;
    let first = requests.iter().filter(|r| r.key == held.key).count() == 1;
    first.then(|| held.header("x-relay").and_then(|pid| pid.parse().ok()))?
}

fn python_enqueuer(path: &Path, count: usize) -> std::process::Child {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/enqueue.py");
    Command::new("python3")
        .arg(script)
        .arg(path)
        .args(["0", &count.to_string()])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

/// Entities that the enqueuers say they committed, and those they rolled back.
#[derive(Default)]
struct Said {
    committed: HashSet<String>,
    rolled_back: HashSet<String>,
}

fn collect(enqueuers: Vec<Process>) -> Said {
    let mut said = Said::default();
    for mut enqueuer in enqueuers {
        while let Some(line) = enqueuer.says() {
            let (word, entity) = line.split_once(' ').unwrap();
            let set = if word == "committed" { &mut said.committed } else { &mut said.rolled_back };
            set.insert(entity.to_owned());
        }
    }
    said
}

/// Lets a last relay finish everything, replaying what lost its process too often.
fn finish(scene: &Scene) {
    for owner in scene.owners() {
        expire_leases(&scene.path, owner);
    }
    let _relay = scene.relay_process("/ok", "deduplicates");
    let (mut least, mut since) = (i64::MAX, std::time::Instant::now());
    loop {
        let review = Filter::default().status(Status::NeedsReview);
        scene.outbox.replay_all(&review, "test", false).unwrap();
        let left = scene.number("SELECT count(*) FROM outbox_lease");
        if left == 0 {
            return;
        }
        // A busy machine may take its time, as long as it gets on.
        if left < least {
            (least, since) = (left, std::time::Instant::now());
        }
        let still = || scene.outbox.stats().unwrap();
        assert!(since.elapsed().as_secs() < 60, "no progress: {:?}", still());
        // The downstream hears of every step towards the end.
        let seen = scene.downstream.requests().len();
        scene.downstream.wait_for(seen + 1, std::time::Duration::from_millis(200));
    }
}

impl Scene {
    /// The processes that hold leases.
    fn owners(&self) -> Vec<u32> {
        let conn = Connection::open(&self.path).unwrap();
        let mut statement = conn
            .prepare("SELECT DISTINCT owner FROM outbox_lease WHERE owner IS NOT NULL")
            .unwrap();
        let owners = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
        owners.map(|o| o.unwrap().split('-').nth(1).unwrap().parse().unwrap()).collect()
    }
}

fn assert_nothing_lost_or_doubled(scene: &Scene, said: &Said) {
    let conn = Connection::open(&scene.path).unwrap();
    let mut statement = conn
        .prepare("SELECT entity_id, idempotency_key, ordering_key, status, id FROM outbox_status")
        .unwrap();
    let rows: Vec<(String, String, Option<String>, String, i64)> = statement
        .query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?, r.get(4)?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let entities: HashSet<&str> = rows.iter().map(|row| row.0.as_str()).collect();
    assert!(said.committed.iter().all(|entity| entities.contains(entity.as_str())));
    assert!(said.rolled_back.iter().all(|entity| !entities.contains(entity.as_str())));
    assert_eq!(rows.len(), said.committed.len() + 2500 + 8);
    assert_eq!(scene.number("SELECT count(*) FROM orders") + 8, i64::try_from(rows.len()).unwrap());
    for (entity, key, _, status, _) in &rows {
        assert_eq!(status, "succeeded", "{entity}");
        assert_eq!(scene.downstream.effects(key), 1, "{entity}");
    }
    assert_eq!(scene.downstream.distinct_keys().len(), rows.len());
    assert_order_kept(scene, &rows);
    let settled_twice = "SELECT count(*) FROM (SELECT outbox_id FROM outbox_event
         WHERE status = 'succeeded' AND from_status <> 'succeeded'
         GROUP BY outbox_id HAVING count(*) > 1)";
    assert_eq!(scene.number(settled_twice), 0);
    let falling = "SELECT count(*) FROM outbox_event a JOIN outbox_event b
         ON b.outbox_id = a.outbox_id AND b.seq > a.seq AND b.token <= a.token
         WHERE a.kind IN ('attempt', 'lease_lost') AND b.kind IN ('attempt', 'lease_lost')";
    assert_eq!(scene.number(falling), 0);
    let shared = "SELECT count(*) FROM (SELECT token FROM outbox_event WHERE kind = 'attempt'
         GROUP BY token HAVING count(DISTINCT actor) > 1)";
    assert_eq!(scene.number(shared), 0);
    assert_eq!(
        conn.query_row("PRAGMA integrity_check", [], |r| r.get::<_, String>(0)).unwrap(),
        "ok"
    );
}

/// Within a key, effects happened in the order of the rows.
fn assert_order_kept(scene: &Scene, rows: &[(String, String, Option<String>, String, i64)]) {
    let mut first_seen: HashMap<String, usize> = HashMap::new();
    for (place, request) in scene.downstream.requests().iter().enumerate() {
        first_seen.entry(request.key.clone()).or_insert(place);
    }
    let mut lines: HashMap<&str, Vec<(i64, usize)>> = HashMap::new();
    for (_, key, ordering_key, _, id) in rows {
        if let Some(ordering_key) = ordering_key {
            lines.entry(ordering_key).or_default().push((*id, first_seen[key]));
        }
    }
    assert!(lines.len() >= 14);
    for (ordering_key, mut line) in lines {
        line.sort_unstable();
        assert!(line.is_sorted_by_key(|(_, place)| place), "{ordering_key}");
    }
}
