use super::super::flow::{Closed, FlowControl, Gate, Limits, gate};
use super::super::pause::{Pause, PauseKind};
use super::*;

const T: i64 = 1_800_000_000_000;

fn budget(scope: Scope, kind: Kind, amount: i64) -> Budget {
    Budget { scope, kind, amount, window_ms: 1000 }
}

fn frees(excess: i64, entries: &[(i64, i64)]) -> Option<i64> {
    let budget = budget(Scope::Operation, Kind::Cost, 10);
    let entries = entries.iter().map(|&(at, weight)| Ok::<_, ()>((T + at, weight)));
    budget.frees_at(excess, entries).unwrap().map(|at| at - T)
}

#[test]
fn window_holds_an_entry_for_exactly_its_length() {
    let budget = budget(Scope::Operation, Kind::Sends, 1);
    for (now, inside) in [(T, true), (T + 999, true), (T + 1000, false), (T - 5000, true)] {
        assert_eq!(T > budget.begins(now), inside, "at {now}");
        // What it leaves at and what is counted agree, or a relay would spin or sleep too long.
        assert_eq!(now < budget.leaves(T), inside, "at {now}");
    }
    let for_ever = Budget { window_ms: i64::MAX, ..budget };
    assert!(for_ever.begins(T) < 0 && for_ever.leaves(T) == i64::MAX);
}

#[test]
fn room_is_counted_by_kind() {
    for (kind, amount, spent, cost, excess) in [
        (Kind::Sends, 3, 0, 0, -2),
        (Kind::Sends, 3, 2, 100, 0),
        (Kind::Sends, 3, 3, 0, 1),
        (Kind::Sends, 3, 5, 0, 3),
        (Kind::Cost, 10, 0, 10, 0),
        (Kind::Cost, 10, 1, 10, 1),
        (Kind::Cost, 10, 10, 0, 0),
        // Lowered below what is spent: what costs nothing goes on all the same.
        (Kind::Cost, 10, 50, 0, 0),
        (Kind::Cost, 10, 50, 1, 41),
        (Kind::Cost, i64::MAX, i64::MAX, 5, 5),
    ] {
        let budget = budget(Scope::Operation, kind, amount);
        assert_eq!(budget.excess(spent, cost), excess, "{kind:?} {amount} {spent} {cost}");
    }
    let cost = budget(Scope::Tenant, Kind::Cost, 10);
    assert!(cost.can_ever(10) && !cost.can_ever(11) && cost.can_ever(0));
    assert!(budget(Scope::Tenant, Kind::Sends, 1).can_ever(i64::MAX));
}

#[test]
fn budget_frees_when_enough_of_the_oldest_have_left() {
    for (excess, entries, at) in [
        (1, &[(0, 1), (10, 1), (20, 1)][..], Some(1000)),
        (2, &[(0, 1), (10, 1), (20, 1)], Some(1010)),
        (3, &[(0, 1), (10, 1), (20, 1)], Some(1020)),
        (4, &[(0, 3), (5, 0), (10, 3)], Some(1010)),
        (3, &[(0, 3), (10, 3)], Some(1000)),
        // More than there is: when the last one has left.
        (9, &[(0, 1), (10, 1)], Some(1010)),
        (1, &[], None),
    ] {
        assert_eq!(frees(excess, entries), at, "{excess} of {entries:?}");
    }
}

#[test]
fn tenant_budget_holds_up_no_other_tenant() {
    let used = |scope, until| UsedUp { budget: budget(scope, Kind::Cost, 10), until };
    let (tenant, operation) = (used(Scope::Tenant, 5), used(Scope::Operation, 9));
    assert_eq!(judge(&[]), Fit::Fits);
    assert_eq!(judge(&[operation]), Fit::Waits(operation));
    assert_eq!(judge(&[operation, tenant]), Fit::PutOff(tenant));
    assert_eq!(judge(&[tenant, used(Scope::Tenant, 7)]), Fit::PutOff(used(Scope::Tenant, 7)));
}

#[test]
fn gate_is_closed_until_the_budget_frees() {
    let used_up = UsedUp { budget: budget(Scope::Operation, Kind::Sends, 3), until: T + 70 };
    let left = Left { sends: 0, used_up: Some(used_up) };
    let closed = Gate::Closed { until: Some(T + 70), why: Closed::Budget(used_up) };
    let flow = FlowControl::default();
    assert_eq!(gate(&flow, 0, &left, T), closed);
    let some = Left { sends: 2, used_up: None };
    assert_eq!(gate(&flow, 0, &some, T), Gate::Open(2));
    let few = FlowControl {
        limits: Limits { max_in_flight: Some(5), ..Limits::default() },
        ..FlowControl::default()
    };
    assert_eq!(gate(&few, 4, &some, T), Gate::Open(1));
    assert_eq!(gate(&few, 0, &some, T), Gate::Open(2));
    assert_eq!(gate(&flow, 0, &Left::default(), T), Gate::Open(usize::MAX));
    // A probe is a send; a pause that goes on says more than the budget.
    let paused = |until| FlowControl {
        pause: Some(Pause {
            kind: PauseKind::Breaker,
            until: Some(until),
            reason: String::new(),
            actor: String::new(),
            since: T,
            culprit: None,
        }),
        ..FlowControl::default()
    };
    assert_eq!(gate(&paused(T), 0, &left, T), closed);
    assert_eq!(gate(&paused(T), 0, &some, T), Gate::Probe(0));
    let Gate::Closed { until, .. } = gate(&paused(T + 5), 0, &left, T) else { panic!() };
    assert_eq!(until, Some(T + 5));
}

#[test]
fn budget_says_which_one_is_used_up_and_until_when() {
    let used_up = UsedUp { budget: budget(Scope::Tenant, Kind::Cost, 50), until: T };
    assert_eq!(
        used_up.to_string(),
        "the budget max_cost_per_tenant (50 in 1s) is used up until 2027-01-15T08:00:00Z"
    );
}
