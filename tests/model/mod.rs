//! A state machine of all that can happen to intents, driven at random against the real store.
//!
//! Two relays, an application and persons do what they can do in any order, clocks jump, relays crash,
//! requests come late; after every step the file is read and every rule of `check` must hold, and in
//! the end everything heals. What is not the store's (threads, handlers, the wire) is played.
//!
//! The seed is fixed, so that a failure is the same everywhere; `OUTBOX_MACHINE_SEED` takes another,
//! and `OUTBOX_MACHINE_SEQUENCES` more sequences. A failure prints the shortest sequence it was found
//! to come from.

mod bench;
mod check;
mod downstream;
mod found;
mod model;
mod op;
mod person;
mod relay;
mod sequence;
mod snapshot;
mod verb;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use bench::{Bench, Mutant, Setup};
use check::{Checked, Violation};
use op::Op;
use sequence::Machine;
use verb::{Move, Verb};

const SEED: u64 = 20_260_101;
const SEQUENCES: u64 = 2000;
const STEPS: usize = 50;

#[test]
fn every_rule_holds_after_every_step() {
    let sequences = from_environment("OUTBOX_MACHINE_SEQUENCES").unwrap_or(SEQUENCES);
    let made = match search(None, sequences) {
        Ok(made) => made,
        Err(failure) => panic!("{}", failure.explain()),
    };
    // The table is no wider than what happens, and the usual sequences reach all of it.
    let missing: Vec<Move> = Verb::all_moves().filter(|m| !made.contains(m)).collect();
    let is_usual = seed() == SEED && sequences >= SEQUENCES;
    assert!(missing.is_empty() || !is_usual, "nobody made these moves: {missing:?}");
}

#[test]
fn a_store_that_compares_no_tokens_is_found_out() {
    let checks = ["promise", "one_effect", "status_is_true", "nothing_is_given_up_in_doubt"];
    assert_caught(Mutant::NoTokenCompare, &checks);
}

#[test]
fn a_store_that_knows_of_no_window_is_found_out() {
    assert_caught(Mutant::NoWindow, &["promise", "one_effect"]);
}

#[test]
fn two_heads_of_one_key_are_found_out() {
    assert_caught(Mutant::TwoHeads, &["one_head", "only_heads_act"]);
}

fn assert_caught(mutant: Mutant, checks: &[&str]) {
    let Err(failure) = search(Some(mutant), SEQUENCES) else {
        panic!("nobody noticed {mutant:?}");
    };
    let check = failure.violation.check;
    assert!(checks.contains(&check), "{mutant:?}: {}", failure.explain());
}

/// A sequence after which a rule does not hold.
struct Failure {
    mutant: Option<Mutant>,
    seed: u64,
    setup: Setup,
    ops: Vec<Op>,
    violation: Violation,
}

/// Runs sequences, on as many threads as there are processors, until one fails. Returns the moves
/// that were made.
fn search(mutant: Option<Mutant>, sequences: u64) -> Result<BTreeSet<Move>, Failure> {
    let seed = seed();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(8)) as u64;
    let is_over = AtomicBool::new(false);
    let run = |thread: u64| {
        let mut bench = Bench::new(mutant);
        let seeds = (seed..seed + sequences).filter(|seed| seed % threads == thread);
        for seed in seeds.take_while(|_| !is_over.load(Ordering::Relaxed)) {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (setup, mut ops) = (Setup::random(&mut rng), Vec::new());
            let mut machine = Machine::new(&mut bench, setup, mutant);
            if let Err(violation) = machine.run_random(&mut rng, STEPS, &mut ops) {
                is_over.store(true, Ordering::Relaxed);
                return Err(Failure { mutant, seed, setup, ops, violation });
            }
        }
        Ok(bench.moves)
    };
    std::thread::scope(|scope| {
        let found: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let found = found.into_iter().map(|thread| thread.join().expect("a thread that ends"));
        found.collect::<Result<Vec<_>, _>>().map(|moves| moves.into_iter().flatten().collect())
    })
}

fn run(bench: &mut Bench, setup: Setup, mutant: Option<Mutant>, ops: &[Op]) -> Checked {
    Machine::new(bench, setup, mutant).run(ops)
}

impl Failure {
    fn explain(self) -> String {
        let seed = self.seed;
        let shortest = self.shortened();
        let steps: Vec<String> = shortest.ops.iter().map(|op| format!("    {op:?},")).collect();
        format!(
            "{}\nOUTBOX_MACHINE_SEED={seed}, {:?}:\n{}",
            shortest.violation,
            shortest.setup,
            steps.join("\n")
        )
    }

    /// Takes out what it fails without, larger parts first.
    fn shortened(mut self) -> Self {
        let mut bench = Bench::new(self.mutant);
        let mut size = self.ops.len() / 2;
        while size > 0 {
            let length = self.ops.len();
            let mut at = 0;
            while at < self.ops.len() {
                let mut shorter = self.ops.clone();
                shorter.drain(at..(at + size).min(self.ops.len()));
                match run(&mut bench, self.setup, self.mutant, &shorter) {
                    Err(violation) if violation.check == self.violation.check => {
                        (self.ops, self.violation) = (shorter, violation);
                    }
                    _ => at += size,
                }
            }
            if size > 1 || self.ops.len() == length {
                size /= 2;
            }
        }
        self
    }
}

fn seed() -> u64 {
    from_environment("OUTBOX_MACHINE_SEED").unwrap_or(SEED)
}

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
}
