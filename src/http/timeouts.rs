//! How long each phase of an HTTP attempt may take.

use std::time::Duration;

use crate::core::setters::setters;
use crate::error::{Error, Result};

/// How long each phase of an attempt may take. A phase of zero is refused when the relay is built;
/// the transport counts in milliseconds, and a shorter phase as one of them.
///
/// ```
/// use std::time::Duration;
/// use sqlite_outbox::Timeouts;
///
/// let patient = Timeouts::default().response(Duration::from_secs(50));
/// assert_eq!(patient.total(), Duration::from_secs(5 + 5 + 15 + 50 + 5));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct Timeouts {
    /// Finding the host's addresses. Defaults to 5 s.
    pub resolve: Duration,
    /// Connecting, with the TLS handshake. Defaults to 5 s.
    pub connect: Duration,
    /// Sending the request. Defaults to 15 s.
    pub send: Duration,
    /// From the end of the request to the end of the response's headers. Defaults to 30 s.
    pub response: Duration,
    /// Reading the response's body. Defaults to 5 s.
    pub body: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            resolve: Duration::from_secs(5),
            connect: Duration::from_secs(5),
            send: Duration::from_secs(15),
            response: Duration::from_secs(30),
            body: Duration::from_secs(5),
        }
    }
}

setters! {
    Timeouts:
    /// Sets the time to find the host's addresses.
    pub fn resolve(limit: Duration) => resolve = limit;

    /// Sets the time to connect, with the TLS handshake.
    pub fn connect(limit: Duration) => connect = limit;

    /// Sets the time to send the request.
    pub fn send(limit: Duration) => send = limit;

    /// Sets the time from the end of the request to the end of the response's headers.
    pub fn response(limit: Duration) => response = limit;

    /// Sets the time to read the response's body.
    pub fn body(limit: Duration) => body = limit;
}

impl Timeouts {
    /// The longest an attempt may take: the sum of the phases.
    pub fn total(&self) -> Duration {
        [self.connect, self.send, self.response, self.body]
            .into_iter()
            .fold(self.resolve, Duration::saturating_add)
    }

    /// The time to send, split into head and body, which the transport times one by one.
    pub(super) fn send_parts(&self) -> (Duration, Duration) {
        let head = self.send / 3;
        (head, self.send.saturating_sub(head))
    }

    /// The times as the transport can keep them.
    pub(super) fn checked(self) -> Result<Self> {
        let phases = [
            ("timeouts.resolve", self.resolve),
            ("timeouts.connect", self.connect),
            ("timeouts.send", self.send),
            ("timeouts.response", self.response),
            ("timeouts.body", self.body),
        ];
        if let Some((field, _)) = phases.into_iter().find(|(_, limit)| limit.is_zero()) {
            return Err(Error::invalid(field, "must be longer than zero"));
        }
        let moment = Duration::from_millis(1);
        Ok(Self {
            resolve: self.resolve.max(moment),
            connect: self.connect.max(moment),
            send: self.send.max(moment * 3),
            response: self.response.max(moment),
            body: self.body.max(moment),
        })
    }
}
