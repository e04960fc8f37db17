//! Rules that hold for every row, outcome and policy.

use proptest::prelude::*;

use super::*;
use crate::core::backoff::Jitter;
use crate::core::outcome::Receipt;
use crate::core::verbs::replay;

const NOW: i64 = 1_800_000_000_000;
const HOUR: i64 = 3_600_000;

fn facts() -> impl Strategy<Value = Facts> {
    let before = || NOW - 100 * HOUR..=NOW;
    (
        1_u32..30,
        0_u32..30,
        0_u32..5,
        prop::option::of(before()),
        prop::option::of(before()),
        prop::option::of(NOW - HOUR..NOW + HOUR),
        before(),
    )
        .prop_map(
            |(attempts, more, lost, in_doubt_since, first_sent_at, expires_at, claimed_at)| {
                let tries = attempts + more;
                Facts {
                    attempts,
                    tries,
                    lost,
                    in_doubt_since,
                    first_sent_at,
                    expires_at,
                    claimed_at,
                    lookups: 0,
                    cancel_requested: false,
                    ..Facts::default()
                }
            },
        )
}

fn failure() -> impl Strategy<Value = Failure> {
    let class = prop::sample::select(vec!["timeout", "conflict", "limited", "not_reached"]);
    let waits = prop::option::of(0_u64..200_000);
    (class, waits, any::<bool>()).prop_map(|(class, retry_after, is_of_read)| {
        let failure = Failure { is_of_read, ..Failure::new(class, "it failed") };
        match retry_after {
            Some(seconds) => failure.retry_after(Duration::from_secs(seconds)),
            None => failure,
        }
    })
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        Just(Outcome::Succeeded(Receipt::new())),
        failure().prop_map(Outcome::NotSent),
        failure().prop_map(Outcome::MaybeSent),
        failure().prop_map(Outcome::Transient),
        failure().prop_map(Outcome::Limited),
        failure().prop_map(Outcome::Rejected),
        failure().prop_map(Outcome::NeedsReview),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    let window = (1_u64..200).prop_map(|hours| Downstream::DeduplicatesByKey {
        window: Duration::from_secs(hours * 3600),
    });
    let downstream = prop_oneof![Just(Downstream::Unprotected), window];
    let jitter = prop::sample::select(vec![Jitter::Full, Jitter::Equal, Jitter::None]);
    let exponential =
        (1_u64..100_000, 0_u64..10_000_000, jitter).prop_map(|(base, more, jitter)| {
            let (base, cap) = (Duration::from_millis(base), Duration::from_millis(base + more));
            Backoff::Exponential { base, cap, jitter }
        });
    let schedule = prop::collection::vec((0_u64..100_000).prop_map(Duration::from_secs), 1..6);
    let backoff = prop_oneof![exponential, schedule.prop_map(Backoff::Schedule)];
    (downstream, backoff, 1_u32..20, 1_u64..200, 1_u64..48).prop_map(
        |(downstream, backoff, attempts_max, give_up, retry_after)| Policy {
            promise: Promise {
                downstream,
                time_limit: Duration::from_secs(60),
                reconciles: attempts_max % 2 == 0,
                repeat_safe: give_up % 2 == 0,
            },
            backoff,
            attempts_max,
            give_up_after: Duration::from_secs(give_up * 3600),
            retry_after_max: Duration::from_secs(retry_after * 3600),
            lookup_delay: Duration::from_secs(120),
            lookups_max: 8,
            repeat_rules: Arc::default(),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn request_is_repeated_only_where_it_is_safe(
        facts in facts(), outcome in outcome(), policy in policy(), roll in 0.0..1.0,
    ) {
        let decision = decide(&facts, &outcome, &policy, Draw { now: NOW, roll });
        let is_read = outcome.failure().is_some_and(|failure| failure.is_of_read);
        let is_repeated_read = is_read
            && policy.promise.repeat_safe
            && policy.promise.downstream == Downstream::Unprotected
            && facts.in_doubt_since.is_none();
        if matches!(outcome, Outcome::MaybeSent(_)) && !is_repeated_read {
            prop_assert!(decision.facts.in_doubt_since.is_some());
            if policy.promise.downstream == Downstream::Unprotected {
                // Without a lookup only a person can find out.
                let reconciles = policy.promise.reconciles;
                let status = if reconciles { Status::Unknown } else { Status::NeedsReview };
                prop_assert_eq!(decision.status, status);
            }
        }
        let lost = decide_lost(&facts, Lost::Expired, &policy, NOW);
        if policy.promise.downstream == Downstream::Unprotected {
            prop_assert_ne!(lost.status, Status::Pending);
        }
        // Whatever is pending is asked about once more, and then nothing in doubt goes to a
        // downstream that does not deduplicate, or that may have forgotten the key.
        let stopped = decide_stopped(&facts, &policy, NOW);
        prop_assert_eq!(stopped.facts.lost, facts.lost, "no process died");
        if policy.promise.downstream == Downstream::Unprotected {
            prop_assert_ne!(stopped.status, Status::Pending);
        }
        for decision in [decision, lost, stopped] {
            let Some(since) = decision.facts.in_doubt_since else { continue };
            let may_be_sent = decision.status == Status::Pending
                && decide_before_send(&decision.facts, &policy, NOW).is_none();
            if may_be_sent {
                let Downstream::DeduplicatesByKey { window } = policy.promise.downstream else {
                    let why = "an unprotected downstream would be asked twice";
                    return Err(TestCaseError::fail(why));
                };
                prop_assert!(NOW + millis(policy.promise.time_limit) <= since + millis(window));
            }
        }
    }

    #[test]
    fn doubt_is_never_buried_or_forgotten(
        facts in facts(), outcome in outcome(), policy in policy(), roll in 0.0..1.0,
    ) {
        let before_send = decide_before_send(&facts, &policy, NOW);
        let told = decide(&facts, &outcome, &policy, Draw { now: NOW, roll });
        let lost = decide_lost(&facts, Lost::Died, &policy, NOW);
        let stopped = decide_stopped(&facts, &policy, NOW);
        for decision in [told, lost, stopped].into_iter().chain(before_send) {
            if let Some(since) = facts.in_doubt_since {
                prop_assert_eq!(decision.facts.in_doubt_since, Some(since));
            }
            if decision.facts.in_doubt_since.is_some() {
                prop_assert_ne!(decision.status, Status::Dead);
            }
            prop_assert_ne!(decision.status, Status::InFlight);
            // Only a row that was definitely not applied is withdrawn, and only on request.
            let may_be_cancelled =
                facts.cancel_requested && decision.facts.in_doubt_since.is_none();
            prop_assert!(decision.status != Status::Cancelled || may_be_cancelled);
        }
    }

    #[test]
    fn cancel_request_prevents_the_next_attempt(
        facts in facts(), outcome in outcome(), policy in policy(), roll in 0.0..1.0,
    ) {
        let facts = Facts { cancel_requested: true, ..facts };
        let before_send = decide_before_send(&facts, &policy, NOW).expect("it is withheld");
        let lost = decide_lost(&facts, Lost::Expired, &policy, NOW);
        let told = decide(&facts, &outcome, &policy, Draw { now: NOW, roll });
        let stopped = decide_stopped(&facts, &policy, NOW);
        for decision in [before_send, lost, stopped, told] {
            prop_assert_ne!(decision.status, Status::Pending);
        }
    }

    #[test]
    fn unknown_is_only_where_a_lookup_can_be_made(
        facts in facts(), outcome in outcome(), policy in policy(), roll in 0.0..1.0,
    ) {
        let decision = decide(&facts, &outcome, &policy, Draw { now: NOW, roll });
        if decision.status == Status::Unknown {
            prop_assert!(policy.promise.reconciles);
            prop_assert_eq!(decision.due_at, Some(NOW + millis(policy.lookup_delay)));
            prop_assert_eq!(decision.facts.lookups, 0, "its lookups begin anew");
        }
    }

    #[test]
    fn pending_is_due_later_and_within_its_attempts(
        facts in facts(), outcome in outcome(), policy in policy(), roll in 0.0..1.0,
    ) {
        let decision = decide(&facts, &outcome, &policy, Draw { now: NOW, roll });
        let comes_due = matches!(decision.status, Status::Pending | Status::Unknown);
        prop_assert_eq!(decision.due_at.is_some(), comes_due);
        prop_assert_eq!(decision.facts.lost, 0);
        prop_assert!(decision.facts.attempts <= facts.attempts);
        let (Status::Pending, Some(due_at)) = (decision.status, decision.due_at) else {
            return Ok(());
        };
        prop_assert!(due_at >= NOW);
        let is_not_reached = matches!(&outcome, Outcome::Transient(f) if f.is_not_reached());
        if !is_not_reached && !matches!(outcome, Outcome::NotSent(_)) {
            prop_assert!(decision.facts.attempts < policy.attempts_max);
            let first = decision.facts.first_sent_at.expect("it was sent");
            prop_assert!(due_at <= first + millis(policy.give_up_after));
        }
        if let Some(asked) = outcome.failure().and_then(|failure| failure.retry_after) {
            prop_assert!(due_at >= NOW + millis(asked.min(policy.retry_after_max)));
            // Never longer than the cap, unless the backoff itself is.
            let backoff = policy.backoff.delay(u32::MAX, 1.0).max(policy.backoff.delay(1, 1.0));
            if let Backoff::Exponential { .. } = policy.backoff {
                // What was asked for is spread by up to a quarter.
                let asked_max = policy.retry_after_max.saturating_add(policy.retry_after_max / 4);
                prop_assert!(due_at <= NOW + millis(asked_max.max(backoff)));
            }
        }
    }

    #[test]
    fn not_sent_is_tried_forever(
        facts in facts(), failure in failure(), policy in policy(), roll in 0.0..1.0,
    ) {
        let decision = decide(&facts, &Outcome::NotSent(failure), &policy, Draw { now: NOW, roll });
        // A row in doubt is looked up instead, before its key is forgotten.
        if decision.status != Status::Pending {
            prop_assert_eq!(decision.status, Status::Unknown);
            prop_assert!(facts.in_doubt_since.is_some() && policy.promise.reconciles);
        }
        prop_assert_eq!(decision.facts.attempts, facts.attempts - 1);
        prop_assert_eq!(decision.facts.tries, facts.tries);
        prop_assert_eq!(decision.facts.first_sent_at, facts.first_sent_at);
    }

    #[test]
    fn no_backoff_reaches_past_the_key_window_where_a_lookup_can_be_made(
        facts in facts(), outcome in outcome(), policy in policy(), roll in 0.0..1.0,
    ) {
        let decision = decide(&facts, &outcome, &policy, Draw { now: NOW, roll });
        if let (Status::Pending, Some(due_at), Some(since), true) = (
            decision.status,
            decision.due_at,
            decision.facts.in_doubt_since,
            policy.promise.reconciles,
        ) {
            prop_assert!(may_repeat(since, policy.promise, due_at));
        }
    }

    /// Two losses are free; each of the next three was one of the suspect.
    #[test]
    fn crash_loop_ends_after_three_strikes_of_the_suspect(
        facts in facts(), policy in policy(),
    ) {
        let decision = decide_lost(&facts, Lost::Died, &policy, NOW);
        prop_assert_eq!(decision.facts.lost, facts.lost + 1);
        prop_assert!(decision.facts.attempts == facts.attempts, "the claim has counted it");
        let ends_here = decision.message.as_ref().is_some_and(|text| text.contains("three times"));
        prop_assert_eq!(ends_here, facts.lost >= 4);
        if ends_here {
            prop_assert_eq!(decision.status, Status::NeedsReview);
        } else {
            let stopped = decide_stopped(&facts, &policy, NOW);
            prop_assert_eq!((decision.status, decision.due_at), (stopped.status, stopped.due_at));
        }
        if decision.status == Status::Pending {
            prop_assert_eq!(decision.due_at, Some(NOW));
        }
    }

    #[test]
    fn replay_is_allowed_only_where_it_is_safe(facts in facts(), policy in policy()) {
        for &status in Status::ALL {
            let may = replay(status, &facts, policy.promise, NOW).is_ok();
            prop_assert!(!may || matches!(status, Status::Dead | Status::NeedsReview));
            if may && status == Status::NeedsReview {
                prop_assert_ne!(policy.promise.downstream, Downstream::Unprotected);
            }
        }
    }
}

/// Attempts that never left do not use the time to give up, which begins with the first
/// attempt that may have left.
/// A read is tried again by the usual rules, without a doubt; and is dead when it is given up.
#[test]
fn read_is_tried_again_until_its_attempts_are_used_up() {
    let mut policy = Policy {
        promise: Promise {
            downstream: Downstream::Unprotected,
            time_limit: Duration::from_secs(5),
            reconciles: false,
            repeat_safe: true,
        },
        backoff: Backoff::Schedule(vec![Duration::from_secs(10)]),
        attempts_max: 3,
        give_up_after: Duration::from_secs(3600),
        retry_after_max: Duration::from_secs(3600),
        lookup_delay: Duration::from_secs(10),
        lookups_max: 8,
        repeat_rules: Arc::default(),
    };
    let failure = Failure { is_of_read: true, ..Failure::new("timeout", "no answer") };
    let outcome = Outcome::MaybeSent(failure);
    let draw = Draw { now: NOW, roll: 0.0 };
    for (attempts, expected) in [(1, Status::Pending), (2, Status::Pending), (3, Status::Dead)] {
        let facts = Facts { attempts, tries: attempts, claimed_at: NOW, ..Facts::default() };
        let decision = decide(&facts, &outcome, &policy, draw);
        assert_eq!((decision.status, decision.facts.in_doubt_since), (expected, None));
        let in_doubt = Facts { in_doubt_since: Some(NOW - 1), ..facts };
        assert_eq!(decide(&in_doubt, &outcome, &policy, draw).status, Status::NeedsReview);
    }
    policy.promise.repeat_safe = false;
    let facts = Facts { attempts: 1, tries: 1, claimed_at: NOW, ..Facts::default() };
    assert_eq!(decide(&facts, &outcome, &policy, draw).status, Status::NeedsReview);
}

#[test]
fn give_up_after_counts_from_the_first_request() {
    let policy = Policy {
        promise: Promise {
            downstream: Downstream::DeduplicatesByKey { window: Duration::from_secs(86_400) },
            time_limit: Duration::from_secs(5),
            reconciles: true,
            repeat_safe: true,
        },
        backoff: Backoff::Schedule(vec![Duration::from_secs(10)]),
        attempts_max: 100,
        give_up_after: Duration::from_secs(60),
        retry_after_max: Duration::from_secs(3600),
        lookup_delay: Duration::from_secs(10),
        lookups_max: 8,
        repeat_rules: Arc::default(),
    };
    let at = |now| Draw { now, roll: 0.0 };
    let offline = Outcome::NotSent(Failure::new("connect", "refused"));
    let transient = Outcome::Transient(Failure::new("transient", "answered 408"));
    let mut facts = Facts { claimed_at: NOW, attempts: 1, tries: 1, ..Facts::default() };
    facts = decide(&facts, &offline, &policy, at(NOW + 900 * HOUR)).facts;
    assert_eq!(facts.first_sent_at, None);
    let claimed_at = NOW + 901 * HOUR;
    facts = Facts { claimed_at, attempts: 1, tries: 2, ..facts };
    let first = decide(&facts, &transient, &policy, at(claimed_at));
    assert_eq!((first.status, first.due_at), (Status::Pending, Some(claimed_at + 10_000)));
    let last = decide(&first.facts, &transient, &policy, at(claimed_at + 50_001));
    assert_eq!(last.status, Status::Dead);
}
