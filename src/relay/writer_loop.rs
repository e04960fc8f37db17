//! The writer's loop: accepts what workers return, makes a step where there is anything to do, and
//! hands out what was claimed. Drains and running relays differ in when the loop ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, select, unbounded};

use super::engine::Engine;
use super::outage::Outage;
use super::patrol::Patrol;
use super::queue::{Queue, Returned, Work};
use super::shared::{Shared, ShutdownReport};
use super::worker;
use crate::error::{Error, Result};
use crate::outbox::{POLL_MAX, POLL_MIN, SAFETY_POLL};
use crate::store::give_up_waiting;

/// When the loop ends.
pub(super) enum Until {
    /// When nothing is due and nothing is held, or on
    /// [`Relay::stop_drain`](super::Relay::stop_drain).
    NothingIsDue,
    /// When the handle sends a stop and nothing is held.
    Stopped(Receiver<Stop>),
}

/// A request to stop: nothing more is claimed, and what is held is finished.
pub(super) struct Stop {
    /// When the handle wants its report; when a drain no longer waits for a file that cannot be
    /// written.
    pub deadline: Instant,
    pub report: Option<Sender<ShutdownReport>>,
}

/// The writer's loop.
pub(super) struct WriterLoop<'a> {
    shared: &'a Arc<Shared>,
    engine: &'a mut Engine,
    until: Until,
    /// Whether the loop itself makes the attempts, one after the other.
    is_inline: bool,
    queue: Arc<Queue>,
    workers: Vec<JoinHandle<()>>,
    /// Never more than rows are held, and so bounded all the same.
    results: (Sender<Returned>, Receiver<Returned>),
    wake: Receiver<()>,
    stop: Option<Stop>,
    outage: Outage,
    /// The file's data version when its rows were looked through last.
    seen_version: Option<i64>,
    next_due: Option<i64>,
    look_again_at: Instant,
    poll: Duration,
    idle_since: Option<Instant>,
    released: u64,
    /// Attempts recorded before the loop was told to stop.
    attempts_before: u64,
    /// The grace is over, and what workers have in hand is given up.
    has_given_up: bool,
}

/// How long after the grace a relay still tries to write what it gives up.
const LAST_WRITE: Duration = Duration::from_secs(1);

/// How long a relay is without a look at most.
const CALM_MAX: Duration = Duration::from_secs(10);

/// How long the relay must have been idle before it truncates the WAL.
const TRUNCATE_AFTER: Duration = Duration::from_secs(1);

impl<'a> WriterLoop<'a> {
    pub fn new(shared: &'a Arc<Shared>, engine: &'a mut Engine, until: Until) -> Self {
        Self {
            is_inline: matches!(until, Until::NothingIsDue) && shared.options.workers == 1,
            queue: Arc::default(),
            workers: Vec::new(),
            results: unbounded(),
            wake: shared.outbox.waker(),
            shared,
            engine,
            until,
            stop: None,
            outage: Outage::default(),
            seen_version: None,
            next_due: None,
            look_again_at: Instant::now(),
            poll: POLL_MIN,
            idle_since: None,
            released: 0,
            attempts_before: 0,
            has_given_up: false,
        }
    }

    /// Runs until the end. What no worker has started is given back; a drain also waits for its
    /// workers, and the engine keeps what they had to say.
    pub fn run(mut self) -> Result<()> {
        self.engine.patrol = Patrol::new();
        let ended = self.work();
        self.reclaim_unstarted();
        self.queue.close();
        if matches!(self.until, Until::NothingIsDue) {
            for worker in self.workers.drain(..) {
                let _ = worker.join();
            }
            self.accept_results();
            self.engine.log_unwritten();
        }
        ended.and_then(|()| std::mem::take(&mut self.outage).into_result())
    }

    fn work(&mut self) -> Result<()> {
        loop {
            self.check_stop();
            self.accept_results();
            self.check_grace();
            if !self.is_inline {
                self.resize();
            }
            let now = self.engine.look();
            match self.try_step(now) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => self.begin_outage(error)?,
            }
            let done = self.engine.holds_nothing() && !self.engine.has_unwritten();
            self.report_stop(done);
            let may_end = match self.until {
                Until::NothingIsDue => true,
                Until::Stopped(_) => self.stop.is_some() || self.outage.is_fatal(),
            };
            if done && may_end {
                return Ok(());
            }
            self.truncate_wal_when_idle();
            if !self.attempt_inline() {
                self.wait(now);
            }
        }
    }

    fn check_stop(&mut self) {
        if self.stop.is_some() {
            return;
        }
        self.stop = match &self.until {
            Until::NothingIsDue if self.shared.stop.load(Ordering::Acquire) => {
                let deadline = Instant::now() + self.shared.options.lease;
                Some(Stop { deadline, report: None })
            }
            Until::NothingIsDue => None,
            Until::Stopped(stops) => stops.try_recv().ok(),
        };
        if self.stop.is_some() {
            self.attempts_before = self.shared.totals().attempts;
            self.reclaim_unstarted();
        }
    }

    /// Gives up what has not come back when the grace is over. A drain waits for its workers.
    fn check_grace(&mut self) {
        let is_over = |stop: &Stop| stop.report.is_some() && Instant::now() >= stop.deadline;
        if !self.has_given_up && self.stop.as_ref().is_some_and(is_over) {
            self.has_given_up = true;
            self.engine.stop_waiting();
        }
    }

    /// Spawns the workers that are missing; those too many exit when their row is done.
    fn resize(&mut self) {
        for _ in 0..self.queue.resize(self.engine.share_workers()) {
            match worker::spawn(&self.queue, &self.results.0, self.shared) {
                Ok(worker) => self.workers.push(worker),
                Err(error) => {
                    log::error!("{error}");
                    self.queue.spawn_failed();
                }
            }
        }
        self.workers.retain(|worker| !worker.is_finished());
    }

    fn accept_results(&mut self) {
        while let Ok(returned) = self.results.1.try_recv() {
            self.accept(returned);
        }
    }

    fn accept(&mut self, returned: Returned) {
        self.engine.accept(returned);
        // A worker that is free is room for another row.
        self.engine.maybe_more = true;
    }

    /// Makes a step if there is anything to do and the file can be written. Returns whether.
    fn try_step(&mut self, now: i64) -> Result<bool> {
        let is_ready = !self.is_inline || self.engine.holds_nothing();
        let claiming = is_ready && self.stop.is_none() && !self.outage.is_fatal();
        if self.outage.time_left().is_some() {
            return Ok(false);
        }
        self.engine.mind_clock(now)?;
        if claiming {
            self.engine.look_around(now)?;
        }
        let must_write = self.engine.has_unwritten()
            || self.engine.must_renew(now)
            || (claiming && self.engine.patrol.has_ended);
        if !(must_write || (claiming && self.has_due(now)?)) {
            return Ok(false);
        }
        let works = match &self.stop {
            // A relay that was told to stop does not wait long for another connection's lock.
            Some(stop) => {
                let left = stop.deadline.saturating_duration_since(Instant::now());
                let wait = left.clamp(Duration::from_millis(50), Duration::from_secs(5));
                give_up_waiting(wait, || self.engine.step(now, claiming))?
            }
            None => self.engine.step(now, claiming)?,
        };
        self.outage.end();
        self.hand_out(works);
        self.poll = POLL_MIN;
        self.idle_since = None;
        Ok(true)
    }

    /// Whether any row is due. A running relay looks at once after a wake-up or another
    /// connection's commit, when the next row's time has come, and every so often in any case.
    fn has_due(&mut self, now: i64) -> Result<bool> {
        let version = self.engine.writer.data_version()?;
        let changed = self.seen_version.replace(version) != Some(version);
        let looks_anyway = Instant::now() >= self.look_again_at;
        let must_look = matches!(self.until, Until::NothingIsDue)
            || changed
            || looks_anyway
            || self.engine.maybe_more
            || self.next_due.is_some_and(|at| at <= now);
        if !must_look {
            return Ok(false);
        }
        let began = Instant::now();
        let is_drain = matches!(self.until, Until::NothingIsDue);
        let is_whole = self.engine.discover(now, is_drain)?;
        if changed {
            self.engine.bring_back(now)?;
            self.engine.find_stopped(now)?;
            self.hand_out(Vec::new());
        }
        self.engine.maybe_more = false;
        if looks_anyway {
            self.engine.writer.check_file()?;
        }
        let due = self.engine.has_due(now)?;
        self.next_due = if due { None } else { self.engine.next_due(now)? };
        // A look that has no cause takes a small part of the time, however much waits.
        let pause = began.elapsed().saturating_mul(100).clamp(SAFETY_POLL, CALM_MAX);
        self.look_again_at = Instant::now() + pause;
        if !is_whole {
            self.look_again_at = self.engine.walk_at().unwrap_or(self.look_again_at);
        }
        Ok(due)
    }

    fn hand_out(&mut self, works: Vec<Work>) {
        let stops = std::mem::take(&mut self.engine.stops);
        if !stops.is_empty() {
            self.reclaim(|work| stops.stops(work.held.delivery()));
        }
        for work in works {
            self.queue.push(work);
        }
    }

    /// Gives back what no worker has started.
    fn reclaim_unstarted(&mut self) {
        self.released += self.reclaim(|_| true);
    }

    fn reclaim(&mut self, goes_back: impl Fn(&Work) -> bool) -> u64 {
        let works = self.queue.reclaim_unstarted(goes_back);
        let count = works.len() as u64;
        for work in works {
            let (began, took) = (Duration::ZERO, Duration::ZERO);
            self.engine.accept(Returned { work, reported: None, began, took });
        }
        count
    }

    /// Waits an error out, or returns it where a drain has nothing to lose by it, or was told to
    /// stop a lease ago. Until then this relay alone knows the outcome of what it holds; from then
    /// on that counts as lost.
    fn begin_outage(&mut self, error: Error) -> Result<()> {
        if matches!(self.until, Until::NothingIsDue) {
            let nothing_to_lose = self.engine.holds_nothing() && !self.engine.has_unwritten();
            let is_over = self.stop.as_ref().is_some_and(|stop| Instant::now() >= stop.deadline);
            if nothing_to_lose || is_over {
                return Err(error);
            }
        }
        self.outage.begin(error)?;
        if self.outage.is_fatal() {
            self.reclaim_unstarted();
        }
        Ok(())
    }

    /// Sends the handle its report, once nothing is held, or the grace is over and what is given up
    /// is written, or cannot be for now.
    fn report_stop(&mut self, done: bool) {
        let is_over = self.has_given_up && !self.engine.has_unwritten();
        let (totals, left) = (self.shared.totals(), self.engine.left() as u64);
        let finished = totals.attempts - self.attempts_before;
        let unwritten = self.engine.unwritten() as u64;
        let released = self.released;
        let report = ShutdownReport { totals, finished, released, left, unwritten };
        if let Some(stop) = &mut self.stop
            && (done || is_over || Instant::now() >= stop.deadline + LAST_WRITE)
            && let Some(sender) = stop.report.take()
        {
            self.engine.log_unwritten();
            let _ = sender.send(report);
        }
    }

    /// Truncates the WAL once in each time that the relay is idle.
    fn truncate_wal_when_idle(&mut self) {
        if !self.engine.holds_nothing() {
            return;
        }
        let idle = self.idle_since.get_or_insert_with(Instant::now).elapsed();
        if idle >= TRUNCATE_AFTER && idle < TRUNCATE_AFTER * 1000 {
            if let Err(error) = self.engine.writer.checkpoint() {
                log::debug!("the WAL was not truncated: {error}");
            }
            self.idle_since = Instant::now().checked_sub(TRUNCATE_AFTER * 1000);
        }
    }

    /// Makes the next attempt on this thread, where there are no others. Each is recorded before
    /// the next, because its outcome may pause the operation. Returns whether there was one to
    /// make.
    fn attempt_inline(&mut self) -> bool {
        if !self.is_inline || self.outage.time_left().is_some() {
            return false;
        }
        let Some(work) = self.queue.try_next() else { return false };
        let lane = Arc::clone(&work.lane);
        let returned = worker::attempt(work, self.shared.outbox.clock().as_ref());
        self.queue.done(&lane);
        self.accept(returned);
        true
    }

    fn wait(&mut self, now: i64) {
        let at_most = self.pause(now);
        select! {
            recv(self.results.1) -> returned => {
                if let Ok(returned) = returned {
                    self.accept(returned);
                }
            }
            recv(self.wake) -> _ => {
                self.poll = POLL_MIN;
                self.engine.maybe_more = true;
            }
            default(at_most) => {}
        }
    }

    fn pause(&mut self, now: i64) -> Duration {
        let mut pause = self.poll;
        self.poll = (self.poll * 2).min(POLL_MAX);
        if let Some(at) = self.next_due {
            pause = pause.min(Duration::from_millis(u64::try_from(at - now).unwrap_or(0)));
        }
        if let Some(left) = self.outage.time_left() {
            pause = left;
        }
        if let Some(stop) = self.stop.as_ref().filter(|stop| stop.report.is_some()) {
            pause = pause.min(stop.deadline.saturating_duration_since(Instant::now()));
        }
        pause.max(POLL_MIN)
    }
}

impl Drop for WriterLoop<'_> {
    fn drop(&mut self) {
        self.queue.close();
    }
}
