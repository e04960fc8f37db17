//! All SQL. Each statement stands beside the function that binds it.
//!
//! The relay's wing and the verbs' wing stand on `transitions`, the one place where intents move;
//! all of them on `query`, `tables`, `columns` and `statement`.

mod caller;
mod columns;
pub(crate) mod connection;
pub(crate) mod query;
#[cfg(test)]
mod query_plan;
pub(crate) mod relay;
pub(crate) mod savepoint;
mod schema;
mod standing;
mod statement;
pub(crate) mod tables;
mod transitions;
pub(crate) mod verbs;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use caller::{check_durability, check_transaction};
pub(crate) use connection::{PooledConnection, give_up_waiting};
pub(crate) use query::watch::Watch;
pub(crate) use relay::claim::ClaimRequest;
pub(crate) use relay::keep::Parking;
pub(crate) use relay::rebase::{Longest, STEP_MIN_MS, mind_clock};
pub(crate) use relay::record::{Record, Reported};
pub(crate) use relay::tx::{Committed, RelayTx, Rules};
pub(crate) use relay::writer::Writer;
pub(crate) use schema::VERSION as SCHEMA_VERSION;
use schema::{Opening, Waiting};
pub(crate) use tables::contract::{Contract, Repeats};
pub use verbs::enqueue::Enqueued;

use crate::error::Result;
use crate::liveness;

/// How long opening an older file waits for relays of the earlier build to finish their attempts:
/// longer than the 60 s that one may take by default.
const MIGRATION_WAIT: Duration = Duration::from_secs(75);

/// The outbox tables of one file, and connections to it.
#[derive(Debug)]
pub(crate) struct Store {
    pool: connection::Pool,
    /// The file's name as SQLite resolves it.
    pub path: PathBuf,
    pub database_id: String,
    pub payload_max: usize,
}

impl Store {
    /// Opens the file and checks that the tables are complete; creates or migrates them where that
    /// is allowed.
    pub fn open(path: &Path, create: bool, migrate: bool) -> Result<Self> {
        let (first, resolved) = connection::open_first(path, create)?;
        let is_alive = |owner: &str| liveness::is_alive(&resolved, owner);
        let waiting = Waiting { at_most: MIGRATION_WAIT, is_alive: &is_alive };
        let opening = Opening { create, migrate: migrate.then_some(waiting) };
        let meta = schema::ensure(&first, path, &opening)?;
        // The pool is built while the first connection is open, because the last one to close
        // would checkpoint and delete the WAL.
        let pool = connection::pool(&resolved)?;
        drop(first);
        Ok(Self {
            pool,
            path: resolved,
            database_id: meta.database_id,
            payload_max: meta.payload_max,
        })
    }

    /// A connection for writing.
    pub fn connection(&self) -> Result<PooledConnection> {
        connection::check_out(&self.pool)
    }

    /// A connection for a moment's reading.
    pub fn reader(&self) -> Result<connection::Reader> {
        connection::reader(&self.pool, &self.path)
    }

    /// A writer of its own for a relay that signs its leases as `owner`.
    pub fn writer(&self, owner: String) -> Result<Writer> {
        // Not of the pool: it is kept for the relay's whole life.
        Ok(Writer::new(connection::open_own(&self.path)?, owner))
    }

    /// A connection of its own that notices commits of others.
    pub fn watch(&self) -> Result<Watch> {
        Ok(Watch::new(connection::open_own(&self.path)?))
    }
}
