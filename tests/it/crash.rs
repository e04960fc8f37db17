//! Real processes, killed with SIGKILL at the worst moment.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use sqlite_outbox::rusqlite::Connection;
use sqlite_outbox::{Actor, Filter, Outbox, Status};
use tempfile::TempDir;

use crate::downstream::Downstream;
use crate::process::{Process, expire_leases};
use crate::world::pay;

struct Scene {
    _dir: TempDir,
    path: PathBuf,
    outbox: Outbox,
    downstream: Downstream,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("app.db");
        let outbox = Outbox::open(&path).unwrap();
        Self { _dir: dir, path, outbox, downstream: Downstream::start() }
    }

    fn enqueue(&self, entity: &str) -> i64 {
        self.outbox.transact(|tx| self.outbox.enqueue(tx, &pay(entity))).unwrap().id()
    }

    fn relay(&self, path: &str, downstream: &str) -> Process {
        let mut relay = Process::relay(&self.path, &self.downstream.url(path), downstream);
        relay.waits_until_it_says("started");
        relay
    }

    /// Kills a relay whose request the downstream holds.
    fn kill_in_flight(&self, relay: &mut Process) {
        relay.kill();
        self.downstream.release();
        expire_leases(&self.path, relay.id());
    }

    fn status(&self, id: i64) -> Status {
        self.outbox.entry(id).unwrap().unwrap().status
    }

    fn number(&self, sql: &str) -> i64 {
        Connection::open(&self.path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
    }
}

/// A process that was killed half-way used to lose or double its effect: here the request is
/// sent again with the same key, and the downstream applies it once.
#[test]
fn killed_between_request_and_response_sends_again_with_the_same_key() {
    let scene = Scene::new();
    let (id, other) = (scene.enqueue("a"), scene.enqueue("b"));
    let mut relay = scene.relay("/gate", "deduplicates");
    scene.downstream.wait_for_requests(2);
    scene.kill_in_flight(&mut relay);
    assert_eq!(scene.status(id), Status::InFlight);

    let mut relay = scene.relay("/gate", "deduplicates");
    relay.waits_until_it_says(&format!("{id} succeeded"));
    // Each is claimed alone after a crash, so the second comes after the first.
    relay.waits_until_it_says(&format!("{other} succeeded"));
    assert_eq!(scene.downstream.distinct_keys().len(), 2);
    for id in [id, other] {
        let entry = scene.outbox.entry(id).unwrap().unwrap();
        assert_eq!(scene.downstream.requests_for(&entry.idempotency_key).len(), 2);
        assert_eq!(scene.downstream.effects(&entry.idempotency_key), 1);
        assert_eq!(entry.attempts, 2);
        assert!(entry.downstream_id.is_some());
    }
}

/// A downstream that does not deduplicate has one request after the crash as before it.
#[test]
fn killed_between_request_and_response_never_sends_again_unprotected() {
    let scene = Scene::new();
    let (id, other) = (scene.enqueue("a"), scene.enqueue("b"));
    let mut relay = scene.relay("/gate", "unprotected");
    scene.downstream.wait_for_requests(2);
    scene.kill_in_flight(&mut relay);

    let mut relay = scene.relay("/gate", "unprotected");
    relay.waits_until_it_says(&format!("{id} needs_review"));
    let matched = scene.outbox.replay_all(&Filter::default(), "test", false).unwrap();
    assert!(matched.iter().all(|(_, done)| done.is_err()), "{matched:?}");
    // Another relay that claims to know better obeys the stored contract, and works all the same.
    drop(relay);
    let mut relay = scene.relay("/ok", "deduplicates");
    let fresh = scene.enqueue("c");
    relay.waits_until_it_says(&format!("{fresh} succeeded"));
    assert_eq!(scene.downstream.requests().len(), 3);
    let both = (scene.status(id), scene.status(other));
    assert_eq!(both, (Status::NeedsReview, Status::NeedsReview));
}

/// A row that kills its process every time goes to a person after the third, and its neighbours
/// keep their budget.
#[test]
fn a_row_that_kills_its_process_is_found() {
    let scene = Scene::new();
    let killer = scene.enqueue("killer");
    for kill in 1..=3 {
        let mut relay = scene.relay("/gate", "deduplicates");
        scene.downstream.wait_for_requests(kill);
        relay.kill();
        expire_leases(&scene.path, relay.id());
    }
    scene.downstream.release();
    let neighbour = scene.enqueue("neighbour");
    let mut relay = scene.relay("/gate", "deduplicates");
    relay.waits_until_it_says(&format!("{neighbour} succeeded"));
    assert_eq!(scene.status(killer), Status::NeedsReview);
    assert_eq!(scene.outbox.entry(neighbour).unwrap().unwrap().attempts, 1);
    assert_eq!(scene.downstream.requests().len(), 4);
}

/// The row an operator most wants to stop is always leased or about to be: cancelled while its dead
/// process still holds it, it is not started again. A send was possible, so that a person must look.
#[test]
fn a_row_that_kills_its_process_can_be_cancelled() {
    let scene = Scene::new();
    let killer = scene.enqueue("killer");
    let mut relay = scene.relay("/gate", "deduplicates");
    scene.downstream.wait_for_requests(1);
    relay.kill();
    let requested = scene
        .outbox
        .transact(|tx| {
            scene.outbox.request_cancel(tx, killer, Actor::new("ann").reason("it kills"))
        })
        .unwrap();
    assert_eq!(requested, Status::InFlight, "its owner is dead, its lease is not");
    scene.downstream.release();
    expire_leases(&scene.path, relay.id());
    let mut relay = scene.relay("/gate", "deduplicates");
    relay.waits_until_it_says(&format!("{killer} needs_review"));
    let neighbour = scene.enqueue("neighbour");
    relay.waits_until_it_says(&format!("{neighbour} succeeded"));
    assert_eq!(scene.downstream.requests().len(), 2, "one of each");
    assert_eq!(scene.status(killer), Status::NeedsReview);
}

/// Sends and records in a crowd: two relays and four enqueuers, one of them Python, while relays
/// are killed thirty times and more, some with a request in flight.
#[test]
fn nothing_is_lost_or_doubled_in_a_crowd_under_fire() {
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

    let mut relays: Vec<_> = (0..2).map(|_| scene.relay("/ok", "deduplicates")).collect();
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
        relays[victim] = scene.relay("/ok", "deduplicates");
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

/// What the enqueuers say they committed, and what they rolled back.
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
    let _relay = scene.relay("/ok", "deduplicates");
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
         WHERE status = 'succeeded' AND from_status <> 'succeeded' GROUP BY outbox_id HAVING count(*) > 1)";
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
