//! What a drain does about a file that cannot be written.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Shared;
use super::engine::Engine;
use crate::error::{Error, ErrorKind, Result};

/// A drain waits for as long as it has outcomes to write, and after an error that will not pass it
/// writes those and ends.
#[derive(Default)]
pub(super) struct Patience {
    has_told: bool,
    fatal: Option<Error>,
    stopping_since: Option<Instant>,
}

impl Patience {
    pub fn may_claim(&self) -> bool {
        self.fatal.is_none()
    }

    pub fn restored(&mut self) {
        self.has_told = false;
    }

    /// Waits a moment, or gives the error back: where there is nothing to lose, or where the
    /// drain was reported to stop a lease ago. Before that nobody but us may say what became of what
    /// we hold; from then on it counts as lost.
    pub fn wait(&mut self, shared: &Shared, engine: &Engine, error: Error) -> Result<()> {
        let nothing_to_lose = !engine.has_unwritten() && engine.held() == 0;
        let is_stopping = shared.stop.load(Ordering::Acquire);
        let is_over = is_stopping
            && self.stopping_since.get_or_insert_with(Instant::now).elapsed()
                >= shared.options.lease;
        if nothing_to_lose || is_over {
            return Err(error);
        }
        if !is_passing(error.kind()) {
            if self.fatal.is_some() {
                return Err(error);
            }
            self.fatal = Some(error);
            return Ok(());
        }
        if !std::mem::replace(&mut self.has_told, true) {
            log::warn!("an outcome cannot be written yet and is kept: {error}");
        }
        std::thread::sleep(Duration::from_millis(100));
        Ok(())
    }

    pub fn end(self) -> Result<()> {
        self.fatal.map_or(Ok(()), Err)
    }
}

/// Whether the relay can go on after this error by waiting.
pub(super) fn is_passing(kind: ErrorKind) -> bool {
    !matches!(kind, ErrorKind::Schema | ErrorKind::WrongFile)
}
