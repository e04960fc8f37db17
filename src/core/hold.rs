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

/// What a hold says to a due row of its domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Free,
    /// The row tries whether the hold can end.
    Probe,
    /// The row waits aside.
    Behind,
}

/// A hold that has ended lets at most two to the power of this many rows through at once.
const DOUBLINGS_MAX: u32 = 10;

impl Hold {
    /// A hold that stops nothing yet.
    pub fn new(operation: &str, domain: Domain, name: String) -> Self {
        Self {
            id: 0,
            operation: operation.to_owned(),
            domain,
            name,
            cause: None,
            since: 0,
            until: None,
            culprit: None,
            reason: String::new(),
            failures: 0,
            probes: 0,
            probe: None,
        }
    }

    /// Whether this row may be sent at `now`.
    pub fn admits(&self, id: i64, now: i64) -> Admission {
        match self.cause {
            None => Admission::Free,
            Some(Cause::Budget) if self.is_over(now) => Admission::Free,
            Some(_) => match self.probe {
                Some((probe, _)) if probe == id => Admission::Probe,
                None if self.is_over(now) => Admission::Probe,
                _ => Admission::Behind,
            },
        }
    }

    /// Whether the time of the hold has come.
    pub fn is_over(&self, now: i64) -> bool {
        self.until.is_none_or(|until| until <= now)
    }

    /// How many of its rows are let through when its time has come.
    pub fn lets_through(&self) -> usize {
        match self.cause {
            None => 1 << self.probes.min(DOUBLINGS_MAX),
            Some(Cause::Budget) => 1 << DOUBLINGS_MAX,
            Some(_) => usize::from(self.probe.is_none()),
        }
    }
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
