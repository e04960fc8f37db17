//! Reading a `Retry-After` header.

use std::time::{Duration, UNIX_EPOCH};

use super::millis;

/// The value of a `Retry-After` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryAfter {
    /// To wait this long, from now on; zero for a date in the past. Not capped.
    Delay(Duration),
    /// Nothing that can be understood.
    Malformed,
}

impl RetryAfter {
    /// Reads a number of seconds or one of the three forms of an HTTP date.
    pub(crate) fn parse(text: &str, now: i64) -> Self {
        let text = text.trim_ascii();
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            // Digits alone fail to parse only when they are too many.
            return Self::Delay(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
        }
        let Ok(date) = httpdate::parse_http_date(text) else {
            return Self::Malformed;
        };
        let at = millis(date.duration_since(UNIX_EPOCH).unwrap_or_default());
        let delay = u64::try_from(at.saturating_sub(now)).unwrap_or(0);
        Self::Delay(Duration::from_millis(delay))
    }
}

#[cfg(test)]
mod tests;
