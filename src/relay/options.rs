//! The numbers a relay was built with.

use std::time::Duration;

use crate::core::shard::Shard;

#[derive(Debug, Clone)]
pub(super) struct Options {
    pub workers: usize,
    pub batch: usize,
    pub lease: Duration,
    pub shard: Shard,
    pub seed: Option<u64>,
}

impl Options {
    /// Rows a relay may hold: one batch is with the workers while the next is written.
    pub fn held_max(&self) -> usize {
        self.batch.saturating_mul(2).max(self.workers)
    }
}

impl Default for Options {
    fn default() -> Self {
        let lease = Duration::from_secs(90);
        Self { workers: 4, batch: 100, lease, shard: Shard::ALL, seed: None }
    }
}
