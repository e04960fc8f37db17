//! Running a relay until it is done or told to stop.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use sqlite_outbox::{DrainReport, Event, EventKind, Relay, RelayHandle, Status};

use crate::ui::failure::{Failure, Result};
use crate::ui::output::{Out, count, note};
use crate::ui::stop::StopSignal;

/// Time between two checks whether the relay still runs.
const LOOK: Duration = Duration::from_millis(250);

/// What a relay that runs has done so far, counted as it was committed.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    attempts: u64,
    succeeded: u64,
    retried: u64,
    unknown: u64,
    needs_review: u64,
    dead: u64,
    /// Attempts whose outcome was recorded after the signal had arrived: the relay itself counts
    /// from when it is told, which is a moment later.
    finished: u64,
}

#[derive(Clone)]
pub struct Totals {
    counts: Arc<Mutex<Counts>>,
    is_stopping: Arc<AtomicBool>,
}

impl Totals {
    pub fn new(signal: &StopSignal) -> Self {
        Self { counts: Arc::default(), is_stopping: signal.flag() }
    }

    pub fn count(&self, event: &Event) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if event.kind == EventKind::Attempt {
            counts.attempts += 1;
            counts.finished += u64::from(self.is_stopping.load(Ordering::Acquire));
        }
        match event.status {
            // A lookup that does not tell, for one.
            _ if event.from_status == event.status => {}
            Status::Succeeded => counts.succeeded += 1,
            Status::Pending => counts.retried += 1,
            Status::Unknown => counts.unknown += 1,
            Status::NeedsReview => counts.needs_review += 1,
            Status::Dead => counts.dead += 1,
            _ => {}
        }
    }

    fn get(&self) -> Counts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The report of a drain, and whether a signal stopped it early.
pub struct Drained {
    report: DrainReport,
    is_stopped: bool,
}

pub fn drain(relay: &Relay, signal: &StopSignal) -> Result<Drained> {
    let (sender, done) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || sender.send(relay.drain()));
        let mut is_stopped = false;
        loop {
            match done.recv_timeout(LOOK) {
                Ok(report) => return Ok(Drained { report: report?, is_stopped }),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::failed("the relay panicked"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if signal.wait(Duration::ZERO) {
                is_stopped = true;
                note("stopping: what is on the way is finished first");
                relay.stop_drain();
            }
        }
    })
}

pub fn report_drain(out: Out, drained: &Drained) -> Result<()> {
    let Drained { report, is_stopped } = drained;
    if out.is_json() {
        return out.json(&json!({
            "attempts": report.attempts,
            "succeeded": report.succeeded,
            "retried": report.retried,
            "unknown": report.unknown,
            "needs_review": report.needs_review,
            "dead": report.dead,
            "stopped": is_stopped,
        }));
    }
    let mut text = summed_up(
        report.attempts,
        report.succeeded,
        [
            (report.retried, "to be tried again"),
            (report.unknown, "unknown"),
            (report.needs_review, "need review"),
            (report.dead, "dead"),
        ],
    );
    if *is_stopped {
        text.push_str("; stopped before everything due was sent");
    }
    out.line(text)
}

fn summed_up(made: u64, succeeded: u64, others: [(u64, &str); 4]) -> String {
    let made = count(usize::try_from(made).unwrap_or(usize::MAX), "attempt");
    let mut text = format!("{made}: {succeeded} succeeded");
    for (number, what) in others.into_iter().filter(|(number, _)| *number > 0) {
        let _ = write!(text, ", {number} {what}");
    }
    text
}

pub fn until_stopped(
    out: Out,
    handle: RelayHandle,
    signal: &StopSignal,
    totals: &Totals,
    grace: Duration,
) -> Result<()> {
    while !signal.wait(LOOK) {
        if !handle.is_running() {
            let why = handle.shutdown(Duration::ZERO).err();
            let why = why.map_or_else(|| "for no known reason".into(), |error| error.to_string());
            return Err(Failure::failed(format!("the relay has stopped on its own: {why}")));
        }
    }
    note("stopping: what is on the way is finished first");
    let report = handle.shutdown(grace)?;
    let counts = totals.get();
    if out.is_json() {
        return out.json(&json!({
            "attempts": counts.attempts,
            "succeeded": counts.succeeded,
            "retried": counts.retried,
            "unknown": counts.unknown,
            "needs_review": counts.needs_review,
            "dead": counts.dead,
            "finished": counts.finished,
            "released": report.released,
            "left": report.left,
        }));
    }
    out.line(format_args!(
        "stopped: {} finished, {} released, {} left\nin all {}",
        counts.finished,
        report.released,
        report.left,
        summed_up(
            counts.attempts,
            counts.succeeded,
            [
                (counts.retried, "to be tried again"),
                (counts.unknown, "unknown"),
                (counts.needs_review, "need review"),
                (counts.dead, "dead"),
            ]
        )
    ))
}
