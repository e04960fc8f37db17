//! A file that cannot be read or written for now, and errors that waiting does not cure.

use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};

/// The state of the file as the writer's last step found it. An outage is waited out with growing
/// pauses, and logged once when it begins and once when it ends.
#[derive(Debug, Default)]
pub(super) struct Outage {
    kind: Option<ErrorKind>,
    pause: Duration,
    until: Option<Instant>,
    /// An error that waiting does not cure.
    fatal: Option<Error>,
}

const PAUSE_MAX: Duration = Duration::from_secs(5);

impl Outage {
    /// Notes an error. After a fatal one, what is known can still be written; a second is returned.
    pub fn begin(&mut self, error: Error) -> Result<()> {
        let kind = error.kind();
        if matches!(kind, ErrorKind::Schema | ErrorKind::WrongFile) {
            if self.fatal.is_some() {
                return Err(error);
            }
            self.fatal = Some(error);
            return Ok(());
        }
        if self.kind.replace(kind) != Some(kind) {
            log::error!(
                "the outbox cannot be written; outcomes are kept, nothing new is claimed until it \
                 can: {error}"
            );
            self.pause = Duration::from_millis(5);
        }
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.until = Some(Instant::now() + self.pause);
        Ok(())
    }

    /// Notes that the file could be written.
    pub fn end(&mut self) {
        if self.kind.take().is_some() {
            log::info!("the outbox can be written again");
        }
        self.until = None;
    }

    pub fn is_fatal(&self) -> bool {
        self.fatal.is_some()
    }

    /// How long to wait before the file is tried again; `None` where it may be tried now.
    pub fn time_left(&self) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// The fatal error, if there was one.
    pub fn into_result(self) -> Result<()> {
        self.fatal.map_or(Ok(()), Err)
    }
}
