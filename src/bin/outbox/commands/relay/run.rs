//! Running a relay until it is done or told to stop.

use std::fmt::Write as _;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use serde::Serialize;
use sqlite_outbox::{DrainReport, Relay, RelayHandle};

use crate::ui::failure::{Failure, Result};
use crate::ui::output::{Out, count, note};
use crate::ui::stop::StopSignal;

/// Time between two checks whether the relay still runs.
const CHECK: Duration = Duration::from_millis(250);

/// The report of a drain, and whether a signal stopped it early.
#[derive(Serialize)]
pub struct Drained {
    #[serde(flatten)]
    report: DrainReport,
    stopped: bool,
}

pub fn drain(relay: &Relay, signal: &StopSignal) -> Result<Drained> {
    let (sender, done) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || sender.send(relay.drain()));
        let mut stopped = false;
        loop {
            match done.recv_timeout(CHECK) {
                Ok(report) => return Ok(Drained { report: report?, stopped }),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::failed("the relay panicked"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if signal.wait(Duration::ZERO) {
                stopped = true;
                note("stopping: what is on the way is finished first");
                relay.stop_drain();
            }
        }
    })
}

pub fn report_drain(out: Out, drained: &Drained) -> Result<()> {
    if out.is_json {
        return out.json(drained);
    }
    let early = if drained.stopped { "; stopped before everything due was sent" } else { "" };
    out.line(summed_up(&drained.report) + early)
}

fn summed_up(report: &DrainReport) -> String {
    let attempts = count(usize::try_from(report.attempts).unwrap_or(usize::MAX), "attempt");
    let mut text = format!("{attempts}: {} succeeded", report.succeeded);
    let others = [
        (report.retried, "to be tried again"),
        (report.unknown, "unknown"),
        (report.needs_review, "need review"),
        (report.dead, "dead"),
    ];
    for (number, word) in others.into_iter().filter(|(number, _)| *number > 0) {
        let _ = write!(text, ", {number} {word}");
    }
    text
}

pub fn until_stopped(
    out: Out,
    handle: RelayHandle,
    signal: &StopSignal,
    grace: Duration,
) -> Result<()> {
    while !signal.wait(CHECK) {
        if !handle.is_running() {
            let why = handle.shutdown(Duration::ZERO).err();
            let why = why.map_or_else(|| "for no known reason".into(), |error| error.to_string());
            return Err(Failure::failed(format!("the relay has stopped on its own: {why}")));
        }
    }
    // Counted from the signal: the relay is told a moment later, and an attempt may end between.
    let before = handle.totals().attempts;
    note("stopping: what is on the way is finished first");
    let mut report = handle.shutdown(grace)?;
    report.finished = report.totals.attempts - before;
    if out.is_json {
        out.json(&report)?;
    } else {
        out.line(format_args!(
            "stopped: {} finished, {} released, {} left\nin all {}",
            report.finished,
            report.released,
            report.left,
            summed_up(&report.totals)
        ))?;
    }
    if report.unwritten == 0 {
        return Ok(());
    }
    let outcomes = count(usize::try_from(report.unwritten).unwrap_or(usize::MAX), "outcome");
    Err(Failure::failed(format!(
        "{outcomes} could not be written, because the file was locked or full until the grace was \
         over; each is logged above"
    )))
}
