//! Evidence of a failure: the part of an answer that is kept, and the part that may be told.

use std::fmt::Write as _;

use serde_json::Value;

use super::body::Answer;
use super::failing::FailingAnswer;
use super::key::sha256;
use super::outcome::{Failure, RECEIPT_BODY_MAX};

fn kept(answer: &Answer, secrets: &Secrets) -> FailingAnswer {
    let kept = answer.headers.iter().filter(|(name, _)| is_kept(name, answer.status));
    let mut text = String::from_utf8_lossy(&answer.body).into_owned();
    // Cut with some room, so that no secret is cut before it is blanked.
    cut(&mut text, 2 * RECEIPT_BODY_MAX);
    let mut body = secrets.blank(&text);
    cut(&mut body, RECEIPT_BODY_MAX);
    FailingAnswer {
        at: 0,
        status: answer.status,
        headers: kept.map(|(name, value)| (name.clone(), secrets.blank(value))).collect(),
        body,
        body_bytes: answer.body.len() as u64,
        body_sha256: sha256(&answer.body),
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
    /// Adds a header's value, and the part of it after a word such as `Bearer`.
    pub fn header(&mut self, name: &str, value: &str) {
        // These say what is spoken.
        if matches!(name, "accept" | "content-type") {
            return;
        }
        self.add(value);
        if let Some((_, rest)) = value.split_once(' ') {
            self.add(rest.trim_start());
        }
    }

    /// Adds the parts of a URL that can be credentials: the values of its query, and each part
    /// of its path that looks drawn at random.
    pub fn url(&mut self, url: &str) {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        let Some(at) = rest.find(['/', '?']) else { return };
        let (path, query) = rest[at..].split_once('?').unwrap_or((&rest[at..], ""));
        for value in query.split('&') {
            self.add(value.split_once('=').map_or(value, |(_, value)| value));
        }
        for part in path.split('/') {
            self.random(part);
        }
    }

    /// Adds each part of a configured body that looks drawn at random.
    pub fn body(&mut self, body: &str) {
        let joins = |c: char| c.is_ascii_alphanumeric() || "-_.~+/".contains(c);
        for part in body.split(|c| !joins(c)) {
            self.random(part);
        }
    }

    fn random(&mut self, part: &str) {
        let has_digit = part.bytes().any(|b| b.is_ascii_digit());
        if part.len() >= 20 || has_digit && part.len() >= 8 {
            self.add(part);
        }
    }

    fn add(&mut self, text: &str) {
        if text.len() >= SECRET_MIN {
            self.0.push(text.as_bytes().to_vec());
            // The longest first: a part must not leave the rest of the whole behind.
            self.0.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
        }
    }

    /// The text with every secret replaced by `***`, also percent-encoded or escaped as in JSON.
    fn blank(&self, text: &str) -> String {
        let mut blanked = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            if let Some(length) = self.0.iter().find_map(|secret| spelled(rest, secret)) {
                blanked.push_str("***");
                rest = &rest[length..];
            } else {
                blanked.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
        blanked
    }
}

/// How many bytes of the text's beginning spell this secret; or the first part of it, where the
/// text was cut there.
fn spelled(text: &str, secret: &[u8]) -> Option<usize> {
    let mut at = 0;
    for (number, byte) in secret.iter().enumerate() {
        let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) else {
            return (number >= SECRET_MIN).then_some(at);
        };
        at += spelling(rest, *byte)?;
    }
    Some(at)
}

/// How many bytes of the text's beginning stand for this byte.
fn spelling(text: &str, byte: u8) -> Option<usize> {
    let hex = |from: usize, to: usize| {
        text.get(from..to).and_then(|digits| u8::from_str_radix(digits, 16).ok()) == Some(byte)
    };
    match text.as_bytes() {
        [first, ..] if *first == byte && byte != b'\\' => Some(1),
        [b'%', ..] if hex(1, 3) => Some(3),
        [b'+', ..] if byte == b' ' => Some(1),
        [b'\\', b'u', b'0', b'0', ..] if hex(4, 6) => Some(6),
        [b'\\', next, ..] if *next == byte => Some(2),
        [b'\\', ..] if byte == b'\\' => Some(1),
        _ => None,
    }
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
        let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>');
        let token = &after[..after.find(ends).unwrap_or(after.len())];
        let url = token.trim_end_matches([':', ';', ',', '.', ')', ']', '}']);
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
