use super::*;
use crate::core::outcome::{Failure, Receipt};

const NOW: i64 = 1_800_000_000_000;
const CLAIM: (i64, i64) = (7, 70);

fn not_sent() -> Outcome {
    Outcome::NotSent(Failure::new("connect", "refused"))
}

fn maybe_sent() -> Outcome {
    Outcome::MaybeSent(Failure::new("timeout", "no answer"))
}

fn hear(flow: &mut FlowControl, outcome: &Outcome) -> Option<FlowMove> {
    let heard = Heard { outcome, claim: CLAIM, due_at: Some(NOW + 5000) };
    flow.on_outcome(&heard, Some(3), Draw { now: NOW, roll: 0.0 })
}

fn paused(kind: PauseKind, until: Option<i64>) -> FlowControl {
    let (reason, actor) = ("r".into(), "a".into());
    let pause = Pause { kind, until, reason, actor, since: NOW - 1000, culprit: None };
    FlowControl { pause: Some(pause), ..FlowControl::default() }
}

#[test]
fn breaker_opens_after_failures_in_a_row_and_any_answer_resets_it() {
    for outcome in [not_sent(), maybe_sent()] {
        let mut flow = FlowControl::default();
        assert_eq!(hear(&mut flow, &outcome), None);
        assert_eq!(hear(&mut flow, &outcome), None);
        let answered = Outcome::Rejected(Failure::new("permanent", "answered 400"));
        assert_eq!(hear(&mut flow, &answered), None);
        assert_eq!(flow.failures, 0);
        assert_eq!(hear(&mut flow, &outcome), None);
        assert_eq!(hear(&mut flow, &outcome), None);
        assert_eq!(hear(&mut flow, &outcome), Some(FlowMove::Paused));
        assert!(matches!(
            gate(&flow, 0, &Left::default(), NOW),
            Gate::Closed { until: Some(_), why: Closed::Paused(_) }
        ));
    }
}

#[test]
fn breaker_ignores_what_says_nothing_about_the_downstream() {
    let mut flow = FlowControl::default();
    let panic = Outcome::MaybeSent(Failure::new("panic", "the handler panicked"));
    for _ in 0..9 {
        assert_eq!(hear(&mut flow, &panic), None);
    }
    assert_eq!(flow, FlowControl::default());
}

#[test]
fn probe_goes_alone_waits_longer_each_time_and_ends_the_pause() {
    let mut flow = paused(PauseKind::Breaker, Some(NOW));
    assert_eq!(gate(&flow, 0, &Left::default(), NOW - 1), {
        let why = Closed::Paused(flow.pause.clone().expect("it is paused"));
        Gate::Closed { until: Some(NOW), why }
    });
    let mut waits = Vec::new();
    for probes in 0..12_u32 {
        let expected = (1_usize << probes.min(10)) - 1;
        let due = flow.pause.as_ref().and_then(|pause| pause.until).expect("it has an end");
        assert_eq!(gate(&flow, 0, &Left::default(), due), Gate::Probe(expected));
        flow.probe = Some(CLAIM);
        assert_eq!(
            gate(&flow, 1, &Left::default(), due),
            Gate::Closed { until: None, why: Closed::Probing }
        );
        assert_eq!(hear(&mut flow, &not_sent()), None);
        let until = flow.pause.as_ref().and_then(|pause| pause.until).expect("it goes on");
        waits.push(until - NOW);
        assert_eq!(flow.pause.as_ref().map(|pause| pause.since), Some(NOW - 1000));
    }
    assert!(waits.is_sorted() && waits[11] <= 15 * 60 * 1000, "{waits:?}");
    flow.probe = Some(CLAIM);
    let success = Outcome::Succeeded(Receipt::new());
    assert_eq!(hear(&mut flow, &success), Some(FlowMove::Resumed));
    assert_eq!((flow.pause.as_ref(), flow.probes, flow.probe), (None, 0, None));
}

#[test]
fn pause_by_a_person_is_not_ended_by_an_answer() {
    let mut flow = paused(PauseKind::Operator, None);
    for outcome in [Outcome::Succeeded(Receipt::new()), not_sent(), maybe_sent()] {
        for _ in 0..5 {
            assert_eq!(hear(&mut flow, &outcome), None);
        }
        assert_eq!(flow.pause.as_ref().map(|p| p.kind), Some(PauseKind::Operator));
    }
    assert!(flow.resume(NOW));
    assert!(!flow.resume(NOW));
}

#[test]
fn throttle_lets_more_through_as_time_goes_by() {
    let flow = FlowControl { resumed_at: Some(NOW), ..FlowControl::default() };
    let open = |ms: i64, in_flight| gate(&flow, in_flight, &Left::default(), NOW + ms);
    assert_eq!(open(0, 0), Gate::Open(1));
    assert_eq!(open(0, 1), Gate::Closed { until: Some(NOW + 500), why: Closed::Resuming });
    assert_eq!(open(500, 1), Gate::Open(1));
    assert_eq!(open(1500, 3), Gate::Open(5));
    assert_eq!(open(4000, 9999), Gate::Open(usize::MAX));
    // After the clock was set back, the time in the file says nothing.
    assert_eq!(open(-10_000, 9999), Gate::Open(usize::MAX));
}

#[test]
fn rate_holds_in_every_window_and_is_used() {
    for (count, period) in [
        (20, 1000),
        (10, 1000),
        (1, 1000),
        (7, 1000),
        (100, 1000),
        (1000, 1000),
        (300, 900),
        (9, 3000),
    ] {
        let rate = Rate { count, per: Duration::from_millis(period) };
        let limits = Limits { rate: Some(rate), ..Limits::default() };
        let (mut flow, mut sent) = (FlowControl { limits, ..FlowControl::default() }, Vec::new());
        for ms in 0..5 * period {
            let now = NOW + i64::try_from(ms).expect("small");
            // The ledger counts what was sent in the last such time.
            let stretch = usize::try_from(period).expect("small") - 1;
            let recent: usize = sent.iter().rev().take(stretch).sum();
            let left = usize::try_from(count).expect("small") - recent;
            let room = match gate(&flow, 0, &Left { sends: left, used_up: None }, now) {
                Gate::Open(room) => room,
                Gate::Closed { until: Some(until), why: Closed::Rate } if until > now => 0,
                other => panic!("{other:?}"),
            };
            flow.take(room, now);
            sent.push(room);
        }
        let stretch = usize::try_from(period).expect("small");
        let most = sent.windows(stretch).map(|sent| sent.iter().sum::<usize>()).max();
        let allowed = usize::try_from(count).expect("small");
        assert!(most <= Some(allowed), "{count}: {most:?}");
        let all: usize = sent.iter().sum();
        assert!(all * 100 >= allowed * 5 * 95, "{count}: {all}");
    }
}

#[test]
fn clock_and_rate_extremes_do_not_overflow() {
    for (count, per) in [(u32::MAX, Duration::from_millis(1)), (1, Duration::MAX)] {
        let limits = Limits { rate: Some(Rate { count, per }), ..Limits::default() };
        let bucket = Some((i64::MIN, i64::MIN));
        let mut flow = FlowControl { limits, bucket, ..FlowControl::default() };
        for now in [i64::MIN, 0, NOW, i64::MAX] {
            let _ = gate(&flow, usize::MAX, &Left::default(), now);
            flow.take(usize::MAX, now);
        }
    }
}
