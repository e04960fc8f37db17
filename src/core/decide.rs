//! The one place that decides what follows from an outcome.

use std::borrow::Cow;
use std::time::Duration;

use super::backoff::Backoff;
use super::contract::Downstream;
use super::millis;
use super::outcome::{Failure, Outcome};

/// What is known about a claimed row: the counters include the attempt being decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Facts {
    /// Attempts of this budget that may have reached the downstream, or were answered by it.
    pub attempts: u32,
    /// Tries of this budget of any kind, also those that provably never left.
    pub tries: u32,
    /// Attempts in a row that were lost with their process.
    pub lost: u32,
    /// When the first attempt began that may have been applied and was not answered.
    pub in_doubt_since: Option<i64>,
    /// When the first attempt of this budget began that may have left.
    pub first_sent_at: Option<i64>,
    /// After which nothing may be sent.
    pub expires_at: Option<i64>,
    /// When this attempt was claimed.
    pub claimed_at: i64,
}

/// The rules of one operation: the stored contract and the relay's budget.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    pub downstream: Downstream,
    pub backoff: Backoff,
    pub attempts_max: u32,
    pub give_up_after: Duration,
    pub retry_after_cap: Duration,
    /// The longest one attempt may take.
    pub time_limit: Duration,
}
