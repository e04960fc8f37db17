use super::*;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn bounds(limits: &[Limit]) -> Bounds {
    let mut bounds = Bounds::default();
    for limit in limits {
        bounds.set(limit).unwrap();
    }
    bounds
}

#[test]
fn stricter_of_each_number_holds() {
    let (cost, per) = (BudgetName::MaxCost, BudgetName::MaxPer);
    for (own, stored, holds) in [
        (Limit::MaxInFlight(Some(4)), Limit::MaxInFlight(Some(2)), Limit::MaxInFlight(Some(2))),
        (Limit::MaxInFlight(None), Limit::MaxInFlight(Some(2)), Limit::MaxInFlight(Some(2))),
        (Limit::Rate(Some((9, SECOND))), Limit::Rate(None), Limit::Rate(Some((9, SECOND)))),
        (
            Limit::Rate(Some((9, SECOND))),
            Limit::Rate(Some((8, SECOND))),
            Limit::Rate(Some((8, SECOND))),
        ),
        (
            Limit::Budget(cost, vec![(10, MINUTE), (20, SECOND)]),
            Limit::Budget(cost, vec![(5, MINUTE)]),
            Limit::Budget(cost, vec![(5, MINUTE), (20, SECOND)]),
        ),
        (
            Limit::Budget(per, vec![]),
            Limit::Budget(per, vec![(5, MINUTE)]),
            Limit::Budget(per, vec![(5, MINUTE)]),
        ),
    ] {
        let (own, stored) = (bounds(&[own]), bounds(&[stored]));
        let expected = bounds(&[holds]);
        assert_eq!(own.stricter(&stored).changes(&expected), Vec::<String>::new());
        assert_eq!(stored.stricter(&own).changes(&expected), Vec::<String>::new());
    }
}

/// Neither of two rates over different times says what the other does.
#[test]
fn rate_that_gives_way_holds_as_a_budget() {
    let fast = bounds(&[Limit::Rate(Some((10, SECOND)))]);
    let slow = bounds(&[Limit::Rate(Some((100, MINUTE)))]);
    let holds = bounds(&[
        Limit::Rate(Some((100, MINUTE))),
        Limit::Budget(BudgetName::MaxPer, vec![(10, SECOND)]),
    ]);
    assert_eq!(fast.stricter(&slow), holds);
    assert_eq!(slow.stricter(&fast), holds);
    // What is stored then is left by both.
    assert_eq!(fast.stricter(&holds), holds);
    assert_eq!(slow.stricter(&holds), holds);
}

#[test]
fn overruled_limits_are_named() {
    let limits = |n: u64| {
        let budget = Limit::Budget(BudgetName::MaxCostPerRun, vec![(n, MINUTE)]);
        let count = usize::try_from(n).unwrap();
        bounds(&[Limit::MaxInFlight(Some(count)), Limit::Rate(Some((5, SECOND))), budget])
    };
    let (low, high) = (limits(2), limits(3));
    assert_eq!(high.overruled_by(&low), ["max_in_flight", "max_cost_per_run"]);
    assert!(low.overruled_by(&low).is_empty());
    assert_eq!(
        low.changes(&high),
        ["max_in_flight: 2, now 3", "max_cost_per_run: 2 in 1m, now 3 in 1m"]
    );
}
