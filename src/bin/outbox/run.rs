//! Running a relay until it is done or told to stop.

use std::fmt::Write as _;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use sqlite_outbox::{DrainReport, Relay, RelayHandle};

use crate::failure::{Failure, Result};
use crate::output::{Out, count, note};

/// How often a relay that runs is asked whether it still does.
const LOOK: Duration = Duration::from_millis(250);

/// Hears of the first signal that asks to stop; a second one ends the process at once.
pub fn watch_signals() -> Result<Receiver<()>> {
    let fail = |error| Failure::failed(format!("signals cannot be watched: {error}"));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(fail)?;
    let (sender, receiver) = mpsc::channel();
    let watch = move || {
        for (place, signal) in signals.forever().enumerate() {
            if place > 0 {
                std::process::exit(128 + signal);
            }
            let _ = sender.send(());
        }
    };
    std::thread::Builder::new().name("outbox-signals".into()).spawn(watch).map_err(fail)?;
    Ok(receiver)
}

/// What a drain did, and whether it was stopped before nothing was due.
pub struct Drained {
    report: DrainReport,
    is_stopped: bool,
}

pub fn drain(relay: &Relay, signals: &Receiver<()>) -> Result<Drained> {
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
            if signals.try_recv().is_ok() {
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
    let mut text = format!("{}: {} succeeded", attempts(report.attempts), report.succeeded);
    for (number, what) in [
        (report.retried, "to be tried again"),
        (report.unknown, "unknown"),
        (report.needs_review, "need review"),
        (report.dead, "dead"),
    ] {
        if number > 0 {
            let _ = write!(text, ", {number} {what}");
        }
    }
    if *is_stopped {
        text.push_str("; stopped before everything due was sent");
    }
    out.line(text)
}

fn attempts(number: u64) -> String {
    count(usize::try_from(number).unwrap_or(usize::MAX), "attempt")
}

pub fn until_stopped(
    out: Out,
    handle: RelayHandle,
    signals: &Receiver<()>,
    grace: Duration,
) -> Result<()> {
    while let Err(RecvTimeoutError::Timeout) = signals.recv_timeout(LOOK) {
        if !handle.is_running() {
            let why = handle.shutdown(Duration::ZERO).err();
            let why = why.map_or_else(|| "for no known reason".into(), |error| error.to_string());
            return Err(Failure::failed(format!("the relay has stopped by itself: {why}")));
        }
    }
    note("stopping: what is on the way is finished first");
    let report = handle.shutdown(grace)?;
    if out.is_json() {
        return out.json(&json!({
            "finished": report.finished,
            "released": report.released,
            "left": report.left,
        }));
    }
    out.line(format_args!(
        "stopped: {} finished, {} released, {} left",
        report.finished, report.released, report.left
    ))
}
