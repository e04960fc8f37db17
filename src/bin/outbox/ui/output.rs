//! Standard output: lines for people, or one JSON object per line.

use std::fmt::Display;
use std::io::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use comfy_table::{Row, Table, presets};
use serde::Serialize;

use crate::ui::failure::{Failure, Result};

/// The form of results on standard output.
#[derive(Debug, Clone, Copy)]
pub struct Out {
    pub is_json: bool,
}

impl Out {
    /// A line on standard output.
    #[allow(clippy::unused_self)] // `Out` is the right to write results.
    pub fn line(self, text: impl Display) -> Result<()> {
        Ok(writeln!(std::io::stdout().lock(), "{text}")?)
    }

    /// An object on standard output.
    pub fn json(self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(value)
            .map_err(|error| Failure::failed(format!("JSON cannot be written: {error}")))?;
        self.line(escape_json(&text))
    }
}

/// A line on standard error. A closed standard error is not a failure.
pub fn note(text: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// A table without lines: columns under their heads.
pub fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(Row::from(head.to_vec()));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// Text from the file, made harmless for a terminal: control characters, invisible ones and those
/// that change the direction of writing are printed as escapes.
pub fn escape(text: &str) -> String {
    replace_harmful(text, |c| c.escape_default().to_string())
}

/// The same, cut to what can be read on one line: an id may be as long as an answer.
pub fn brief(text: &str) -> String {
    shorten(&escape(text), 160)
}

/// A word for a shell; what could harm a terminal is escaped.
pub fn quoted(text: &str) -> String {
    let text = escape(text);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@=+,".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// JSON text with the same characters escaped, which can stand only inside its strings.
fn escape_json(text: &str) -> String {
    replace_harmful(text, |c| {
        let mut units = [0; 2];
        let escaped = c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}"));
        escaped.collect::<Vec<_>>().concat()
    })
}

fn replace_harmful(text: &str, replace: impl Fn(char) -> String) -> String {
    text.chars().map(|c| if is_harmful(c) { replace(c) } else { c.into() }).collect()
}

/// Controls, formats, fillers and all that is drawn as nothing (`Default_Ignorable_Code_Point` and
/// the category Cf of Unicode).
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}')
        || matches!(c, '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{115f}'..='\u{1160}')
        || matches!(c, '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}')
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}')
        || matches!(c, '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}')
        || matches!(c, '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}')
        || matches!(c, '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}')
        || matches!(c, '\u{e0000}'..='\u{e0fff}')
}

/// The text, cut after `max` characters.
pub fn shorten(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A time for people: UTC, to the millisecond.
pub fn time(at: i64) -> String {
    let Ok(millis) = u64::try_from(at) else { return at.to_string() };
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(millis));
    // The formatter knows years up to 9999, and a file may hold anything.
    match time.filter(|_| millis < 253_402_300_800_000) {
        Some(time) => humantime::format_rfc3339_millis(time).to_string(),
        None => at.to_string(),
    }
}

/// A length of time as `relay.toml` takes it, in hours at most: `24h`, `1h 30m`, `100ms`.
pub fn duration(duration: Duration) -> String {
    in_units(duration.as_millis(), &UNITS[1..]).join(" ")
}

/// How long ago or ahead a time is, in its two largest units.
pub fn distance(from: i64, to: i64) -> String {
    let mut units = in_units(u128::from(from.abs_diff(to)), &UNITS[..4]);
    units.truncate(2);
    units.join(" ")
}

const UNITS: [(&str, u128); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

fn in_units(mut millis: u128, units: &[(&str, u128)]) -> Vec<String> {
    let mut parts = Vec::new();
    for (unit, size) in units {
        if millis >= *size {
            parts.push(format!("{}{unit}", millis / size));
            millis %= size;
        }
    }
    if parts.is_empty() { vec!["0s".into()] } else { parts }
}

/// `1 intent`, `2 intents`.
pub fn count(number: usize, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

#[cfg(test)]
mod tests;
