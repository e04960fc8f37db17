//! The order of the steps: record what came back, renew, recover, claim what there is room for,
//! all in one transaction. No threads here; the engine is driven by whoever has one.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::claims::{Claims, Plan, Renewed, claim, renew, write_back};
use super::doubts::Doubts;
use super::lane::Lane;
use super::space::Space;
use super::worker::{Report, Work, defuse};
use crate::core::millis;
use crate::core::outcome::Finding;
use crate::core::status::Status;
use crate::error::Result;
use crate::event::{Event, EventKind};
use crate::handler::Delivery;
use crate::store::{Record, Reported, Writer};

/// What a relay's writer knows and does.
pub(super) struct Engine {
    shared: Arc<Shared>,
    writer: Writer,
    lanes: Vec<Lane>,
    /// Deliveries that are with a worker or wait for one, by fencing token and row.
    held: HashMap<(i64, i64), (usize, Arc<Delivery>)>,
    /// How many bytes of payloads those have.
    held_bytes: usize,
    /// Deliveries whose handler never came back. Their workers are lost to the others.
    stuck: HashMap<(i64, i64), usize>,
    /// Outcomes that are not written yet. They are kept for as long as the process lives.
    unrecorded: Vec<(usize, Record)>,
    /// Deliveries to give back, because nobody started them.
    unreleased: Vec<Arc<Delivery>>,
    doubts: Doubts,
    /// Workers that stand in for those who are slow or stuck.
    substitutes: usize,
    /// Lanes that were paused or throttled: what waits for a worker there must not be sent.
    stopped: Vec<usize>,
    random: fastrand::Rng,
    renew_at: i64,
    /// Where the turn of equal operations stands.
    turn: usize,
    /// How often was claimed; look-ups come before sends every other time.
    claims: u64,
    /// A row that died with its process is next: claim nothing until it can be alone.
    quiet: bool,
    /// An operation whose turn it is waits for a worker to be idle: claim nothing before.
    wants_idle: bool,
    /// Claims found as many rows as they had room for: there may be more.
    pub maybe_more: bool,
    pub tally: Tally,
}

/// What became of the rows that moved while a relay drained, or was shut down, counted as it was
/// committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DrainReport {
    /// Attempts whose outcome was recorded.
    pub attempts: u64,
    /// Rows that were settled as succeeded.
    pub succeeded: u64,
    /// Rows that will be tried again later.
    pub retried: u64,
    /// Rows that may have been applied and are not safe to send again.
    pub unknown: u64,
    /// Rows a person must look at.
    pub needs_review: u64,
    /// Rows that were given up or refused.
    pub dead: u64,
    /// At a shutdown: deliveries no worker had started; they were given back, and no attempt was
    /// counted.
    pub released: u64,
    /// At a shutdown: deliveries still on the way when the grace was over. Their outcome is recorded
    /// if the process lives long enough; otherwise their lease runs out and they are in doubt.
    pub left: u64,
}

type Tally = DrainReport;

/// How long a worker may have one delivery before another stands in.
const SLOW: Duration = Duration::from_secs(1);

impl Engine {
    pub fn new(shared: Arc<Shared>) -> Result<Self> {
        let writer = shared.outbox.store().writer(shared.owner.clone())?;
        let random = shared.options.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let mut engine = Self {
            shared,
            writer,
            lanes: Vec::new(),
            held: HashMap::new(),
            held_bytes: 0,
            stuck: HashMap::new(),
            unrecorded: Vec::new(),
            unreleased: Vec::new(),
            doubts: Doubts::default(),
            substitutes: 0,
            stopped: Vec::new(),
            random,
            renew_at: 0,
            turn: 0,
            claims: 0,
            quiet: false,
            wants_idle: false,
            maybe_more: true,
            tally: Tally::default(),
        };
        for (name, operation) in engine.shared.operations.clone() {
            engine.add_lane(&name, &operation)?;
        }
        Ok(engine)
    }

    fn add_lane(&mut self, name: &str, operation: &super::Operation) -> Result<()> {
        let rules = self.shared.register(name, operation)?;
        let handler = Arc::clone(operation.handler());
        let lane =
            Lane::new(rules, handler, operation.priority_value(), operation.max_in_flight_value());
        self.lanes.push(lane);
        Ok(())
    }

    /// Opens a lane for each operation in the file that is not named, where there is a default.
    pub fn discover(&mut self) -> Result<()> {
        let Some(default) = self.shared.default_operation.clone() else { return Ok(()) };
        for name in self.writer.operations_with_work()? {
            if !self.lanes.iter().any(|lane| lane.rules.operation == name) {
                self.add_lane(&name, &default)?;
            }
        }
        Ok(())
    }

    pub fn held(&self) -> usize {
        self.held.len()
    }

    pub fn has_unwritten(&self) -> bool {
        !self.unrecorded.is_empty() || !self.unreleased.is_empty()
    }

    /// Deliveries whose outcome is not known or not written.
    pub fn left(&self) -> usize {
        self.held.len() + self.stuck.len() + self.unrecorded.len()
    }

    /// Takes a worker's report; it is written by the next step.
    pub fn take(&mut self, report: Report) {
        let Report { lane, delivery, reported, began, took } = report;
        let key = (delivery.token, delivery.id);
        if !self.let_go(key) {
            self.stuck.remove(&key);
        }
        match reported {
            Some(mut reported) => {
                if let Reported::Finding(finding, in_doubt_for) = &mut reported {
                    if let Finding::NotAsked(failure) = finding {
                        // It leaves no event, and may go on for days.
                        log::info!("intent {}: nobody could be asked: {}", key.1, failure.message);
                    }
                    *in_doubt_for = self.doubts.known_for(&delivery, began);
                }
                self.lanes[lane].took(took);
                let record = Record { delivery, reported, roll: self.random.f64() };
                self.unrecorded.push((lane, record));
            }
            None => self.unreleased.push(delivery),
        }
    }

    /// Takes back a delivery that no worker has started.
    pub fn give_back(&mut self, work: Work) {
        self.take(Report {
            lane: work.lane,
            delivery: work.delivery,
            reported: None,
            began: Duration::ZERO,
            took: Duration::ZERO,
        });
    }

    /// Opens lanes for what has come up, and says whether anything is due that may be claimed.
    pub fn look(&mut self, now: i64, claiming: bool) -> Result<bool> {
        if !claiming {
            return Ok(false);
        }
        self.discover()?;
        self.has_due(now)
    }

    /// Whether anything is due that there is room for. Reads only.
    pub fn has_due(&self, now: i64) -> Result<bool> {
        let (shard, space) = (self.shared.options.shard, self.space());
        for (index, lane) in self.lanes.iter().enumerate() {
            let lookups = space.lookups_after(index, lane);
            if space.room(index, lane) > 0
                && self.writer.has_due(&lane.rules, shard, now, lookups)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// When the next row comes due, or the next lease runs out, of what there is room for.
    pub fn next_due(&self, now: i64) -> Result<Option<i64>> {
        let (mut next, space) = (None, self.space());
        let has_room = |(index, lane): &(usize, &Lane)| space.room(*index, lane) > 0;
        for (index, lane) in self.lanes.iter().enumerate().filter(has_room) {
            let (shard, lookups) = (self.shared.options.shard, space.lookups_after(index, lane));
            let due = self.writer.next_due(&lane.rules, shard, now, lookups)?;
            next = next.into_iter().chain(due).min();
        }
        Ok(next)
    }

    /// Lanes that were paused or throttled since this was asked last.
    pub fn take_stopped(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.stopped)
    }

    /// Takes note of lanes that somebody else has paused or throttled. Reads only.
    pub fn find_stopped(&mut self, now: i64) -> Result<()> {
        for (index, lane) in self.lanes.iter().enumerate().filter(|(_, lane)| lane.held > 0) {
            if self.writer.is_stopped(&lane.rules, now)? {
                self.stopped.push(index);
            }
        }
        Ok(())
    }

    pub fn must_renew(&self, now: i64) -> bool {
        !self.held.is_empty() && now >= self.renew_at
    }

    pub fn check_file(&self) -> Result<()> {
        self.writer.check_file()
    }

    pub fn data_version(&self) -> Result<i64> {
        self.writer.data_version()
    }

    pub fn checkpoint(&self) -> Result<()> {
        self.writer.checkpoint()
    }

    /// One step. Where it fails nothing has changed, and nothing that was to be written is lost.
    pub fn step(&mut self, now: i64, claiming: bool) -> Result<Vec<Work>> {
        let lease_ms = millis(self.shared.options.lease);
        let renewing = self.must_renew(now);
        let mut plan = claiming.then(|| self.plan());
        let mut step = self.writer.begin(now, Arc::clone(self.shared.outbox.clock()))?;
        let path = self.shared.outbox.path();
        write_back(&mut step, &self.lanes, &self.unrecorded, &self.unreleased, path)?;
        let lease = self.shared.options.lease;
        let renewed = if renewing {
            renew(&mut step, &self.lanes, &self.held, lease)?
        } else {
            Renewed::default()
        };
        let claims = match &mut plan {
            Some(plan) => claim(&mut step, &self.lanes, plan, lease_ms, path)?,
            None => Claims::default(),
        };
        let stepped = step.commit()?;
        self.unrecorded.clear();
        self.unreleased.clear();
        // A step that was closed has not asked, so what was found before still holds.
        if plan.is_some_and(|plan| !plan.space.is_closed()) {
            self.quiet = claims.quiet;
            self.claims = self.claims.wrapping_add(1);
            self.wants_idle = claims.wants_idle.is_some();
            self.maybe_more = claims.more || claims.quiet;
            self.turn = claims.wants_idle.unwrap_or(self.turn.wrapping_add(1));
        }
        if renewing || (self.held.is_empty() && !claims.deliveries.is_empty()) {
            self.renew_at = now.saturating_add((lease_ms / 3).max(1));
        }
        renewed.held.iter().for_each(|lease| lease.extend_to(now.saturating_add(lease_ms)));
        renewed.lost.iter().for_each(|lease| lease.revoke());
        renewed.overdue.iter().for_each(|key| self.give_up_on(*key));
        self.publish(&stepped.events);
        for (index, lane) in self.lanes.iter().enumerate() {
            if stepped.stopped.contains(&lane.rules.operation) {
                self.stopped.push(index);
            }
        }
        Ok(claims.deliveries.into_iter().map(|(lane, d)| self.hold(lane, d)).collect())
    }

    /// How many rows of which lane this step may claim, in the order of their turn.
    fn plan(&self) -> Plan {
        Plan {
            order: self.order(),
            space: self.space(),
            holds_nothing: self.held.is_empty(),
            shard: self.shared.options.shard,
            lookups_first: self.claims.is_multiple_of(2),
        }
    }

    fn hold(&mut self, lane: usize, delivery: Arc<Delivery>) -> Work {
        if delivery.lookup.is_some() {
            let now = self.shared.outbox.clock().monotonic();
            self.doubts.note_lookup(&delivery, now);
        }
        self.held_bytes += delivery.payload.len();
        self.held.insert((delivery.token, delivery.id), (lane, Arc::clone(&delivery)));
        let stuck_here = self.stuck.values().filter(|&&stuck| stuck == lane).count();
        let (workers, several) = (self.workers(), self.lanes.len() > 1);
        let configured = self.shared.options.workers;
        let lane_ref = &mut self.lanes[lane];
        lane_ref.held += 1;
        Work {
            lane,
            delivery,
            handler: Arc::clone(&lane_ref.handler),
            policy: Arc::clone(&lane_ref.policy),
            // A stuck worker counts as busy for ever, and must not use up the lane's share.
            workers_max: lane_ref.workers_max(configured, workers, several) + stuck_here,
        }
    }

    /// Stops counting a delivery as held. Returns whether it was.
    fn let_go(&mut self, key: (i64, i64)) -> bool {
        let Some((lane, delivery)) = self.held.remove(&key) else { return false };
        self.held_bytes = self.held_bytes.saturating_sub(delivery.payload.len());
        self.lanes[lane].held = self.lanes[lane].held.saturating_sub(1);
        true
    }

    /// A worker that may never come back: its row goes on without it.
    fn give_up_on(&mut self, key: (i64, i64)) {
        let Some((lane, delivery)) = self.held.get(&key) else { return };
        delivery.lease.revoke();
        self.stuck.insert(key, *lane);
        self.let_go(key);
        log::error!(
            "intent {}: its handler is long past its time limit; {} of {} workers are stuck",
            key.1,
            self.stuck.len(),
            self.shared.options.workers
        );
    }

    /// Workers that come back soon.
    fn workers(&self) -> usize {
        (self.shared.options.workers + self.substitutes).saturating_sub(self.stuck.len())
    }

    /// How many workers there should be: others stand in for those who have had the same delivery
    /// for long, so that a slow operation costs the others nothing.
    pub fn workers_wanted(&mut self) -> usize {
        let is_slow = |(_, delivery): &&(usize, Arc<Delivery>)| {
            delivery.lease.began().is_some_and(|began| began.elapsed() >= SLOW)
        };
        let workers = self.shared.options.workers;
        let slow = self.held.values().filter(is_slow).count();
        self.substitutes = (slow + self.stuck.len()).min(workers);
        workers + self.substitutes
    }

    /// The lanes by priority; equal ones take turns.
    fn order(&self) -> Vec<usize> {
        let count = self.lanes.len();
        let mut order: Vec<usize> = (0..count).map(|i| (i + self.turn) % count).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(self.lanes[index].priority));
        order
    }

    /// What this relay holds, and what it may hold.
    fn space(&self) -> Space {
        let (options, workers) = (&self.shared.options, self.workers());
        // As if each worker had one of the largest payloads in hand and one waiting.
        let largest = self.shared.outbox.store().payload_max();
        let bytes_max = largest.saturating_mul(options.workers).saturating_mul(2);
        let (configured, several) = (options.workers, self.lanes.len() > 1);
        let held = self
            .lanes
            .iter()
            .map(|lane| (lane.held, lane.workers_max(configured, workers, several)));
        let bytes_left = bytes_max.saturating_sub(self.held_bytes);
        let lookups = self.held.values().filter(|(_, held)| held.lookup.is_some()).count();
        let mut space = Space::new(options, workers, (bytes_left, lookups), held);
        let alone = self.held.values().any(|(_, held)| held.must_be_alone());
        let wants_idle = self.wants_idle && space.idle() == 0;
        if alone || wants_idle || (self.quiet && !self.held.is_empty()) {
            space.close();
        }
        space
    }

    fn publish(&mut self, events: &[Event]) {
        let now = self.shared.outbox.clock().monotonic();
        for event in events {
            self.doubts.note(event, now);
            if event.kind == EventKind::Attempt {
                self.tally.attempts += 1;
            }
            if event.kind == EventKind::DuplicateEffect {
                let reason = event.reason.as_deref().unwrap_or_default();
                log::error!("intent {} ({}): {reason}", event.outbox_id, event.operation);
            }
            match event.status {
                _ if event.from_status == event.status => {}
                Status::Succeeded => self.tally.succeeded += 1,
                Status::Pending => self.tally.retried += 1,
                Status::Unknown => self.tally.unknown += 1,
                Status::NeedsReview => self.tally.needs_review += 1,
                Status::Dead => self.tally.dead += 1,
                Status::InFlight | Status::Cancelled => {}
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
            for observer in &self.shared.observers {
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| observer(event))) {
                    defuse(payload);
                    log::error!("an observer panicked on the event of intent {}", event.outbox_id);
                }
            }
        }
    }
}
