//! The run of a sequence: each operation is done to the file, and everything is checked after it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fastrand::Rng;

use super::bench::{Bench, Mutant, OBSTRUCT, OPERATIONS, Setup};
use super::check::{self, Checked, Done, Trails};
use super::downstream::Downstreams;
use super::knowledge::Model;
use super::op::{Answer, Op};
use super::relay::Relay;
use super::snapshot::{self, RowNow, Snapshot};
use crate::clock::Clock;
use crate::core::status::Status;
use crate::store::relay::tx::Rules;

pub(crate) const LEASE_MS: i64 = 90_000;

pub(crate) struct Machine<'b> {
    pub bench: &'b mut Bench,
    pub setup: Setup,
    pub mutant: Option<Mutant>,
    pub rules: Vec<Rules>,
    pub relays: [Relay; 2],
    pub downstreams: Downstreams,
    pub model: Model,
    /// The file as it was after the last step.
    pub before: Snapshot,
    /// The last token that was handed out.
    pub token: i64,
    /// An operation of which a relay claimed all that it could.
    pub claimed_all: Option<usize>,
    /// Operations that a person has paused.
    pub paused: BTreeSet<u8>,
    /// Operations and endpoints of which not every request was answered.
    pub failed: BTreeSet<(String, Option<String>)>,
    /// A lookup that found nothing, and whether it was asked late enough.
    pub believed: Option<(i64, bool)>,
    pub entities: u32,
    pub generation: u32,
    /// Relays that crashed, whose leases nobody has taken back yet.
    pub dead: Vec<String>,
    trails: Trails,
    /// Up to where the trail was read.
    position: i64,
    duplicates: BTreeMap<String, i64>,
    /// The latest that the wall clock has shown.
    latest: i64,
}

impl<'b> Machine<'b> {
    pub fn new(bench: &'b mut Bench, setup: Setup, mutant: Option<Mutant>) -> Self {
        let rules = bench.reset(setup);
        let latest = bench.clock.now();
        Self {
            bench,
            setup,
            mutant,
            rules,
            relays: ["relay-0-0", "relay-1-0"].map(|owner| Relay::new(owner.into())),
            downstreams: Downstreams::default(),
            model: Model::default(),
            before: Snapshot::default(),
            token: 0,
            claimed_all: None,
            paused: BTreeSet::new(),
            failed: BTreeSet::new(),
            believed: None,
            entities: 0,
            generation: 0,
            dead: Vec::new(),
            trails: Trails::default(),
            position: 0,
            duplicates: BTreeMap::new(),
            latest,
        }
    }

    pub fn run(&mut self, ops: &[Op]) -> Checked {
        ops.iter().try_for_each(|op| self.apply(*op))?;
        self.heal()
    }

    /// Runs so many steps drawn at random, of those that do something, and puts them on record.
    pub fn run_random(&mut self, rng: &mut Rng, steps: usize, ops: &mut Vec<Op>) -> Checked {
        for _ in 0..steps {
            let mut drawn = std::iter::repeat_with(|| Op::random(rng, self.setup)).take(20);
            let Some(op) = drawn.find(|op| self.can(*op)) else { break };
            ops.push(op);
            self.apply(op)?;
        }
        self.heal()
    }

    /// Whether the operation would do anything now.
    fn can(&self, op: Op) -> bool {
        match op {
            Op::Enqueue { .. } => self.has_room(),
            Op::Claim { .. } => self.due(Status::Pending, 0).is_some(),
            Op::LookUp { .. } => self.due(Status::Unknown, 0).is_some(),
            Op::Recover { .. } => !self.dead.is_empty() || self.due(Status::InFlight, 0).is_some(),
            Op::Begin { .. } | Op::Work { .. } | Op::Release { .. } => {
                self.held(0, 0, false).is_some()
            }
            Op::Report { .. } | Op::Abandon { .. } => self.held(0, 0, true).is_some(),
            Op::Renew { relay } | Op::Crash { relay } => {
                !self.relays[usize::from(relay)].held.is_empty()
            }
            Op::AdvanceToNext => self.next_wait().is_some(),
            Op::Advance { .. }
            | Op::Set { .. }
            | Op::Pause { .. }
            | Op::Resume { .. }
            | Op::Obstruct { .. }
            | Op::RetryKept { .. } => true,
            _ => self.target(op).is_some(),
        }
    }

    /// Whether another intent may be enqueued.
    pub fn has_room(&self) -> bool {
        let unsettled = self.before.rows.values().filter(|row| !row.status.is_settled());
        unsettled.count() < self.setup.rows_max()
    }

    fn apply(&mut self, op: Op) -> Checked {
        if let Some(done) = self.perform(op)? {
            self.check(&done)?;
        }
        self.check_truth()
    }

    /// Does the operation, if it can be done now. Returns what must be checked in the file.
    fn perform(&mut self, op: Op) -> Checked<Option<Done>> {
        let of = usize::from;
        match op {
            Op::Enqueue { .. } => self.enqueue(op),
            Op::Claim { relay, operation, limit } => {
                let operation = self.due(Status::Pending, operation).unwrap_or(of(operation));
                self.claim(of(relay), operation, of(limit)).map(Some)
            }
            Op::LookUp { relay, operation, limit } => {
                let operation = self.due(Status::Unknown, operation).unwrap_or(of(operation));
                self.claim_lookups(of(relay), operation, of(limit)).map(Some)
            }
            Op::Recover { relay } => self.recover(of(relay)).map(Some),
            Op::Renew { relay } => self.renew(of(relay)).map(Some),
            Op::Begin { relay, nth, answer } | Op::Work { relay, nth, answer } => {
                let Some((relay, at)) = self.held(relay, nth, false) else { return Ok(None) };
                match self.begin(relay, at, answer)? {
                    None if matches!(op, Op::Work { .. }) => self.report(relay, at).map(Some),
                    done => Ok(done),
                }
            }
            Op::Report { relay, nth } => self.with_held(relay, nth, true, Self::report),
            Op::Release { relay, nth } => self.with_held(relay, nth, false, Self::release),
            Op::Abandon { relay, nth } => self.with_held(relay, nth, true, Self::abandon),
            Op::Crash { relay } => {
                self.crash(of(relay));
                Ok(None)
            }
            Op::Advance { seconds } => {
                self.pass(Duration::from_secs(seconds.into()));
                Ok(None)
            }
            Op::AdvanceToNext => {
                if let Some(wait) = self.next_wait() {
                    self.pass(wait);
                }
                Ok(None)
            }
            Op::Set { seconds } => {
                self.bench.clock.set(self.bench.clock.now() + i64::from(seconds) * 1000);
                self.latest = self.latest.max(self.bench.clock.now());
                Ok(None)
            }
            Op::Obstruct { on } => {
                let sql = if on { OBSTRUCT } else { "DROP TRIGGER IF EXISTS app" };
                self.bench.person.execute_batch(sql)?;
                Ok(None)
            }
            Op::RetryKept { relay } => self.retry_kept(of(relay)),
            Op::Pause { operation, seconds } => {
                self.paused.insert(operation);
                self.pause(operation, seconds)
            }
            Op::Resume { operation } => {
                self.paused.remove(&operation);
                self.resume(operation)
            }
            _ => self.by_a_person(op),
        }
    }

    /// The operation that is named, or the next one after it of which a row in this status is due.
    fn due(&self, status: Status, operation: u8) -> Option<usize> {
        let now = self.bench.clock.now();
        let is_due =
            |row: &RowNow| row.status == status && row.due_at().is_some_and(|at| at <= now);
        let first = usize::from(operation);
        let mut operations = (first..first + OPERATIONS.len()).map(|n| n % OPERATIONS.len());
        let has_due = |operation: &usize| {
            let mut rows = self.before.rows.values();
            rows.any(|row| row.operation == OPERATIONS[*operation] && is_due(row))
        };
        operations.find(has_due)
    }

    fn next_wait(&self) -> Option<Duration> {
        let now = self.bench.clock.now();
        let due = self.before.rows.values().filter_map(RowNow::due_at);
        let wait = due.filter(|at| *at > now).min()? - now;
        Some(Duration::from_millis(wait.unsigned_abs()))
    }

    fn with_held(
        &mut self,
        relay: u8,
        nth: u8,
        is_begun: bool,
        f: impl FnOnce(&mut Self, usize, usize) -> Checked<Done>,
    ) -> Checked<Option<Done>> {
        match self.held(relay, nth, is_begun) {
            Some((relay, at)) => f(self, relay, at).map(Some),
            None => Ok(None),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.bench.clock.advance(time);
        self.latest = self.latest.max(self.bench.clock.now());
        self.downstreams.pass(self.bench.clock.monotonic());
    }

    fn check(&mut self, done: &Done) -> Checked {
        let after = Snapshot::read(&self.bench.person)?;
        let (events, position) = snapshot::events(&self.bench.person, self.position)?;
        self.position = position;
        for event in events.iter().filter(|event| event.kind == "duplicate_effect") {
            let operation = after.rows[&event.id].operation.clone();
            *self.duplicates.entry(operation).or_default() += 1;
        }
        let before = &self.before;
        self.bench.moves.extend(check::moves(before, &after, done)?);
        check::one_place(&after)?;
        check::heads(&after)?;
        check::one_suspect(&after)?;
        check::settled_once(before, &after)?;
        check::bindings(before, &after)?;
        let setup = self.setup;
        let number = |name: &str| OPERATIONS.iter().position(|known| *known == name);
        check::receipts_are_bound(&after, |name| number(name).is_some_and(|n| setup.binds(n)))?;
        check::counts(&after, &self.duplicates)?;
        self.trails.follow(&events, before, &after, done)?;
        if after.token < self.token {
            let text = format!("the counter is {}, handed out was {}", after.token, self.token);
            return check::violation("tokens_rise", text);
        }
        // A token may also be drawn to name a doubt.
        self.token = after.token;
        if let Some(operation) = self.claimed_all.take() {
            let (name, now) = (OPERATIONS[operation], self.bench.clock.now());
            check::faults_stay(&after, name, now, &self.failed)?;
        }
        self.heed_finding(&after)?;
        self.before = after;
        Ok(())
    }

    /// Everything heals: once relays run, the downstream answers and lookups tell the truth, no row
    /// waits any more but behind a row that waits for a person.
    fn heal(&mut self) -> Checked {
        for relay in [0, 1] {
            self.apply(Op::Crash { relay })?;
        }
        // Time that was set ahead comes all the same.
        let behind = self.latest - self.bench.clock.now();
        self.pass(Duration::from_millis(behind.unsigned_abs()));
        for operation in 0..3 {
            self.apply(Op::Resume { operation })?;
        }
        self.apply(Op::Obstruct { on: false })?;
        for _ in 0..40 {
            self.pass(Duration::from_secs(3700));
            self.apply(Op::Recover { relay: 0 })?;
            for operation in 0..3 {
                self.drain(operation)?;
            }
            for _ in 0..20 {
                self.apply(Op::RetryKept { relay: 0 })?;
            }
            if self.waiting().is_empty() {
                return self.check_kept();
            }
        }
        check::violation("everything_heals", format!("intents {:?} wait", self.waiting()))
    }

    /// Outcomes that were known are recorded once nothing is in the way any more.
    fn check_kept(&self) -> Checked {
        let sql = "SELECT count(*) FROM outbox_lease WHERE error_class = 'unrecorded'";
        match self.bench.person.query_row(sql, [], |row| row.get(0))? {
            0_i64 => Ok(()),
            left => check::violation("proof_is_kept", format!("of {left} intents it is lost")),
        }
    }

    fn drain(&mut self, operation: u8) -> Checked {
        let (relay, nth, answer) = (0, 0, Answer::Succeeds);
        self.apply(Op::LookUp { relay, operation, limit: 20 })?;
        self.apply(Op::Claim { relay, operation, limit: 20 })?;
        while !self.relays[0].held.is_empty() {
            self.apply(Op::Work { relay, nth, answer })?;
        }
        Ok(())
    }

    /// Intents that wait for no person and are not settled.
    fn waiting(&self) -> Vec<i64> {
        let lines = self.before.lines();
        let is_behind = |id: i64| {
            let line = lines.iter().find(|line| line.contains(&id));
            line.is_some_and(|line| {
                let before = line.iter().take_while(|other| **other != id);
                before.into_iter().any(|other| self.before.rows[other].status.waits_for_a_person())
            })
        };
        let rows = self.before.rows.iter().filter(|(id, row)| {
            !row.status.is_settled() && !row.status.waits_for_a_person() && !is_behind(**id)
        });
        rows.map(|(id, _)| *id).collect()
    }
}
