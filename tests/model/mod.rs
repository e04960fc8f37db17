//! A state machine of all that can happen to intents, driven at random against the real store.
//!
//! Two relays, an application and persons do what they can do in any order, clocks jump, relays
//! crash, requests come late; after every step the file is read and every rule of `check` must
//! hold, and in the end everything heals. Threads, handlers and the wire, which are not the
//! store's, are played.
//!
//! The seed is fixed, so that a failure is the same everywhere; `OUTBOX_MACHINE_SEED` takes
//! another, and `OUTBOX_MACHINE_SEQUENCES` another number of sequences. A failure prints the
//! shortest sequence it was found to come from. The long run is among the slow tests.

mod bench;
mod check;
mod downstream;
mod found;
mod knowledge;
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
use verb::Move;

const SEED: u64 = 20_260_101;
/// Sequences of a usual run, which is over in seconds.
const SEQUENCES: u64 = 300;
const STEPS: usize = 50;

#[test]
fn every_rule_holds_after_every_step() {
    assert_holds(from_environment("OUTBOX_MACHINE_SEQUENCES").unwrap_or(SEQUENCES));
}

/// The full number of sequences, in which everything is reached.
#[cfg(feature = "slow-tests")]
mod slow {
    use super::verb::Verb;
    use super::*;

    const SEQUENCES: u64 = 4000;

    #[test]
    fn every_rule_holds_in_4000_sequences_which_reach_all_moves() {
        let made = assert_holds(SEQUENCES);
        // The table is no wider than what happens.
        let missing: Vec<Move> = Verb::all_moves().filter(|m| !made.contains(m)).collect();
        assert!(missing.is_empty() || seed() != SEED, "no sequence makes these moves: {missing:?}");
    }

    /// Only rare sequences have a relay write under another's claim.
    #[test]
    fn a_store_that_compares_no_tokens_is_found_out() {
        let checks = ["promise", "one_effect", "status_is_true", "nothing_is_given_up_in_doubt"];
        assert_caught(Mutant::NoTokenCompare, SEQUENCES, &checks);
    }
}

fn assert_holds(sequences: u64) -> BTreeSet<Move> {
    search(None, sequences).unwrap_or_else(|failure| panic!("{}", failure.explain()))
}

#[test]
fn a_store_that_knows_of_no_window_is_found_out() {
    assert_caught(Mutant::NoWindow, SEQUENCES, &["promise", "one_effect"]);
}

#[test]
fn two_heads_of_one_key_are_found_out() {
    assert_caught(Mutant::TwoHeads, SEQUENCES, &["one_head", "only_heads_act"]);
}

#[test]
fn two_suspects_at_a_time_are_found_out() {
    assert_caught(Mutant::ManySuspects, SEQUENCES, &["one_suspect"]);
}

#[test]
fn a_store_that_loses_what_it_kept_is_found_out() {
    assert_caught(Mutant::NoProof, SEQUENCES, &["proof_is_kept"]);
}

#[test]
fn a_hold_on_all_origins_is_found_out() {
    assert_caught(Mutant::OneBreaker, 4 * SEQUENCES, &["faults_stay"]);
}

#[test]
fn a_ledger_that_forgets_is_found_out() {
    assert_caught(Mutant::NoLedger, 4 * SEQUENCES, &["budget"]);
}

#[test]
fn a_clock_that_is_set_unnoticed_is_found_out() {
    assert_caught(Mutant::NoSteps, 4 * SEQUENCES, &["budget"]);
}

fn assert_caught(mutant: Mutant, sequences: u64, checks: &[&str]) {
    let Err(failure) = search(Some(mutant), sequences) else {
        panic!("no check finds {mutant:?}");
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
