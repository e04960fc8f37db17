//! Changing one's mind in one process while another one sends.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use sqlite_outbox::{ErrorKind, Intent, Status};

use crate::support::process::Process;
use crate::support::world::{World, pay, until};

const ROUNDS: usize = 1000;

/// Answers that the caller got to its revisions.
#[derive(Default)]
struct Told {
    /// The old version and the new one.
    accepted: Vec<(i64, i64)>,
    /// Intents for which it was too late.
    too_late: Vec<i64>,
    /// Every version's entity, and its ordering key.
    entities: HashMap<i64, (usize, Option<String>)>,
}

fn intent(number: usize) -> Intent {
    let intent = pay(&number.to_string());
    match ordering_key(number) {
        Some(key) => intent.ordering_key(key),
        None => intent,
    }
}

/// Two in three stand in a line, of which there are five.
fn ordering_key(number: usize) -> Option<String> {
    (!number.is_multiple_of(3)).then(|| format!("k{}", number % 5))
}

/// Enqueues a few at a time and revises each, at once or a moment later.
fn enqueue_and_revise(world: &World) -> Told {
    let outbox = world.on_real_time();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut told, mut number) = (Told::default(), 0);
    while number < ROUNDS {
        let few: Vec<usize> = (number..ROUNDS.min(number + random.usize(1..6))).collect();
        number += few.len();
        let intents: Vec<Intent> = few.iter().map(|&number| intent(number)).collect();
        let enqueued = outbox.transact(|tx| outbox.enqueue_all(tx, &intents)).unwrap();
        for (&number, old) in few.iter().zip(&enqueued) {
            let (old, entity) = (old.id(), (number, ordering_key(number)));
            if told.accepted.len() > told.too_late.len() && random.bool() {
                // The relay is slow: let it get that far.
                let began = Instant::now();
                let waits = || outbox.entry(old).unwrap().unwrap().status == Status::Pending;
                while waits() && began.elapsed() < Duration::from_millis(20) {}
            }
            let next = intent(number).args(serde_json::json!({ "amount": 1 }));
            let revised = outbox.transact(|tx| outbox.revise(tx, old, 1, &next, "test"));
            told.entities.insert(old, entity.clone());
            match revised {
                Ok(new) => {
                    told.entities.insert(new.id(), entity);
                    told.accepted.push((old, new.id()));
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::TooLate, "{error}");
                    told.too_late.push(old);
                }
            }
        }
    }
    told
}

/// Once a revision is accepted, the old version is not sent any more; if it is too late, the old
/// one was sent. Never both, never neither, and each line in its order.
#[test]
fn revise_race_carries_out_one_of_two_versions() {
    let world = World::new();
    let mut relay = Process::telling_relay(&world.path());
    relay.waits_until_it_says("started");
    let told = enqueue_and_revise(&world);
    until(|| world.number("SELECT count(*) FROM outbox_lease") == 0);
    relay.kill();
    let mut sent: HashMap<i64, Vec<(usize, bool)>> = HashMap::new();
    let mut lines: HashMap<String, Vec<usize>> = HashMap::new();
    let mut place = 0;
    while let Some(said) = relay.says() {
        let Some((id, how)) = said.strip_prefix("sent ").and_then(|said| said.split_once(' '))
        else {
            continue;
        };
        let (id, applied) = (id.parse().unwrap(), how == "applied");
        sent.entry(id).or_default().push((place, applied));
        place += 1;
        let (number, key) = &told.entities[&id];
        if let Some(key) = key {
            lines.entry(key.clone()).or_default().push(*number);
        }
    }
    let applied = |id: i64| sent.get(&id).map_or(0, |s| s.iter().filter(|(_, a)| *a).count());
    for &(old, new) in &told.accepted {
        assert_eq!((applied(old), applied(new)), (0, 1), "{old} was revised by {new}");
        let last_of_old = sent.get(&old).and_then(|sent| sent.last()).map(|(place, _)| *place);
        assert!(last_of_old < Some(sent[&new][0].0), "{old} was sent after {new}");
        assert_eq!(world.entry(old).status, Status::Cancelled);
        assert_eq!(world.entry(new).status, Status::Succeeded);
    }
    for &old in &told.too_late {
        assert_eq!(applied(old), 1, "{old} was too late to revise");
        assert_eq!(world.entry(old).revised_by, None);
    }
    for (key, line) in &lines {
        assert!(line.is_sorted(), "{key}: {line:?}");
    }
    assert_eq!(lines.len(), 5);
    let (accepted, too_late) = (told.accepted.len(), told.too_late.len());
    println!("{accepted} accepted, {too_late} too late");
    assert_eq!(accepted + too_late, ROUNDS);
    assert!(accepted >= 50 && too_late >= 50, "hardly a race: {accepted}, {too_late}");
}
