//! A transactional outbox inside your own SQLite file: intents are committed with the business
//! write, sent by a relay when it is safe, and their outcome is known or said to be unknown.
//!
//! ```
//! use sqlite_outbox::{
//!     Delivery, Downstream, Intent, Operation, Outbox, Outcome, Receipt, Relay, Status,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let file = folder.path().join("app.db");
//! let outbox = Outbox::open(&file)?;
//!
//! // The business write and the intent exist together or not at all.
//! let mail = Intent::new("mail.send", "order-42").args(serde_json::json!({"to": "ada"}));
//! let enqueued = outbox.transact(|tx| {
//!     tx.execute_batch("CREATE TABLE orders (id TEXT); INSERT INTO orders VALUES ('order-42')")
//!         .map_err(sqlite_outbox::Error::from)?;
//!     outbox.enqueue(tx, &mail)
//! })?;
//!
//! // The relay makes attempts and records what they taught it.
//! let send = |delivery: &Delivery| {
//!     println!("sending {} with key {}", delivery.payload(), delivery.wire_key());
//!     Outcome::Succeeded(Receipt::new().downstream_id("msg_1"))
//! };
//! let relay = Relay::builder(&outbox)
//!     .operation("mail.send", Operation::new(Downstream::Unprotected, send))
//!     .build()?;
//! relay.drain()?;
//!
//! let entry = outbox.entry(enqueued.id())?.expect("it was enqueued");
//! assert_eq!(entry.status, Status::Succeeded);
//! assert_eq!(entry.downstream_id.as_deref(), Some("msg_1"));
//! # Ok(())
//! # }
//! ```
//!
//! # The promise
//!
//! No intent is lost, none is sent before it is durable, none that may have been applied is
//! automatically sent again to a downstream that cannot deduplicate, and no outcome is guessed. The
//! [`guide`] lists how each is kept, what is not promised, and the plain-SQL contract for other
//! languages.
//!
//! # Where to look
//!
//! [`Outbox`] is for callers ([`enqueue`](Outbox::enqueue), [`revise`](Outbox::revise), the state
//! of an intent) and for operators. [`Relay`] sends, by the rules of an [`Operation`], through a
//! [`Handler`] such as `Http`. [`Downstream`] is the one choice that has no default. [`Inbox`] is
//! for consumers: a message that is delivered again is not handled again.

#![forbid(unsafe_code)]

mod clock;
mod core;
mod error;
mod event;
pub mod guide;
mod handler;
#[cfg(feature = "http")]
mod http;
mod inbox;
mod lease;
mod liveness;
mod outbox;
mod relay;
mod store;
pub mod testing;

#[cfg(test)]
#[path = "../tests/model/mod.rs"]
mod model;

pub use rusqlite;

pub use crate::clock::{Boot, Clock, SystemClock};
pub use crate::core::actor::Actor;
pub use crate::core::backoff::{Backoff, Jitter};
pub use crate::core::contract::{Downstream, OnDead, StoredContract};
pub use crate::core::entry::{Entry, Filter, OperationStats};
pub use crate::core::failing::FailingAnswer;
pub use crate::core::hold::{Cause as HoldCause, Domain as HoldDomain, Part, StoredHold};
pub use crate::core::intent::Intent;
#[cfg(feature = "http")]
pub use crate::core::judge::Meaning;
pub use crate::core::key::IdempotencyKey;
pub use crate::core::limit::{BudgetName, Limit};
pub use crate::core::outcome::{Failure, Finding, Outcome, Receipt, Resolution};
pub use crate::core::pause::PauseKind;
#[cfg(feature = "http")]
pub use crate::core::predicate::Predicate;
pub use crate::core::shard::Shard;
pub use crate::core::status::Status;
pub use crate::error::{Error, ErrorKind, Result};
pub use crate::event::{Event, EventKind};
pub use crate::handler::{Delivery, Handler};
#[cfg(feature = "http")]
pub use crate::http::{Http, Timeouts};
pub use crate::inbox::Inbox;
pub use crate::outbox::{Outbox, OutboxBuilder};
pub use crate::relay::{DrainReport, Operation, Relay, RelayBuilder, RelayHandle, ShutdownReport};
pub use crate::store::Enqueued;

#[cfg(all(doctest, feature = "http"))]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
