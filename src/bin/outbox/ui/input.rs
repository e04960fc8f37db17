//! Values from the command line, and the files and streams they name.

use std::fs::File;
use std::io::{BufRead, Read};
use std::str::FromStr;
use std::time::Duration;

use sqlite_outbox::{Clock, SystemClock};

use crate::ui::failure::{Failure, Result};

/// The longest text, in bytes: more than any file's payload limit can be.
const TEXT_MAX: u64 = 100_000_000;

/// A length of time such as `250ms`, `30s`, `5m`, `2h` or `7d`.
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

/// A value as the library reads it, without the field's name in the error: the flag or the key says
/// it already.
pub fn parse<T: FromStr<Err = sqlite_outbox::Error>>(text: &str) -> std::result::Result<T, String> {
    text.parse().map_err(|error: sqlite_outbox::Error| {
        let text = error.to_string();
        text.split_once(": ").map_or(text.clone(), |(_, reason)| reason.to_owned())
    })
}

/// A text given directly, as `@FILE`, or as `-` for standard input; byte for byte.
pub fn text(flag: &str, given: &str) -> Result<String> {
    match given.strip_prefix('@') {
        Some("") => Err(Failure::usage(format!("{flag}: @ must be followed by a file"))),
        Some(path) => file(flag, path, TEXT_MAX),
        None if given == "-" => read(flag, "standard input", std::io::stdin().lock(), TEXT_MAX),
        None => Ok(given.to_owned()),
    }
}

/// The text of a file that `flag` names, of at most `max` bytes.
pub fn file(flag: &str, path: &str, max: u64) -> Result<String> {
    let file =
        File::open(path).map_err(|error| Failure::usage(format!("{flag}: {path}: {error}")))?;
    read(flag, path, file, max)
}

fn read(flag: &str, from: &str, source: impl Read, max: u64) -> Result<String> {
    let fail = |why: &str| Failure::usage(format!("{flag}: {from}: {why}"));
    let mut bytes = Vec::new();
    source.take(max + 1).read_to_end(&mut bytes).map_err(|error| fail(&error.to_string()))?;
    if bytes.len() as u64 > max {
        return Err(fail(&format!("more than {max} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| fail("not UTF-8"))
}

/// The longest line of JSON lines, in bytes: far more than a receipt keeps.
pub const LINE_MAX: u64 = 1 << 20;

/// Reads the next line, at most as much of it as can be used. Returns the bytes read; 0 at the end.
///
/// # Errors
/// The source cannot be read, or the line has no end.
pub fn read_line(source: &mut dyn BufRead, line: &mut Vec<u8>) -> std::io::Result<usize> {
    line.clear();
    let read = Read::take(&mut *source, LINE_MAX + 1).read_until(b'\n', line)?;
    if line.len() as u64 > LINE_MAX && !line.ends_with(b"\n") {
        let skipped = Read::take(&mut *source, TEXT_MAX).skip_until(b'\n')?;
        if skipped as u64 == TEXT_MAX {
            return Err(std::io::Error::other(format!("a line of more than {TEXT_MAX} bytes")));
        }
    }
    Ok(read)
}

/// The target with `value` set, or unchanged where no value is given.
pub fn given<T, V>(target: T, value: Option<V>, set: impl FnOnce(T, V) -> T) -> T {
    match value {
        Some(value) => set(target, value),
        None => target,
    }
}

/// Sets on a target each of these values that `$table` holds, by the setter of the same name.
macro_rules! set_given {
    ($target:ident, $table:expr, [$($key:ident),+], |$value:pat_param| $arguments:tt) => {$(
        if let Some($value) = $table.$key.as_ref() {
            $target = $target.$key $arguments;
        }
    )+};
}
pub(crate) use set_given;
