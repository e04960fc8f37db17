//! The head of an answer, read line by line as it comes: what cannot be read of it is left out and
//! counted, and takes nothing from the status.

use std::mem;
use std::time::Duration;

/// The longest line that is kept, in bytes.
const LINE_MAX: usize = 16 * 1024;
/// The most of all header fields that is kept, in bytes and in number.
const KEPT_MAX: usize = 64 * 1024;
const FIELDS_MAX: usize = 1000;
/// The fields by which the transport finds the end of the answer. More of them than the transport
/// reads make it refuse the answer.
const FRAMING: [&str; 3] = ["connection", "content-length", "transfer-encoding"];
const FRAMING_MAX: usize = 200;
const PROTOCOL: &[u8] = b"HTTP/1.";

/// A head, as far as it has come.
#[derive(Debug, Default)]
pub(super) struct Head {
    /// The line that has not ended, at most one byte longer than is kept.
    line: Vec<u8>,
    /// The first line as the transport gets it: without its phrase, or whole where it is no HTTP.
    status: Vec<u8>,
    pub fields: Vec<(String, String)>,
    /// The number of fields that could not be read.
    pub left_out: usize,
    framing: usize,
    kept: usize,
    /// Whether a folded line would continue the last field.
    continues: bool,
}

impl Head {
    /// Takes what has come. Returns how much of it belongs to the head, and whether that is over.
    pub fn feed(&mut self, input: &[u8]) -> (usize, bool) {
        let mut used = 0;
        while let Some(length) = input[used..].iter().position(|&byte| byte == b'\n') {
            self.extend(&input[used..used + length]);
            used += length + 1;
            let line = mem::take(&mut self.line);
            if self.end_line(line.strip_suffix(b"\r").unwrap_or(&line)) {
                return (used, true);
            }
        }
        self.extend(&input[used..]);
        let is_http = self.line.iter().zip(PROTOCOL).all(|(a, b)| a == b);
        if self.status.is_empty() && !is_http && self.line != b"\r" {
            self.status = mem::take(&mut self.line);
            return (input.len(), true);
        }
        (input.len(), false)
    }

    fn extend(&mut self, part: &[u8]) {
        let room = (LINE_MAX + 1).saturating_sub(self.line.len());
        self.line.extend_from_slice(&part[..part.len().min(room)]);
    }

    /// Whether the head ends with this line.
    fn end_line(&mut self, line: &[u8]) -> bool {
        if self.status.is_empty() {
            let is_http = line.starts_with(PROTOCOL);
            // A reason may be of any length, and says nothing.
            let length = if is_http { line.len().min(PROTOCOL.len() + 5) } else { line.len() };
            self.status = line[..length].to_vec();
            return !is_http && !line.is_empty();
        }
        if !line.is_empty() {
            self.field(line);
            return false;
        }
        // An interim answer; 101 is final, because nothing of HTTP follows it.
        let code = self.code();
        let is_interim = code.starts_with(b"1") && code != b"101";
        if is_interim {
            *self = Self::default();
        }
        !is_interim
    }

    /// The status as it was written.
    pub fn code(&self) -> &[u8] {
        self.status.get(PROTOCOL.len() + 2..).unwrap_or_default()
    }

    fn field(&mut self, line: &[u8]) {
        if line.starts_with(b" ") || line.starts_with(b"\t") {
            return self.fold(line);
        }
        let field = (line.len() <= LINE_MAX).then(|| read_field(line)).flatten();
        let has_room = self.kept + line.len() <= KEPT_MAX && self.fields.len() < FIELDS_MAX;
        let room = |name: &str, framing: usize| {
            if FRAMING.contains(&name) { framing < FRAMING_MAX } else { has_room }
        };
        self.continues = false;
        match field {
            Some((name, value)) if room(&name, self.framing) => {
                self.framing += usize::from(FRAMING.contains(&name.as_str()));
                self.kept += line.len();
                self.fields.push((name, value));
                self.continues = true;
            }
            _ => self.left_out += 1,
        }
    }

    /// Joins a line to the field before it, of which it is a part.
    fn fold(&mut self, line: &[u8]) {
        let Some((_, value)) = self.fields.last_mut().filter(|_| self.continues) else { return };
        match read_value(line) {
            Some(more) if self.kept + line.len() <= KEPT_MAX => {
                self.kept += line.len();
                value.push(' ');
                value.push_str(&more);
            }
            _ => {
                self.fields.pop();
                self.left_out += 1;
                self.continues = false;
            }
        }
    }

    /// The head as the transport gets it: the status, and where the answer ends.
    pub fn for_transport(&self, closes: bool) -> Vec<u8> {
        let mut text = self.status.clone();
        text.extend_from_slice(b"\r\n");
        let framing = self.fields.iter().filter(|(name, _)| FRAMING.contains(&name.as_str()));
        for (name, value) in framing {
            text.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        text.extend_from_slice(if closes { b"connection: close\r\n\r\n" } else { b"\r\n" });
        text
    }

    /// How long the peer keeps the connection, where it says so.
    pub fn keep_alive(&self) -> Option<Duration> {
        let (_, value) = self.fields.iter().find(|(name, _)| name == "keep-alive")?;
        value.split(',').find_map(|part| {
            let (name, seconds) = part.split_once('=')?;
            let seconds = seconds.trim().trim_matches('"').parse().ok()?;
            name.trim().eq_ignore_ascii_case("timeout").then(|| Duration::from_secs(seconds))
        })
    }
}

/// A field by its name in lower case, unless the name is no name or the value has control
/// characters.
fn read_field(line: &[u8]) -> Option<(String, String)> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    // Blanks before the colon are not HTTP, but the field is meant.
    let name = http::HeaderName::from_bytes(line[..colon].trim_ascii_end()).ok()?;
    Some((name.as_str().to_owned(), read_value(&line[colon + 1..])?))
}

fn read_value(value: &[u8]) -> Option<String> {
    let is_clean = !value.iter().any(|&byte| byte.is_ascii_control() && byte != b'\t');
    is_clean.then(|| String::from_utf8_lossy(value.trim_ascii()).into_owned())
}
