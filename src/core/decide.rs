//! The one place that decides what follows from an outcome. Timeouts, lost leases, bulk
//! replay and a second relay with another configuration all come here.
//!
//! Out of scope: what an HTTP status means (see `classify`) and how a decision is stored.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::backoff::Backoff;
use super::budget::Budget;
use super::contract::{Downstream, Promise};
use super::outcome::{Failure, Outcome};
use super::status::Status;
use super::{CLOCK_SLACK_MS, Draw, millis};

/// The facts known about a row. While an attempt is decided on, the counters include it.
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
    /// The time after which nothing may be sent.
    pub expires_at: Option<i64>,
    /// When this attempt, or this lookup, was claimed.
    pub claimed_at: i64,
    /// Lookups of the row's fate, since it is in doubt.
    pub lookups: u32,
    /// Whether a cancellation was requested, so that no further attempt is made.
    pub cancel_requested: bool,
    /// Milliseconds since the machine's start when the attempt began that is, or may be, in doubt;
    /// negative where the machine has been started anew since.
    pub doubt_boot: Option<i64>,
    /// By how much the doubt is older than the wall clock says.
    pub older_by: i64,
}

impl Facts {
    /// The facts of a claim at `now`, which begins a doubt where there is none yet.
    pub fn claimed(self, now: i64, boot: Option<i64>) -> Self {
        let doubt_boot = if self.in_doubt_since.is_some() { self.doubt_boot } else { boot };
        Self { claimed_at: now, doubt_boot, ..self }.aged(now, boot)
    }

    /// With one more attempt, as it is claimed.
    pub fn counted(self) -> Self {
        let (attempts, tries) = (self.attempts.saturating_add(1), self.tries.saturating_add(1));
        Self { attempts, tries, ..self }
    }

    /// With the age of the doubt by the clock that nobody sets, `boot`, where it can be told. What
    /// passed unseen may have been any time.
    pub fn aged(self, now: i64, boot: Option<i64>) -> Self {
        let since = self.in_doubt_since.unwrap_or(self.claimed_at);
        let older_by = match (self.doubt_boot, boot) {
            (Some(began), _) if began < 0 => i64::MAX,
            (Some(began), Some(boot)) => {
                boot.saturating_sub(began).saturating_sub(now.saturating_sub(since)).max(0)
            }
            _ => 0,
        };
        Self { older_by, ..self }
    }

    /// Whether a second request is safe at `at`, by the wall clock and by the one nobody sets.
    pub(super) fn may_repeat(&self, promise: Promise, at: i64) -> bool {
        let since = self.in_doubt_since.unwrap_or(self.claimed_at);
        may_repeat(since, promise, at.saturating_add(self.older_by))
    }
}

impl Facts {
    /// Whether the row may be what its processes died of: it is tried while no other suspect of its
    /// operation is.
    pub fn is_suspect(&self) -> bool {
        self.lost >= SUSPECT_FROM
    }
}

/// The rules of one operation: the stored contract and the relay's budget.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    pub promise: Promise,
    pub backoff: Backoff,
    /// Attempts before a row is given up; those that provably never left are free.
    pub attempts_max: u32,
    /// How long after the first attempt that may have left a row is given up.
    pub give_up_after: Duration,
    /// The longest `Retry-After` that is obeyed, before it is spread by up to a quarter.
    pub retry_after_max: Duration,
    /// How long an attempt in doubt is left alone before its first lookup.
    pub lookup_delay: Duration,
    /// Lookups before a person must find out.
    pub lookups_max: u32,
    /// The answers, as texts, that are taken for word that nothing was applied.
    pub repeat_rules: Arc<[String]>,
}

/// The row's next state, as it follows from its facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    /// Where the row stands now.
    pub status: Status,
    /// The next attempt, where the row is pending; the next lookup, where it is unknown.
    pub due_at: Option<i64>,
    /// The facts with this attempt accounted for.
    pub facts: Facts,
    /// The failure as it is stored.
    pub class: Option<Cow<'static, str>>,
    /// The event and why this follows from it, for people.
    pub message: Option<String>,
}

impl Decision {
    /// A decision without a failure and without a time.
    pub fn plain(status: Status, facts: &Facts) -> Self {
        Self { status, due_at: None, facts: *facts, class: None, message: None }
    }
}

/// How many attempts in a row are lost with their process before the row is a suspect.
const SUSPECT_FROM: u32 = 2;

/// How many attempts in a row may be lost before a person must look: three of them while the row
/// was the suspect.
const LOST_MAX: u32 = SUSPECT_FROM + 3;

/// Decides on the outcome of an attempt.
pub(crate) fn decide(facts: &Facts, outcome: &Outcome, policy: &Policy, draw: Draw) -> Decision {
    heed_cancel(decide_outcome(facts, outcome, policy, draw), policy, draw.now)
}

fn decide_outcome(facts: &Facts, outcome: &Outcome, policy: &Policy, draw: Draw) -> Decision {
    let Draw { now, roll } = draw;
    let mut facts = Facts { lost: 0, ..*facts };
    if !matches!(outcome, Outcome::NotSent(_)) {
        facts.first_sent_at.get_or_insert(facts.claimed_at);
    }
    match outcome {
        Outcome::Succeeded(_) => Decision::plain(Status::Succeeded, &facts),
        Outcome::NotSent(failure) => {
            facts.attempts = facts.attempts.saturating_sub(1);
            let delay = policy.delay(facts.tries, failure, roll);
            retry(facts, failure, policy, now, delay)
        }
        Outcome::MaybeSent(failure) if policy.may_read_again(&facts, failure) => {
            let delay = policy.delay(facts.attempts, failure, roll);
            retry_or_give_up(facts, failure, policy, now, delay)
        }
        Outcome::MaybeSent(failure) => {
            facts.in_doubt_since.get_or_insert(facts.claimed_at);
            let delay = policy.delay(facts.attempts, failure, roll);
            in_doubt(facts, failure, policy, now, delay)
        }
        Outcome::Transient(failure) if failure.is_not_reached() => {
            facts.attempts = facts.attempts.saturating_sub(1);
            let delay = policy.delay(facts.tries, failure, roll);
            retry(facts, failure, policy, now, delay)
        }
        Outcome::Transient(failure) => {
            let delay = policy.delay(facts.attempts, failure, roll);
            retry_or_give_up(facts, failure, policy, now, delay)
        }
        Outcome::Limited(failure) => {
            facts.attempts = facts.attempts.saturating_sub(1);
            let delay = policy.delay(facts.tries, failure, roll);
            retry_or_give_up(facts, failure, policy, now, delay)
        }
        Outcome::Unauthorized(failure) => {
            facts.attempts = facts.attempts.saturating_sub(1);
            pending(facts, now, failure, policy)
        }
        Outcome::Rejected(failure) => buried(facts, failure, policy, now, ""),
        Outcome::NeedsReview(failure) => {
            facts.in_doubt_since.get_or_insert(facts.claimed_at);
            parked(Status::NeedsReview, facts, failure, "")
        }
    }
}

/// Decides on an attempt whose process died or lost its lease: how far it came is unknown.
pub(crate) fn decide_lost(facts: &Facts, how: Lost, policy: &Policy, now: i64) -> Decision {
    let facts = Facts { lost: facts.lost.saturating_add(1), ..*facts };
    let failure = Failure::new("lease_lost", how.in_words());
    if facts.lost < LOST_MAX {
        return decide_cut_off(&facts, &failure, policy, now);
    }
    let why = "; that is three times in a row as the suspect of its operation";
    parked(Status::NeedsReview, begun(&facts), &failure, why)
}

/// Decides on an attempt that its own relay gives up, because it stops and the answer has not come:
/// how far it came is unknown, and the process did not die of it.
pub(crate) fn decide_stopped(facts: &Facts, policy: &Policy, now: i64) -> Decision {
    let failure = Failure::new("stopped", "the relay stopped before the answer came");
    decide_cut_off(facts, &failure, policy, now)
}

/// No backoff: the row did not fail, its process ended.
fn decide_cut_off(facts: &Facts, failure: &Failure, policy: &Policy, now: i64) -> Decision {
    heed_cancel(in_doubt(begun(facts), failure, policy, now, 0), policy, now)
}

/// The facts of an attempt that may have been applied.
fn begun(facts: &Facts) -> Facts {
    let mut facts = *facts;
    facts.first_sent_at.get_or_insert(facts.claimed_at);
    facts.in_doubt_since.get_or_insert(facts.claimed_at);
    facts
}

/// How an attempt was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Its lease ran out.
    Expired,
    /// Its relay is dead, whatever is left of the lease.
    Died,
}

impl Lost {
    fn in_words(self) -> &'static str {
        match self {
            Self::Expired => "the lease expired before an outcome was recorded",
            Self::Died => "the process died before an outcome was recorded",
        }
    }
}

/// Withdraws a pending row, or looks up its fate, where its cancellation was requested while it was
/// being sent.
pub(super) fn heed_cancel(decision: Decision, policy: &Policy, now: i64) -> Decision {
    if !decision.facts.cancel_requested || decision.status != Status::Pending {
        return decision;
    }
    let class = decision.class.unwrap_or("cancelled".into());
    let message = decision.message.unwrap_or_default();
    let failure = Failure::new(class, format!("{message}; its cancellation was requested"));
    if decision.facts.in_doubt_since.is_some() {
        return doubtful(decision.facts, &failure, policy, now, "");
    }
    parked(Status::Cancelled, decision.facts, &failure, "")
}

/// Why a due row may not be sent any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Withheld {
    Expired,
    InDoubt,
    CancelRequested,
}

/// Decides on a claimed row that no worker has started: the attempt is not counted.
pub(crate) fn decide_not_started(facts: &Facts, now: i64) -> Decision {
    let facts = Facts {
        attempts: facts.attempts.saturating_sub(1),
        tries: facts.tries.saturating_sub(1),
        ..*facts
    };
    Decision { due_at: Some(now), ..Decision::plain(Status::Pending, &facts) }
}

/// Decides on a row that cannot be read: `why` names the column.
pub(crate) fn decide_unreadable(facts: &Facts, why: &str) -> Decision {
    parked(Status::NeedsReview, *facts, &Failure::new("unreadable", why), "")
}

/// Decides on a row that costs more than a whole budget: waiting would not help.
pub(crate) fn decide_never_fits(facts: &Facts, cost: i64, budget: &Budget) -> Decision {
    let text = format!("costs {cost}, which is more than the whole budget {budget}");
    parked(Status::NeedsReview, *facts, &Failure::new("budget", text), "")
}

/// The facts of a row whose attempt was only a probe of a paused operation: neither a try nor an
/// attempt is counted.
pub(crate) fn uncounted(facts: &Facts, outcome: &Outcome) -> Facts {
    // Where the decision itself gives the attempt back, it is not given back twice.
    let counted = u32::from(match outcome {
        Outcome::MaybeSent(_) => true,
        Outcome::Transient(failure) => !failure.is_not_reached(),
        _ => false,
    });
    Facts {
        attempts: facts.attempts.saturating_sub(counted),
        tries: facts.tries.saturating_sub(1),
        ..*facts
    }
}

/// Asks before a row is claimed, and again just before it is sent, whether it still may be.
/// `None` says yes.
pub(crate) fn decide_before_send(facts: &Facts, policy: &Policy, now: i64) -> Option<Decision> {
    Some(match withheld(facts, policy.promise, now)? {
        Withheld::Expired => {
            let failure = Failure::new("expired", "expires_at has passed");
            buried(*facts, &failure, policy, now, "")
        }
        Withheld::InDoubt => {
            let failure = Failure::new("in_doubt", "an earlier attempt may have been applied");
            doubtful(*facts, &failure, policy, now, why_no_repeat(policy.promise.downstream))
        }
        Withheld::CancelRequested => {
            let failure = Failure::new("cancelled", "it is not tried again");
            heed_cancel(pending(*facts, now, &failure, policy), policy, now)
        }
    })
}

/// Asked before a row is claimed: another relay may have lowered the number of attempts.
pub(crate) fn decide_used_up(facts: &Facts, policy: &Policy, now: i64) -> Option<Decision> {
    let failure = Failure::new("attempts", "the attempts are used up");
    (facts.attempts >= policy.attempts_max).then(|| buried(*facts, &failure, policy, now, ""))
}

/// Like [`decide_before_send`], but returns only the rule that applies.
pub(crate) fn withheld(facts: &Facts, promise: Promise, now: i64) -> Option<Withheld> {
    if facts.expires_at.is_some_and(|at| at <= now) {
        return Some(Withheld::Expired);
    }
    if facts.cancel_requested {
        return Some(Withheld::CancelRequested);
    }
    facts.in_doubt_since?;
    (!facts.may_repeat(promise, now)).then_some(Withheld::InDoubt)
}

/// Whether a second request is safe: the downstream deduplicates, and the attempt would end
/// before it forgets the key.
pub(super) fn may_repeat(in_doubt_since: i64, promise: Promise, now: i64) -> bool {
    match promise.downstream {
        Downstream::Unprotected => false,
        Downstream::DeduplicatesByKey { window } => {
            let ends = now.saturating_add(millis(promise.time_limit));
            // After the clock was set back the time that has passed is unknown.
            let is_after = now >= in_doubt_since.saturating_sub(CLOCK_SLACK_MS);
            is_after && ends <= in_doubt_since.saturating_add(millis(window))
        }
    }
}

fn in_doubt(facts: Facts, failure: &Failure, policy: &Policy, now: i64, delay: i64) -> Decision {
    if !facts.may_repeat(policy.promise, now) {
        return doubtful(facts, failure, policy, now, why_no_repeat(policy.promise.downstream));
    }
    retry_or_give_up(facts, failure, policy, now, delay)
}

pub(super) fn retry_or_give_up(
    facts: Facts,
    failure: &Failure,
    policy: &Policy,
    now: i64,
    delay: i64,
) -> Decision {
    let due_at = now.saturating_add(delay);
    if facts.attempts >= policy.attempts_max {
        return buried(facts, failure, policy, now, "; the attempts are used up");
    }
    let give_up_at = facts.first_sent_at.map(|at| at.saturating_add(millis(policy.give_up_after)));
    if give_up_at.is_some_and(|at| due_at > at) {
        return buried(facts, failure, policy, now, "; the time to give up is reached");
    }
    retry(facts, failure, policy, now, delay)
}

/// Pending until the next try; or, where the downstream would have forgotten by then the key of a
/// row in doubt, for a lookup that can be made before.
fn retry(facts: Facts, failure: &Failure, policy: &Policy, now: i64, delay: i64) -> Decision {
    let (due_at, promise) = (now.saturating_add(delay), policy.promise);
    let is_late = facts.in_doubt_since.is_some() && !facts.may_repeat(promise, due_at);
    if is_late && promise.reconciles {
        let why = "; the next try would come after the downstream may have forgotten the key";
        return doubtful(facts, failure, policy, now, why);
    }
    pending(facts, due_at, failure, policy)
}

/// A row that may have been applied is not sent again: a lookup or a person must find out.
fn doubtful(facts: Facts, failure: &Failure, policy: &Policy, now: i64, why: &str) -> Decision {
    let facts = Facts { lookups: 0, ..facts };
    if !policy.promise.reconciles {
        let why = format!("{why}; nothing can look up what became of it");
        return parked(Status::NeedsReview, facts, failure, &why);
    }
    let due_at = now.saturating_add(millis(policy.lookup_delay));
    Decision { due_at: Some(due_at), ..parked(Status::Unknown, facts, failure, why) }
}

/// Dead; or, where any attempt may have been applied, for a lookup or a person to find out.
fn buried(facts: Facts, failure: &Failure, policy: &Policy, now: i64, why: &str) -> Decision {
    if facts.in_doubt_since.is_some() {
        let why = format!("{why}; an earlier attempt may have been applied");
        return doubtful(facts, failure, policy, now, &why);
    }
    parked(Status::Dead, facts, failure, why)
}

pub(super) fn parked(status: Status, facts: Facts, failure: &Failure, why: &str) -> Decision {
    Decision {
        status,
        due_at: None,
        facts,
        class: Some(failure.class.clone()),
        message: Some(format!("{}{why}", failure.message)),
    }
}

fn pending(facts: Facts, due_at: i64, failure: &Failure, policy: &Policy) -> Decision {
    let is_capped = failure.retry_after.is_some_and(|asked| asked > policy.retry_after_max);
    let why = if is_capped { "; it asked for a longer wait than is obeyed" } else { "" };
    Decision { due_at: Some(due_at), ..parked(Status::Pending, facts, failure, why) }
}

pub(crate) fn why_no_repeat(downstream: Downstream) -> &'static str {
    match downstream {
        Downstream::Unprotected => {
            "; the downstream does not deduplicate, so a second request is not safe"
        }
        Downstream::DeduplicatesByKey { .. } => {
            "; the downstream may have forgotten the key, so a second request is not safe"
        }
    }
}

impl Policy {
    /// Whether the request applied nothing because it was a read, at a downstream that does not
    /// deduplicate. Nothing is said of an earlier attempt that is in doubt.
    fn may_read_again(&self, facts: &Facts, failure: &Failure) -> bool {
        failure.is_of_read
            && self.promise.repeat_safe
            && !self.promise.deduplicates()
            && facts.in_doubt_since.is_none()
    }

    /// The longest time that a row waits for its next try or its next lookup.
    pub fn longest_wait(&self) -> Duration {
        let asked = self.retry_after_max.saturating_add(self.retry_after_max / 4);
        asked.max(self.backoff.longest()).max(self.lookup_delay)
    }

    /// The later of the backoff and what the downstream asked for, in milliseconds; never less
    /// than it asked for, unless that is beyond the limit.
    fn delay(&self, failures: u32, failure: &Failure, roll: f64) -> i64 {
        let backoff = self.backoff.delay(failures.max(1), roll);
        let asked = match failure.retry_after {
            // Many rows are told the same; what is added keeps them from coming back together.
            Some(asked) => {
                let asked = asked.min(self.retry_after_max);
                let spread = if self.backoff.is_jittered() { backoff } else { Duration::ZERO };
                asked.saturating_add(spread.min(asked / 4))
            }
            // A request with this key is being worked on: soon, but not at once.
            None if failure.class == "conflict" => {
                Duration::from_secs_f64(1.0 + 4.0 * roll.clamp(0.0, 1.0))
            }
            None => Duration::ZERO,
        };
        millis(backoff.max(asked))
    }
}

#[cfg(test)]
mod tests;
