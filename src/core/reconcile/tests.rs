//! Rules that hold for every finding.

use std::sync::Arc;

use super::*;
use crate::core::contract::{Downstream, Promise};
use crate::core::outcome::Receipt;

const NOW: i64 = 1_800_000_000_000;
const SETTLE: Duration = Duration::from_secs(120);

fn policy() -> Policy {
    Policy {
        promise: Promise {
            downstream: Downstream::Unprotected,
            time_limit: Duration::from_secs(60),
            reconciles: true,
            repeat_safe: true,
        },
        backoff: Backoff::default(),
        attempts_max: 10,
        give_up_after: Duration::from_secs(72 * 3600),
        retry_after_max: Duration::from_secs(24 * 3600),
        lookup_delay: SETTLE,
        lookups_max: 3,
        repeat_rules: Arc::default(),
    }
}

fn doubtful(lookups: u32) -> Facts {
    let began = NOW - 200_000;
    Facts {
        attempts: 1,
        tries: 1,
        in_doubt_since: Some(began),
        first_sent_at: Some(began),
        claimed_at: NOW,
        lookups,
        ..Facts::default()
    }
}

const LONG_AGO: Observed = Observed { in_doubt_for: SETTLE, may_be_on_its_way: false };

fn found(facts: &Facts, finding: &Finding, observed: Observed) -> Decision {
    decide_finding(facts, finding, observed, &policy(), Draw { now: NOW, roll: 1.0 })
}

fn unsure() -> Finding {
    Finding::Inconclusive(Failure::new("lookup", "answered 500"))
}

#[test]
fn applied_is_settled_whatever_else_is_known() {
    let finding = Finding::Applied(Receipt::new());
    let doubtful_still = Observed { in_doubt_for: Duration::ZERO, may_be_on_its_way: true };
    assert_eq!(found(&doubtful(3), &finding, doubtful_still).status, Status::Succeeded);
}

#[test]
fn not_applied_is_sent_again_with_what_it_has_used() {
    let decision = found(&doubtful(1), &Finding::NotApplied, LONG_AGO);
    assert_eq!((decision.status, decision.due_at), (Status::Pending, Some(NOW)));
    assert_eq!(decision.facts.in_doubt_since, None, "it is not in doubt any more");
    assert_eq!((decision.facts.attempts, decision.facts.lookups), (1, 0));
}

#[test]
fn not_applied_is_not_believed_too_early() {
    let on_its_way = Observed { may_be_on_its_way: true, ..LONG_AGO };
    let decision = found(&doubtful(1), &Finding::NotApplied, on_its_way);
    assert_eq!((decision.status, decision.due_at), (Status::Unknown, Some(NOW + 120_000)));
    assert!(decision.facts.in_doubt_since.is_some());
    // Such lookups are counted too, or it would never end.
    let last = found(&doubtful(3), &Finding::NotApplied, on_its_way);
    assert_eq!((last.status, last.due_at), (Status::NeedsReview, None));
}

#[test]
fn not_applied_found_by_a_relay_that_is_new_to_the_doubt_uses_up_no_lookup() {
    for (known_for, wait) in [(119_999, 1), (100_000, 20_000), (0, 120_000)] {
        let observed = Observed { in_doubt_for: Duration::from_millis(known_for), ..LONG_AGO };
        let decision = found(&doubtful(3), &Finding::NotApplied, observed);
        assert_eq!((decision.status, decision.facts.lookups), (Status::Unknown, 2));
        assert!(decision.facts.in_doubt_since.is_some());
        // It is asked again as soon as this relay can believe it.
        assert_eq!(decision.due_at, Some(NOW + wait));
    }
    let rounded = Observed { in_doubt_for: Duration::from_micros(119_999_001), ..LONG_AGO };
    let decision = found(&doubtful(1), &Finding::NotApplied, rounded);
    assert_eq!(decision.status, Status::Pending);
}

#[test]
fn not_applied_with_its_attempts_used_up_is_dead() {
    for facts in [
        Facts { attempts: 10, ..doubtful(1) },
        Facts { first_sent_at: Some(NOW - 73 * 3_600_000), ..doubtful(1) },
    ] {
        let decision = found(&facts, &Finding::NotApplied, LONG_AGO);
        assert_eq!(decision.status, Status::Dead, "{facts:?}");
    }
    let cancelled = Facts { cancel_requested: true, ..doubtful(1) };
    let decision = found(&cancelled, &Finding::NotApplied, LONG_AGO);
    assert_eq!(decision.status, Status::Cancelled);
}

#[test]
fn inconclusive_is_asked_again_until_the_lookups_are_used_up() {
    let waits = [1, 2].map(|lookups| found(&doubtful(lookups), &unsure(), LONG_AGO).due_at);
    assert_eq!(waits, [Some(NOW + 120_000), Some(NOW + 240_000)]);
    let last = found(&doubtful(3), &unsure(), LONG_AGO);
    assert_eq!(last.status, Status::NeedsReview);
    assert!(last.message.unwrap().contains("used up"));
    assert!(decide_lookups_used_up(&doubtful(3), &policy()).is_some());
    assert!(decide_lookups_used_up(&doubtful(2), &policy()).is_none());
}

#[test]
fn lookup_that_was_not_sent_uses_up_nothing_and_waits_longer_each_time() {
    let offline = Finding::NotAsked(Failure::new("connect", "refused"));
    let (mut facts, mut waits) = (doubtful(0), Vec::new());
    for _ in 0..8 {
        facts.lookups += 1;
        let decision = found(&facts, &offline, LONG_AGO);
        assert_eq!((decision.status, decision.facts.lookups), (Status::Unknown, 0));
        waits.push((decision.due_at.unwrap() - NOW) / 60_000);
        facts = decision.facts;
    }
    assert_eq!(waits, [4, 8, 16, 32, 60, 60, 60, 60], "in minutes, up to an hour");
}

#[test]
fn retry_after_says_when_to_look_up_again() {
    let failure = Failure::new("limited", "answered 429").retry_after(Duration::from_secs(600));
    let decision = found(&doubtful(1), &Finding::Inconclusive(failure), LONG_AGO);
    assert_eq!(decision.due_at, Some(NOW + 600_000));
}
