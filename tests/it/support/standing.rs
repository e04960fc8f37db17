//! An intent in every status in which it can stand, for the tests of what may be done to it there.

use std::sync::Arc;
use std::time::Duration;

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{Intent, Resolution, Status};

use crate::support::world::{
    DEDUPLICATES, World, interrupted, maybe_sent, needs_review, pay, rejected, relay_on, succeeded,
    transient,
};

/// The intent, and how it got there.
pub const FIRST: i64 = 1;

/// Beside it, and never touched.
pub const OTHER: i64 = 2;

/// The intent that stands there.
pub fn first() -> Intent {
    pay("a").ordering_key("k").cost(5)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Pending,
    /// Tried once, and surely not applied.
    Retried,
    /// Tried once, and repeated under the same key.
    PendingInDoubt,
    InFlight,
    Unknown,
    NeedsReview,
    /// Never sent, because its cost is above the whole budget.
    NeedsReviewUnsent,
    Dead,
    /// Given up by a person, who did not know whether it was applied.
    DeadInDoubt,
    Succeeded,
    Cancelled,
}

use Standing as S;

impl Standing {
    pub const ALL: [Self; 11] = [
        S::Pending,
        S::Retried,
        S::PendingInDoubt,
        S::InFlight,
        S::Unknown,
        S::NeedsReview,
        S::NeedsReviewUnsent,
        S::Dead,
        S::DeadInDoubt,
        S::Succeeded,
        S::Cancelled,
    ];

    pub fn status(self) -> Status {
        match self {
            S::Pending | S::Retried | S::PendingInDoubt => Status::Pending,
            S::InFlight => Status::InFlight,
            S::Unknown => Status::Unknown,
            S::NeedsReview | S::NeedsReviewUnsent => Status::NeedsReview,
            S::Dead | S::DeadInDoubt => Status::Dead,
            S::Succeeded => Status::Succeeded,
            S::Cancelled => Status::Cancelled,
        }
    }

    /// A file in which [`FIRST`] stands so, in which `then` is done. What is in flight succeeds
    /// afterwards, with the id `eff_1`.
    pub fn then(self, then: impl FnOnce(&World) + Send + 'static) -> Arc<World> {
        let world = Arc::new(World::new());
        world.enqueue(&first());
        world.enqueue(&pay("b").delay(Duration::from_secs(10_000_000)));
        let inside = Arc::clone(&world);
        let then = move || {
            assert_eq!(inside.entry(FIRST).status, self.status(), "{self:?}");
            then(&inside);
        };
        if self == S::InFlight {
            let handler = interrupted(then, succeeded("eff_1"));
            world.other_relay(DEDUPLICATES, handler).drain().unwrap();
        } else {
            self.reach(&world);
            then();
        }
        assert_eq!(world.entry(OTHER).status, Status::Pending);
        assert_eq!(world.story(OTHER), [""; 0]);
        world
    }

    fn reach(self, world: &World) {
        let ends = |outcome, downstream| {
            world.script.then(outcome);
            world.drain(downstream);
        };
        match self {
            S::Pending | S::InFlight => {}
            S::Retried => ends(transient(), DEDUPLICATES),
            S::PendingInDoubt => ends(maybe_sent(), DEDUPLICATES),
            S::Unknown => ends(maybe_sent(), Unprotected),
            S::NeedsReview => ends(needs_review(), DEDUPLICATES),
            S::NeedsReviewUnsent => {
                let operation = world.operation(DEDUPLICATES);
                let operation = operation.max_cost(1, Duration::from_secs(60));
                relay_on(&world.outbox, operation).drain().unwrap();
            }
            S::Dead => ends(rejected(), DEDUPLICATES),
            S::DeadInDoubt => {
                ends(needs_review(), DEDUPLICATES);
                world.outbox.resolve(FIRST, &Resolution::Dead, "ann").unwrap();
            }
            S::Succeeded => ends(succeeded("eff_1"), DEDUPLICATES),
            S::Cancelled => {
                world.outbox.transact(|tx| world.outbox.cancel(tx, FIRST, "ann")).unwrap();
            }
        }
    }
}

/// All there is about an intent, to see that nothing has changed.
pub fn all_about(world: &World, id: i64) -> impl PartialEq + std::fmt::Debug {
    let rows = world.number("SELECT count(*) FROM outbox");
    let lines = world.number("SELECT count(*) FROM outbox_keyed");
    (world.entry(id), world.story(id), rows, lines)
}
