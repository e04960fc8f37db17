//! A relay's look at its neighbours, every so often: which of them have died, and whether leases
//! have ended that no lane of this relay asks for.

use std::time::{Duration, Instant};

use super::shared::Shared;
use crate::core::millis;
use crate::error::Result;
use crate::liveness;
use crate::store::Writer;

/// The findings of the last look.
pub(super) struct Patrol {
    /// Relays that died, whose leases are taken back whatever is left of them.
    pub dead: Vec<String>,
    /// Leases are there to be taken back: the next step does it.
    pub has_ended: bool,
    look_at: Instant,
    /// When leases that ran out are looked for among all operations, which reads more.
    search_at: Instant,
}

const EVERY: Duration = Duration::from_secs(1);

impl Patrol {
    /// A patrol whose first look is due at once.
    pub fn new() -> Self {
        let now = Instant::now();
        Self { dead: Vec::new(), has_ended: false, look_at: now, search_at: now }
    }

    /// Looks, if it is time. The files of dead relays are swept once nothing is leased to them.
    pub fn look(&mut self, shared: &Shared, writer: &Writer, now: i64) -> Result<()> {
        let at = Instant::now();
        if at < self.look_at {
            return Ok(());
        }
        let path = shared.outbox.path();
        shared.lifeline.restore();
        self.dead = liveness::dead(path);
        self.has_ended =
            (!self.dead.is_empty() || at >= self.search_at) && writer.has_ended(&self.dead, now)?;
        if self.has_ended {
            // There may be more of them after the step.
            return Ok(());
        }
        self.dead.iter().for_each(|owner| liveness::sweep(path, owner));
        self.look_at = at + EVERY;
        if at >= self.search_at {
            let every = millis(shared.options.lease) / 3;
            self.search_at = at + Duration::from_millis(every.unsigned_abs()).max(EVERY);
        }
        Ok(())
    }
}
