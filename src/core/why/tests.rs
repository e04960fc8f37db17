use super::{Rule, utc};

#[test]
fn times_are_the_calendars() {
    for seconds in (0..253_402_300_800_u64).step_by(86_400 * 17 + 12_345) {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        let shown = utc(i64::try_from(seconds).unwrap() * 1000);
        assert_eq!(httpdate::fmt_http_date(time)[5..], http_date(&shown), "{shown}");
    }
    assert_eq!(utc(1_800_000_000_000), "2027-01-15T08:00:00Z");
    assert_eq!(utc(951_782_400_000), "2000-02-29T00:00:00Z");
    assert_eq!(utc(-1), "-1 ms");
}

/// The same time as a header has it after the day of the week.
fn http_date(iso: &str) -> String {
    let months =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = months[iso[5..7].parse::<usize>().unwrap() - 1];
    format!("{} {month} {} {} GMT", &iso[8..10], &iso[..4], &iso[11..19])
}

#[test]
fn rules_are_documented_in_their_order() {
    let docs = include_str!("../../../docs/operations.md");
    let list = &docs[docs.find("Rules: ").unwrap()..];
    let words: Vec<&str> = list.split('`').skip(1).step_by(2).take(Rule::ALL.len()).collect();
    assert_eq!(words, Rule::ALL.iter().map(|rule| rule.as_str()).collect::<Vec<_>>());
}
