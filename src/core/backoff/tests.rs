use proptest::prelude::*;

use super::*;

const S: Duration = Duration::from_secs(1);

fn exponential(base: Duration, cap: Duration, jitter: Jitter) -> Backoff {
    Backoff::Exponential { base, cap, jitter }
}

#[test]
fn delays_double_up_to_the_cap() {
    let backoff = exponential(2 * S, 3600 * S, Jitter::None);
    for (tries, seconds) in
        [(0, 2), (1, 2), (2, 4), (3, 8), (11, 2048), (12, 3600), (33, 3600), (u32::MAX, 3600)]
    {
        assert_eq!(backoff.delay(tries, 0.5), seconds * S, "{tries}");
    }
    let slow = exponential(Duration::from_nanos(1), Duration::MAX, Jitter::None);
    assert_eq!(slow.delay(41, 0.0), Duration::from_nanos(1 << 40));
    assert_eq!(slow.delay(u32::MAX, 0.0), Duration::MAX);
}

#[test]
fn jitter_places_the_delay() {
    for (jitter, roll, millis) in [
        (Jitter::Full, 0.0, 0),
        (Jitter::Full, 0.25, 2_000),
        (Jitter::Full, 1.0, 8_000),
        (Jitter::Full, -3.0, 0),
        (Jitter::Full, f64::INFINITY, 8_000),
        (Jitter::Full, f64::NAN, 8_000),
        (Jitter::Equal, 0.0, 4_000),
        (Jitter::Equal, 0.5, 6_000),
        (Jitter::Equal, 7.0, 8_000),
        (Jitter::None, 0.0, 8_000),
    ] {
        let delay = exponential(2 * S, 3600 * S, jitter).delay(3, roll);
        assert_eq!(delay, Duration::from_millis(millis), "{jitter:?} {roll}");
    }
}

#[test]
fn schedule_is_followed_and_its_last_delay_repeats() {
    let backoff = Backoff::Schedule(vec![Duration::ZERO, 5 * S, 300 * S]);
    for (tries, seconds) in [(0, 0), (1, 0), (2, 5), (3, 300), (4, 300), (u32::MAX, 300)] {
        assert_eq!(backoff.delay(tries, 0.1), seconds * S, "{tries}");
    }
}

#[test]
fn delays_out_of_range_are_refused() {
    Backoff::default().check().unwrap();
    exponential(S, S, Jitter::Full).check().unwrap();
    exponential(S, Duration::MAX, Jitter::Full).check().unwrap();
    Backoff::Schedule(vec![Duration::ZERO]).check().unwrap();
    for backoff in [
        Backoff::Schedule(Vec::new()),
        exponential(2 * S, S, Jitter::Full),
        exponential(Duration::ZERO, S, Jitter::Full),
    ] {
        let error = backoff.check().unwrap_err().to_string();
        assert!(error.starts_with("backoff: "), "{error}");
    }
}

fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(s, n)| Duration::new(s, n)),
        (0..100_000_u64).prop_map(Duration::from_millis),
        Just(Duration::MAX),
        Just(Duration::ZERO),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn delay_never_exceeds_the_cap(
        base in any_duration(),
        cap in any_duration(),
        tries in prop_oneof![any::<u32>(), 0..70_u32],
        roll in prop_oneof![any::<f64>(), 0.0..=1.0],
        jitter in prop_oneof![Just(Jitter::Full), Just(Jitter::Equal), Just(Jitter::None)],
    ) {
        let delay = exponential(base, cap, jitter).delay(tries, roll);
        prop_assert!(delay <= cap);
        if jitter == Jitter::Equal && base <= cap {
            prop_assert!(delay >= base / 2);
        }
    }
}
