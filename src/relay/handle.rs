//! Starting and stopping a relay's threads.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};

use super::Relay;
use super::shared::{DrainReport, Shared, ShutdownReport};
use super::worker;
use super::writer_loop::{Stop, Until, WriterLoop};
use crate::error::{Error, ErrorKind, Result};

/// A running relay. Dropping it is a [`shutdown`](Self::shutdown) with ten seconds' grace.
#[must_use = "dropping the handle stops the relay"]
pub struct RelayHandle {
    shared: Arc<Shared>,
    stop: Sender<Stop>,
    writer: Option<JoinHandle<Result<()>>>,
}

impl Relay {
    /// Starts the writer and the workers in threads of their own; see [`Relay`] for an example.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(self) -> Result<RelayHandle> {
        let shared = Arc::clone(&self.shared);
        let (stop, stops) = bounded(1);
        let writer = worker::spawn_thread("outbox-writer", move || {
            let mut engine = self.engine.into_inner().unwrap_or_else(PoisonError::into_inner);
            let ended = WriterLoop::new(&self.shared, &mut engine, Until::Stopped(stops)).run();
            ended.inspect_err(|error| log::error!("the relay has stopped: {error}"))
        })?;
        Ok(RelayHandle { shared, stop, writer: Some(writer) })
    }
}

impl RelayHandle {
    /// Whether the relay still works. A relay stops automatically only if going on would be wrong:
    /// the schema was migrated by a newer build, or the file was deleted or replaced.
    /// [`shutdown`](Self::shutdown) then says why.
    pub fn is_running(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| !writer.is_finished())
    }

    /// The counts of everything this relay has done since it was built.
    pub fn totals(&self) -> DrainReport {
        self.shared.totals()
    }

    /// Stops claiming, gives back what no worker has started, waits up to `grace` for what is on
    /// the way, records everything, and reports. What has not come back then is recorded as one
    /// that may have been sent: it is sent again under its key where the downstream deduplicates,
    /// and is unknown or needs review elsewhere. See [`Relay`] for an example.
    ///
    /// # Errors
    /// The relay had stopped automatically before; the error says why.
    pub fn shutdown(mut self, grace: Duration) -> Result<ShutdownReport> {
        self.stop(grace)
    }

    fn stop(&mut self, grace: Duration) -> Result<ShutdownReport> {
        let shared = Arc::clone(&self.shared);
        let nothing_more = || ShutdownReport { totals: shared.totals(), ..Default::default() };
        let Some(writer) = self.writer.take() else { return Ok(nothing_more()) };
        let (report, reports) = bounded(1);
        let _ = self.stop.send(Stop { deadline: Instant::now() + grace, report: Some(report) });
        self.shared.outbox.wake();
        if writer.thread().id() == std::thread::current().id() {
            // An observer runs on the writer's own thread, which cannot wait for itself.
            return Ok(nothing_more());
        }
        // The sender is dropped without a report only if the writer had ended before.
        let report = reports.recv().unwrap_or_else(|_| nothing_more());
        if report.left > 0 {
            log::warn!(
                "{} deliveries are still on the way after the grace: they may have been sent",
                report.left
            );
        }
        if report.left > 0 || report.unwritten > 0 {
            return Ok(report);
        }
        match writer.join() {
            Ok(result) => result.map(|()| report),
            Err(_) => Err(Error::new(ErrorKind::Database, "the relay's writer panicked")),
        }
    }
}

impl Drop for RelayHandle {
    fn drop(&mut self) {
        if let Err(error) = self.stop(Duration::from_secs(10)) {
            log::error!("the relay ended with an error: {error}");
        }
    }
}

impl fmt::Debug for RelayHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt_as("RelayHandle", f)
    }
}
