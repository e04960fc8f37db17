//! The two relays: what they claim, begin, report, and take with them when they crash.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bench::{BUDGET, Mutant, OPERATIONS, downstream};
use super::check::{Checked, Done, Violation, violation};
use super::knowledge::{Promise, SETTLE};
use super::op::Answer;
use super::sequence::{LEASE_MS, Machine};
use super::snapshot::Snapshot;
use super::verb::Verb;
use crate::clock::Clock;
use crate::core::{Downstream, Failure, Finding, Outcome, Receipt, Shard, Status};
use crate::error::{Error, ErrorKind, Result as Fallible};
use crate::handler::{Delivery, Held};
use crate::relay::{InDoubtSince, may_begin};
use crate::store::relay::tx::{RelayTx, Rules};
use crate::store::tables::unrecorded;
use crate::store::{ClaimRequest, Parking, Record, Reported};

/// A relay process.
#[derive(Default)]
pub(crate) struct Relay {
    pub owner: String,
    pub held: Vec<Flight>,
    doubts: InDoubtSince,
}

/// A row that a relay holds, as far as it knows.
pub(crate) struct Flight {
    pub held: Held,
    begun: Option<Begun>,
}

/// The report a worker will make, and since when it has worked.
struct Begun {
    reported: Reported,
    at: Duration,
    /// The worker sends only just before it reports or ends.
    sends_late: bool,
}

impl Relay {
    pub fn new(owner: String) -> Self {
        Self { owner, ..Self::default() }
    }
}

impl Machine<'_> {
    /// Runs `f` in a transaction of a relay.
    fn in_tx<T>(
        &mut self,
        relay: usize,
        f: impl FnOnce(&mut RelayTx<'_>, &[Rules], &dyn Fn(&str) -> bool) -> Fallible<T>,
    ) -> Checked<T> {
        let clock = self.bench.shared_clock();
        let (now, passed) = (clock.now(), clock.monotonic());
        let alive = self.relays.each_ref().map(|relay| relay.owner.clone());
        let owner = &alive[relay];
        let mut tx = RelayTx::begin(&self.bench.relays[relay], owner, now, clock)?;
        let is_alive = |owner: &str| alive.iter().any(|known| known == owner);
        let value = f(&mut tx, &self.rules, &is_alive)?;
        let committed = tx.commit()?;
        for event in &committed.events {
            self.relays[relay].doubts.note(event, passed);
        }
        for (id, attempt) in committed.withheld {
            self.relays[relay].doubts.known_for(id, attempt, passed);
        }
        Ok(value)
    }

    pub fn claim(&mut self, relay: usize, operation: usize, limit: usize) -> Checked<Done> {
        let is_unprotected = |flight: &Flight| match &flight.held {
            Held::Send(delivery) => delivery.downstream == Downstream::Unprotected,
            Held::LookUp(..) => false,
        };
        let tries_suspects = !self.relays[relay].held.iter().any(is_unprotected);
        let claimed = self.in_tx(relay, |tx, rules, _| {
            tx.check_schema()?;
            tx.claim(&request(&rules[operation], limit, tries_suspects))
        })?;
        let is_paused = self.paused.contains(&u8::try_from(operation).unwrap_or(0));
        let has_room = claimed.deliveries.len() < limit && !claimed.is_unfinished;
        let is_held_back = is_paused || self.setup.has_budget();
        self.claimed_all = (has_room && !is_held_back).then_some(operation);
        self.check_tokens(claimed.deliveries.iter())?;
        for delivery in claimed.deliveries {
            let id = delivery.id;
            if !self.before.is_head(id) {
                return violation("only_heads_act", format!("intent {id} is claimed"));
            }
            if self.model.unwanted.contains(&id) {
                return violation("nothing_unwanted_is_sent", format!("intent {id} is claimed"));
            }
            self.check_promise(&delivery)?;
            self.check_budget(&delivery)?;
            let owner = &self.relays[relay].owner;
            self.model.hand_out(id, delivery.token, owner, delivery.facts.claimed_at);
            self.relays[relay].held.push(Flight { held: Held::Send(delivery), begun: None });
        }
        Ok(Done { verb: Verb::Claim, row: None, may_be_silent: false })
    }

    pub fn claim_lookups(&mut self, relay: usize, operation: usize, limit: usize) -> Checked<Done> {
        let found = self.in_tx(relay, |tx, rules, is_alive| {
            tx.claim_lookups(&request(&rules[operation], limit, false), is_alive)
        })?;
        self.check_tokens(found.iter().map(Held::delivery))?;
        let passed = self.bench.clock.monotonic();
        for held in found {
            let relay = &mut self.relays[relay];
            if let Held::LookUp(delivery, lookup) = &held {
                relay.doubts.known_for(delivery.id, lookup.attempt_token, passed);
            }
            relay.held.push(Flight { held, begun: None });
        }
        Ok(Done { verb: Verb::ClaimLookup, row: None, may_be_silent: false })
    }

    /// No stretch of time as long as the window has more claims than the budget, less what was
    /// proven not applied, whatever the wall clock says.
    fn check_budget(&mut self, delivery: &Delivery) -> Checked {
        let (amount, within) = BUDGET.as_stored();
        let claim = (delivery.id, delivery.token);
        let now = self.bench.clock.monotonic();
        let spent = self.model.spend(operation_of(delivery), claim, now, within);
        if self.setup.has_budget() && spent as u64 > amount {
            return violation("budget", format!("intent {} is number {spent}", delivery.id));
        }
        Ok(())
    }

    /// Within one transaction tokens are equal, and greater than all before.
    fn check_tokens<'d>(
        &mut self,
        mut claimed: impl Iterator<Item = &'d Arc<Delivery>>,
    ) -> Checked {
        let Some(token) = claimed.next().map(|delivery| delivery.token) else { return Ok(()) };
        if claimed.any(|delivery| delivery.token != token) || token <= self.token {
            return violation("tokens_rise", format!("{token} after {}", self.token));
        }
        self.token = token;
        Ok(())
    }

    fn check_promise(&self, delivery: &Delivery) -> Checked {
        let promise = Promise {
            downstream: downstream(operation_of(delivery)),
            has_jumps: self.setup.has_jumps(),
        };
        let now = self.bench.clock.now();
        match self.model.forbids(delivery.id, delivery.token, promise, now) {
            Some(text) => violation("promise", text),
            None => Ok(()),
        }
    }

    /// A delivery that this relay holds, or else the other, of those that are begun or are not.
    pub fn held(&self, relay: u8, nth: u8, is_begun: bool) -> Option<(usize, usize)> {
        let relay = usize::from(relay);
        [relay, 1 - relay].into_iter().find_map(|relay| {
            let held = self.relays[relay].held.iter().enumerate();
            let fit: Vec<usize> =
                held.filter(|(_, f)| f.begun.is_some() == is_begun).map(|(at, _)| at).collect();
            (!fit.is_empty()).then(|| (relay, fit[usize::from(nth) % fit.len()]))
        })
    }

    /// A worker begins, if it still may; what it may not begin is given back.
    pub fn begin(&mut self, relay: usize, at: usize, answer: Answer) -> Checked<Option<Done>> {
        let held = self.relays[relay].held[at].held.clone();
        let policy = self.rules[operation_of(held.delivery())].policy.clone();
        if !may_begin(&held, &policy, &self.bench.clock) {
            return self.release(relay, at).map(Some);
        }
        let reported = match &held {
            Held::LookUp(delivery, lookup) => {
                Reported::Finding(self.found(delivery, answer), lookup.observed(Duration::ZERO))
            }
            Held::Send(delivery) => {
                self.check_promise(delivery)?;
                Reported::Outcome(self.sent(delivery, answer))
            }
        };
        held.delivery().lease.begin(Instant::now());
        let sends_late = answer == Answer::Suspended && matches!(held, Held::Send(_));
        let at_time = self.bench.clock.monotonic();
        self.relays[relay].held[at].begun = Some(Begun { reported, at: at_time, sends_late });
        Ok(None)
    }

    /// Asks the system of record, which knows what was applied until now.
    fn found(&self, delivery: &Delivery, answer: Answer) -> Finding {
        match answer {
            Answer::NotSent => Finding::NotAsked(failure("connect")),
            Answer::Transient | Answer::NeedsReview => Finding::Inconclusive(failure("lookup")),
            _ => match self.downstreams.effects(delivery.id).last() {
                Some(effect) => Finding::Applied(Receipt::new().downstream_id(effect)),
                None => Finding::NotApplied,
            },
        }
    }

    fn sent(&mut self, delivery: &Delivery, answer: Answer) -> Outcome {
        let (id, now) = (delivery.id, self.bench.clock.monotonic());
        let deduplicates = downstream(operation_of(delivery)) != Downstream::Unprotected;
        let another = self.downstreams.effect_of_another(id);
        match answer {
            Answer::SucceedsAsAnother if another.is_some() => {
                self.model.hearsay.insert(id);
                Outcome::Succeeded(Receipt::new().downstream_id(another.unwrap_or_default()))
            }
            Answer::Succeeds | Answer::SucceedsAsAnother => {
                let effect = self.downstreams.apply(id, deduplicates, now);
                Outcome::Succeeded(Receipt::new().downstream_id(effect))
            }
            Answer::SucceedsWithoutId => {
                self.downstreams.apply(id, deduplicates, now);
                Outcome::Succeeded(Receipt::new())
            }
            Answer::NotSent => Outcome::NotSent(failure("connect")),
            Answer::Vanishes | Answer::Suspended => Outcome::MaybeSent(failure("timeout")),
            Answer::Applied => {
                self.downstreams.apply(id, deduplicates, now);
                Outcome::MaybeSent(failure("timeout"))
            }
            Answer::Lingers => {
                self.downstreams.linger(id, deduplicates, now);
                Outcome::MaybeSent(failure("timeout"))
            }
            Answer::Transient => Outcome::Transient(failure("transient")),
            Answer::Limited => Outcome::Limited(failure("limited")),
            Answer::Unauthorized => Outcome::Unauthorized(failure("auth")),
            Answer::Rejected => Outcome::Rejected(failure("permanent")),
            Answer::NeedsReview => Outcome::NeedsReview(failure("success_when")),
            Answer::NeedsReviewApplied => {
                self.downstreams.apply(id, deduplicates, now);
                Outcome::NeedsReview(failure("success_when"))
            }
        }
    }

    /// A request of a process that was suspended leaves at last, and takes its time. Where keys are
    /// forgotten no promise covers it.
    fn send_late(&mut self, flight: &Flight) {
        let delivery = flight.held.delivery();
        let is_unprotected = downstream(operation_of(delivery)) == Downstream::Unprotected;
        if is_unprotected && flight.begun.as_ref().is_some_and(|begun| begun.sends_late) {
            let now = self.bench.clock.monotonic();
            self.downstreams.linger(delivery.id, false, now);
        }
    }

    /// Records what a worker has said.
    pub fn report(&mut self, relay: usize, at: usize) -> Checked<Done> {
        let flight = self.relays[relay].held.remove(at);
        self.send_late(&flight);
        let Flight { held, begun } = flight;
        let Some(Begun { reported, at: began, .. }) = begun else {
            return violation("harness", "it was not begun");
        };
        let (id, token) = (held.delivery().id, held.delivery().token);
        let (reported, verb, may_be_silent) = match reported {
            Reported::Outcome(outcome) => {
                self.learn(id, token, &outcome);
                let is_probe = self.is_probe(id, token)?;
                (Reported::Outcome(outcome), Verb::Record, is_probe)
            }
            Reported::Finding(finding, mut observed) => {
                if let Held::LookUp(_, lookup) = &held {
                    let doubts = &mut self.relays[relay].doubts;
                    observed.in_doubt_for = doubts.known_for(id, lookup.attempt_token, began);
                }
                if finding == Finding::NotApplied {
                    self.believed = Some((id, observed.in_doubt_for >= SETTLE));
                }
                (Reported::Finding(finding, observed), Verb::Find, false)
            }
        };
        let delivery = self.broken_delivery(Arc::clone(held.delivery()));
        let record = Record { delivery, reported, roll: 0.5 };
        let recorded = self.in_tx(relay, |tx, rules, is_alive| {
            let rules = &rules[operation_of(&record.delivery)];
            tx.record(&record, rules, is_alive)
        });
        if let Some(error) = obstructed(recorded)? {
            self.in_tx(relay, |tx, rules, _| {
                let rules = &rules[operation_of(&record.delivery)];
                tx.keep(&record, rules, &error, Parking::Noted)
            })?;
        }
        Ok(Done { verb, row: Some(id), may_be_silent })
    }

    /// Records the first outcome that was kept and is to be tried again.
    pub fn retry_kept(&mut self, relay: usize) -> Checked<Option<Done>> {
        self.bench.mind_clock();
        let now = self.bench.clock.now();
        let due = unrecorded::due(&self.bench.person, now)?;
        let Some(kept) = due.first() else { return Ok(None) };
        let Some(outcome) = &kept.outcome else { return violation("harness", "all are outcomes") };
        let recorded = self.in_tx(relay, |tx, rules, _| {
            let rules = rules.iter().find(|rules| rules.operation == kept.operation);
            tx.record_kept(kept, outcome, rules, 0.5)
        });
        if let Some(error) = obstructed(recorded)? {
            let claim = (kept.id, kept.token);
            unrecorded::keep(&self.bench.person, claim, Some(outcome), &error, now)?;
        }
        Ok(Some(Done { verb: Verb::Retry, row: Some(kept.id), may_be_silent: false }))
    }

    fn learn(&mut self, id: i64, token: i64, outcome: &Outcome) {
        let is_answer = matches!(
            outcome,
            Outcome::Succeeded(_) | Outcome::Rejected(_) | Outcome::NeedsReview(_)
        );
        if let Some(row) = self.before.rows.get(&id).filter(|_| !is_answer) {
            self.failed.insert((row.operation.clone(), row.endpoint.clone()));
        }
        self.model.reported(id, token);
        if outcome.is_not_applied() {
            self.model.not_applied(id, token);
        }
    }

    /// The claim that a store without the comparison of tokens would write to.
    fn broken_delivery(&self, delivery: Arc<Delivery>) -> Arc<Delivery> {
        let row = self.before.rows.get(&delivery.id).filter(|row| row.status == Status::InFlight);
        let token = row.and_then(|row| row.lease.as_ref()).and_then(|lease| lease.token);
        match token.filter(|_| self.mutant == Some(Mutant::NoTokenCompare)) {
            Some(token) => Arc::new(Delivery { token, ..Delivery::clone(&delivery) }),
            None => delivery,
        }
    }

    fn is_probe(&self, id: i64, token: i64) -> Checked<bool> {
        let mut statement = self.bench.person.prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM outbox_operation
                            WHERE probe_id = ?1 AND probe_token = ?2)
                 OR EXISTS (SELECT 1 FROM outbox_hold
                            WHERE probe_id = ?1 AND probe_token = ?2)",
        )?;
        Ok(statement.query_row((id, token), |row| row.get(0))?)
    }

    /// Releases a row that no worker has begun.
    pub fn release(&mut self, relay: usize, at: usize) -> Checked<Done> {
        let Flight { held, .. } = self.relays[relay].held.remove(at);
        let delivery = held.delivery();
        self.model.not_applied(delivery.id, delivery.token);
        self.in_tx(relay, |tx, _, _| tx.release(&held))?;
        Ok(Done { verb: Verb::Release, row: Some(delivery.id), may_be_silent: true })
    }

    pub fn renew(&mut self, relay: usize) -> Checked<Done> {
        let held: Vec<_> =
            self.relays[relay].held.iter().map(|f| Arc::clone(f.held.delivery())).collect();
        let renewed = self.in_tx(relay, |tx, _, _| {
            held.iter().map(|delivery| tx.renew(delivery, LEASE_MS)).collect::<Fallible<Vec<_>>>()
        })?;
        for (delivery, is_held) in held.iter().zip(renewed) {
            if is_held {
                delivery.lease.extend_to(self.bench.clock.now() + LEASE_MS);
            } else {
                delivery.lease.revoke();
            }
        }
        Ok(Done { verb: Verb::Other, row: None, may_be_silent: false })
    }

    /// Takes a row back whose handler may never return; it may yet.
    pub fn abandon(&mut self, relay: usize, at: usize) -> Checked<Done> {
        let held = self.relays[relay].held[at].held.clone();
        let delivery = held.delivery();
        self.in_tx(relay, |tx, rules, _| tx.abandon(&held, &rules[operation_of(delivery)]))?;
        delivery.lease.revoke();
        Ok(Done { verb: Verb::Recover, row: Some(delivery.id), may_be_silent: false })
    }

    pub fn recover(&mut self, relay: usize) -> Checked<Done> {
        let dead = std::mem::take(&mut self.dead);
        self.in_tx(relay, |tx, rules, _| {
            rules.iter().try_for_each(|rules| tx.recover(rules))?;
            tx.recover_all(&dead, |name| rules.iter().find(|rules| rules.operation == name))
        })?;
        Ok(Done { verb: Verb::Recover, row: None, may_be_silent: false })
    }

    pub fn crash(&mut self, relay: usize) {
        for flight in std::mem::take(&mut self.relays[relay].held) {
            self.send_late(&flight);
        }
        self.generation += 1;
        let living = Relay::new(format!("relay-{relay}-{}", self.generation));
        self.dead.push(std::mem::replace(&mut self.relays[relay], living).owner);
    }

    /// Checks the result of a finding that nothing was applied, once it is written.
    pub fn heed_finding(&mut self, after: &Snapshot) -> Checked {
        let Some((id, is_settled)) = self.believed.take() else { return Ok(()) };
        let goes_on =
            matches!(after.status(id), Some(Status::Pending | Status::Dead | Status::Cancelled));
        if self.before.status(id) != Some(Status::Unknown) || !goes_on {
            return Ok(());
        }
        let alive = self.relays.each_ref().map(|relay| &relay.owner);
        let is_alive = |owner: &str| alive.iter().any(|known| *known == owner);
        if !is_settled || self.model.may_be_on_its_way(id, is_alive) {
            return violation("promise", format!("intent {id}: a finding was believed too early"));
        }
        self.model.cleared(id);
        Ok(())
    }
}

impl From<crate::error::Error> for Violation {
    fn from(error: crate::error::Error) -> Self {
        Self { check: "no_errors", text: error.to_string() }
    }
}

/// The error of the application's trigger, if it was in the way.
fn obstructed(done: Checked) -> Checked<Option<Error>> {
    match done {
        Err(violation) if violation.text.contains("the application is in the way") => {
            Ok(Some(Error::new(ErrorKind::Database, violation.text)))
        }
        done => done.map(|()| None),
    }
}

pub(crate) fn operation_of(delivery: &Delivery) -> usize {
    OPERATIONS.iter().position(|name| *name == delivery.operation).unwrap_or_default()
}

fn request(rules: &Rules, limit: usize, tries_suspects: bool) -> ClaimRequest<'_> {
    let (bytes, shard, lease_ms) = (1 << 20, Shard::ALL, LEASE_MS);
    ClaimRequest { rules, limit, starts: limit, bytes, shard, lease_ms, tries_suspects }
}

fn failure(class: &'static str) -> Failure {
    Failure::new(class, "as the sequence says")
}
