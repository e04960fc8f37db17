//! Claimed rows on their way between the writer and its workers.

use std::sync::Arc;
use std::time::Duration;

use super::lane::Lane;
use crate::handler::Held;
use crate::store::Reported;

/// A claimed row on its way to a worker.
#[derive(Clone)]
pub(super) struct Work {
    pub lane: Arc<Lane>,
    pub held: Held,
}

/// A row under one claim. All rows that one transaction claims have the same token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ClaimId {
    pub id: i64,
    token: i64,
}

impl Work {
    pub fn claim_id(&self) -> ClaimId {
        let delivery = self.held.delivery();
        ClaimId { id: delivery.id, token: delivery.token }
    }
}

/// A claimed row as it comes back from a worker.
pub(super) struct Returned {
    pub work: Work,
    /// The outcome or finding, or `None` where the attempt was not begun.
    pub reported: Option<Reported>,
    /// When the attempt was begun, on the monotonic clock.
    pub began: Duration,
    pub took: Duration,
}

impl Returned {
    /// A row that no worker has started.
    pub fn unstarted(work: Work) -> Self {
        Self { work, reported: None, began: Duration::ZERO, took: Duration::ZERO }
    }
}
