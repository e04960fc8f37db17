//! Texts of a configuration in which placeholders stand for parts of an intent.
//!
//! No message here repeats any part of a template: it may hold a credential.

use std::fmt::Write;

use super::canonical::push_string;

/// Every placeholder there is: the first two may stand in an intent's own endpoint, all but the
/// last in a configured one, and all of them in a lookup.
const ALL: &[&str] = &[
    "{idempotency_key}",
    "{entity_id}",
    "{tenant_id}",
    "{ordering_key}",
    "{key_hash}",
    "{created_at}",
    "{downstream_id}",
];
pub(crate) const OWN: &[&str] = ALL.split_at(2).0;
pub(crate) const CONFIGURED: &[&str] = ALL.split_at(6).0;
pub(crate) const LOOKUP: &[&str] = ALL;

/// The text around a placeholder, which says how its value is escaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A URL, or a form's fields: percent-encoded.
    Url,
    /// A string in JSON.
    Json,
    /// Plain text.
    Plain,
}

/// Fills in the placeholders, each with the value that `value` has for it. A value is never
/// searched for placeholders. The error is a reason without a field.
pub(crate) fn fill(
    template: &str,
    form: Form,
    value: impl Fn(&str) -> String,
) -> Result<String, String> {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        filled.push_str(&rest[..at]);
        rest = &rest[at..];
        let found = ALL.iter().find(|placeholder| rest.starts_with(**placeholder));
        let Some(placeholder) = found else {
            filled.push('{');
            rest = &rest[1..];
            continue;
        };
        let value = value(placeholder);
        // In a URL, an empty or dotted segment would name another resource than the one meant; and
        // a search for nothing finds nothing.
        if value.is_empty() || form == Form::Url && matches!(value.as_str(), "." | "..") {
            return Err(format!("the value for {placeholder} is empty or a dot segment"));
        }
        push_value(&mut filled, form, &value);
        rest = &rest[placeholder.len()..];
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Checks that no braces stand in a text but these placeholders.
pub(crate) fn check_braces(text: &str, placeholders: &[&str]) -> Result<(), String> {
    let mut rest = text.to_owned();
    for placeholder in placeholders {
        rest = rest.replace(placeholder, "x");
    }
    if rest.contains(['{', '}']) {
        return Err(format!("{}; write others as %7B, %7D", only(placeholders)));
    }
    Ok(())
}

/// Checks a JSON text in which any placeholder may stand inside a string, and the time also alone.
pub(crate) fn check_json(text: &str) -> Result<(), String> {
    let sample = |placeholder: &str| if placeholder == "{created_at}" { "1" } else { "x" }.into();
    let sample = fill(text, Form::Plain, sample)?;
    if serde_json::from_str::<serde_json::Value>(&sample).is_err() {
        return Err("is not JSON once its placeholders, which belong into strings, are filled in"
            .to_owned());
    }
    let is_name = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    let mut words = sample.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
    if words.any(|(word, _)| is_name(word)) {
        return Err(format!("{}; write others with blanks, as {{ id }}", only(ALL)));
    }
    Ok(())
}

fn only(placeholders: &[&str]) -> String {
    format!("only {} may stand in braces", placeholders.join(" and "))
}

fn push_value(filled: &mut String, form: Form, value: &str) {
    match form {
        Form::Plain => filled.push_str(value),
        Form::Json => {
            let mut literal = String::new();
            push_string(&mut literal, value);
            filled.push_str(&literal[1..literal.len() - 1]);
        }
        Form::Url => {
            for byte in value.bytes() {
                if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                    filled.push(char::from(byte));
                } else {
                    // Writing to a string cannot fail.
                    let _ = write!(filled, "%{byte:02X}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
