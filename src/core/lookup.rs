//! The meaning of an HTTP answer to a lookup.

use serde_json::Value;

use super::body::{Answer, BodyEnd};
use super::classify::{body_json, failure, receipt};
use super::outcome::{Finding, Receipt};
use super::predicate::Predicate;
use super::template::Form;

/// A question to a provider's record, with placeholders.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub url: String,
    /// `None` asks with GET.
    pub post: Option<Post>,
}

/// The body of a question, and how values are escaped in it.
#[derive(Debug, Clone)]
pub(crate) struct Post {
    pub form: Form,
    pub body: String,
}

impl Question {
    /// The field that sets the URL.
    pub fn field(&self) -> &'static str {
        if self.post.is_some() { "reconcile.post" } else { "reconcile.get" }
    }
}

/// How the answer to a lookup is read.
#[derive(Debug, Clone)]
pub(crate) struct LookupRules {
    /// JSON pointer to the provider's id in the effect; default `/id`.
    pub downstream_id: String,
    /// JSON pointer to the list whose only element is the effect; `None` where the whole body is.
    pub list: Option<String>,
    /// An effect that passes was applied.
    pub when: Option<Predicate>,
    /// An effect that does not pass is another intent's.
    pub matching: Option<Predicate>,
    /// A body that passes means that nothing was applied.
    pub not_applied_when: Option<Predicate>,
}

impl LookupRules {
    /// The rules where only the place of the id is known.
    pub fn new(downstream_id: &str) -> Self {
        let downstream_id = downstream_id.to_owned();
        Self { downstream_id, list: None, when: None, matching: None, not_applied_when: None }
    }
}

/// Reads an answer. `now` is needed for dates in `Retry-After`.
pub(crate) fn classify_lookup(answer: &Answer, rules: &LookupRules, now: i64) -> Finding {
    let unsure = |meaning| Finding::Inconclusive(failure(answer, "lookup", meaning, now));
    match answer.status {
        200..=299 => {}
        404 => return Finding::NotApplied,
        _ => return unsure("the lookup was not answered"),
    }
    let Some(body) = body_json(answer) else {
        return unsure("the lookup was not answered with JSON");
    };
    match (effect(answer, &body, rules), nothing(&body, rules)) {
        (Ok(receipt), None) => Finding::Applied(receipt),
        (Ok(_), Some(_)) => unsure("the lookup says that it was applied, and that it was not"),
        (Err(why), None) => unsure(why),
        // A value that says something is a word; an empty one may be empty for another reason.
        (Err(_), Some(found)) if is_whole(answer) => {
            if says_something(found) || is_alone(answer, &body, found) {
                Finding::NotApplied
            } else {
                unsure(NOT_ALONE)
            }
        }
        (Err(_), Some(_)) => unsure("the lookup's answer is only a part"),
    }
}

const NOT_ALONE: &str = "the lookup has an error, a further page or another count beside the list";

/// The receipt of the effect that the lookup found, or why none is proved.
fn effect(answer: &Answer, body: &Value, rules: &LookupRules) -> Result<Receipt, &'static str> {
    let mut place = String::new();
    if let Some(at) = &rules.list {
        let list = body.pointer(at).ok_or("the lookup was answered without its list")?;
        match list.as_array().map(Vec::len) {
            Some(0) => return Err("the lookup's list is empty"),
            Some(1) if is_whole(answer) && is_alone(answer, body, list) => {}
            Some(1) => return Err(NOT_ALONE),
            Some(_) => return Err("the lookup found more than one"),
            None => return Err("the lookup was answered without its list"),
        }
        place = format!("{at}/0");
    }
    let receipt = receipt(answer, &format!("{place}{}", rules.downstream_id));
    let effect = body.pointer(&place).unwrap_or(&Value::Null);
    let mut tests = [&rules.when, &rules.matching].into_iter().flatten();
    if tests.clone().any(|test| !test.holds(effect)) {
        return Err("the lookup found it, but not as it is when applied");
    }
    // An empty list of matches is answered with 200 as well.
    if receipt.downstream_id.is_none() && tests.all(|test| test.subject(effect).is_none()) {
        return Err("the lookup was answered without an id");
    }
    Ok(receipt)
}

/// The value that says that nothing was applied. A missing one says nothing.
fn nothing<'a>(body: &'a Value, rules: &LookupRules) -> Option<&'a Value> {
    let list = rules.list.as_ref().and_then(|at| body.pointer(at));
    let empty = list.filter(|list| list.as_array().is_some_and(Vec::is_empty));
    let said = rules.not_applied_when.as_ref().filter(|test| test.holds(body));
    empty.or_else(|| said?.subject(body))
}

/// Whether the answer came to its end, and is neither a part nor given before the work was done.
fn is_whole(answer: &Answer) -> bool {
    answer.body_end == BodyEnd::Complete && !matches!(answer.status, 202 | 206 | 207)
}

/// Whether the answer has no sign beside this value that the value is not all that was to be found.
fn is_alone(answer: &Answer, body: &Value, found: &Value) -> bool {
    let is_next = |value: &str| value.to_ascii_lowercase().contains("next");
    !answer.headers.iter().any(|(name, value)| name == "link" && is_next(value))
        && !has_sign(body, found)
}

fn has_sign(value: &Value, found: &Value) -> bool {
    if std::ptr::eq(value, found) {
        return false;
    }
    match value {
        Value::Array(items) => items.iter().any(|item| has_sign(item, found)),
        Value::Object(members) => members.iter().any(|(name, member)| {
            !std::ptr::eq(member, found) && is_sign(name, member, found) || has_sign(member, found)
        }),
        _ => false,
    }
}

/// Parts of names and words, in lower case without punctuation, of what is beside an answer that is
/// not all there is.
const SIGNS: [&str; 12] = [
    "continuation",
    "cursor",
    "error",
    "exception",
    "fail",
    "incomplete",
    "lastevaluatedkey",
    "more",
    "next",
    "partial",
    "timedout",
    "truncated",
];

fn is_sign(name: &str, value: &Value, found: &Value) -> bool {
    let plain = |text: &str| {
        text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
    };
    let is_among = |text: &str| SIGNS.iter().any(|sign| text.contains(sign));
    let name = plain(name);
    match name.as_str() {
        "ok" | "success" | "succeeded" | "complete" => *value == Value::Bool(false),
        "total" | "count" | "totalcount" | "totalresults" | "totalitems" => {
            let length = found.as_array().map_or(0, Vec::len);
            value.is_number() && value.as_u64() != u64::try_from(length).ok()
        }
        "code" | "rel" | "result" | "status" => {
            value.as_u64().is_some_and(|number| number >= 400)
                || value.as_str().is_some_and(|text| is_among(&plain(text)))
        }
        "offset" => says_something(value),
        name => is_among(name) && says_something(value),
    }
}

/// Whether a value is more than null, false, zero or empty.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(is_true) => *is_true,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
    }
}

#[cfg(test)]
mod tests;
