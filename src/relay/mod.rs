//! The relay: the loop that empties the outbox. Threads are here and nowhere else.

mod agenda;
mod builder;
mod capacity;
mod claims;
mod doubt_clock;
mod engine;
mod handle;
mod lane;
mod operation;
mod outage;
mod patrol;
mod queue;
mod shared;
mod worker;
mod writer_loop;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, TryLockError};

pub use builder::RelayBuilder;
#[cfg(test)]
pub(crate) use doubt_clock::InDoubtSince;
pub use handle::RelayHandle;
pub use operation::Operation;
pub use shared::{DrainReport, ShutdownReport};
#[cfg(test)]
pub(crate) use worker::may_begin;

use crate::error::{Error, ErrorKind, Result};
use crate::outbox::Outbox;
use engine::Engine;
use shared::Shared;
use writer_loop::{Until, WriterLoop};

/// Sends what is in the outbox: claims due intents under a lease, hands them to workers, and
/// records their outcomes.
///
/// Several relays, in one process or in many, may work on one file; an intent is never held by two.
///
/// [`drain`](Self::drain) works until nothing is due, [`start`](Self::start) goes on in threads
/// until it is told to stop.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use sqlite_outbox::{Delivery, Downstream, Operation, Outbox, Outcome, Receipt, Relay};
///
/// # fn main() -> sqlite_outbox::Result<()> {
/// # let folder = tempfile::tempdir().expect("a folder");
/// # let outbox = Outbox::open(folder.path().join("app.db"))?;
/// let print = |delivery: &Delivery| {
///     println!("{}", delivery.payload());
///     Outcome::Succeeded(Receipt::new())
/// };
/// let relay = Relay::builder(&outbox)
///     .operation("print", Operation::new(Downstream::Unprotected, print))
///     .workers(8)
///     .lease(Duration::from_secs(120))
///     .observe(|event| println!("intent {} is {}", event.outbox_id, event.status))
///     .build()?;
/// let handle = relay.start()?;
/// // … the application runs …
/// assert!(handle.is_running());
/// let report = handle.shutdown(Duration::from_secs(10))?;
/// println!("{} succeeded, {} left", report.totals.succeeded, report.left);
/// # Ok(())
/// # }
/// ```
#[must_use = "a relay does nothing until it is started or drained"]
pub struct Relay {
    shared: Arc<Shared>,
    /// The engine outlives a drain, because it may hold outcomes that could not be written yet.
    engine: Mutex<Engine>,
}

impl Relay {
    /// Works until nothing is due now, and reports what this drain did. The writer runs on the
    /// calling thread. With one worker the handlers do as well, one intent after the other, which
    /// makes tests exact; with more workers, handlers run on threads that end with the call.
    ///
    /// ```
    /// use sqlite_outbox::{Delivery, Downstream, Intent, Operation, Outbox, Outcome};
    /// # use sqlite_outbox::{Receipt, Relay};
    ///
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let outbox = Outbox::open(folder.path().join("app.db"))?;
    /// outbox.transact(|tx| outbox.enqueue(tx, &Intent::new("print", "order-1")))?;
    /// let print = |_: &Delivery| Outcome::Succeeded(Receipt::new());
    /// let operation = Operation::new(Downstream::Unprotected, print);
    /// let relay = Relay::builder(&outbox).operation("print", operation).workers(1).build()?;
    /// assert_eq!(relay.drain()?.succeeded, 1);
    /// assert_eq!(relay.drain()?.attempts, 0);
    /// # Ok::<(), sqlite_outbox::Error>(())
    /// ```
    ///
    /// # Errors
    /// The calling thread is inside [`Outbox::transact`], this relay is being drained already, or
    /// the file cannot be read or written. Outcomes that could not be written are kept in this
    /// relay and written by the next drain.
    pub fn drain(&self) -> Result<DrainReport> {
        Outbox::refuse_in_transact("drain")?;
        let mut engine = match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let text =
                    "this relay is being drained already, perhaps by the handler's own caller";
                return Err(Error::new(ErrorKind::Busy, text));
            }
        };
        let before = self.shared.totals();
        let drained = WriterLoop::new(&self.shared, &mut engine, Until::NothingIsDue).run();
        self.shared.stop.store(false, Ordering::Release);
        drained.map_err(|error| match error.kind() {
            ErrorKind::Busy => error.context(
                "the file stayed locked; if this thread has an open transaction on it, end that \
                 first",
            ),
            _ => error,
        })?;
        Ok(self.shared.totals().since(before))
    }

    /// The counts of everything this relay has done since it was built.
    pub fn totals(&self) -> DrainReport {
        self.shared.totals()
    }

    /// Makes a drain on another thread claim nothing more, give back what no worker has started,
    /// finish the rest, and return.
    pub fn stop_drain(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.outbox.wake();
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt_as("Relay", f)
    }
}
