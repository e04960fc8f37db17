//! A question about the JSON body of an answer.

use std::fmt;

use serde_json::{Number, Value};

use crate::error::{Error, Result};

/// A test of the value at a JSON pointer in the body of an answer, such as `/error/code`.
///
/// Numbers are compared by value: `1`, `1.0` and `1e0` are equal, and integers of 64 bits are told
/// apart exactly. The empty pointer means the whole body. A pointer that is none is reported when
/// the relay is built, under the name of the setter that got it.
///
/// ```
/// use sqlite_outbox::{Http, Predicate};
///
/// let http = Http::new()
///     .endpoint("https://api.example.com/messages")
///     .success_when(Predicate::one_of("/state", ["accepted", "queued"]));
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a predicate does nothing until a handler is given it"]
pub struct Predicate {
    pointer: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq)]
enum Test {
    OneOf(Vec<Value>),
    Exists,
    NonNull,
    Absent,
}

impl Predicate {
    /// The value is there and equals this one.
    pub fn equals(pointer: &str, value: impl Into<Value>) -> Self {
        Self::one_of(pointer, [value])
    }

    /// The value is there and equals one of these, of which there is at least one.
    pub fn one_of<V: Into<Value>>(pointer: &str, values: impl IntoIterator<Item = V>) -> Self {
        Self::new(pointer, Test::OneOf(values.into_iter().map(Into::into).collect()))
    }

    /// The value is there; it may be null.
    pub fn exists(pointer: &str) -> Self {
        Self::new(pointer, Test::Exists)
    }

    /// The value is there and is not null.
    pub fn non_null(pointer: &str) -> Self {
        Self::new(pointer, Test::NonNull)
    }

    /// The value is null or missing. A body that is not JSON does not say so.
    pub fn absent(pointer: &str) -> Self {
        Self::new(pointer, Test::Absent)
    }

    fn new(pointer: &str, test: Test) -> Self {
        Self { pointer: pointer.to_owned(), test }
    }

    /// The predicate, if it can be asked; the error names `field`.
    pub(crate) fn checked(self, field: &str) -> Result<Self> {
        check_pointer(field, &self.pointer)?;
        if matches!(&self.test, Test::OneOf(values) if values.is_empty()) {
            return Err(Error::invalid(field, "one_of names no value"));
        }
        Ok(self)
    }

    /// The value that the test is about, where the body has it.
    pub(crate) fn subject<'a>(&self, body: &'a Value) -> Option<&'a Value> {
        body.pointer(&self.pointer)
    }

    /// Whether the test names the values that pass.
    pub(crate) fn names_values(&self) -> bool {
        matches!(self.test, Test::OneOf(_))
    }

    /// Whether this body passes the test.
    pub(crate) fn holds(&self, body: &Value) -> bool {
        let found = self.subject(body);
        match &self.test {
            Test::OneOf(values) => {
                found.is_some_and(|found| values.iter().any(|value| is_same(value, found)))
            }
            Test::Exists => found.is_some(),
            Test::NonNull => found.is_some_and(|found| !found.is_null()),
            Test::Absent => found.is_none_or(Value::is_null),
        }
    }
}

impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = &self.pointer;
        match &self.test {
            Test::OneOf(values) => write!(f, "{at:?} is {}", Value::from(values.clone())),
            Test::Exists => write!(f, "{at:?} exists"),
            Test::NonNull => write!(f, "{at:?} is not null"),
            Test::Absent => write!(f, "{at:?} is absent"),
        }
    }
}

/// The text, if it is a JSON pointer; the error names `field`.
pub(crate) fn check_pointer(field: &str, pointer: &str) -> Result<String> {
    let escapes_end_well =
        pointer.split('~').skip(1).all(|rest| rest.starts_with('0') || rest.starts_with('1'));
    if (pointer.is_empty() || pointer.starts_with('/')) && escapes_end_well {
        return Ok(pointer.to_owned());
    }
    Err(Error::invalid(field, format!("{pointer:?} is not a JSON pointer such as /data/id")))
}

/// Whether two values are equal, numbers by value.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => is_same_number(a, b),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let has = |(name, value)| b.get(name).is_some_and(|other| is_same(value, other));
            a.len() == b.len() && a.iter().all(has)
        }
        _ => a == b,
    }
}

fn is_same_number(a: &Number, b: &Number) -> bool {
    match (integer(a), integer(b)) {
        (Some(a), Some(b)) => a == b,
        (None, None) => a.as_f64() == b.as_f64(),
        _ => false,
    }
}

/// The number, if it is whole and of at most 64 bits. A larger one was rounded when it was read.
#[allow(clippy::cast_possible_truncation)]
fn integer(number: &Number) -> Option<i128> {
    const BEYOND: f64 = 18_446_744_073_709_551_616.0;
    number.as_i128().or_else(|| {
        let float = number.as_f64()?;
        (float.fract() == 0.0 && float.abs() < BEYOND).then_some(float as i128)
    })
}

#[cfg(test)]
mod tests;
