use super::*;
use crate::core::outcome::Receipt;

const NOW: i64 = 1_800_000_000_000;
const CLAIM: (i64, i64) = (7, 70);

fn origin() -> Hold {
    Hold::new("pay", Domain::Origin, "https://a.example".into())
}

fn not_sent() -> Outcome {
    Outcome::NotSent(Failure::new("connect", "refused"))
}

fn hear(hold: &mut Hold, outcome: &Outcome, claim: (i64, i64), now: i64) {
    let heard = Heard { outcome, claim, due_at: Some(now + 5000) };
    hold.on_outcome(&heard, Some(3), Draw { now, roll: 0.0 });
}

#[test]
fn origin_is_held_after_failures_in_a_row_and_any_answer_resets_them() {
    let mut hold = origin();
    let answered = Outcome::Rejected(Failure::new("permanent", "answered 400").status(400));
    for outcome in [not_sent(), not_sent(), answered, not_sent(), not_sent()] {
        hear(&mut hold, &outcome, CLAIM, NOW);
        assert_eq!(hold.admits(8, NOW), Admission::Free);
    }
    hear(&mut hold, &not_sent(), CLAIM, NOW);
    assert_eq!((hold.cause, hold.culprit, hold.since), (Some(Cause::Breaker), Some(7), NOW));
    assert_eq!(hold.admits(8, NOW), Admission::Behind);
    // One that was in flight before says nothing new; one that was answered does.
    let before = hold.clone();
    hear(&mut hold, &not_sent(), (8, 80), NOW + 1);
    assert_eq!(hold, before);
    hear(&mut hold, &Outcome::Succeeded(Receipt::new()), (9, 90), NOW + 2);
    assert_eq!((hold.cause, hold.failures, hold.admits(8, NOW + 2)), (None, 0, Admission::Free));
}

#[test]
fn hold_is_tried_by_one_row_at_growing_intervals() {
    let mut hold = origin();
    (0..3).for_each(|_| hear(&mut hold, &not_sent(), CLAIM, NOW));
    let (mut now, mut waits) = (NOW, Vec::new());
    for _ in 0..12 {
        let until = hold.until.expect("it has an end");
        waits.push(until - now);
        now = until;
        assert_eq!((hold.admits(8, now), hold.lets_through()), (Admission::Probe, 1));
        hold.probe = Some((8, Some(80)));
        let others = (hold.admits(8, now), hold.admits(9, now), hold.lets_through());
        assert_eq!(others, (Admission::Probe, Admission::Behind, 0));
        hear(&mut hold, &not_sent(), (8, 80), now);
    }
    assert!(waits.is_sorted() && waits[11] <= 15 * 60 * 1000, "{waits:?}");
    assert_eq!(hold.since, NOW);
}

#[test]
fn lessons_of_outcomes_are_for_those_whom_they_concern() {
    let fail = |class: &'static str| Failure::new(class, "m");
    let unauthorized = Outcome::Unauthorized(fail("auth").status(401));
    let limited = Outcome::Limited(fail("limited").status(429));
    for (outcome, held) in [
        (unauthorized, Some(Cause::Auth)),
        // The endpoint is left alone, not its origin.
        (limited, None),
        (Outcome::Transient(fail("auth").status(403)), None),
        (Outcome::MaybeSent(fail("panic")), None),
        (Outcome::Rejected(fail("endpoint")), None),
    ] {
        let mut hold = origin();
        (0..2).for_each(|_| hear(&mut hold, &outcome, CLAIM, NOW));
        assert_eq!(hold.cause, held, "{outcome:?}");
    }
    // A refusal that never left proves nothing, so that what it was to try goes on.
    let mut hold = origin();
    (0..3).for_each(|_| hear(&mut hold, &not_sent(), CLAIM, NOW));
    hold.probe = Some((8, Some(80)));
    hear(&mut hold, &Outcome::Rejected(fail("endpoint")), (8, 80), NOW + 10_000);
    assert_eq!(hold.cause, Some(Cause::Breaker));
}

#[test]
fn endpoint_that_is_gone_stays_held_whatever_is_heard_of_it() {
    let gone = Outcome::Rejected(Failure::new("gone", "HTTP 410").status(410));
    let mut hold = origin();
    hear(&mut hold, &gone, CLAIM, NOW);
    assert_eq!(hold.cause, None, "other endpoints of the origin go on");
    let mut hold = Hold::new("pay", Domain::Endpoint, "https://a.example #1".into());
    hear(&mut hold, &gone, CLAIM, NOW);
    let before = hold.clone();
    assert_eq!((before.cause, before.until, before.culprit), (Some(Cause::Gone), None, Some(7)));
    let limited = Outcome::Limited(Failure::new("limited", "m").status(429));
    for outcome in [Outcome::Succeeded(Receipt::new()), limited, not_sent(), gone] {
        hear(&mut hold, &outcome, (8, 80), NOW + 1);
        assert_eq!(hold, before);
        assert_eq!(hold.admits(9, i64::MAX), Admission::Behind);
    }
    assert!(before.stored().expect("it is held").in_words().contains("until it is resumed"));
}

#[test]
fn origin_that_a_proxy_did_not_reach_is_held_as_one_that_is_not_there() {
    let outcome = Outcome::Transient(Failure::new("not_reached", "m").status(511));
    let mut hold = origin();
    (0..3).for_each(|_| hear(&mut hold, &outcome, CLAIM, NOW));
    assert_eq!(hold.cause, Some(Cause::Breaker));
    // Some network is there, or nobody would have answered: other origins go on.
    let mut network = Hold::new("", Domain::Network, String::new());
    for name in ["a", "b", "c", "d"] {
        let heard = Heard { outcome: &outcome, claim: CLAIM, due_at: None };
        network.on_network(&heard, name, Draw { now: NOW, roll: 0.0 });
    }
    assert_eq!(network.cause, None);
}

#[test]
fn throttle_is_capped_and_never_shortened() {
    let mut hold = Hold::new("pay", Domain::Endpoint, "https://a.example #1".into());
    let asked = |seconds| {
        let delay = Duration::from_secs(seconds);
        Outcome::Limited(Failure::new("limited", "m").status(429).retry_after(delay))
    };
    for (seconds, until) in [(60, 60_000), (30, 60_000), (u64::MAX, 24 * 3_600_000)] {
        hear(&mut hold, &asked(seconds), CLAIM, NOW);
        assert_eq!((hold.cause, hold.until), (Some(Cause::Throttled), Some(NOW + until)));
    }
    let words = hold.stored().expect("it is held").in_words();
    assert!(words.contains("asked to be left alone (intent 7 last); until 2027-01-16T08:00:00Z"));
}

#[test]
fn network_is_gone_after_three_origins_and_there_with_the_first_answer() {
    let offline = Outcome::NotSent(Failure::new("offline", "no route"));
    let timeout = Outcome::NotSent(Failure::new("timeout", "no connection"));
    let draw = Draw { now: NOW, roll: 0.0 };
    let mut hold = Hold::new("", Domain::Network, String::new());
    let hear = |hold: &mut Hold, outcome: &Outcome, origin: &str| {
        hold.on_network(&Heard { outcome, claim: CLAIM, due_at: None }, origin, draw);
    };
    for origin in ["a", "a", "a", "b"] {
        hear(&mut hold, &offline, origin);
        hear(&mut hold, &timeout, "t");
    }
    assert_eq!((hold.cause, hold.failures), (None, 2));
    hear(&mut hold, &not_sent(), "d");
    assert_eq!(hold.failures, 0, "a refusal comes from somewhere");
    for origin in ["a", "b", "c"] {
        hear(&mut hold, &offline, origin);
    }
    assert_eq!(hold.cause, Some(Cause::Offline));
    assert!(hold.has_tried("b") && !hold.has_tried("d"));
    // Only the try counts while it is held.
    let before = hold.clone();
    hear(&mut hold, &offline, "d");
    assert_eq!(hold, before);
    hold.probe = Some((7, Some(70)));
    hear(&mut hold, &offline, "d");
    assert!(hold.has_tried("d") && hold.until > before.until);
    let answered = Outcome::Rejected(Failure::new("permanent", "answered 404").status(404));
    hear(&mut hold, &answered, "a");
    assert_eq!(hold.cause, None);
}
