//! The order of the steps: record what came back, renew, recover, claim what there is room for, all
//! in one transaction. The engine has no threads; its methods run on the caller's.

mod transaction;

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::agenda::{Agenda, FEW_LANES};
use super::capacity::Capacity;
use super::claims::{Claims, Found};
use super::doubt_clock::InDoubtSince;
use super::lane::Lane;
use super::operation::Operation;
use super::patrol::Patrol;
use super::queue::{ClaimId, Returned, Work};
use super::shared::Shared;
use super::worker::defuse;
use crate::core::{Finding, millis};
use crate::error::Result;
use crate::event::{Event, EventKind};
use crate::handler::Held;
use crate::store::relay::stops::Stops;
use crate::store::tables::lost_lease::IsAlive;
use crate::store::{Record, Reported, STEP_MIN_MS, Writer};

/// The state of a relay's writer, and the steps it makes.
pub(super) struct Engine {
    shared: Arc<Shared>,
    pub writer: Writer,
    lanes: Vec<Arc<Lane>>,
    agenda: Agenda,
    /// Rows that are with a worker or wait for one.
    held: HashMap<ClaimId, Work>,
    /// Rows whose handler never came back. Their workers are lost to other rows.
    stuck: HashSet<ClaimId>,
    /// Outcomes that are not written yet. They are kept for as long as the process lives.
    unrecorded: Vec<(Arc<Lane>, Record)>,
    /// Rows to give back, because no worker has started them.
    unreleased: Vec<Work>,
    /// Rows to give up, because the relay stops and their workers have not come back.
    unanswered: Vec<Work>,
    pub patrol: Patrol,
    /// Rows that could not be moved: what is held of them is not renewed.
    aside: HashSet<i64>,
    in_doubt_since: InDoubtSince,
    /// The monotonic clock shortly before the moment of the current look.
    looks_since: Duration,
    /// Workers that stand in for those that are slow or stuck.
    substitutes: usize,
    /// Rows of these that wait for a worker go back.
    pub stops: Stops,
    random: fastrand::Rng,
    /// By how much the wall clock is ahead of the one that nobody sets.
    wall_ahead: Option<i64>,
    /// The newest intent that was made while the clock was ahead, and is seen to.
    ahead: Option<i64>,
    renew_at: i64,
    /// Which of the lanes with equal priority comes first.
    turn: usize,
    /// Rounds of claims made; lookups come before sends in every other one.
    rounds: u64,
    /// The place of the lane whose suspect waits until no unprotected row is held.
    suspect_waits: Option<usize>,
    /// A lane whose turn has come waits for an idle worker: nothing is claimed before.
    waits_for_idle_worker: bool,
    /// Claims found as many rows as they had room for: there may be more.
    pub maybe_more: bool,
}

/// How long a worker may have one delivery before another stands in.
const SLOW: Duration = Duration::from_secs(1);

impl Engine {
    pub fn new(shared: &Arc<Shared>) -> Result<Self> {
        let writer = shared.outbox.store().writer(shared.owner.clone())?;
        writer.index_shard(shared.options.shard)?;
        let random = shared.options.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let mut engine = Self {
            shared: Arc::clone(shared),
            writer,
            lanes: Vec::new(),
            agenda: Agenda::default(),
            held: HashMap::new(),
            stuck: HashSet::new(),
            unrecorded: Vec::new(),
            unreleased: Vec::new(),
            unanswered: Vec::new(),
            patrol: Patrol::new(),
            aside: HashSet::new(),
            in_doubt_since: InDoubtSince::default(),
            looks_since: Duration::ZERO,
            substitutes: 0,
            stops: Stops::default(),
            random,
            wall_ahead: None,
            ahead: None,
            renew_at: 0,
            turn: 0,
            rounds: 0,
            suspect_waits: None,
            waits_for_idle_worker: false,
            maybe_more: true,
        };
        engine.mind_clock(shared.outbox.clock().now())?;
        for (name, operation) in &shared.operations {
            engine.add_lane(name, operation)?;
        }
        Ok(engine)
    }

    fn add_lane(&mut self, name: &str, operation: &Operation) -> Result<()> {
        let rules = self.shared.register(name, operation)?;
        self.agenda.opened.insert(name.to_owned());
        self.lanes.push(Arc::new(Lane::new(self.lanes.len(), rules, operation)));
        self.share_workers();
        Ok(())
    }

    /// Opens a lane for each operation with something due that is not named, where there is a
    /// default; and notes which lanes are to be asked, where there are many. A drain asks for all,
    /// and a relay that runs mostly for what was enqueued since. Returns whether it was all.
    pub fn discover(&mut self, now: i64, is_drain: bool) -> Result<bool> {
        let shared = Arc::clone(&self.shared);
        let default = shared.default_operation.as_ref();
        if default.is_none() && self.lanes.len() <= FEW_LANES {
            return Ok(true);
        }
        let began = Instant::now();
        let is_partial = !is_drain && self.agenda.is_fresh();
        let (mut first_due, last_id) = if is_partial {
            self.writer.enqueued_since(self.agenda.last_id)?
        } else {
            self.writer.first_due()?
        };
        self.agenda.last_id = last_id;
        first_due.retain(|name, _| default.is_some() || self.agenda.opened.contains(name));
        if let Some(default) = default {
            for name in first_due.iter().filter(|due| *due.1 <= now).map(|due| due.0) {
                if !self.agenda.opened.contains(name) {
                    self.add_lane(name, default)?;
                }
            }
        }
        if is_partial {
            for name in first_due.keys() {
                self.agenda.touch(name);
            }
        } else {
            self.agenda.note(first_due, began.elapsed());
        }
        Ok(!is_partial)
    }

    /// When a look at all operations may be made again, where the last one was not.
    pub fn walk_at(&self) -> Option<Instant> {
        self.agenda.walk_at
    }

    /// The moment of the next look. What it finds is known since then, by both clocks.
    pub fn look(&mut self) -> i64 {
        let clock = self.shared.outbox.clock();
        self.looks_since = clock.monotonic();
        clock.now()
    }

    pub fn holds_nothing(&self) -> bool {
        self.held.is_empty()
    }

    pub fn has_unwritten(&self) -> bool {
        !self.unrecorded.is_empty() || !self.unreleased.is_empty() || !self.unanswered.is_empty()
    }

    /// How many rows have an outcome that is not known.
    pub fn left(&self) -> usize {
        self.held.len() + self.stuck.len()
    }

    /// How many outcomes are known and not written.
    pub fn unwritten(&self) -> usize {
        self.unrecorded.len()
    }

    /// Accepts a row from a worker; its outcome is written by the next step.
    pub fn accept(&mut self, returned: Returned) {
        let Returned { work, reported, began, took } = returned;
        let claim = work.claim_id();
        if self.held.remove(&claim).is_none() && self.stuck.remove(&claim) {
            work.lane.count_stuck(-1);
        }
        self.unanswered.retain(|given_up| given_up.claim_id() != claim);
        self.agenda.touch(&work.lane.rules.operation);
        let Some(mut reported) = reported else {
            self.unreleased.push(work);
            return;
        };
        let Work { lane, held } = work;
        if let (Held::LookUp(_, lookup), Reported::Finding(finding, observed)) =
            (&held, &mut reported)
        {
            if let Finding::NotAsked(failure) = finding {
                // The lookup leaves no event, and may go on for days.
                log::info!("intent {}: the lookup was not sent: {}", claim.id, failure.message);
            }
            let attempt = lookup.attempt_token;
            observed.in_doubt_for = self.in_doubt_since.known_for(claim.id, attempt, began);
        }
        lane.note_duration(took);
        let delivery = Arc::clone(held.delivery());
        let record = Record { delivery, reported, roll: self.random.f64() };
        self.unrecorded.push((lane, record));
    }

    /// Notices that the wall clock was set, and moves the times of the file and this relay along.
    pub fn mind_clock(&mut self, now: i64) -> Result<()> {
        let clock = self.shared.outbox.clock();
        let boot = clock.boot();
        let ms = boot.as_ref().map_or_else(|| millis(clock.monotonic()), |boot| boot.ms);
        let by = self.wall_ahead.map(|known| now.saturating_sub(ms).saturating_sub(known));
        if by.is_some_and(|by| by.abs() <= STEP_MIN_MS) {
            return Ok(());
        }
        self.writer.mind_clock(now, boot.as_ref(), self.shared.longest(), by.is_some())?;
        self.wall_ahead = Some(now.saturating_sub(ms));
        let by = by.unwrap_or(0);
        self.renew_at = self.renew_at.saturating_add(by);
        self.held.values().for_each(|work| work.held.delivery().lease.shift(by));
        self.maybe_more = true;
        Ok(())
    }

    /// Sees to intents that were made while the clock was ahead, where the newest is one.
    pub fn bring_back(&mut self, now: i64) -> Result<()> {
        let newest = self.writer.newest_ahead(now)?;
        if newest.is_some() && newest != self.ahead {
            let boot = self.shared.outbox.clock().boot();
            self.writer.mind_clock(now, boot.as_ref(), self.shared.longest(), true)?;
        }
        self.ahead = newest;
        Ok(())
    }

    /// Looks for relays that died, and for leases that ran out.
    pub fn look_around(&mut self, now: i64) -> Result<()> {
        self.patrol.look(&self.shared, &self.writer, now)
    }

    /// Gives up what workers still have in hand: the next step records that it may have been sent.
    /// An answer that comes yet is recorded as late.
    pub fn stop_waiting(&mut self) {
        self.unanswered = self.held.values().cloned().collect();
    }

    /// Whether any row is due that there is room for. Reads only.
    pub fn has_due(&self, now: i64) -> Result<bool> {
        if !self.writer.unrecorded_due(now)?.is_empty() {
            return Ok(true);
        }
        let (shard, capacity) = (self.shared.options.shard, self.capacity());
        let asked = |lane: &&Arc<Lane>| self.agenda.may_be_due(&lane.rules.operation, now);
        for lane in self.lanes.iter().filter(asked).filter(|lane| capacity.room(lane) > 0) {
            let is_next = self.suspect_waits == Some(lane.place);
            if is_next && capacity.tries_suspects(lane) {
                return Ok(true);
            }
            if self.writer.has_due(&lane.rules, shard, now, capacity.lookups_after(lane))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// When the next row comes due, or the next lease runs out, of what there is room for.
    pub fn next_due(&self, now: i64) -> Result<Option<i64>> {
        let (shard, capacity) = (self.shared.options.shard, self.capacity());
        let mut next =
            self.agenda.next_due(now).into_iter().chain(self.writer.next_unrecorded(now)?).min();
        let asked = |lane: &&Arc<Lane>| self.agenda.may_be_due(&lane.rules.operation, now);
        for lane in self.lanes.iter().filter(asked).filter(|lane| capacity.room(lane) > 0) {
            let lookups_after = capacity.lookups_after(lane);
            let due = self.writer.next_due(&lane.rules, shard, now, lookups_after)?;
            next = next.into_iter().chain(due).min();
        }
        Ok(next)
    }

    /// Notes lanes that another connection has paused or throttled. Reads only.
    pub fn find_stopped(&mut self, now: i64) -> Result<()> {
        for lane in &self.lanes {
            let is_held = self.held.values().any(|work| work.lane.place == lane.place);
            if is_held && let Some(stopped) = self.writer.stopped(&lane.rules, now)? {
                self.stops.operation(&lane.rules.operation, stopped);
            }
        }
        Ok(())
    }

    pub fn must_renew(&self, now: i64) -> bool {
        !self.held.is_empty() && now >= self.renew_at
    }

    /// A round of claims for this step, with the lanes by priority; equal ones take turns.
    fn claims<'a>(&self, is_alive: IsAlive<'a>, now: i64) -> Claims<'a> {
        let mut lanes = self.lanes.clone();
        if !lanes.is_empty() {
            let count = lanes.len();
            lanes.rotate_left(self.turn % count);
        }
        lanes.retain(|lane| self.agenda.may_be_due(&lane.rules.operation, now));
        lanes.sort_by_key(|lane| Reverse(lane.priority));
        Claims {
            lanes,
            capacity: self.capacity(),
            shard: self.shared.options.shard,
            lease_ms: millis(self.shared.options.lease),
            is_alive,
            lookups_first: self.rounds.is_multiple_of(2),
            found: Found::default(),
        }
    }

    /// Takes over what a round of claims found, once it is committed.
    fn end_round(&mut self, claims: Claims<'_>) -> Vec<Work> {
        let found = claims.found;
        // A round without capacity has not looked, so what was found before still holds.
        if !claims.capacity.is_closed {
            self.suspect_waits = claims.capacity.suspect_waits;
            self.rounds = self.rounds.wrapping_add(1);
            self.waits_for_idle_worker = found.waits_for_idle_worker.is_some();
            // What this step moved may have let other lanes act.
            self.maybe_more = found.more || self.agenda.is_kept();
            self.turn = found.waits_for_idle_worker.unwrap_or(self.turn.wrapping_add(1));
        }
        found.works
    }

    fn hold(&mut self, works: &[Work]) {
        let now = self.shared.outbox.clock().monotonic();
        for work in works {
            if let Held::LookUp(delivery, lookup) = &work.held {
                self.in_doubt_since.known_for(delivery.id, lookup.attempt_token, now);
            }
            self.aside.remove(&work.held.delivery().id);
            self.held.insert(work.claim_id(), work.clone());
        }
    }

    /// Gives up on a worker that may never come back: its row goes on without it.
    fn abandon(&mut self, claim: ClaimId) {
        let Some(Work { lane, held }) = self.held.remove(&claim) else { return };
        held.delivery().lease.revoke();
        lane.count_stuck(1);
        self.stuck.insert(claim);
        log::error!(
            "intent {}: its handler is long past its time limit; {} of {} workers are stuck",
            claim.id,
            self.stuck.len(),
            self.shared.options.workers
        );
    }

    /// How many workers come back soon.
    fn workers(&self) -> usize {
        (self.shared.options.workers + self.substitutes).saturating_sub(self.stuck.len())
    }

    /// Shares the workers out among the lanes, and returns how many there should be. Substitutes
    /// stand in for workers that have had the same row for long, so that a slow operation costs the
    /// others nothing; the slow one itself has no use of them. Where there are several lanes, one
    /// worker stays free for the others, however many rows of one wait.
    pub fn share_workers(&mut self) -> usize {
        let is_slow = |work: &&Work| {
            work.held.delivery().lease.began().is_some_and(|began| began.elapsed() >= SLOW)
        };
        let mut slow = vec![0; self.lanes.len()];
        self.held.values().filter(is_slow).for_each(|work| slow[work.lane.place] += 1);
        let configured = self.shared.options.workers;
        self.substitutes = (slow.iter().sum::<usize>() + self.stuck.len()).min(configured);
        for (lane, slow) in self.lanes.iter().zip(slow) {
            let workers = self.workers().saturating_sub(slow).max(1);
            let share = if self.lanes.len() > 1 { (workers - 1).max(1) } else { workers };
            lane.set_workers_max(lane.max_in_flight.unwrap_or(share).min(configured).min(workers));
        }
        configured + self.substitutes
    }

    /// How much more this relay may claim.
    fn capacity(&self) -> Capacity {
        let payload_max = self.shared.outbox.store().payload_max;
        let (options, held) = (&self.shared.options, self.held.values());
        let mut capacity = Capacity::new(options, payload_max, self.workers(), &self.lanes, held);
        capacity.is_closed |= self.waits_for_idle_worker && capacity.idle() == 0;
        capacity.suspect_waits = self.suspect_waits;
        capacity
    }

    /// Tells the log, the totals and the observers what was committed.
    fn publish(&mut self, events: &[Event]) {
        for event in events {
            self.in_doubt_since.note(event, self.looks_since);
            self.shared.count(event);
            log_event(event);
            for observer in &self.shared.observers {
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| observer(event))) {
                    defuse(payload);
                    log::error!("an observer panicked on the event of intent {}", event.outbox_id);
                }
            }
        }
    }
}

fn log_event(event: &Event) {
    if event.kind == EventKind::DuplicateEffect {
        let reason = event.reason.as_deref().unwrap_or_default();
        log::error!("intent {} ({}): {reason}", event.outbox_id, event.operation);
    }
    log::debug!(
        "intent {} ({}): {} {} -> {}, attempt {}{}",
        event.outbox_id,
        event.operation,
        event.kind.as_str(),
        event.from_status,
        event.status,
        event.attempt,
        event.error_class.as_deref().map(|c| format!(", {c}")).unwrap_or_default()
    );
}
