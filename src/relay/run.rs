//! Driving the engine: inline on one thread, or as a loop with workers beside it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, select, unbounded};

use super::engine::Engine;
use super::patience::{Patience, is_passing};
use super::queue::Queue;
use super::worker::{self, Report, Work};
use super::{DrainReport, Shared};
use crate::error::{Error, ErrorKind, Result};
use crate::store::give_up_waiting;

/// Drains with nothing but the calling thread, one delivery after the other.
pub(super) fn drain_inline(shared: &Shared, engine: &mut Engine) -> Result<()> {
    let clock = shared.outbox.clock();
    let mut patience = Patience::default();
    loop {
        let now = clock.now();
        let claiming = !shared.stop.load(Ordering::Acquire) && patience.may_claim();
        let due = match engine.look(now, claiming) {
            Ok(due) => due,
            Err(error) => {
                patience.wait(shared, engine, error)?;
                continue;
            }
        };
        if !due && !engine.has_unwritten() {
            return patience.end();
        }
        match engine.step(now, claiming) {
            Ok(works) => {
                patience.restored();
                attempt_in_turn(shared, engine, works, &mut patience)?;
            }
            Err(error) => patience.wait(shared, engine, error)?,
        }
    }
}

/// Makes one attempt after the other, each recorded before the next: it may say that the others
/// must not be sent.
fn attempt_in_turn(
    shared: &Shared,
    engine: &mut Engine,
    works: Vec<Work>,
    patience: &mut Patience,
) -> Result<()> {
    let clock = shared.outbox.clock().as_ref();
    let mut works = VecDeque::from(works);
    while let Some(work) = works.pop_front() {
        engine.take(worker::attempt(work, clock));
        if works.is_empty() {
            return Ok(());
        }
        let recorded = engine.step(clock.now(), false);
        let stopped = engine.take_stopped();
        let (goes_back, goes_on): (VecDeque<_>, _) =
            works.into_iter().partition(|work| recorded.is_err() || stopped.contains(&work.lane));
        for work in goes_back {
            engine.give_back(work);
        }
        works = goes_on;
        if let Err(error) = recorded {
            patience.wait(shared, engine, error)?;
        }
    }
    Ok(())
}

/// Drains with workers that end with the call.
pub(super) fn drain_with_threads(shared: &Arc<Shared>, engine: &mut Engine) -> Result<()> {
    let channels = Channels::new(shared);
    let reports = channels.reports.clone();
    let drained = std::thread::scope(|scope| {
        let hire = |channels: &Channels| {
            let (deliveries, report) = (Arc::clone(&channels.deliveries), channels.report.clone());
            scope.spawn(move || worker::work(&deliveries, &report, shared.outbox.clock().as_ref()));
            Ok(())
        };
        // The workers end when the run does.
        Run::new(shared, engine, channels, &hire).until_nothing_is_due()
    });
    // After an error some were still on the way: the engine keeps what they have to say.
    for report in reports.try_iter() {
        engine.take(report);
    }
    drained
}

/// The channels between the writer and its workers.
pub(super) struct Channels {
    pub deliveries: Arc<Queue>,
    pub report: Sender<Report>,
    pub reports: Receiver<Report>,
    pub wake: Receiver<()>,
}

impl Channels {
    pub fn new(shared: &Shared) -> Self {
        // Bounded all the same: there are never more reports than rows held.
        let (report, reports) = unbounded();
        Self { deliveries: Arc::default(), report, reports, wake: shared.outbox.waker() }
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        self.deliveries.close();
    }
}

/// How a run was reported to stop, and what became of what it held.
pub(super) struct Stopping {
    pub deadline: Instant,
    pub report: Sender<StopReport>,
}

/// What a stopping run had done by its deadline, or when it was done.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StopReport {
    pub tally: DrainReport,
    pub released: u64,
    pub left: u64,
}

/// Starts one more worker.
pub(super) type Hire<'a> = dyn Fn(&Channels) -> Result<()> + 'a;

/// The writer's loop.
pub(super) struct Run<'a> {
    shared: &'a Shared,
    engine: &'a mut Engine,
    channels: Channels,
    hire: &'a Hire<'a>,
    /// The file as it was when it was last looked through.
    seen_version: Option<i64>,
    next_due: Option<i64>,
    look_again_at: Instant,
    poll: Duration,
    trouble: Trouble,
    released: u64,
    idle_since: Option<Instant>,
}

const POLL_MIN: Duration = Duration::from_millis(1);
const POLL_MAX: Duration = Duration::from_millis(20);
/// However quiet the file seems, it is looked through this often.
const SAFETY_POLL: Duration = Duration::from_millis(250);
/// How long the relay must have been idle before it tidies the WAL.
const TIDY_AFTER: Duration = Duration::from_secs(1);

impl<'a> Run<'a> {
    pub fn new(
        shared: &'a Shared,
        engine: &'a mut Engine,
        channels: Channels,
        hire: &'a Hire<'a>,
    ) -> Self {
        Self {
            shared,
            engine,
            channels,
            hire,
            seen_version: None,
            next_due: None,
            look_again_at: Instant::now(),
            poll: POLL_MIN,
            trouble: Trouble::default(),
            released: 0,
            idle_since: None,
        }
    }

    /// Runs until nothing is due and nothing is held.
    fn until_nothing_is_due(mut self) -> Result<()> {
        let drained = self.work_off();
        self.take_back();
        drained
    }

    fn work_off(&mut self) -> Result<()> {
        let mut patience = Patience::default();
        loop {
            self.collect();
            let now = self.shared.outbox.clock().now();
            let claiming = !self.shared.stop.load(Ordering::Acquire) && patience.may_claim();
            if !claiming {
                self.take_back();
            }
            let due = match self.engine.look(now, claiming) {
                Ok(due) => due,
                Err(error) => {
                    patience.wait(self.shared, self.engine, error)?;
                    continue;
                }
            };
            if due || self.engine.has_unwritten() || self.engine.must_renew(now) {
                match self.engine.step(now, claiming) {
                    Ok(works) => {
                        patience.restored();
                        self.hand_out(works);
                    }
                    Err(error) => patience.wait(self.shared, self.engine, error)?,
                }
            } else if self.engine.held() == 0 {
                return patience.end();
            } else {
                self.wait(Duration::from_millis(50));
            }
        }
    }

    /// Runs until reported to stop and nothing is held any more.
    pub fn until_stopped(mut self, stop: &Receiver<Stopping>) -> Result<()> {
        let mut stopping: Option<Stopping> = None;
        let mut fatal: Option<Error> = None;
        loop {
            if let (None, Ok(stop)) = (&stopping, stop.try_recv()) {
                self.engine.tally = DrainReport::default();
                stopping = Some(stop);
                self.take_back();
            }
            self.collect();
            let now = self.shared.outbox.clock().now();
            let claiming = stopping.is_none() && fatal.is_none();
            match self.work_a_step(now, claiming, stopping.as_ref()) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) if is_passing(error.kind()) => self.trouble.met(&error),
                // What is known already is still written down, under its claims.
                Err(error) => {
                    self.take_back();
                    fatal = Some(error);
                    continue;
                }
            }
            let done = self.engine.held() == 0 && !self.engine.has_unwritten();
            if let Some(stop) = &stopping
                && (done || Instant::now() >= stop.deadline)
            {
                // The receiver is gone after the first report; later ones are for nobody.
                let _ = stop.report.try_send(self.stop_report());
            }
            if done && (stopping.is_some() || fatal.is_some()) {
                return fatal.map_or(Ok(()), Err);
            }
            self.tidy();
            let pause = self.pause(now, stopping.as_ref());
            self.wait(pause);
        }
    }

    /// Makes a step if there is anything to do and the file can be written. Returns whether.
    fn work_a_step(
        &mut self,
        now: i64,
        claiming: bool,
        stopping: Option<&Stopping>,
    ) -> Result<bool> {
        if !self.trouble.is_over() || !self.has_work(now, claiming)? {
            return Ok(false);
        }
        let works = match stopping {
            // Whoever stops the relay does not wait for somebody else's lock.
            Some(stop) => {
                give_up_waiting(left_until(stop.deadline), || self.engine.step(now, claiming))?
            }
            None => self.engine.step(now, claiming)?,
        };
        self.trouble.ended();
        self.hand_out(works);
        self.poll = POLL_MIN;
        self.idle_since = None;
        Ok(true)
    }

    /// Whether a step has anything to do. Cheap reads, no lock.
    fn has_work(&mut self, now: i64, claiming: bool) -> Result<bool> {
        if self.engine.has_unwritten() || self.engine.must_renew(now) {
            return Ok(true);
        }
        if claiming { self.look(now) } else { Ok(false) }
    }

    /// Looks whether anything is due: at once after a wake-up or another connection's commit,
    /// when the next row's time has come, and every so often in any case.
    fn look(&mut self, now: i64) -> Result<bool> {
        let version = self.engine.data_version()?;
        let changed = self.seen_version.replace(version) != Some(version);
        let time_has_come = self.next_due.is_some_and(|at| at <= now);
        if !(changed
            || time_has_come
            || self.engine.maybe_more
            || Instant::now() >= self.look_again_at)
        {
            return Ok(false);
        }
        self.engine.discover()?;
        if changed {
            self.engine.find_stopped(now)?;
            self.hand_out(Vec::new());
        }
        self.engine.maybe_more = false;
        if Instant::now() >= self.look_again_at {
            self.engine.check_file()?;
        }
        self.look_again_at = Instant::now() + SAFETY_POLL;
        let due = self.engine.has_due(now)?;
        self.next_due = if due { None } else { self.engine.next_due(now)? };
        Ok(due)
    }

    /// Sees to it that there are as many workers as there should be.
    fn staff(&mut self) {
        for _ in 0..self.channels.deliveries.staff(self.engine.workers_wanted()) {
            if let Err(error) = (self.hire)(&self.channels) {
                log::error!("{error}");
                self.channels.deliveries.missed();
            }
        }
    }

    fn collect(&mut self) {
        self.staff();
        let mut any = false;
        while let Ok(report) = self.channels.reports.try_recv() {
            self.engine.take(report);
            any = true;
        }
        // A freed worker is room for another row.
        self.engine.maybe_more |= any;
    }

    fn hand_out(&mut self, works: Vec<Work>) {
        for lane in self.engine.take_stopped() {
            for work in self.channels.deliveries.take_back_of(lane) {
                self.engine.give_back(work);
            }
        }
        for work in works {
            self.channels.deliveries.push(work);
        }
    }

    /// Takes back what no worker has started.
    fn take_back(&mut self) {
        for work in self.channels.deliveries.take_back() {
            self.engine.give_back(work);
            self.released += 1;
        }
    }

    fn pause(&mut self, now: i64, stopping: Option<&Stopping>) -> Duration {
        let mut pause = self.poll;
        self.poll = (self.poll * 2).min(POLL_MAX);
        if let Some(at) = self.next_due {
            let until = Duration::from_millis(u64::try_from(at - now).unwrap_or(0));
            pause = pause.min(until.max(POLL_MIN));
        }
        if let Some(wait) = self.trouble.wait() {
            pause = wait.max(POLL_MIN);
        }
        if let Some(stop) = stopping {
            let left = stop.deadline.saturating_duration_since(Instant::now());
            pause = pause.min(left.max(POLL_MIN));
        }
        pause
    }

    fn wait(&mut self, at_most: Duration) {
        select! {
            recv(self.channels.reports) -> report => {
                if let Ok(report) = report {
                    self.engine.take(report);
                    self.engine.maybe_more = true;
                }
            }
            recv(self.channels.wake) -> _ => {
                self.poll = POLL_MIN;
                self.engine.maybe_more = true;
            }
            default(at_most) => {}
        }
    }

    fn stop_report(&self) -> StopReport {
        StopReport {
            tally: self.engine.tally,
            released: self.released,
            left: self.engine.left() as u64,
        }
    }

    /// Cuts the WAL once the relay has been idle for a while.
    fn tidy(&mut self) {
        if self.engine.held() > 0 {
            return;
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        // Between the limit and one poll more: once for each idle time.
        let idle = since.elapsed();
        if idle >= TIDY_AFTER && idle < TIDY_AFTER * 1000 {
            if let Err(error) = self.engine.checkpoint() {
                log::debug!("the WAL was not cut: {error}");
            }
            self.idle_since = Instant::now().checked_sub(TIDY_AFTER * 1000);
        }
    }
}

/// At least a moment, at most what a step waits for the lock in any case.
fn left_until(deadline: Instant) -> Duration {
    let left = deadline.saturating_duration_since(Instant::now());
    left.clamp(Duration::from_millis(50), Duration::from_secs(5))
}

/// Trouble with the file: waited out with growing pauses, reported once when it begins and once
/// when it ends.
#[derive(Debug, Default)]
struct Trouble {
    kind: Option<ErrorKind>,
    pause: Duration,
    until: Option<Instant>,
}

const TROUBLE_PAUSE_MAX: Duration = Duration::from_secs(5);

impl Trouble {
    fn met(&mut self, error: &Error) {
        if self.kind.replace(error.kind()) != Some(error.kind()) {
            log::error!(
                "the outbox cannot be written; outcomes are kept, nothing new is sent until it can: {error}"
            );
            self.pause = Duration::from_millis(5);
        }
        self.pause = (self.pause * 2).min(TROUBLE_PAUSE_MAX);
        self.until = Some(Instant::now() + self.pause);
    }

    fn ended(&mut self) {
        if self.kind.take().is_some() {
            log::info!("the outbox can be written again");
        }
        self.until = None;
    }

    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() >= until)
    }

    fn wait(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }
}
