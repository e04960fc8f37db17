use super::*;

/// 1994-11-06T08:49:37Z, the date of the RFC's examples.
const DATE: i64 = 784_111_777_000;

fn seconds(seconds: u64) -> RetryAfter {
    RetryAfter::Delay(Duration::from_secs(seconds))
}

#[test]
fn retry_after_digits_are_seconds_however_many() {
    for (text, expected) in [
        ("0", 0),
        ("00", 0),
        (" 7\t", 7),
        ("120", 120),
        ("2147483648", 1 << 31),
        ("9223372036854775808", 1 << 63),
        ("18446744073709551615", u64::MAX),
        ("18446744073709551616", u64::MAX),
        ("1000000000000000000000000000000", u64::MAX),
    ] {
        assert_eq!(RetryAfter::parse(text, DATE), seconds(expected), "{text}");
    }
}

#[test]
fn retry_after_dates_count_from_now() {
    for text in [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
    ] {
        assert_eq!(RetryAfter::parse(text, DATE - 3_000), seconds(3), "{text}");
        assert_eq!(RetryAfter::parse(text, DATE), seconds(0), "{text}");
        assert_eq!(RetryAfter::parse(text, DATE + 1), seconds(0), "{text}");
        assert_eq!(RetryAfter::parse(text, i64::MAX), seconds(0), "{text}");
        let RetryAfter::Delay(delay) = RetryAfter::parse(text, i64::MIN) else {
            panic!("{text} is a date")
        };
        assert_eq!(millis(delay), i64::MAX);
    }
    let end = RetryAfter::parse("Fri, 31 Dec 9999 23:59:59 GMT", 0);
    assert_eq!(end, seconds(253_402_300_799));
}

#[test]
fn retry_after_otherwise_is_malformed() {
    for text in [
        "",
        " ",
        "-5",
        "+5",
        "1.5",
        "1e300",
        "inf",
        "NaN",
        "soon",
        "5s",
        "5, 6",
        "٣",
        "0x10",
        "Mon, 01 Jan 0001 00:00:00 GMT",
        "Wed, 31 Dec 1969 23:59:59 GMT",
        "Sat, 01 Jan 10000 00:00:00 GMT",
        "Sat, 01 Jan 99999 00:00:00 GMT",
        "Fri, 30 Jun 2023 23:59:60 GMT",
        "Fri, 31 Feb 2023 00:00:00 GMT",
        "Mon, 06 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 +0100",
        "1994-11-06T08:49:37Z",
    ] {
        assert_eq!(RetryAfter::parse(text, 0), RetryAfter::Malformed, "{text}");
    }
}
