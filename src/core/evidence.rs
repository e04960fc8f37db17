//! Evidence of a failure: the part of an answer that is kept, and the part that may be told.

use std::fmt::Write as _;

use serde_json::Value;

use super::body::{Answer, BodyEnd};
use super::failing::FailingAnswer;
use super::key::sha256;
use super::lookup::Post;
use super::outcome::{Failure, RECEIPT_BODY_MAX, Receipt};
use super::template::{Form, fill};

fn kept(answer: &Answer, secrets: &Secrets) -> FailingAnswer {
    let kept = answer.headers.iter().filter(|(name, _)| is_kept(name, answer.status));
    FailingAnswer {
        at: 0,
        status: answer.status,
        headers: kept.map(|(name, value)| (name.clone(), secrets.blank(value))).collect(),
        body: kept_body(answer, secrets),
        body_bytes: answer.body.len() as u64,
        body_sha256: sha256(&answer.body),
    }
}

fn kept_body(answer: &Answer, secrets: &Secrets) -> String {
    let part = &answer.body[..answer.body.len().min(2 * RECEIPT_BODY_MAX)];
    let mut text = String::from_utf8_lossy(part).into_owned();
    // Cut with some room, so that no secret is cut before it is blanked.
    cut(&mut text, 2 * RECEIPT_BODY_MAX);
    let mut body = secrets.blank(&text);
    cut(&mut body, RECEIPT_BODY_MAX);
    body
}

/// Blanks what a receipt has of an answer. What came stays known by its length and its hash.
pub(crate) fn hide(receipt: &mut Receipt, answer: &Answer, secrets: &Secrets) {
    for (_, value) in &mut receipt.headers {
        *value = secrets.blank(value);
    }
    let Some(body) = receipt.body.as_mut().filter(|body| secrets.blank(body) != **body) else {
        return;
    };
    *body = kept_body(answer, secrets);
    if answer.body_end == BodyEnd::Complete {
        receipt.body_bytes = Some(answer.body.len() as u64);
        receipt.body_sha256 = Some(sha256(&answer.body));
    }
}

/// Takes an id off that repeats a credential: it is none, and would be stored.
pub(crate) fn hide_id(receipt: &mut Receipt, credentials: &Secrets) {
    if receipt.downstream_id.take_if(|id| credentials.blank(id) != **id).is_some() {
        let why = "its id repeats a configured header, and was not taken";
        let note = receipt.note.take().map_or(why.into(), |note| format!("{note}; {why}"));
        receipt.note = Some(note);
    }
}

/// Whether a header is kept. Others may hold secrets, such as cookies.
fn is_kept(name: &str, status: u16) -> bool {
    match name {
        "location" => matches!(status, 300..=399),
        "cf-ray"
        | "content-type"
        | "idempotency-replayed"
        | "idempotent-replayed"
        | "retry-after"
        | "x-amz-request-id"
        | "x-amzn-requestid"
        | "x-correlation-id"
        | "traceparent" => true,
        name => name == "request-id" || name.ends_with("-request-id"),
    }
}

/// Adds what came back to a failure: the answer itself, without its secrets, and to the message no
/// more of it than the type and the title of a problem (RFC 9457).
pub(crate) fn attach(failure: &mut Failure, answer: &Answer, secrets: &Secrets) {
    let is_problem = |(name, value): &(String, String)| {
        name == "content-type"
            && value.trim_ascii().to_ascii_lowercase().starts_with("application/problem+json")
    };
    let problem: Option<Value> = answer
        .headers
        .iter()
        .any(is_problem)
        .then(|| serde_json::from_slice(&answer.body).unwrap_or_default());
    if let Some(problem) = problem {
        let word = |name: &str| problem[name].as_str().map(|text| brief(&secrets.blank(text)));
        // Without its scheme, because it is a name here and no address.
        let kind = word("type").filter(|kind| kind != "about:blank").map(|kind| {
            let name = kind.split_once("://").map_or(kind.as_str(), |(_, name)| name);
            name.split(['?', '#']).next().unwrap_or_default().to_owned()
        });
        let said: Vec<String> = [kind, word("title")].into_iter().flatten().collect();
        if !said.is_empty() {
            let _ = write!(failure.message, " (problem {})", said.join(": "));
        }
    }
    failure.answer = Some(Box::new(kept(answer, secrets)));
}

/// At most 120 characters, with those escaped that cannot be seen.
fn brief(text: &str) -> String {
    let escaped = text.chars().take(120).map(|c| match c {
        '\'' | '"' => c.to_string(),
        c => c.escape_debug().to_string(),
    });
    escaped.collect()
}

fn cut(text: &mut String, max: usize) {
    let end = (0..=max.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    text.truncate(end.unwrap_or(0));
}

/// The texts that must not be stored, whoever repeats them.
#[derive(Debug, Default)]
pub(crate) struct Secrets(Vec<Vec<u8>>);

/// Shorter values are no credentials, and would be found in any text.
const SECRET_MIN: usize = 4;

impl Secrets {
    /// Adds a header's value, the part of it after a word such as `Bearer`, and those parts that
    /// look drawn at random, as a cookie has them.
    pub fn header(&mut self, name: &str, value: &str) {
        // These say what is spoken.
        if matches!(name, "accept" | "content-type") {
            return;
        }
        self.add(value);
        if let Some((_, rest)) = value.split_once(' ') {
            self.add(rest.trim_start());
        }
        self.parts(value);
    }

    /// Adds the parts of a URL that can be credentials: the values of its query, and each part
    /// of its path that looks drawn at random.
    pub fn url(&mut self, url: &str) {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        let Some(at) = rest.find(['/', '?']) else { return };
        let (path, query) = rest[at..].split_once('?').unwrap_or((&rest[at..], ""));
        self.form(query);
        for piece in path.split(['/', '{', '}']) {
            self.random(piece);
            self.random(&decoded(piece));
        }
    }

    /// Adds the values of a query or a form; of one with placeholders what is around them.
    fn form(&mut self, form: &str) {
        for value in form.split('&') {
            let value = value.split_once('=').map_or(value, |(_, value)| value);
            if value.contains('{') {
                value.split(['{', '}']).for_each(|piece| self.random(&decoded(piece)));
            } else {
                self.add(value);
                self.add(&decoded(&value.replace('+', " ")));
            }
        }
    }

    /// Adds the parts of a lookup's body that can be credentials.
    pub fn post(&mut self, post: &Post) {
        if post.form == Form::Url {
            return self.form(&post.body);
        }
        // The time may stand where JSON has a number.
        let braces = |name: &str| if name == "{created_at}" { "0" } else { "{}" }.to_owned();
        let body = fill(&post.body, Form::Plain, braces).unwrap_or_default();
        self.strings(&serde_json::from_str(&body).unwrap_or_default());
    }

    fn strings(&mut self, value: &Value) {
        match value {
            Value::String(text) => {
                text.split(['{', '}']).for_each(|piece| self.random(piece));
                self.parts(text);
            }
            Value::Array(items) => items.iter().for_each(|item| self.strings(item)),
            Value::Object(members) => members.values().for_each(|member| self.strings(member)),
            _ => {}
        }
    }

    /// Adds each part of a text that looks drawn at random.
    fn parts(&mut self, text: &str) {
        let joins = |c: char| c.is_ascii_alphanumeric() || "-_.~+/".contains(c);
        text.split(|c| !joins(c)).for_each(|part| self.random(part));
    }

    fn random(&mut self, part: &str) {
        let has_digit = part.bytes().any(|b| b.is_ascii_digit());
        if part.len() >= 20 || has_digit && part.len() >= 8 {
            self.add(part);
        }
    }

    fn add(&mut self, text: &str) {
        // No answer could be read without these words of JSON.
        if matches!(text, "true" | "false" | "null") || text.len() < SECRET_MIN {
            return;
        }
        // The longest first: a part must not leave the rest of the whole behind.
        let place = self.0.partition_point(|secret| secret.len() >= text.len());
        if !self.0.iter().any(|secret| secret == text.as_bytes()) {
            self.0.insert(place, text.as_bytes().to_vec());
        }
    }

    /// The text with every secret replaced by `***`, also percent-encoded or escaped as in JSON.
    fn blank(&self, text: &str) -> String {
        let mut may_begin = [false; 256];
        for byte in self.0.iter().filter_map(|secret| secret.first()).chain(b"%+\\") {
            may_begin[usize::from(*byte)] = true;
        }
        let mut blanked = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((&first, tail)) = rest.split_first() {
            let mut secrets = self.0.iter().filter(|_| may_begin[usize::from(first)]);
            if let Some(length) = secrets.find_map(|secret| spelled(rest, secret)) {
                blanked.extend_from_slice(b"***");
                rest = &rest[length..];
            } else {
                blanked.push(first);
                rest = tail;
            }
        }
        String::from_utf8_lossy(&blanked).into_owned()
    }
}

/// How many bytes of the text's beginning spell this secret; or the first part of it, where the
/// text was cut there.
fn spelled(text: &[u8], secret: &[u8]) -> Option<usize> {
    let mut at = 0;
    for (number, byte) in secret.iter().enumerate() {
        match spelling(&text[at..], *byte) {
            Some(length) => at += length,
            None => return (number >= SECRET_MIN && is_cut(&text[at..])).then_some(text.len()),
        }
    }
    Some(at)
}

/// Whether nothing is left of the text, or the beginning of an escape.
fn is_cut(rest: &[u8]) -> bool {
    match rest {
        [] | [b'\\'] => true,
        [b'%', ..] => rest.len() < 3,
        [b'\\', b'u', ..] => rest.len() < 6,
        _ => false,
    }
}

/// How many bytes of the text's beginning stand for this byte.
fn spelling(text: &[u8], byte: u8) -> Option<usize> {
    let hex = |digits: &[u8]| {
        std::str::from_utf8(digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok())
            == Some(byte)
    };
    match text {
        [first, ..] if *first == byte && byte != b'\\' => Some(1),
        [b'%', high, low, ..] if hex(&[*high, *low]) => Some(3),
        [b'+', ..] if byte == b' ' => Some(1),
        [b'\\', b'u', b'0', b'0', high, low, ..] if hex(&[*high, *low]) => Some(6),
        [b'\\', next, ..] if *next == byte => Some(2),
        [b'\\', b'n', ..] if byte == b'\n' => Some(2),
        [b'\\', b'r', ..] if byte == b'\r' => Some(2),
        [b'\\', b't', ..] if byte == b'\t' => Some(2),
        [b'\\', ..] if byte == b'\\' => Some(1),
        _ => None,
    }
}

/// The text that this one encodes by percent signs.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&first, tail)) = rest.split_first() {
        let digits = rest.get(1..3).filter(|_| first == b'%');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Cuts the URLs in the message of a failure, before it is stored or logged.
pub(crate) fn hide_paths(failure: &mut Failure) {
    if failure.message.contains("://") {
        failure.message = without_paths(&failure.message);
    }
}

/// The text with every URL cut to its scheme, host and port: user names, paths and queries are
/// credentials often enough.
fn without_paths(text: &str) -> String {
    let (mut kept, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        kept.push_str(before);
        // A URL may hold an apostrophe, but not one that it is put between.
        let scheme = before[..at].trim_end_matches(|c: char| c.is_ascii_alphanumeric());
        let is_quoted = scheme.ends_with('\'');
        let ends = |c: char| {
            c.is_whitespace() || matches!(c, '"' | '`' | '<' | '>') || is_quoted && c == '\''
        };
        let token = &after[..after.find(ends).unwrap_or(after.len())];
        let url = token.trim_end_matches([':', ';', ',', '.', ')', ']', '}', '\'']);
        // An address of version 6 ends with a bracket of its own.
        let url = if url.contains('[') && !url.contains(']') { token } else { url };
        let authority = url.split(['/', '?', '#', '\\']).next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        let port = host.rsplit(']').next().and_then(|end| end.split_once(':'));
        if port.is_none_or(|(_, port)| port.bytes().all(|b| b.is_ascii_digit())) {
            kept.push_str(host);
        }
        if authority.len() < url.len() {
            kept.push_str("/…");
        }
        kept.push_str(&token[url.len()..]);
        rest = &after[token.len()..];
    }
    kept + rest
}

#[cfg(test)]
mod tests;
