//! The pure core: what an intent is, which key it has, what an outcome means and what follows.
//!
//! Nothing here reads a clock, draws a random number or does I/O: `now` and random rolls are
//! arguments, so every rule can be tested as a table.

// Where it says so, parts are used by the HTTP handler only.
pub(crate) mod backoff;
pub(crate) mod budget;
pub(crate) mod canonical;
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) mod classify;
pub(crate) mod contract;
pub(crate) mod decide;
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) mod endpoint;
pub(crate) mod entry;
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) mod flow;
pub(crate) mod header;
pub(crate) mod intent;
pub(crate) mod key;
pub(crate) mod outcome;
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) mod retry_after;
pub(crate) mod status;

/// A duration in whole milliseconds, saturating.
pub(crate) fn millis(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
