//! Whether an operation may send now, and what an outcome does to that: pauses, the circuit
//! breaker, throttling and rates. One state per operation, stored in the file, obeyed by every
//! relay on it.

use std::time::Duration;

use super::budget::{Budget, Kind, Left, Scope, UsedUp};
use super::hold::{Heard, Hold, Lesson, THROTTLE_MAX_MS};
use super::outcome::{Failure, Outcome};
use super::pause::{Pause, PauseKind};
use super::{CLOCK_SLACK_MS, Draw, millis};

/// The flow of one operation, as the file has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FlowControl {
    pub limits: Limits,
    pub pause: Option<Pause>,
    /// The row that tries out whether a pause can end, and its claim.
    pub probe: Option<(i64, i64)>,
    /// Probes of this pause that failed.
    pub probes: u32,
    /// Outcomes in a row that did not reach the downstream, or may not have.
    pub failures: u32,
    /// Intents in a row that were refused as by their credentials, with no success between.
    pub refused: Vec<i64>,
    /// The downstream asked to be left alone until then.
    pub throttled_until: Option<i64>,
    /// Since when it is left alone, and the intent that was told so.
    pub throttled_since: Option<i64>,
    pub throttled_by: Option<i64>,
    /// When the operation was resumed. More is let through as time goes by.
    pub resumed_at: Option<i64>,
    /// Thousandths of a send left in the bucket of the rate, and when that was.
    pub bucket: Option<(i64, i64)>,
}

/// How much of one operation may go out, over all relays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// At most so many in flight.
    pub max_in_flight: Option<usize>,
    pub rate: Option<Rate>,
}

impl Limits {
    /// The limits that hold where both are to: of each the smaller.
    pub fn stricter(self, other: Self) -> Self {
        let both = (self.rate, other.rate);
        Self {
            max_in_flight: match (self.max_in_flight, other.max_in_flight) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
            rate: if let (Some(a), Some(b)) = both { Some(a.slower(b)) } else { both.0.or(both.1) },
        }
    }
}

/// A number of sends in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    pub count: u32,
    pub per: Duration,
}

impl Rate {
    /// How much the bucket holds at most, in thousandths of a send: one, and what comes in a
    /// fortieth of the time (at most [`SLACK_MS`]), so that a relay that looks a little late loses
    /// nothing. No stretch of the time has more sends than the rate says because the ledger counts
    /// them as well.
    fn bucket(self) -> i128 {
        let slack = (self.period_ms() / 40).clamp(1, SLACK_MS);
        1000 + self.gains(slack).min(i128::from(self.count.max(1)) * 1000)
    }

    /// The gain of the bucket in so many milliseconds, in thousandths of a send.
    fn gains(self, ms: i128) -> i128 {
        ms * i128::from(self.count.max(1)) * 1000 / self.period_ms()
    }

    /// The one of the two that lets fewer through in the long run, and else at once.
    fn slower(self, other: Self) -> Self {
        let speed = |a: Self, b: Self| i128::from(a.count) * b.period_ms();
        let both = (speed(self, other), self.count).cmp(&(speed(other, self), other.count));
        if both.is_le() { self } else { other }
    }

    /// The rate as a budget of sends.
    pub fn budget(self) -> Budget {
        let window_ms = millis(self.per).max(1);
        let (scope, kind) = (Scope::Operation, Kind::Rate);
        Budget { scope, kind, amount: self.count.max(1).into(), window_ms }
    }

    fn period_ms(self) -> i128 {
        i128::from(millis(self.per).max(1))
    }

    /// The content of the bucket at `now`, in thousandths of a send.
    fn filled(self, bucket: Option<(i64, i64)>, now: i64) -> i64 {
        let most = self.bucket();
        // After the clock was set back, the time in the file says nothing.
        let Some((left, at)) = bucket.filter(|&(_, at)| at <= now) else {
            return i64::try_from(most).unwrap_or(i64::MAX);
        };
        let gained = self.gains(now.saturating_sub(at).into());
        i64::try_from((i128::from(left) + gained).min(most)).unwrap_or(i64::MAX)
    }

    /// When the bucket, as it is, holds a whole send.
    fn next_at(self, left: i64, now: i64) -> i64 {
        let missing = i128::from((1000 - left).max(0));
        let gains = i128::from(self.count.max(1)) * 1000;
        let wait = (missing * self.period_ms() + gains - 1) / gains;
        now.saturating_add(i64::try_from(wait).unwrap_or(i64::MAX).max(1))
    }
}

/// The bucket of a rate holds what comes in this time at most, beside one send.
const SLACK_MS: i128 = 50;

/// Whether rows of an operation may be claimed now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Gate {
    /// At most so many.
    Open(usize),
    /// One, to try out whether a pause can end. So many due rows are passed over to find it, so
    /// that bad ones in front do not keep it closed.
    Probe(usize),
    /// None, until then or until something else changes.
    Closed { until: Option<i64>, why: Closed },
}

/// The rule that keeps an operation's rows from being claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Closed {
    Paused(Pause),
    Probing,
    Throttled,
    /// The machine has no network.
    Offline,
    InFlight(usize),
    Resuming,
    Rate,
    Budget(UsedUp),
}

/// The gates of one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gates {
    /// For rows that go to the configured endpoint.
    pub configured: Gate,
    /// For rows that name an endpoint of their own.
    pub elsewhere: Gate,
    /// A single row is to try whether the machine's network is there again.
    pub tries_network: bool,
}

/// Asks [`gate`] for both kinds of rows. `network` is the hold on everything that goes over the
/// machine's network, where the operation does.
pub(crate) fn gates(
    flow: &FlowControl,
    in_flight: usize,
    left: &Left,
    network: Option<&Hold>,
    now: i64,
) -> Gates {
    let network = network.filter(|hold| hold.cause.is_some());
    if let Some(hold) = network.filter(|hold| hold.probe.is_some() || !hold.is_over(now)) {
        let why = if hold.probe.is_some() { Closed::Probing } else { Closed::Offline };
        let closed = Gate::Closed { until: hold.until, why };
        return Gates { configured: closed.clone(), elsewhere: closed, tries_network: false };
    }
    let configured = gate(flow, in_flight, left, now);
    let elsewhere = gate(&flow.elsewhere(), in_flight, left, now);
    Gates { configured, elsewhere, tries_network: network.is_some() }
}

impl Gates {
    /// Whether no row may be sent.
    pub fn are_closed(&self) -> bool {
        self.configured.is_closed() && self.elsewhere.is_closed()
    }
}

/// How far an operation is stopped, so that rows which no worker has started go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stopped {
    /// Those for the configured endpoint.
    Configured,
    All,
}

impl Gate {
    pub const fn is_closed(&self) -> bool {
        matches!(self, Self::Closed { .. })
    }

    /// Closes a gate, where it is not closed yet, until this budget has enough left.
    pub fn wait_for(&mut self, used_up: UsedUp) {
        if !self.is_closed() {
            let why = Closed::Budget(used_up);
            *self = Self::Closed { until: Some(used_up.until), why };
        }
    }

    /// How far a closed gate stops what was claimed before.
    pub fn stopped(&self) -> Option<Stopped> {
        match self {
            Self::Closed { why: Closed::Paused(pause), .. } => {
                let is_all = pause.kind == PauseKind::Operator;
                Some(if is_all { Stopped::All } else { Stopped::Configured })
            }
            Self::Closed { why: Closed::Throttled, .. } => Some(Stopped::Configured),
            Self::Closed { why: Closed::Offline, .. } => Some(Stopped::All),
            _ => None,
        }
    }
}

/// A probe passes over at most two to the power of this.
const PASSED_OVER_MAX: u32 = 10;
/// So many different intents that are refused, with no success between, say that the credentials
/// are to blame.
const REFUSED_MAX: usize = 3;
/// While it resumes, the rows in flight may double this often.
const RAMP_STEP_MS: i64 = 500;

/// After so many doublings there is no limit any more.
const RAMP_STEPS: i64 = 8;

/// The one predicate: asked in every claim, before a relay looks for due rows, and to explain to
/// a person why a row waits. `in_flight` counts the operation's rows that any relay holds; `left`
/// is what its budgets leave.
pub(crate) fn gate(flow: &FlowControl, in_flight: usize, left: &Left, now: i64) -> Gate {
    let limits = &flow.limits;
    let closed = |until, why| Gate::Closed { until, why };
    let is_over = |pause: &Pause| {
        // No wait for a probe is longer than its cap: the clock has been set back since.
        let most = pause.kind.longest_wait();
        let most = most.map(|most| now.saturating_add(most).saturating_add(CLOCK_SLACK_MS));
        pause.until.is_some_and(|until| until <= now || most.is_some_and(|most| until > most))
    };
    if let Some(pause) = flow.pause.as_ref().filter(|pause| !is_over(pause)) {
        return closed(pause.until, Closed::Paused(pause.clone()));
    }
    let must_probe = flow.pause.as_ref().is_some_and(|pause| pause.kind != PauseKind::Operator);
    if must_probe && flow.probe.is_some() {
        return closed(None, Closed::Probing);
    }
    // A probe is a send like any other.
    if let Some(used_up) = left.used_up {
        let is_rate = used_up.budget.kind == Kind::Rate;
        let why = if is_rate { Closed::Rate } else { Closed::Budget(used_up) };
        return closed(Some(used_up.until), why);
    }
    if must_probe {
        return Gate::Probe((1 << flow.probes.min(PASSED_OVER_MAX)) - 1);
    }
    if let Some(until) = flow.throttled_until(now) {
        return closed(Some(until), Closed::Throttled);
    }
    let mut limit = left.sends;
    if let Some(most) = limits.max_in_flight {
        limit = limit.min(most.saturating_sub(in_flight));
        if limit == 0 {
            return closed(None, Closed::InFlight(most));
        }
    }
    let begun = flow.resumed_at.max(flow.throttled_until).filter(|&at| at <= now);
    if let Some(step) = begun.map(|at| now.saturating_sub(at) / RAMP_STEP_MS)
        && step < RAMP_STEPS
    {
        limit = limit.min((1_usize << step).saturating_sub(in_flight));
        if limit == 0 {
            let until = begun.map(|at| at.saturating_add((step + 1) * RAMP_STEP_MS));
            return closed(until, Closed::Resuming);
        }
    }
    if let Some(rate) = limits.rate {
        let left = rate.filled(flow.bucket, now);
        limit = limit.min(usize::try_from(left / 1000).unwrap_or(usize::MAX));
        if limit == 0 {
            return closed(Some(rate.next_at(left, now)), Closed::Rate);
        }
    }
    Gate::Open(limit)
}

/// A move of the operation itself, for its own trail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlowMove {
    Paused,
    Resumed,
}

impl FlowControl {
    /// Whether counting what is in flight matters for the gate.
    pub fn needs_count(&self, now: i64) -> bool {
        let begun = self.resumed_at.max(self.throttled_until);
        self.limits.max_in_flight.is_some()
            || begun.is_some_and(|at| now.saturating_sub(at) < RAMP_STEP_MS * RAMP_STEPS)
    }

    /// Until when the downstream is left alone. No downstream is left alone for longer than a day,
    /// whatever an older build has written.
    pub fn throttled_until(&self, now: i64) -> Option<i64> {
        let most = now.saturating_add(THROTTLE_MAX_MS).saturating_add(CLOCK_SLACK_MS);
        self.throttled_until.filter(|&until| until > now && until <= most)
    }

    /// The flow of intents that name an endpoint of their own: a person's pause and the limits hold
    /// for them, and what was learnt at the configured endpoint does not.
    pub fn elsewhere(&self) -> Self {
        let pause = self.pause.clone().filter(|pause| pause.kind == PauseKind::Operator);
        Self { pause, ..self.afresh() }
    }

    /// Whether this outcome is that of a probe, and says that the pause must go on.
    pub fn is_failed_probe(&self, heard: &Heard<'_>) -> bool {
        let is_auth = self.pause.as_ref().is_some_and(|pause| pause.kind == PauseKind::Auth);
        self.probe == Some(heard.claim) && heard.fails(is_auth)
    }

    /// Takes sends out of the bucket.
    pub fn take(&mut self, count: usize, now: i64) {
        if let Some(rate) = self.limits.rate.filter(|_| count > 0) {
            let taken = i64::try_from(count).unwrap_or(i64::MAX).saturating_mul(1000);
            let left = rate.filled(self.bucket, now).saturating_sub(taken);
            self.bucket = Some((left, now));
        }
    }

    /// Pauses by hand, in place of whatever pause there was.
    pub fn pause(&mut self, pause: Pause) {
        *self = Self { pause: Some(pause), ..self.afresh() };
    }

    /// Ends a person's pause whose time is over, and returns it.
    pub fn end_pause(&mut self, now: i64) -> Option<Pause> {
        let is_over = |pause: &Pause| {
            pause.kind == PauseKind::Operator && pause.until.is_some_and(|until| until <= now)
        };
        let pause = self.pause.clone().filter(is_over)?;
        self.resume(now);
        Some(pause)
    }

    /// Lets it flow again. Returns whether it had stood still.
    pub fn resume(&mut self, now: i64) -> bool {
        let was_paused = self.pause.is_some() || self.throttled_until(now).is_some();
        *self = Self { resumed_at: was_paused.then_some(now), ..self.afresh() };
        was_paused
    }

    /// With what a pause or its end does not change.
    fn afresh(&self) -> Self {
        Self { limits: self.limits, bucket: self.bucket, ..Self::default() }
    }

    /// Takes into account what an outcome says about the configured endpoint. So many failures in a
    /// row as `breaker_after` open the circuit breaker; `None` switches it off.
    pub fn on_outcome(
        &mut self,
        heard: &Heard<'_>,
        breaker_after: Option<u32>,
        draw: Draw,
    ) -> Option<FlowMove> {
        let (now, id) = (draw.now, heard.claim.0);
        let was_probe = self.probe == Some(heard.claim);
        if was_probe {
            self.probe = None;
        }
        let kind = self.pause.as_ref().map(|pause| pause.kind);
        let by = |failure| Culprit { id, failure, was_probe };
        match heard.lesson() {
            Lesson::RefusesAll(failure) => return self.fail(PauseKind::Auth, &by(failure), draw),
            Lesson::RefusesOne(failure) => {
                if !self.refused.contains(&id) {
                    self.refused.push(id);
                }
                let is_enough = self.refused.len() >= REFUSED_MAX;
                if is_enough || (was_probe && kind == Some(PauseKind::Auth)) {
                    self.refused.clear();
                    return self.fail(PauseKind::Auth, &by(failure), draw);
                }
                if kind == Some(PauseKind::Auth) {
                    return None;
                }
            }
            Lesson::Fails(failure) => {
                self.failures = self.failures.saturating_add(1);
                let opens = breaker_after.is_some_and(|after| self.failures >= after);
                if was_probe || (opens && self.pause.is_none()) {
                    return self.fail(PauseKind::Breaker, &by(failure), draw);
                }
                return None;
            }
            // The outcome says nothing about the downstream, so no pause ends by it.
            Lesson::Nothing(failure) => {
                return kind.filter(|_| was_probe).and_then(|k| self.fail(k, &by(failure), draw));
            }
            Lesson::Throttles(failure) => {
                let before = self.throttled_until(now);
                self.throttled_until = before.max(heard.throttled_until(failure, now));
                if before.is_none() {
                    (self.throttled_since, self.throttled_by) = (Some(now), Some(id));
                }
            }
            Lesson::Answers | Lesson::Gone(_) => {}
        }
        if matches!(heard.outcome, Outcome::Succeeded(_)) {
            self.refused.clear();
        }
        self.failures = 0;
        if kind.is_some_and(|kind| kind != PauseKind::Operator) {
            self.pause = None;
            self.probes = 0;
            self.resumed_at = Some(now);
            return Some(FlowMove::Resumed);
        }
        None
    }

    /// The probe's claim ended without an outcome: another may go.
    pub fn forget_probe(&mut self, claim: (i64, i64)) {
        if self.probe == Some(claim) {
            self.probe = None;
        }
    }

    fn fail(&mut self, kind: PauseKind, by: &Culprit<'_>, draw: Draw) -> Option<FlowMove> {
        let now = draw.now;
        if self.pause.as_ref().is_some_and(|pause| pause.kind == PauseKind::Operator) {
            return None;
        }
        let was_paused = self.pause.is_some();
        if was_paused && !by.was_probe {
            // The row had been in flight when the pause began, and says nothing new.
            return None;
        }
        self.probes = if by.was_probe { self.probes.saturating_add(1) } else { 0 };
        let wait = millis(kind.probe_backoff().delay(self.probes.saturating_add(1), draw.roll));
        let since = self.pause.as_ref().map_or(now, |pause| pause.since);
        self.pause = Some(Pause {
            kind,
            until: Some(now.saturating_add(wait)),
            reason: by.failure.message.clone(),
            actor: "relay".into(),
            since,
            culprit: Some(by.id),
        });
        (!was_paused).then_some(FlowMove::Paused)
    }
}

/// The intent by which a pause begins or goes on.
struct Culprit<'a> {
    id: i64,
    failure: &'a Failure,
    was_probe: bool,
}

#[cfg(test)]
mod tests;
