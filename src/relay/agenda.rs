//! Which operations may have something to do, so that thousands of them are not asked one by one.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// A relay with no more lanes than this asks each of them.
pub(super) const FEW_LANES: usize = 16;

/// When each operation first has something to do, as the last look at the file has found.
#[derive(Default)]
pub(super) struct Agenda {
    first_due: HashMap<String, i64>,
    /// The operations that have a lane.
    pub opened: HashSet<String>,
    /// Whether the relay goes by this, because there are many operations.
    is_kept: bool,
    /// The last intent that was in the file.
    pub last_id: i64,
    /// When the file may be walked through again.
    pub walk_at: Option<Instant>,
}

/// A walk takes at most this part of the time.
const WALKS: u32 = 20;

impl Agenda {
    /// Notes what a walk through the file has found, and how long it took.
    pub fn note(&mut self, first_due: HashMap<String, i64>, took: Duration) {
        self.is_kept = self.opened.len().max(first_due.len()) > FEW_LANES;
        self.first_due = first_due;
        self.walk_at = self.is_kept.then(|| Instant::now() + took * WALKS);
    }

    /// Whether what was enqueued since the last walk is all that is asked for yet.
    pub fn is_fresh(&self) -> bool {
        self.walk_at.is_some_and(|at| Instant::now() < at)
    }

    /// Notes that an operation may have something due since the last look.
    pub fn touch(&mut self, operation: &str) {
        if self.is_kept {
            self.first_due.insert(operation.to_owned(), i64::MIN);
        }
    }

    /// Whether a lane of this operation is to be asked.
    pub fn may_be_due(&self, operation: &str, now: i64) -> bool {
        !self.is_kept || self.first_due.get(operation).is_some_and(|&at| at <= now)
    }

    /// When the next operation has something to do that has nothing yet.
    pub fn next_due(&self, now: i64) -> Option<i64> {
        self.first_due.values().copied().filter(|&at| at > now).min()
    }

    /// Whether a round of claims does not ask all lanes.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }
}
