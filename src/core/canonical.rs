//! Canonical JSON: the text Python's `json.dumps(obj, sort_keys=True, separators=(",", ":"))`
//! prints for what `json.loads` read, so that every language derives the same key.
//!
//! The text is read here and not through a [`Value`], because a `Value` depends on features that
//! any other crate of a build may switch on: without `arbitrary_precision` it cannot tell `-0`
//! from `-0.0` or keep a large integer, with `preserve_order` it is not sorted.

use std::borrow::Cow;
use std::fmt::{self, Write};

use crate::error::{Error, Result};

/// How many arrays and objects may stand inside each other; `serde_json` has the same limit.
const DEPTH_MAX: usize = 127;

/// The canonical form of a JSON text. `field` names the text in the error.
pub(crate) fn canonical_text(field: &str, text: &str) -> Result<String> {
    let mut out = String::with_capacity(text.len() + 16);
    let mut reader = Reader { text, at: 0, depth: 0 };
    reader.document(&mut out).map_err(|fault| Error::invalid(field, fault))?;
    Ok(out)
}

/// Appends a string as a JSON literal in pure ASCII.
pub(crate) fn push_string(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    while let Some(plain) = rest.bytes().position(|byte| !is_plain(byte)) {
        let (head, tail) = rest.split_at(plain);
        out.push_str(head);
        let mut chars = tail.chars();
        chars.next().into_iter().for_each(|char| push_escaped(out, char));
        rest = chars.as_str();
    }
    out.push_str(rest);
    out.push('"');
}

/// Appends bytes as lower-case hex digits.
pub(crate) fn push_hex(out: &mut String, bytes: &[u8]) {
    // Every event has the hash of its key: formatting byte by byte took longer than the hash.
    let digit =
        |nibble: u8| char::from(if nibble < 10 { b'0' + nibble } else { b'a' - 10 + nibble });
    out.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]));
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\'
}

fn push_escaped(out: &mut String, char: char) {
    match char {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        _ => {
            for unit in char.encode_utf16(&mut [0; 2]) {
                out.push_str("\\u");
                push_hex(out, &unit.to_be_bytes());
            }
        }
    }
}

/// Appends a finite double as Python's `repr` prints it: the shortest digits that read back as
/// the same double, in exponent form below `1e-4` and from `1e16` on.
fn push_float(out: &mut String, value: f64) {
    let text = shortest(value.abs());
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i16 = exponent.parse().unwrap_or(0);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let shift = usize::from(exponent.unsigned_abs());
    if value.is_sign_negative() {
        out.push('-');
    }
    // Writing to a string cannot fail.
    let _ = match exponent {
        0..16 => {
            let (moved, rest) = fraction.split_at(shift.min(fraction.len()));
            let rest = if rest.is_empty() { "0" } else { rest };
            write!(out, "{whole}{moved:0<shift$}.{rest}")
        }
        -4..0 => write!(out, "0.{whole:0>shift$}{fraction}"),
        16.. => write!(out, "{digits}e+{shift:02}"),
        _ => write!(out, "{digits}e-{shift:02}"),
    };
}

/// The shortest digits of a double, as `d.ddde-7`. Of two that are equally near, Rust takes the
/// upper one and Python the even one, which is what rounding to that many digits gives; it is
/// taken unless it would read back as another double.
fn shortest(value: f64) -> String {
    let text = format!("{value:e}");
    let digits = text.bytes().take_while(|byte| *byte != b'e').filter(u8::is_ascii_digit).count();
    // Shorter texts lie too far apart for two of them to be equally near.
    if digits < 16 {
        return text;
    }
    let rounded = format!("{value:.0$e}", digits - 1);
    if rounded.parse().is_ok_and(|read: f64| read.to_bits() == value.to_bits()) {
        rounded
    } else {
        text
    }
}

/// Why a text is refused, and at which byte.
#[derive(Debug)]
struct Fault {
    reason: &'static str,
    at: usize,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.reason, self.at)
    }
}

type Read<T> = Result<T, Fault>;

/// Reads JSON text once from left to right and writes its canonical form.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

/// A member of an object: its name, and where `"name":value` stands in the output.
struct Member<'a> {
    name: Cow<'a, str>,
    from: usize,
    to: usize,
}

impl<'a> Reader<'a> {
    fn document(&mut self, out: &mut String) -> Read<()> {
        if self.text.trim_ascii().is_empty() {
            return Err(self.fault("is empty; JSON is needed, such as {}"));
        }
        self.value(out)?;
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.fault("is not JSON: there is text after the end of the value")),
        }
    }

    /// Reads one value and the white space around it.
    fn value(&mut self, out: &mut String) -> Read<()> {
        self.skip_space();
        match self.peek() {
            Some(b'{') => self.object(out)?,
            Some(b'[') => self.array(out)?,
            Some(b'"') => push_string(out, &self.string()?),
            Some(b'-' | b'0'..=b'9') => self.number(out)?,
            _ => self.word(out)?,
        }
        self.skip_space();
        Ok(())
    }

    fn object(&mut self, out: &mut String) -> Read<()> {
        self.enter()?;
        out.push('{');
        let start = out.len();
        let mut members: Vec<Member<'a>> = Vec::new();
        self.skip_space();
        let mut open = !self.take(b'}');
        while open {
            self.skip_space();
            let name = self.string()?;
            self.skip_space();
            self.expect(b':', "is not JSON: a colon is missing")?;
            if !members.is_empty() {
                out.push(',');
            }
            let from = out.len();
            push_string(out, &name);
            out.push(':');
            self.value(out)?;
            members.push(Member { name, from, to: out.len() });
            open = self.take(b',');
            if !open {
                self.expect(b'}', "is not JSON: an object is not closed")?;
            }
        }
        if !members.is_sorted_by(|a, b| a.name < b.name) {
            sort_members(out, start, members);
        }
        out.push('}');
        self.depth -= 1;
        Ok(())
    }

    fn array(&mut self, out: &mut String) -> Read<()> {
        self.enter()?;
        out.push('[');
        self.skip_space();
        let mut open = !self.take(b']');
        while open {
            self.value(out)?;
            open = self.take(b',');
            if open {
                out.push(',');
            } else {
                self.expect(b']', "is not JSON: an array is not closed")?;
            }
        }
        out.push(']');
        self.depth -= 1;
        Ok(())
    }

    /// Steps over an opening bracket.
    fn enter(&mut self) -> Read<()> {
        if self.depth == DEPTH_MAX {
            return Err(self.fault("is nested deeper than 127 levels"));
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    fn word(&mut self, out: &mut String) -> Read<()> {
        let rest = &self.text[self.at..];
        let Some(word) = ["null", "true", "false"].into_iter().find(|w| rest.starts_with(w)) else {
            return Err(self.fault("is not JSON: a value is missing or misspelt"));
        };
        self.at += word.len();
        out.push_str(word);
        Ok(())
    }

    fn number(&mut self, out: &mut String) -> Read<()> {
        let start = self.at;
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        let mut is_float = false;
        if self.take(b'.') {
            is_float = true;
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            is_float = true;
            let _ = self.take(b'+') || self.take(b'-');
            self.digits()?;
        }
        let text = &self.text[start..self.at];
        if is_float {
            let value = text.parse().ok().filter(|value: &f64| value.is_finite());
            let reason = "holds a number too large for a double";
            push_float(out, value.ok_or(Fault { reason, at: start })?);
        } else if text == "-0" {
            out.push('0');
        } else if text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok() {
            out.push_str(text);
        } else {
            let reason = "holds an integer beyond 64 bits; write it as a string";
            return Err(Fault { reason, at: start });
        }
        Ok(())
    }

    /// Steps over at least one digit.
    fn digits(&mut self) -> Read<()> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start {
            return Err(self.fault("is not JSON: a number lacks a digit"));
        }
        Ok(())
    }

    /// Reads a string literal; borrows it where it has no escapes.
    fn string(&mut self) -> Read<Cow<'a, str>> {
        self.expect(b'"', "is not JSON: a string is missing")?;
        let mut text = Cow::Borrowed("");
        loop {
            let rest = &self.text[self.at..];
            let stop = rest.bytes().position(|b| b == b'"' || b == b'\\' || b < b' ');
            let plain = &rest[..stop.unwrap_or(rest.len())];
            // Adding to an empty borrowed string borrows.
            text += plain;
            self.at += plain.len();
            if self.take(b'"') {
                return Ok(text);
            }
            self.expect(b'\\', "is not JSON: a string is cut off or holds a control character")?;
            let char = self.escape()?;
            text.to_mut().push(char);
        }
    }

    /// Reads what follows a backslash.
    fn escape(&mut self) -> Read<char> {
        let char = match self.peek() {
            Some(b'u') => return self.unicode_escape(),
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            _ => return Err(self.fault("is not JSON: an escape is unknown")),
        };
        self.at += 1;
        Ok(char)
    }

    fn unicode_escape(&mut self) -> Read<char> {
        let at = self.at - 1;
        let high = self.unit()?;
        let low = if matches!(high, 0xd800..0xdc00) && self.take(b'\\') {
            Some(self.unit()?)
        } else {
            None
        };
        let mut chars = char::decode_utf16([Some(high), low].into_iter().flatten());
        match (chars.next(), chars.next()) {
            (Some(Ok(char)), None) => Ok(char),
            _ => Err(Fault { reason: "holds a lone surrogate, which is no character", at }),
        }
    }

    /// Reads `u` and four hex digits.
    fn unit(&mut self) -> Read<u16> {
        let digits = self.text.get(self.at + 1..self.at + 5).unwrap_or_default();
        if self.peek() != Some(b'u') || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(self.fault("is not JSON or holds a lone surrogate: \\uXXXX is needed"));
        }
        let reason = "is not JSON: an escape is cut off";
        let unit = u16::from_str_radix(digits, 16).map_err(|_| Fault { reason, at: self.at })?;
        self.at += 5;
        Ok(unit)
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8, reason: &'static str) -> Read<()> {
        if self.take(byte) { Ok(()) } else { Err(self.fault(reason)) }
    }

    fn fault(&self, reason: &'static str) -> Fault {
        Fault { reason, at: self.at }
    }
}

/// Puts the members written from `start` on in order; of equal names the last one stays. UTF-8
/// sorts by code point, as Python does.
fn sort_members(out: &mut String, start: usize, mut members: Vec<Member<'_>>) {
    let written = out.split_off(start);
    members.sort_by(|a, b| a.name.cmp(&b.name));
    for (i, member) in members.iter().enumerate() {
        if members.get(i + 1).is_some_and(|next| next.name == member.name) {
            continue;
        }
        if out.len() > start {
            out.push(',');
        }
        out.push_str(&written[member.from - start..member.to - start]);
    }
}

#[cfg(test)]
mod tests;
