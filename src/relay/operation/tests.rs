use super::*;
use crate::core::decide::decide;
use crate::core::{Draw, Facts, Failure, Outcome, Status};

const NOW: i64 = 1_800_000_000_000;
const OUTAGE_MS: i64 = 3 * 3_600_000;

/// When the attempts of one intent are made while each of them fails, until one comes after the
/// outage; `None` where the intent is given up before.
fn outlives(policy: &Policy, fails: &Outcome, random: &mut fastrand::Rng) -> Option<Vec<i64>> {
    let mut facts = Facts::default();
    let mut tries = vec![NOW];
    while let Some(&now) = tries.last().filter(|&&at| at < NOW + OUTAGE_MS) {
        facts.claimed_at = now;
        facts.attempts += 1;
        facts.tries += 1;
        let decision = decide(&facts, fails, policy, Draw { now, roll: random.f64() });
        if decision.status != Status::Pending {
            return None;
        }
        tries.extend(decision.due_at);
        facts = decision.facts;
    }
    Some(tries)
}

/// An intent with default settings was given up within minutes of a failed deploy, long before
/// anybody had seen it.
#[test]
fn default_retries_outlast_an_outage_of_three_hours() {
    let day = Duration::from_secs(24 * 3600);
    let answered = || Failure::new("transient", "answered");
    for (downstream, fails) in [
        (Downstream::DeduplicatesByKey { window: day }, Outcome::MaybeSent(answered())),
        (Downstream::Unprotected, Outcome::Transient(answered())),
    ] {
        let send = |_: &Delivery| Outcome::Rejected(Failure::new("test", "not called"));
        let policy = Operation::new(downstream, send).rules("pay").policy;
        let mut random = fastrand::Rng::with_seed(7);
        let draws: Vec<_> = (0..2000).map(|_| outlives(&policy, &fails, &mut random)).collect();
        let outlived: Vec<_> = draws.iter().flatten().collect();
        assert!(outlived.len() >= 1980, "{} of 2000 draws, {downstream:?}", outlived.len());
        for tries in outlived {
            assert!(tries[3] - tries[0] <= 14_000, "three retries come within seconds: {tries:?}");
        }
    }
}
