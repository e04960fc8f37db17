//! One attempt: the last check, the handler, and whatever it throws.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;

use super::queue::Queue;
use crate::clock::Clock;
use crate::core::contract::Promise;
use crate::core::decide::{self, Policy};
use crate::core::outcome::{Failure, Finding, Outcome};
use crate::handler::{Delivery, Handler};
use crate::store::Reported;

/// A delivery on its way to a worker.
pub(super) struct Work {
    pub lane: usize,
    pub delivery: Arc<Delivery>,
    pub handler: Arc<dyn Handler>,
    pub policy: Arc<Policy>,
    /// How many workers may be busy with this lane at once.
    pub workers_max: usize,
}

/// What a worker has to say.
pub(super) struct Report {
    pub lane: usize,
    pub delivery: Arc<Delivery>,
    /// What was learnt, or `None` where nothing was begun because it may not be any more.
    pub reported: Option<Reported>,
    /// When it was begun, by the clock that nobody can set.
    pub began: Duration,
    pub took: Duration,
}

/// Works until the queue of deliveries is closed.
pub(super) fn work(deliveries: &Queue, reports: &Sender<Report>, clock: &dyn Clock) {
    while let Some(work) = deliveries.next() {
        let lane = work.lane;
        let report = attempt(work, clock);
        deliveries.done(lane);
        if reports.send(report).is_err() {
            return;
        }
    }
}

/// Makes one attempt. A panic in the handler is an outcome like any other: nobody knows how far
/// it came.
pub(super) fn attempt(work: Work, clock: &dyn Clock) -> Report {
    let Work { lane, delivery, handler, policy, .. } = work;
    let (began, started) = (clock.monotonic(), Instant::now());
    delivery.lease.begin(started);
    let reported = may_begin(&delivery, &policy, clock).then(|| {
        if delivery.lookup.is_none() {
            return Reported::Outcome(contained(|| handler.deliver(&delivery), Outcome::MaybeSent));
        }
        let finding = contained(|| handler.reconcile(&delivery), Finding::Inconclusive);
        // The engine knows since when the row is in doubt.
        Reported::Finding(finding, Duration::ZERO)
    });
    Report { lane, delivery, reported, began, took: started.elapsed() }
}

/// A panic becomes the answer of somebody who does not know.
fn contained<T>(f: impl FnOnce() -> T, unsure: impl FnOnce(Failure) -> T) -> T {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
        let text = panic_text(payload.as_ref());
        defuse(payload);
        unsure(Failure::new("panic", format!("the handler panicked: {text}")))
    })
}

/// Asked just before sending: the row may have waited in the queue while its lease, its
/// usefulness or the downstream's memory ran out.
pub(crate) fn may_begin(delivery: &Delivery, policy: &Arc<Policy>, clock: &dyn Clock) -> bool {
    if !delivery.holds_lease_for(policy.promise.time_limit) {
        return false;
    }
    if delivery.lookup.is_some() {
        return true;
    }
    if delivery.facts.expires_at.is_none() && delivery.facts.in_doubt_since.is_none() {
        return true;
    }
    let promise = Promise { downstream: delivery.downstream, ..policy.promise };
    decide::withheld(&delivery.facts, promise, clock.now()).is_none()
}

/// Drops what somebody panicked with, which runs foreign code that may panic once more.
pub(super) fn defuse(payload: Box<dyn Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "with a value that is no text".into())
}
