//! A worker's attempt: the last check, the handler, and its panics.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;

use super::queue::{Queue, Returned, Work};
use super::shared::Shared;
use crate::clock::Clock;
use crate::core::evidence::hide_paths;
use crate::core::{Failure, Finding, Outcome, Policy, Promise, decide};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::Held;
use crate::store::Reported;

/// Starts a worker, which works until the queue makes it exit.
pub(super) fn spawn(
    queue: &Arc<Queue>,
    results: &Sender<Returned>,
    shared: &Arc<Shared>,
) -> Result<JoinHandle<()>> {
    let (queue, results) = (Arc::clone(queue), results.clone());
    // Other relays must see this one alive for as long as a handler runs.
    let shared = Arc::clone(shared);
    spawn_thread("outbox-worker", move || {
        while let Some(work) = queue.next() {
            let returned = attempt(work, shared.outbox.clock().as_ref());
            queue.done(&returned.work.lane);
            if results.send(returned).is_err() {
                return;
            }
        }
    })
}

pub(super) fn spawn_thread<T: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(f).map_err(|error| {
        Error::new(ErrorKind::Database, "a thread of the relay cannot be started")
            .with_source(error)
    })
}

/// Makes one attempt. A panic in the handler is an outcome like any other: how far it came is not
/// known.
pub(super) fn attempt(work: Work, clock: &dyn Clock) -> Returned {
    let Work { lane, held } = &work;
    let (began, started) = (clock.monotonic(), Instant::now());
    held.delivery().lease.begin(started);
    let reported = may_begin(held, &lane.rules.policy, clock).then(|| match held {
        Held::Send(delivery) => {
            let mut outcome = contained(|| lane.handler.deliver(delivery), Outcome::MaybeSent);
            if let Some(failure) = outcome.failure_mut() {
                hide_paths(failure);
                // Code of the application may have sent more than the read.
                failure.is_of_read &= !lane.handler.runs_in_process();
            }
            Reported::Outcome(outcome)
        }
        Held::LookUp(delivery, lookup) => {
            let mut finding = contained(|| lane.handler.reconcile(delivery), Finding::Inconclusive);
            finding.failure_mut().into_iter().for_each(hide_paths);
            // The engine fills in how long the row has been in doubt.
            Reported::Finding(finding, lookup.observed(Duration::ZERO))
        }
    });
    Returned { work, reported, began, took: started.elapsed() }
}

thread_local! {
    /// Where the code that this thread contains has panicked, while such code runs.
    static PANICKED_AT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Notes where panics happen, beside the hook that the application has: a caught panic does not
/// say where.
static NOTE_PANICS: Once = Once::new();

/// Runs `f`; a panic becomes an answer that says nothing for sure. Its text is not kept, because it
/// may hold anything.
fn contained<T>(f: impl FnOnce() -> T, unsure: impl FnOnce(Failure) -> T) -> T {
    NOTE_PANICS.call_once(|| {
        let next = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let at = info.location().map(|at| format!(" at {}:{}", at.file(), at.line()));
            // Fails while the thread ends, when nobody asks any more.
            let _ = PANICKED_AT.try_with(|place| place.replace(at));
            next(info);
        }));
    });
    PANICKED_AT.take();
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
        let at = PANICKED_AT.take().unwrap_or_default();
        defuse(payload);
        unsure(Failure::new("panic", format!("the handler panicked{at}")))
    })
}

/// Whether a row may still be sent. While it waited in the queue, its lease, its usefulness or the
/// downstream's memory of its key may have run out.
pub(crate) fn may_begin(held: &Held, policy: &Policy, clock: &dyn Clock) -> bool {
    if !held.delivery().holds_lease_for(policy.promise.time_limit) {
        return false;
    }
    let Held::Send(delivery) = held else { return true };
    if delivery.facts.expires_at.is_none() && delivery.facts.in_doubt_since.is_none() {
        return true;
    }
    let promise = Promise { downstream: delivery.downstream, ..policy.promise };
    decide::withheld(&delivery.facts, promise, clock.now()).is_none()
}

/// Drops the value of a panic, whose own code may panic once more.
pub(super) fn defuse(payload: Box<dyn Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
}
