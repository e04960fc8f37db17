//! A transactional outbox inside your own SQLite file.
mod clock;
mod core;
mod error;
mod handler;
#[cfg(feature = "http")]
mod http;

pub use crate::core::classify::OnConflict;
pub use crate::core::key::IdempotencyKey;
pub use crate::error::{Error, ErrorKind, Result};
#[cfg(feature = "http")]
pub use crate::http::{Http, Timeouts};
