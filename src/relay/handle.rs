//! Starting and stopping a relay's threads.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};

use super::engine::Engine;
use super::run::{Channels, Run, StopReport, Stopping};
use super::{DrainReport, Shared, worker};
use crate::error::{Error, ErrorKind, Result};

/// A running relay. Dropping it is a [`shutdown`](Self::shutdown) with ten seconds' grace.
#[must_use = "dropping the handle stops the relay"]
pub struct RelayHandle {
    shared: Arc<Shared>,
    stop: Sender<Stopping>,
    writer: Option<JoinHandle<Result<()>>>,
}

pub(super) fn start(shared: Arc<Shared>, mut engine: Engine) -> Result<RelayHandle> {
    let channels = Channels::new(&shared);
    let (stop, stopping) = bounded(1);
    let writers_share = Arc::clone(&shared);
    let writer = spawn("outbox-writer".into(), move || {
        let hire = |channels: &Channels| {
            let (deliveries, reports) = (Arc::clone(&channels.deliveries), channels.report.clone());
            // Others must see this relay alive for as long as a handler runs.
            let shared = Arc::clone(&writers_share);
            spawn("outbox-worker".into(), move || {
                worker::work(&deliveries, &reports, shared.outbox.clock().as_ref());
            })?;
            Ok(())
        };
        // The workers end when the loop drops its channels.
        let run = Run::new(&writers_share, &mut engine, channels, &hire);
        let result = run.until_stopped(&stopping);
        if let Err(error) = &result {
            log::error!("the relay has stopped: {error}");
        }
        result
    })?;
    Ok(RelayHandle { shared, stop, writer: Some(writer) })
}

fn spawn<T: Send + 'static>(
    name: String,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name).spawn(f).map_err(|error| {
        Error::new(ErrorKind::Database, "a thread of the relay cannot be started")
            .with_source(error)
    })
}

impl RelayHandle {
    /// Whether the relay still works. It stops by itself only where going on would be wrong: the
    /// schema was migrated by a newer build. [`shutdown`](Self::shutdown) then says why.
    pub fn is_running(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| !writer.is_finished())
    }

    /// Stops claiming, gives back what no worker has started, waits up to `grace` for what is on
    /// the way, records everything, and reports.
    ///
    /// # Errors
    /// Why the relay had stopped by itself before.
    pub fn shutdown(mut self, grace: Duration) -> Result<DrainReport> {
        self.stop(grace)
    }

    fn stop(&mut self, grace: Duration) -> Result<DrainReport> {
        let Some(writer) = self.writer.take() else { return Ok(DrainReport::default()) };
        let (report, reports) = bounded(1);
        let _ = self.stop.send(Stopping { deadline: Instant::now() + grace, report });
        self.shared.outbox.wake();
        if writer.thread().id() == std::thread::current().id() {
            // An observer runs on the writer's own thread, which cannot wait for itself.
            return Ok(DrainReport::default());
        }
        // The sender is dropped without a report only where the writer has ended by itself.
        let report = reports.recv().unwrap_or_default();
        if report.left > 0 {
            log::warn!("{} deliveries are still on the way after the grace", report.left);
        } else {
            match writer.join() {
                Ok(result) => result?,
                Err(_) => {
                    return Err(Error::new(ErrorKind::Database, "the relay's writer panicked"));
                }
            }
        }
        let StopReport { tally, released, left } = report;
        Ok(DrainReport { released, left, ..tally })
    }
}

impl Drop for RelayHandle {
    fn drop(&mut self) {
        if let Err(error) = self.stop(Duration::from_secs(10)) {
            log::error!("the relay ended with an error: {error}");
        }
    }
}
