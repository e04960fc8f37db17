//! The transactions of the writer: what is known is written, leases are renewed and rows claimed in
//! one; where a row makes that fail, it is set aside, so that the others go on.

use std::sync::Arc;

use super::Engine;
use crate::core::{Failure, Finding, Outcome, millis};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::Held;
use crate::liveness;
use crate::relay::claims::{Renewed, renew};
use crate::relay::queue::Work;
use crate::store::tables::lost_lease::IsAlive;
use crate::store::{Committed, Parking, Record, RelayTx, Reported};

/// How many rows one step may set aside. Workers wait for it meanwhile.
const FAULTS_MAX: usize = 100;

/// A transaction that has changed nothing, and the row that made it fail, where that is certain.
struct Failed {
    error: Error,
    row: Option<i64>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, row: None }
    }
}

impl Engine {
    /// Makes one step and returns what was claimed. Nothing that was to be written is lost by a
    /// step that fails, and what is known is written where only the claims fail. A row that makes
    /// the step fail is set aside.
    pub fn step(&mut self, now: i64, claiming: bool) -> Result<Vec<Work>> {
        if claiming {
            self.retry_unrecorded(now)?;
        }
        let mut portion = usize::MAX;
        for _ in 0..FAULTS_MAX {
            let Failed { error, row } = match self.attempt(now, claiming, portion) {
                Ok(works) => return Ok(works),
                Err(failed) => failed,
            };
            let is_of_row = error.is_of_row();
            if self.has_unwritten() && (is_of_row || error.kind() != ErrorKind::Busy) {
                self.write_each(now)?;
            } else if let Some(id) = row.filter(|_| is_of_row) {
                log::error!("intent {id} is set aside, because it cannot be moved: {error}");
                self.aside.insert(id);
                self.writer.set_aside(id, &error, now)?;
            } else if is_of_row && portion > 1 {
                portion = 1;
            } else {
                return Err(error);
            }
            if !is_of_row {
                return Err(error);
            }
        }
        self.maybe_more = true;
        Ok(Vec::new())
    }

    /// Writes, renews and claims in one transaction; at most `portion` rows are claimed.
    fn attempt(&mut self, now: i64, claiming: bool, portion: usize) -> Result<Vec<Work>, Failed> {
        let shared = Arc::clone(&self.shared);
        let (lease, path) = (shared.options.lease, shared.outbox.path());
        let is_alive = |owner: &str| liveness::is_alive(path, owner);
        let renewing = self.must_renew(now);
        let mut claims = claiming.then(|| self.claims(&is_alive, now));
        let mut step = self.writer.begin(now, Arc::clone(shared.outbox.clock()))?;
        step.portion = portion;
        let written = self.write(&mut step, &is_alive).and_then(|()| {
            let renewed = if renewing {
                renew(&mut step, &self.held, &self.aside, lease)?
            } else {
                Renewed::default()
            };
            step.at = None;
            if let Some(claims) = &mut claims {
                step.check_schema()?;
                if self.patrol.has_ended {
                    let lane = |name: &str| self.lanes.iter().find(|l| l.rules.operation == name);
                    step.recover_all(&self.patrol.dead, |name| lane(name).map(|l| &l.rules))?;
                }
                claims.claim(&mut step)?;
            }
            Ok(renewed)
        });
        let renewed = match written {
            Ok(renewed) => renewed,
            Err(error) => return Err(Failed { error, row: step.at }),
        };
        let only = step.last.filter(|_| step.touched == 1);
        let committed = step.commit().map_err(|error| Failed { error, row: only })?;
        self.unrecorded.clear();
        self.unreleased.clear();
        for work in self.unanswered.drain(..) {
            work.held.delivery().lease.revoke();
        }
        self.patrol.has_ended = false;
        let works = claims.map_or_else(Vec::new, |claims| self.end_round(claims));
        if renewing || (self.held.is_empty() && !works.is_empty()) {
            self.renew_at = now.saturating_add((millis(lease) / 3).max(1));
        }
        renewed.held.iter().for_each(|held| held.extend_to(now.saturating_add(millis(lease))));
        renewed.lost.iter().for_each(|lost| lost.revoke());
        renewed.overdue.iter().for_each(|claim| self.abandon(*claim));
        self.heed(committed);
        self.hold(&works);
        Ok(works)
    }

    /// Records outcomes, gives rows back and gives rows up.
    fn write(&self, step: &mut RelayTx<'_>, is_alive: IsAlive<'_>) -> Result<()> {
        for (lane, record) in &self.unrecorded {
            step.record(record, &lane.rules, is_alive)?;
        }
        for work in &self.unreleased {
            step.release(&work.held)?;
        }
        for work in &self.unanswered {
            step.stop_waiting(&work.held, &work.lane.rules)?;
        }
        Ok(())
    }

    /// Writes what is known, each in a transaction of its own, so that only the row stays behind of
    /// which that fails.
    fn write_each(&mut self, now: i64) -> Result<()> {
        while let Some(work) = self.unreleased.pop() {
            let released = self.transact(now, |step, _| step.release(&work.held).map(drop));
            match (released, &work.held) {
                (Ok(committed), _) => self.heed(committed),
                // It was provably not sent, and that is kept.
                (Err(error), Held::Send(delivery)) if error.is_of_row() => {
                    let failure = Failure::new("not_started", "no worker had started it");
                    let reported = Reported::Outcome(Outcome::NotSent(failure));
                    let record = Record { delivery: Arc::clone(delivery), reported, roll: 0.0 };
                    self.unrecorded.push((work.lane, record));
                }
                (Err(error), Held::LookUp(..)) if error.is_of_row() => {}
                (Err(error), _) => {
                    self.unreleased.push(work);
                    return Err(error);
                }
            }
        }
        while let Some((lane, record)) = self.unrecorded.first() {
            let recorded =
                self.transact(now, |step, is_alive| step.record(record, &lane.rules, is_alive));
            let committed = match recorded {
                Err(error) if error.is_of_row() => {
                    let keep = |parking| {
                        self.transact(now, |step, _| {
                            step.keep(record, &lane.rules, &error, parking)
                        })
                    };
                    let mut kept = keep(Parking::Noted);
                    for parking in [Parking::Silent, Parking::Unmoved] {
                        if kept.as_ref().is_err_and(Error::is_of_row) {
                            kept = keep(parking);
                        }
                    }
                    let kept = kept?;
                    log::error!("{}: it is kept and tried again: {error}", in_words(record));
                    kept
                }
                recorded => recorded?,
            };
            self.unrecorded.remove(0);
            self.heed(committed);
        }
        while let Some(work) = self.unanswered.pop() {
            let stopped =
                self.transact(now, |step, _| step.stop_waiting(&work.held, &work.lane.rules));
            match stopped {
                Ok(committed) => self.heed(committed),
                // Its lease runs out.
                Err(error) if error.is_of_row() => {}
                Err(error) => {
                    self.unanswered.push(work);
                    return Err(error);
                }
            }
            work.held.delivery().lease.revoke();
        }
        Ok(())
    }

    fn transact(
        &self,
        now: i64,
        write: impl FnOnce(&mut RelayTx<'_>, IsAlive<'_>) -> Result<()>,
    ) -> Result<Committed> {
        let path = self.shared.outbox.path();
        let mut step = self.writer.begin(now, Arc::clone(self.shared.outbox.clock()))?;
        write(&mut step, &|owner: &str| liveness::is_alive(path, owner))?;
        step.commit()
    }

    /// Tries again what failed before, each outcome in a transaction of its own.
    fn retry_unrecorded(&mut self, now: i64) -> Result<()> {
        for kept in self.writer.unrecorded_due(now)? {
            let Some(outcome) = &kept.outcome else {
                self.aside.remove(&kept.id);
                self.writer.let_move(&kept, now)?;
                continue;
            };
            let lane = self.lanes.iter().find(|lane| lane.rules.operation == kept.operation);
            let (rules, roll) = (lane.map(|lane| &lane.rules), self.random.f64());
            match self.transact(now, |step, _| step.record_kept(&kept, outcome, rules, roll)) {
                Ok(committed) => self.heed(committed),
                Err(error) if error.is_of_row() => {
                    log::error!("intent {}: its outcome cannot be recorded: {error}", kept.id);
                    self.writer.keep_on(&kept, &error, now)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes note of what was committed.
    fn heed(&mut self, committed: Committed) {
        self.publish(&committed.events);
        for (id, attempt) in committed.withheld {
            self.in_doubt_since.known_for(id, attempt, self.looks_since);
        }
        self.stops.extend(committed.stops);
    }

    /// Says what is known and not written, for a process that is about to end.
    pub fn log_unwritten(&self) {
        for (_, record) in &self.unrecorded {
            log::error!("{}: it is not written", in_words(record));
        }
    }
}

/// An outcome with what a person needs to find it again at the provider.
fn in_words(record: &Record) -> String {
    let delivery = &record.delivery;
    let (status, id, what) = match &record.reported {
        Reported::Outcome(Outcome::Succeeded(receipt))
        | Reported::Finding(Finding::Applied(receipt), _) => {
            (receipt.status, receipt.downstream_id.as_deref(), "succeeded".to_owned())
        }
        Reported::Outcome(outcome) => {
            let failure = outcome.failure();
            let what = failure.map(|f| format!("{}: {}", f.class, f.message)).unwrap_or_default();
            (failure.and_then(|failure| failure.status), None, what)
        }
        Reported::Finding(..) => (None, None, "a lookup that did not settle it".to_owned()),
    };
    let status = status.map_or_else(String::new, |status| format!(", status {status}"));
    let id = id.map_or_else(String::new, |id| format!(", the provider's id {id:?}"));
    format!(
        "the outcome of intent {} (key as sent {:?}{status}{id}; {what})",
        delivery.id,
        delivery.wire_key()
    )
}
