//! A world with a downstream at the end of a real connection.

use std::time::Duration;

use sqlite_outbox::{
    Delivery, Downstream, Filter, Http, Operation, Outbox, Relay, Status, Timeouts,
};

use crate::support::downstream::Downstream as Server;
use crate::support::world::{DEDUPLICATES, World, exact_backoff, unsure};

/// Promise of the downstream, and whether it still remembers the key when the relay looks at
/// the intent for the second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contract {
    Unprotected,
    InsideWindow,
    OutsideWindow,
}

impl Contract {
    pub const ALL: [Self; 3] = [Self::Unprotected, Self::InsideWindow, Self::OutsideWindow];

    pub fn downstream(self) -> Downstream {
        match self {
            Self::Unprotected => Downstream::Unprotected,
            Self::InsideWindow | Self::OutsideWindow => DEDUPLICATES,
        }
    }

    /// How many seconds pass between the first look and the second.
    pub fn seconds_between(self) -> u64 {
        match self {
            Self::InsideWindow => 3600,
            Self::Unprotected | Self::OutsideWindow => 100_000,
        }
    }
}

pub struct Wire {
    pub world: World,
    pub server: Server,
}

impl Wire {
    pub fn new() -> Self {
        Self { world: World::new(), server: Server::start() }
    }

    /// A transport to this path of the server.
    pub fn to(&self, path: &str) -> Http {
        http().endpoint(&self.server.url(path))
    }

    /// A relay with one worker for the operation `pay`. What is in doubt can be looked up, but the
    /// look-up does not tell.
    pub fn relay(&self, downstream: Downstream, http: Http) -> Relay {
        relay(&self.world.outbox, seeing(Operation::new(downstream, http)))
    }

    /// The same without a look-up.
    pub fn blind_relay(&self, downstream: Downstream, path: &str) -> Relay {
        relay(&self.world.outbox, Operation::new(downstream, self.to(path)))
    }

    /// Drains with a relay of its own to this path.
    pub fn drain(&self, downstream: Downstream, path: &str) {
        self.relay(downstream, self.to(path)).drain().unwrap();
    }

    /// The class of the last failure of an intent.
    pub fn class(&self, id: i64) -> Option<String> {
        self.world.outbox.audit(id).unwrap().last().and_then(|event| event.error_class.clone())
    }

    /// When an intent is due, in milliseconds from now.
    pub fn due_in(&self, id: i64) -> i64 {
        let due = self.world.entry(id).next_attempt_at.expect("the intent is pending");
        due - sqlite_outbox::Clock::now(&self.world.clock)
    }

    /// Tries everything that could send an intent again: time, a bulk replay, a second handle on
    /// the file, and a relay that was told the downstream deduplicates.
    pub fn provoke(&self, path: &str) {
        self.world.advance(3600);
        self.drain(Downstream::Unprotected, path);
        for status in [Status::Unknown, Status::NeedsReview, Status::Pending] {
            let filter = Filter::default().status(status);
            self.world.outbox.replay_all(&filter, "test", false).unwrap();
        }
        let clock = self.world.clock.clone();
        let second = Outbox::builder().clock(clock).open(self.world.path()).unwrap();
        for downstream in [Downstream::Unprotected, DEDUPLICATES] {
            let operation = seeing(Operation::new(downstream, self.to(path)));
            relay(&second, operation).drain().unwrap();
            self.world.advance(3600);
        }
    }
}

/// With a look-up that does not tell.
pub fn seeing(operation: Operation) -> Operation {
    operation.reconcile(|_: &Delivery| unsure())
}

/// A transport for intents that name an endpoint on loopback.
pub fn http() -> Http {
    let long = Duration::from_secs(10);
    let timeouts = Timeouts::default().response(long).body(long);
    Http::new().timeouts(timeouts).allow_addresses(["127.0.0.0/8"])
}

/// The same in a hurry, for answers that never come.
pub fn hasty() -> Http {
    http().timeouts(short())
}

/// Short where a test waits for the end of a phase.
pub fn short() -> Timeouts {
    let short = Duration::from_millis(200);
    Timeouts::default().response(short).body(short)
}

/// A relay with one worker and delays of 1 s, 2 s, 4 s for the operation `pay`.
pub fn relay(outbox: &Outbox, operation: Operation) -> Relay {
    let operation = operation.backoff(exact_backoff());
    Relay::builder(outbox).operation("pay", operation).workers(1).seed(7).build().unwrap()
}
