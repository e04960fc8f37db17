//! An HTTP answer, and its body as JSON.

use serde_json::{Deserializer, Value};

/// The deepest nesting that is read: a worker's stack holds it.
const DEPTH_MAX: usize = 1000;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const NOT_JSON: &str = "the body is not JSON";
const GZIP: &[u8] = b"\x1f\x8b";

/// An HTTP answer as far as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub status: u16,
    /// All response headers; names in lower case, values as lossy text.
    pub headers: Vec<(String, String)>,
    /// How many header lines could not be read.
    pub left_out: usize,
    /// The body, up to the bound that was set for it.
    pub body: Vec<u8>,
    pub body_end: BodyEnd,
}

/// How reading the body ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BodyEnd {
    /// The whole body was read and its end was marked by length or chunks.
    Complete,
    /// The body was longer than the bound; reading stopped there.
    Truncated,
    /// The body ended with an error, or its end cannot be told from a cut.
    Broken(String),
}

/// The body, also of an answer whose end is in doubt, if what came is whole; or why not.
pub(super) fn read_json(answer: &Answer) -> Result<Value, &'static str> {
    let text = answer.body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&answer.body);
    if depth(text) > DEPTH_MAX {
        return Err("the body is nested deeper than 1,000");
    }
    match parse(text) {
        // A cut number reads as another number; every other value marks its own end.
        Some(body) if answer.body_end == BodyEnd::Complete || !body.is_number() => Ok(body),
        None if is_compressed(answer) => Err("the body is compressed, which was not asked for"),
        _ => Err(match answer.body_end {
            BodyEnd::Complete => NOT_JSON,
            BodyEnd::Truncated => "the body is longer than answer_max",
            BodyEnd::Broken(_) => "the body was not read to its end",
        }),
    }
}

/// Reads one value whose depth was checked.
fn parse(text: &[u8]) -> Option<Value> {
    let mut reader = Deserializer::from_slice(text);
    reader.disable_recursion_limit();
    let mut values = reader.into_iter();
    let value = values.next()?.ok()?;
    values.next().is_none().then_some(value)
}

/// The deepest nesting of a JSON text; of another text any number.
fn depth(text: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

fn is_compressed(answer: &Answer) -> bool {
    answer.body.starts_with(GZIP)
        || header(answer, "content-encoding")
            .is_some_and(|coding| !coding.trim().eq_ignore_ascii_case("identity"))
}

/// The provider's id at this pointer, and what of the answer could not be used, for people.
pub(super) fn read_id(answer: &Answer, pointer: &str) -> (Option<String>, Option<String>) {
    let mut left = Vec::new();
    if answer.left_out > 0 {
        left.push(format!("{} of its header lines could not be read", answer.left_out));
    }
    let id = match read_json(answer) {
        Ok(body) => body.pointer(pointer).and_then(id_text),
        Err(why) => {
            if why != NOT_JSON && !answer.body.is_empty() {
                left.push(why.to_owned());
            }
            None
        }
    };
    let is_odd = |id: &String| id.trim() != id || id.contains(char::is_control);
    if id.as_ref().is_some_and(is_odd) {
        left.push("its id has blanks around it or control characters, and was not taken".into());
    }
    (id.filter(|id| !is_odd(id)), (!left.is_empty()).then(|| left.join("; ")))
}

/// An id as text. A number beyond 64 bits was rounded when it was read, so it is not an id.
fn id_text(id: &Value) -> Option<String> {
    match id {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) if number.is_i64() || number.is_u64() => Some(number.to_string()),
        _ => None,
    }
}

pub(super) fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
}
