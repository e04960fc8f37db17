//! The relay: the loop that empties the outbox. Threads are here and nowhere else.

mod builder;
mod claims;
mod doubts;
mod engine;
mod handle;
mod lane;
mod operation;
mod patience;
mod queue;
mod run;
mod space;
mod worker;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

pub use builder::RelayBuilder;
#[cfg(test)]
pub(crate) use doubts::Doubts;
pub use engine::DrainReport;
pub use handle::RelayHandle;
pub use operation::Operation;
#[cfg(test)]
pub(crate) use worker::may_begin;

use crate::core::contract::Downstream;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::liveness::Lifeline;
use crate::outbox::Outbox;
use crate::store::Rules;
use crate::store::tables::contract;
use builder::Options;
use engine::Engine;

/// Sends what is in the outbox: claims due intents under a lease, hands them to workers, and
/// records what became of them.
///
/// Several relays, in one process or in many, may work on one file. Two never hold one intent.
///
/// [`drain`](Self::drain) works inline until nothing is due, [`start`](Self::start) goes on in
/// threads until it is reported to stop.
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
/// let handle = Relay::builder(&outbox)
///     .operation("print", Operation::new(Downstream::Unprotected, print))
///     .build()?
///     .start()?;
/// // … the application runs …
/// let report = handle.shutdown(Duration::from_secs(10))?;
/// assert_eq!(report.left, 0);
/// # Ok(())
/// # }
/// ```
#[must_use = "a relay does nothing until it is started or drained"]
pub struct Relay {
    shared: Arc<Shared>,
    /// Outlives a drain, because it may hold outcomes that could not be written yet.
    engine: Mutex<Engine>,
}

/// Reported of every status move.
type Observer = Box<dyn Fn(&Event) + Send + Sync>;

/// What the writer, the workers and the handle share.
struct Shared {
    outbox: Outbox,
    owner: String,
    options: Options,
    operations: Vec<(String, Operation)>,
    default_operation: Option<Operation>,
    observers: Vec<Observer>,
    stop: AtomicBool,
    /// Others see by it that this relay is alive: it ends with the last of its threads.
    _lifeline: Lifeline,
}

impl Shared {
    /// Stores an operation's contract and returns the rules that hold.
    fn register(&self, name: &str, operation: &Operation) -> Result<Rules> {
        let own = operation.contract();
        let now = self.outbox.clock().now();
        let (budgets, weaken) = (operation.budgets(), operation.may_weaken());
        let mut conn = self.outbox.store().connection()?;
        let holds = contract::register(&mut conn, name, &own, budgets, weaken, now)?;
        drop(conn);
        if holds.downstream != own.downstream {
            log::warn!(
                "operation {name:?}: its stored contract says {}, which is stricter than the \
                 configured {} and holds; to replace it, set weaken_stored_contract = true in \
                 relay.toml, or call Operation::weaken_stored_contract",
                in_words(holds.downstream),
                in_words(own.downstream)
            );
        }
        let mut rules = operation.rules(name);
        rules.policy.promise.downstream = holds.downstream;
        rules.on_dead = holds.on_dead();
        Ok(rules)
    }
}

impl Relay {
    /// Begins to configure a relay on this outbox.
    pub fn builder(outbox: &Outbox) -> RelayBuilder {
        RelayBuilder::new(outbox.clone())
    }

    /// Starts the writer and the workers in threads of their own.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(self) -> Result<RelayHandle> {
        let Self { shared, engine } = self;
        let engine = engine.into_inner().unwrap_or_else(PoisonError::into_inner);
        handle::start(shared, engine)
    }

    /// Works until nothing is due now, then returns. The writer's part runs on the calling
    /// thread. With one worker everything does, one intent after the other, which makes tests
    /// exact; with more, handlers run on threads that end with the call.
    ///
    /// # Errors
    /// The calling thread is inside [`Outbox::transact`], this relay is being drained already, or
    /// the file cannot be read or written.
    /// Outcomes that could not be written are kept in this relay and written by the next drain.
    pub fn drain(&self) -> Result<DrainReport> {
        if Outbox::is_in_transact() {
            let text = "drain was called inside Outbox::transact: this thread holds the write lock \
                        that the relay needs; drain after the transaction";
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let mut engine = match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let text =
                    "this relay is being drained already, perhaps by the handler's own caller";
                return Err(Error::new(ErrorKind::Busy, text));
            }
        };
        engine.tally = DrainReport::default();
        let drained = if self.shared.options.workers == 1 {
            run::drain_inline(&self.shared, &mut engine)
        } else {
            run::drain_with_threads(&self.shared, &mut engine)
        };
        self.shared.stop.store(false, Ordering::Release);
        drained.map_err(explain_busy)?;
        Ok(engine.tally)
    }

    /// Makes a drain on another thread claim nothing more, finish what it holds, and return.
    pub fn stop_drain(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.outbox.wake();
    }
}

/// A contract as `relay.toml` would say it.
fn in_words(downstream: Downstream) -> String {
    match downstream {
        Downstream::DeduplicatesByKey { window } => {
            let seconds = window.as_secs();
            let shown = if window.subsec_millis() > 0 {
                format!("{}ms", window.as_millis())
            } else if seconds.is_multiple_of(3600) {
                format!("{}h", seconds / 3600)
            } else if seconds.is_multiple_of(60) {
                format!("{}m", seconds / 60)
            } else {
                format!("{seconds}s")
            };
            format!("\"deduplicates\" with key_window {shown}")
        }
        Downstream::Unprotected => "\"unprotected\"".into(),
    }
}

fn explain_busy(error: Error) -> Error {
    if error.kind() != ErrorKind::Busy {
        return error;
    }
    error.context(
        "the file stayed locked; if this thread has an open transaction on it, end that first",
    )
}
