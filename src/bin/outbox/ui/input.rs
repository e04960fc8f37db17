//! Values from the command line, and the files and streams they name.

use std::fs::File;
use std::io::Read;
use std::time::Duration;

use sqlite_outbox::{Clock, EventKind, Status, SystemClock};

use crate::ui::failure::{Failure, Result};

/// More than any file's payload limit can be.
const TEXT_MAX: u64 = 100_000_000;

/// `250ms`, `30s`, `5m`, `2h`, `7d`.
pub fn parse_duration(text: &str) -> std::result::Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "not a duration such as 250ms, 30s, 5m, 2h, 7d".into())
}

/// A time in the past: a duration ago, or a UTC time. In milliseconds since 1970.
pub fn parse_since(text: &str) -> std::result::Result<i64, String> {
    if let Ok(ago) = humantime::parse_duration(text) {
        let ago = i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
        return Ok(SystemClock.now().saturating_sub(ago));
    }
    let explain = |_| "neither a duration such as 1h nor a time such as 2030-01-31T12:00:00Z";
    let time = humantime::parse_rfc3339_weak(text).map_err(explain)?;
    let since = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Ok(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// `K/N`.
pub fn parse_shard(text: &str) -> std::result::Result<(u32, u32), String> {
    let parsed = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    parsed
        .filter(|(k, n): &(u32, u32)| k < n)
        .ok_or_else(|| "must be K/N with K from 0 to N - 1, such as 0/4".into())
}

pub fn parse_status(text: &str) -> std::result::Result<Status, String> {
    text.parse().map_err(|error: sqlite_outbox::Error| error.to_string())
}

pub fn parse_event_kind(text: &str) -> std::result::Result<EventKind, String> {
    let why = "no kind of event; `events --json` shows them, such as attempt, reconciled, resolved";
    text.parse().map_err(|_| why.into())
}

/// A text given directly, as `@FILE`, or as `-` for standard input; byte for byte.
pub fn text(flag: &str, given: &str) -> Result<String> {
    let (from, bytes) = match given.strip_prefix('@') {
        Some("") => return Err(Failure::usage(format!("{flag}: @ must be followed by a file"))),
        Some(path) => {
            let fail = |error| Failure::usage(format!("{flag}: {path}: {error}"));
            let file = File::open(path).map_err(fail)?;
            (path, read(file).map_err(fail)?)
        }
        None if given == "-" => {
            let fail = |error| Failure::usage(format!("{flag}: standard input: {error}"));
            ("standard input", read(std::io::stdin().lock()).map_err(fail)?)
        }
        None => return Ok(given.to_owned()),
    };
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > TEXT_MAX {
        return Err(Failure::usage(format!("{flag}: {from}: more than {TEXT_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| Failure::usage(format!("{flag}: {from}: not UTF-8")))
}

fn read(source: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(TEXT_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Who acts, for the audit trail.
pub fn actor(given: Option<&str>) -> String {
    let user = || std::env::var("USER").ok().filter(|user| !user.is_empty());
    given.map(str::to_owned).or_else(user).unwrap_or_else(|| "cli".into())
}
