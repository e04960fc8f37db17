//! A hold: what stops one domain of an operation, by what it was learnt, and when it is tried
//! again. Other domains of the operation go on.

use super::word::words;

/// The state of one domain, as the file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hold {
    /// The number under which rows wait behind the hold; 0 before it is stored.
    pub id: i64,
    pub operation: String,
    pub domain: Domain,
    /// The origin, endpoint, tenant or run.
    pub name: String,
    /// Why rows wait; `None` while failures are only counted.
    pub cause: Option<Cause>,
    pub since: i64,
    /// When rows may be tried again.
    pub until: Option<i64>,
    /// The intent that showed it.
    pub culprit: Option<i64>,
    /// The answer to it, or its failure.
    pub reason: String,
    /// Failures in a row.
    pub failures: u32,
    /// Tries of this hold that failed.
    pub probes: u32,
    /// The row that is let through to try it, and its claim once there is one.
    pub probe: Option<(i64, Option<i64>)>,
}

words! {
    /// The kind of domain that a hold stops.
    pub(crate) enum Domain, "domain" {
        /// The origin (scheme, host and port) that intents name themselves.
        Origin = "origin",
        /// An endpoint that intents name themselves.
        Endpoint = "endpoint",
        /// The intents of one tenant.
        Tenant = "tenant",
        /// The intents of one agent run.
        Run = "run",
        /// Rows that were in flight when their process died, more than once.
        Suspects = "suspects",
        /// Everything that goes over the network.
        Network = "network",
    }
}

words! {
    /// Why a domain stands still.
    pub(crate) enum Cause, "cause" {
        /// Several attempts in a row did not reach the domain, or may not have.
        Breaker = "breaker",
        /// The downstream asked to be left alone.
        Throttled = "throttled",
        /// The downstream refused the credentials.
        Auth = "auth",
        /// A budget is used up.
        Budget = "budget",
        /// Suspects are tried one at a time.
        Lost = "lost",
        /// The machine has no network.
        Offline = "offline",
    }
}
