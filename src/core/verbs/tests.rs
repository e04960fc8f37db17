//! Every verb on every status, in doubt and not: the whole table.

use std::time::Duration;

use super::super::contract::Downstream;
use super::*;

const NOW: i64 = 1_800_000_000_000;
const SINCE: i64 = NOW - 1_000;
const KEYED: Promise = Promise {
    downstream: Downstream::DeduplicatesByKey { window: Duration::from_secs(3600) },
    time_limit: Duration::from_secs(60),
    reconciles: false,
    repeat_safe: true,
};
const UNPROTECTED: Promise = Promise { downstream: Downstream::Unprotected, ..KEYED };

fn facts(in_doubt: bool) -> Facts {
    Facts {
        attempts: 7,
        tries: 9,
        lost: 2,
        in_doubt_since: in_doubt.then_some(SINCE),
        first_sent_at: Some(SINCE),
        expires_at: Some(NOW + 1),
        claimed_at: SINCE,
        lookups: 3,
        cancel_requested: false,
        ..Facts::default()
    }
}

/// A verb's effect on a row, in the order of `Status::ALL`: where the row goes, or the kind of
/// refusal.
fn row(f: impl Fn(Status) -> Result<Status, ErrorKind>) -> Vec<Result<Status, ErrorKind>> {
    Status::ALL.iter().copied().map(f).collect()
}

fn to(decision: Result<Decision, Refusal>) -> Result<Status, ErrorKind> {
    decision.map(|decision| decision.status).map_err(|refusal| refusal.kind)
}

use ErrorKind::{Refused as R, TooLate as L};
use Status::{
    Cancelled as C, Dead as D, InFlight as F, NeedsReview as N, Pending as P, Succeeded as S,
    Unknown as U,
};

#[test]
fn withdraw_takes_what_was_definitely_not_applied() {
    let withdrawn = |doubt| row(|status| to(withdraw(status, &facts(doubt))));
    //                        pending in_flight unknown review  dead    succeeded cancelled
    assert_eq!(withdrawn(false), [Ok(C), Err(L), Err(L), Err(R), Ok(C), Err(L), Err(L)]);
    assert_eq!(withdrawn(true), [Err(L), Err(L), Err(L), Err(L), Err(L), Err(L), Err(L)]);
}

#[test]
fn request_cancel_outlives_a_doubt() {
    let asked = |doubt| {
        row(|status| match request_cancel(status, &facts(doubt)) {
            Ok(Cancellation::Withdrawn(decision)) => Ok(decision.status),
            Ok(Cancellation::Requested) => Ok(status),
            Err(refusal) => Err(refusal.kind),
        })
    };
    assert_eq!(asked(false), [Ok(C), Ok(F), Ok(U), Err(R), Ok(C), Err(L), Err(L)]);
    assert_eq!(asked(true), [Ok(P), Ok(F), Ok(U), Ok(N), Ok(D), Err(L), Err(L)]);
}

#[test]
fn resolve_closes_what_is_open_or_was_given_up_in_doubt() {
    let resolved = |resolution: Resolution, doubt| {
        row(move |status| to(resolve(status, &facts(doubt), &resolution, NOW)))
    };
    let applied = || Resolution::Applied { downstream_id: None };
    for doubt in [false, true] {
        assert_eq!(
            resolved(applied(), doubt),
            [Err(R), Err(R), Ok(S), Ok(S), Ok(S), Err(R), Err(R)]
        );
        assert_eq!(
            resolved(Resolution::Dead, doubt),
            [Err(R), Err(R), Ok(D), Ok(D), Err(R), Err(R), Err(R)]
        );
    }
    let not_applied = Resolution::NotApplied;
    assert_eq!(
        resolved(not_applied.clone(), false),
        [Err(R), Err(R), Ok(P), Ok(P), Err(R), Err(R), Err(R)]
    );
    assert_eq!(resolved(not_applied, true), [Err(R), Err(R), Ok(P), Ok(P), Ok(P), Err(R), Err(R)]);
}

#[test]
fn resolve_as_not_applied_fulfils_an_earlier_request_to_cancel() {
    let facts = Facts { cancel_requested: true, ..facts(true) };
    for status in [U, N, D] {
        assert_eq!(to(resolve(status, &facts, &Resolution::NotApplied, NOW)), Ok(C), "{status}");
    }
}

#[test]
fn replay_repeats_only_where_a_second_request_is_safe() {
    let replayed =
        |promise, doubt, now| row(move |status| to(replay(status, &facts(doubt), promise, now)));
    let none = [Err(R); 7];
    let dead_alone = [Err(R), Err(R), Err(R), Err(R), Ok(P), Err(R), Err(R)];
    let both = [Err(R), Err(R), Err(R), Ok(P), Ok(P), Err(R), Err(R)];
    assert_eq!(replayed(UNPROTECTED, false, NOW), dead_alone);
    assert_eq!(replayed(UNPROTECTED, true, NOW), none);
    assert_eq!(replayed(KEYED, false, NOW), both);
    assert_eq!(replayed(KEYED, true, NOW), both);
    let window = 3_600_000;
    assert_eq!(replayed(KEYED, true, SINCE + window - 60_000), both, "it ends inside the window");
    assert_eq!(replayed(KEYED, true, SINCE + window - 59_999), none, "it would end outside");
    assert_eq!(replayed(KEYED, true, SINCE - 60_001), none, "the clock was set back too far");
}

#[test]
fn another_round_has_a_fresh_budget_and_an_old_doubt() {
    let replayed = replay(D, &facts(true), KEYED, NOW).unwrap();
    assert_eq!(replayed.due_at, Some(NOW));
    let fresh = Facts {
        in_doubt_since: Some(SINCE),
        expires_at: Some(NOW + 1),
        claimed_at: SINCE,
        ..Facts::default()
    };
    assert_eq!(replayed.facts, fresh);
    let resolved = resolve(U, &facts(true), &Resolution::NotApplied, NOW).unwrap();
    assert_eq!(resolved.facts, Facts { in_doubt_since: None, ..fresh });
}

#[test]
fn confirm_settles_whatever_is_unsettled_and_changes_nothing_settled() {
    for &status in Status::ALL {
        for doubt in [false, true] {
            let confirmed = confirm(status, &facts(doubt));
            let expected = if status == C { C } else { S };
            assert_eq!(confirmed.status, expected, "{status}");
            assert_eq!(confirmed.facts, facts(doubt));
            assert_eq!(confirmed.message.is_some(), status == C, "{status}");
        }
    }
}

#[test]
fn id_taken_is_in_doubt_since_its_attempt() {
    let success = confirm(F, &facts(false));
    let taken = id_taken(&success, "of another".into());
    assert_eq!((taken.status, taken.facts.in_doubt_since), (N, Some(SINCE)));
    assert_eq!(taken.class.as_deref(), Some("duplicate_id"));
    let older = Facts { in_doubt_since: Some(1), ..facts(true) };
    assert_eq!(id_taken(&confirm(F, &older), String::new()).facts.in_doubt_since, Some(1));
}

#[test]
fn skip_passes_only_what_blocks_an_ordering_key() {
    let skipped = |keyed| {
        row(move |status| skip(status, keyed).map(|()| status).map_err(|refusal| refusal.kind))
    };
    assert_eq!(skipped(true), [Err(R), Err(R), Ok(U), Ok(N), Ok(D), Err(R), Err(R)]);
    assert_eq!(skipped(false), [Err(R); 7]);
}

#[test]
fn bind_gives_one_id_before_the_receipt() {
    for status in [P, F, U, N, D] {
        assert_eq!(bind(status, None, "a"), Ok(true));
        assert_eq!(bind(status, Some("a"), "a"), Ok(false));
        assert_eq!(bind(status, Some("b"), "a").unwrap_err().kind, ErrorKind::Conflict);
    }
    for status in [S, C] {
        assert_eq!(bind(status, None, "a").unwrap_err().kind, L);
    }
}
