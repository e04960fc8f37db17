//! A hold: what stops one domain of an operation, by what it was learnt, and when it is tried
//! again. Other domains of the operation go on.

use std::fmt;
use std::time::Duration;

use super::backoff::{Backoff, Jitter};
use super::outcome::{Failure, Outcome};
use super::pause::PauseKind;
use super::word::words;
use super::{Draw, millis, utc};

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

/// The answer of a hold to a due row of its domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Free,
    /// The row tries whether the hold can end.
    Probe,
    /// The row waits aside.
    Behind,
}

/// An outcome as the state of its domain hears of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heard<'a> {
    pub outcome: &'a Outcome,
    /// The row and the token of the claim it ended.
    pub claim: (i64, i64),
    /// The row's next attempt.
    pub due_at: Option<i64>,
}

/// The news that an outcome is of the place where its intent went.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lesson<'a> {
    Answers,
    /// The intent did not arrive, or what became of it is not known.
    Fails(&'a Failure),
    /// The credentials are refused.
    RefusesAll(&'a Failure),
    /// This intent is refused; whether the credentials are to blame, others will show.
    RefusesOne(&'a Failure),
    Throttles(&'a Failure),
    /// The endpoint is gone for good.
    Gone(&'a Failure),
    /// The fault is our own.
    Nothing(&'a Failure),
}

impl Heard<'_> {
    pub fn lesson(&self) -> Lesson<'_> {
        match self.outcome {
            Outcome::Rejected(failure) if is_our_own(failure) => Lesson::Nothing(failure),
            Outcome::Rejected(failure) if failure.class == "gone" => Lesson::Gone(failure),
            Outcome::Transient(failure) if failure.class == "auth" => Lesson::RefusesOne(failure),
            Outcome::Transient(failure) if failure.is_not_reached() => Lesson::Fails(failure),
            Outcome::Succeeded(_)
            | Outcome::NeedsReview(_)
            | Outcome::Rejected(_)
            | Outcome::Transient(_) => Lesson::Answers,
            Outcome::Limited(failure) => Lesson::Throttles(failure),
            Outcome::Unauthorized(failure) => Lesson::RefusesAll(failure),
            Outcome::MaybeSent(failure) if failure.class == "panic" => Lesson::Nothing(failure),
            Outcome::NotSent(failure) | Outcome::MaybeSent(failure) => Lesson::Fails(failure),
        }
    }

    /// How long the domain is to be left alone: what was asked for, or as long as the row waits.
    pub fn throttled_until(&self, failure: &Failure, now: i64) -> Option<i64> {
        let most = |wait: i64| now.saturating_add(wait);
        match failure.retry_after {
            Some(asked) => Some(most(millis(asked).min(THROTTLE_MAX_MS))),
            None => self.due_at.map(|at| at.min(most(UNASKED_MAX_MS))),
        }
    }

    /// Whether the outcome, as that of a probe, says that what it tried must go on standing still:
    /// because of refused credentials, where `is_auth`.
    pub fn fails(&self, is_auth: bool) -> bool {
        match self.lesson() {
            Lesson::Fails(_) | Lesson::RefusesAll(_) => true,
            Lesson::RefusesOne(_) => is_auth,
            Lesson::Nothing(_) => matches!(self.outcome, Outcome::MaybeSent(_)),
            Lesson::Answers | Lesson::Gone(_) | Lesson::Throttles(_) => false,
        }
    }
}

/// The longest that a downstream is left alone because it asked for it.
pub(crate) const THROTTLE_MAX_MS: i64 = 24 * 3_600_000;
/// How long a downstream that says "too much" and not for how long is left alone, at most. A row
/// that was tried often waits longer for itself, which is no reason for the others to.
const UNASKED_MAX_MS: i64 = 60_000;
/// How long a try is deferred at most that does not fit a budget.
const DEFERRED_MAX_MS: i64 = 15 * 60_000;
/// A hold that has ended lets at most two to the power of this many rows through at once.
const DOUBLINGS_MAX: u32 = 10;
/// So many origins in a row that were not reached, for a reason of the machine's own, and none that
/// was, say that the machine is offline.
const OFFLINE_AFTER: usize = 3;
/// While the machine is offline, so many origins are tried before the first has another turn.
const ORIGINS_TRIED_MAX: usize = 16;

/// A request that was refused here, before a byte of it left.
fn is_our_own(failure: &Failure) -> bool {
    matches!(failure.class.as_ref(), "endpoint" | "header" | "method" | "request")
}

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
            // The ledger says whether the row fits what is left.
            None | Some(Cause::Budget) => Admission::Free,
            Some(Cause::Operator) if self.until.is_some_and(|until| until <= now) => {
                Admission::Free
            }
            Some(Cause::Operator | Cause::Gone) => Admission::Behind,
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
            Some(_) => usize::from(self.probe.is_none()),
        }
    }

    /// Whether this outcome is that of a probe, and says that the hold must go on.
    pub fn is_failed_probe(&self, heard: &Heard<'_>) -> bool {
        self.is_tried_by(heard.claim) && heard.fails(self.cause == Some(Cause::Auth))
    }

    /// Whether the claim is the one that tries the hold.
    pub fn is_tried_by(&self, claim: (i64, i64)) -> bool {
        self.probe == Some((claim.0, Some(claim.1)))
    }

    /// Takes into account what an outcome says about this origin or endpoint. So many failures in
    /// a row as `breaker_after` stop an origin; `None` never does.
    pub fn on_outcome(&mut self, heard: &Heard<'_>, breaker_after: Option<u32>, draw: Draw) {
        let was_probe = self.is_tried_by(heard.claim);
        let is_origin = self.domain == Domain::Origin;
        let learns = was_probe || self.cause.is_none();
        match heard.lesson() {
            // A person has the say, whatever was on its way.
            _ if self.cause == Some(Cause::Gone) => {}
            Lesson::Fails(failure) if is_origin && learns => {
                self.failures = self.failures.saturating_add(1);
                if was_probe || breaker_after.is_some_and(|after| self.failures >= after) {
                    self.stop(Cause::Breaker, heard, failure, draw);
                }
            }
            Lesson::RefusesAll(failure) if is_origin && learns => {
                self.stop(Cause::Auth, heard, failure, draw);
            }
            Lesson::Throttles(failure) if !is_origin || self.cause == Some(Cause::Throttled) => {
                self.throttle(heard, failure, draw);
            }
            Lesson::Gone(failure) if !is_origin => {
                self.stop(Cause::Gone, heard, failure, draw);
                self.until = None;
            }
            Lesson::Answers | Lesson::Gone(_) | Lesson::Throttles(_) => self.mend(draw.now),
            Lesson::RefusesOne(_) if self.cause != Some(Cause::Auth) => self.mend(draw.now),
            Lesson::RefusesOne(failure)
            | Lesson::Fails(failure)
            | Lesson::RefusesAll(failure)
            | Lesson::Nothing(failure) => {
                if let Some(cause) = self.cause.filter(|_| was_probe) {
                    self.stop(cause, heard, failure, draw);
                }
            }
        }
    }

    /// Leaves the domain alone for as long as it asked for.
    pub fn throttle(&mut self, heard: &Heard<'_>, failure: &Failure, draw: Draw) {
        let Some(until) = heard.throttled_until(failure, draw.now) else { return };
        let before = self.until.filter(|_| self.cause == Some(Cause::Throttled));
        self.stop(Cause::Throttled, heard, failure, draw);
        self.until = Some(until).max(before);
    }

    /// Takes into account what an outcome at this origin says about the machine's network.
    pub fn on_network(&mut self, heard: &Heard<'_>, origin: &str, draw: Draw) {
        let failure = heard.outcome.failure().filter(|failure| !failure.proves_network());
        let Some(failure) = failure else {
            return self.mend(draw.now);
        };
        let was_probe = self.is_tried_by(heard.claim);
        if !was_probe && (self.cause.is_some() || !failure.is_offline()) {
            return;
        }
        let mut origins: Vec<&str> = self.reason.split_whitespace().collect();
        if origins.len() >= ORIGINS_TRIED_MAX {
            origins.clear();
        }
        if !origins.contains(&origin) {
            origins.push(origin);
        }
        let (count, reason) = (origins.len(), origins.join(" "));
        self.failures = u32::try_from(count).unwrap_or(u32::MAX);
        if was_probe || count >= OFFLINE_AFTER {
            self.stop(Cause::Offline, heard, failure, draw);
        }
        self.reason = reason;
    }

    /// Whether this origin was tried since the machine is offline, and others were not.
    pub fn has_tried(&self, origin: &str) -> bool {
        self.reason.split_whitespace().any(|tried| tried == origin)
    }

    fn stop(&mut self, cause: Cause, heard: &Heard<'_>, failure: &Failure, draw: Draw) {
        if self.cause.is_none() {
            self.since = draw.now;
            self.probes = 0;
        } else {
            self.probes = self.probes.saturating_add(1);
        }
        let wait = millis(cause.probe_backoff().delay(self.probes.saturating_add(1), draw.roll));
        self.cause = Some(cause);
        self.until = Some(draw.now.saturating_add(wait));
        self.culprit = Some(heard.claim.0);
        self.reason.clone_from(&failure.message);
        self.probe = None;
    }

    /// Ends a try that did not fit a budget before it was sent. The next one is when there is
    /// enough, and before that in case there is earlier: a budget is raised, a send refunded.
    pub fn defer_try(&mut self, until: i64, now: i64) {
        self.probe = None;
        self.until = Some(until.min(now.saturating_add(DEFERRED_MAX_MS)));
    }

    /// The hold as callers read it; `None` while it stops nothing.
    pub fn stored(&self) -> Option<StoredHold> {
        Some(StoredHold {
            domain: self.domain,
            name: self.name.clone(),
            cause: self.cause?,
            since: self.since,
            until: self.until,
            culprit: self.culprit,
            reason: self.reason.clone(),
        })
    }

    /// Ends the hold: the rows behind it are let through, one and then twice as many each time.
    pub fn mend(&mut self, now: i64) {
        if self.cause.is_some() {
            (self.probes, self.until) = (0, Some(now));
        }
        (self.cause, self.failures, self.probe) = (None, 0, None);
        self.reason.clear();
    }
}

/// A part of an operation that is held back while its other intents go on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct StoredHold {
    /// The kind of what is held back.
    pub domain: Domain,
    /// The origin, the endpoint (its path and query as a hash), the tenant or the agent run.
    pub name: String,
    /// Why it is held back.
    pub cause: Cause,
    /// Since when, in UTC milliseconds.
    pub since: i64,
    /// When it ends, or when the next intent may try whether it can, in UTC milliseconds; `None`
    /// where the next intent that comes due tries.
    pub until: Option<i64>,
    /// The intent by whose outcome it is held back.
    pub culprit: Option<i64>,
    /// The answer to that intent, or its failure.
    pub reason: String,
}

impl StoredHold {
    /// The hold as a sentence.
    pub fn in_words(&self) -> String {
        let since = utc(self.since);
        let why = match self.cause {
            Cause::Breaker => "attempts in a row failed",
            Cause::Throttled => "it asked to be left alone",
            Cause::Auth => "the credentials were refused",
            Cause::Operator => "a person has paused it",
            Cause::Gone => "it answered that it is gone",
            Cause::Budget => "its budget is used up",
            Cause::Lost => "their process died with them, more than once",
            Cause::Offline => "the machine has no network",
        };
        let by = self.culprit.map_or_else(String::new, |id| format!(" (intent {id} last)"));
        let then = match (self.cause, self.until.map(utc)) {
            (Cause::Throttled | Cause::Budget | Cause::Operator, Some(until)) => {
                format!("until {until}")
            }
            (Cause::Operator | Cause::Gone, None) => "until it is resumed".into(),
            (_, Some(until)) => format!("one intent tries again at {until}"),
            _ => "the next intent that comes due tries again".into(),
        };
        let what = match self.domain {
            Domain::Network => "everything that goes over the network".into(),
            Domain::Suspects => "the line of suspects".into(),
            domain => format!("the {domain} {}", self.name),
        };
        let text = format!("{what} is held since {since} because {why}{by}; {then}");
        if self.reason.is_empty() { text } else { format!("{text}: {}", self.reason) }
    }
}

impl Cause {
    /// How long until a probe, by the probes that have failed.
    fn probe_backoff(self) -> Backoff {
        match self {
            Self::Auth => PauseKind::Auth.probe_backoff(),
            Self::Offline => Backoff::Exponential {
                base: Duration::from_secs(5),
                cap: Duration::from_secs(60),
                jitter: Jitter::Equal,
            },
            _ => PauseKind::Breaker.probe_backoff(),
        }
    }
}

/// A part of an operation's intents that a person pauses while the others go on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// The intents of this tenant.
    Tenant(String),
    /// The intents that name this agent run in their header.
    Run(String),
}

impl Part {
    pub(crate) fn domain(&self) -> (Domain, &str) {
        match self {
            Self::Tenant(name) => (Domain::Tenant, name),
            Self::Run(name) => (Domain::Run, name),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (domain, name) = self.domain();
        write!(f, "{domain} {name:?}")
    }
}

words! {
    /// The kind of domain that a hold stops.
    #[non_exhaustive]
    pub enum Domain, "domain" {
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
    #[non_exhaustive]
    pub enum Cause, "cause" {
        /// Several attempts in a row did not reach the domain, or may not have.
        Breaker = "breaker",
        /// The downstream asked to be left alone.
        Throttled = "throttled",
        /// The downstream refused the credentials.
        Auth = "auth",
        /// A person has paused it.
        Operator = "operator",
        /// The endpoint answered 410: it is gone for good, unless a person resumes it.
        Gone = "gone",
        /// A budget is used up.
        Budget = "budget",
        /// Suspects are tried one at a time.
        Lost = "lost",
        /// The machine has no network.
        Offline = "offline",
    }
}

#[cfg(test)]
mod tests;
