//! A transactional outbox inside your own SQLite file.

mod clock;
mod core;
mod error;
mod event;
mod handler;
#[cfg(feature = "http")]
mod http;
mod outbox;
mod relay;
mod store;
pub mod testing;

pub use rusqlite;

pub use crate::clock::{Clock, SystemClock};
pub use crate::core::backoff::{Backoff, Jitter};
pub use crate::core::classify::OnConflict;
pub use crate::core::contract::{Downstream, OnDead, StoredContract};
pub use crate::core::entry::{AuditEvent, Entry, Filter, OperationStats};
pub use crate::core::intent::Intent;
pub use crate::core::key::IdempotencyKey;
pub use crate::core::outcome::{Failure, Outcome, Receipt};
pub use crate::core::status::Status;
pub use crate::error::{Error, ErrorKind, Result};
pub use crate::event::{Event, EventKind};
pub use crate::handler::{Delivery, Handler};
#[cfg(feature = "http")]
pub use crate::http::{Http, Timeouts};
pub use crate::outbox::{Outbox, OutboxBuilder};
pub use crate::relay::{DrainReport, Operation, Relay, RelayBuilder, RelayHandle, ShutdownReport};
pub use crate::store::{Enqueued, ReplayReport};
