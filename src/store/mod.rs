//! All SQL. Each statement stands beside the function that binds it.

mod caller;
mod columns;
pub(crate) mod connection;
pub(crate) mod query;
#[cfg(test)]
mod query_plan;
pub(crate) mod relay;
mod savepoint;
mod schema;
pub(crate) mod tables;
pub(crate) mod verbs;

use std::path::Path;

pub(crate) use caller::{check_durability, check_transaction};
pub(crate) use connection::{PooledConnection, give_up_waiting};
pub(crate) use query::watch::Watch;
pub(crate) use relay::claim::ClaimRequest;
pub(crate) use relay::record::{Record, Told};
pub(crate) use relay::tx::{Rules, Step};
pub(crate) use relay::writer::Writer;
pub(crate) use schema::VERSION as SCHEMA_VERSION;
pub(crate) use tables::contract::Contract;
pub(crate) use tables::lost_lease::IsAlive;
pub use verbs::enqueue::Enqueued;
pub(crate) use verbs::revise::Revised;
pub(crate) use verbs::withdraw::By;

use crate::core::budget::{Budget, Kind, Scope};
use crate::core::contract::StoredContract;
use crate::core::entry::{Entry, Filter, OperationStats};
use crate::core::intent::Prepared;
use crate::core::outcome::{Receipt, Resolution};
use crate::core::status::Status;
use crate::core::why::Why;
use crate::error::{Error, Result};
use crate::event::Event;

/// The outbox tables of one file, and connections to it.
#[derive(Debug)]
pub(crate) struct Store {
    pool: connection::Pool,
    /// The file's name as SQLite resolves it.
    path: String,
    database_id: String,
    payload_max: usize,
}

impl Store {
    /// Opens the file and checks that the tables are complete; creates what is missing where
    /// that is allowed.
    pub fn open(path: &Path, create: bool) -> Result<Self> {
        let (first, resolved) = connection::open_first(path, create)?;
        let meta = schema::ensure(&first, path, create)?;
        // The pool is built while the first connection is open, because the last one to close
        // would checkpoint and delete the WAL.
        let pool = connection::pool(Path::new(&resolved))?;
        drop(first);
        Ok(Self {
            pool,
            path: resolved,
            database_id: meta.database_id,
            payload_max: meta.payload_max,
        })
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn database_id(&self) -> &str {
        &self.database_id
    }

    pub fn payload_max(&self) -> usize {
        self.payload_max
    }

    pub fn connection(&self) -> Result<PooledConnection> {
        connection::check_out(&self.pool)
    }

    pub fn name_audit_headers(&self, agent_run: &str, tool_version: &str) -> Result<()> {
        tables::audit::name_headers(&*self.connection()?, agent_run, tool_version)
    }

    /// A writer of its own for a relay that signs its leases as `owner`.
    pub fn writer(&self, owner: String) -> Result<Writer> {
        // Not of the pool: it is kept for the relay's whole life.
        Ok(Writer::new(connection::open_own(Path::new(&self.path))?, owner))
    }

    fn reader(&self) -> Result<connection::Reader> {
        connection::reader(&self.pool, Path::new(&self.path))
    }

    pub fn enqueue(conn: &rusqlite::Connection, intent: &Prepared<'_>) -> Result<Enqueued> {
        verbs::enqueue::enqueue(conn, intent)
    }

    /// Runs `f` inside a savepoint that is undone where it fails or panics.
    pub fn all_or_nothing<T, E: From<Error>>(
        conn: &rusqlite::Connection,
        f: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        savepoint::all_or_nothing(conn, f)
    }

    pub fn once<E: From<Error>>(
        conn: &rusqlite::Connection,
        source: &str,
        message_id: &str,
        now: i64,
        f: impl FnOnce(&rusqlite::Connection) -> Result<String, E>,
    ) -> Result<String, E> {
        verbs::inbox::once(conn, source, message_id, now, f)
    }

    pub fn seen(&self, source: &str, message_id: &str) -> Result<Option<String>> {
        verbs::inbox::seen(&*self.reader()?, source, message_id)
    }

    pub fn prune(&self, before: i64) -> Result<u64> {
        verbs::inbox::prune(&*self.connection()?, before)
    }

    pub fn entry(&self, id: i64) -> Result<Option<Entry>> {
        query::read::entry(&*self.reader()?, id)
    }

    pub fn entry_by_key(&self, tenant: &str, key: &str) -> Result<Option<Entry>> {
        query::read::entry_by_key(&*self.reader()?, tenant, key)
    }

    pub fn list(&self, filter: &Filter) -> Result<Vec<Entry>> {
        query::read::list(&*self.reader()?, filter)
    }

    pub fn audit(&self, id: i64) -> Result<Vec<Event>> {
        tables::audit::audit(&*self.reader()?, id)
    }

    pub fn events(&self, after: i64, since: i64, limit: usize) -> Result<Vec<Event>> {
        tables::audit::stream(&*self.reader()?, after, since, limit)
    }

    /// A connection of its own that notices when an intent is settled.
    pub fn watch(&self) -> Result<Watch> {
        Ok(Watch::new(connection::open_own(Path::new(&self.path))?))
    }

    pub fn stats(&self, now: i64) -> Result<Vec<OperationStats>> {
        query::read::stats(&*self.reader()?, now)
    }

    pub fn operations(&self) -> Result<Vec<StoredContract>> {
        let conn = self.reader()?;
        let mut operations = Vec::new();
        for (operation, contract) in tables::contract::all(&conn)? {
            let pause = tables::pause::load(&conn, &operation)?.and_then(|flow| flow.pause);
            let budgets = tables::budget::load(&conn, &operation)?;
            let budget = |scope, kind| {
                budgets.iter().find(|b| (b.scope, b.kind) == (scope, kind)).map(Budget::as_stored)
            };
            operations.push(StoredContract {
                operation,
                downstream: contract.downstream,
                on_dead: contract.on_dead(),
                provider: contract.provider,
                owner: contract.owner,
                key_recipe: contract.key_recipe,
                reconciles: contract.reconciles,
                binds_ids: contract.binds,
                max_in_flight: contract.limits.max_in_flight,
                rate: contract.limits.rate.map(|rate| (rate.count, rate.per)),
                max_per: budget(Scope::Operation, Kind::Sends),
                max_cost: budget(Scope::Operation, Kind::Cost),
                max_per_tenant: budget(Scope::Tenant, Kind::Sends),
                max_cost_per_tenant: budget(Scope::Tenant, Kind::Cost),
                paused: pause.as_ref().map(|pause| pause.kind),
                paused_until: pause.as_ref().and_then(|pause| pause.until),
                paused_since: pause.as_ref().map(|pause| pause.since),
                paused_by: pause.as_ref().map(|pause| pause.actor.clone()),
                paused_reason: pause.map(|pause| pause.reason),
            });
        }
        Ok(operations)
    }

    pub fn why(&self, id: i64, shard: Option<(u32, u32)>, now: i64) -> Result<Why> {
        query::why::why(&*self.reader()?, id, shard, now)
    }

    pub fn register(
        &self,
        operation: &str,
        own: &Contract,
        budgets: &[Budget],
        weaken: bool,
        now: i64,
    ) -> Result<Contract> {
        tables::contract::register(&mut *self.connection()?, operation, own, budgets, weaken, now)
    }

    pub fn pause(
        &self,
        operation: &str,
        until: Option<i64>,
        by: (&str, Option<&str>),
        now: i64,
    ) -> Result<()> {
        tables::pause::pause(&mut *self.connection()?, operation, until, by, now)
    }

    pub fn resume(&self, operation: &str, by: (&str, Option<&str>), now: i64) -> Result<bool> {
        tables::pause::resume(&mut *self.connection()?, operation, by, now)
    }

    pub fn replay(
        &self,
        filter: &Filter,
        by: By<'_>,
        now: i64,
        dry_run: bool,
    ) -> Result<Vec<(i64, Result<()>)>> {
        verbs::replay::replay(&mut *self.connection()?, filter, by, now, dry_run)
    }

    pub fn replay_one(&self, id: i64, by: By<'_>, now: i64) -> Result<()> {
        verbs::replay::replay_one(&mut *self.connection()?, id, by, now)
    }

    pub fn check_replay(&self, id: i64, now: i64) -> Result<()> {
        verbs::replay::check_replay(&*self.connection()?, id, now).map(drop)
    }

    pub fn resolve(
        &self,
        id: i64,
        resolution: &Resolution,
        by: By<'_>,
        is_alive: IsAlive<'_>,
        now: i64,
    ) -> Result<Status> {
        verbs::resolve::resolve(&mut *self.connection()?, id, resolution, by, is_alive, now)
    }

    pub fn cancel(conn: &rusqlite::Connection, id: i64, by: By<'_>, now: i64) -> Result<()> {
        verbs::withdraw::cancel(conn, id, by, now)
    }

    pub fn request_cancel(
        conn: &rusqlite::Connection,
        id: i64,
        by: By<'_>,
        now: i64,
    ) -> Result<Status> {
        verbs::withdraw::request_cancel(conn, id, by, now)
    }

    pub fn skip(conn: &rusqlite::Connection, id: i64, by: By<'_>, now: i64) -> Result<()> {
        verbs::withdraw::skip(conn, id, by, now)
    }

    pub fn confirm(
        conn: &rusqlite::Connection,
        key: (&str, &str),
        receipt: &Receipt,
        by: By<'_>,
        now: i64,
    ) -> Result<Option<Event>> {
        verbs::resolve::confirm(conn, key, receipt, by, now)
    }

    pub fn bind(
        conn: &rusqlite::Connection,
        id: i64,
        downstream_id: &str,
        by: By<'_>,
        now: i64,
    ) -> Result<()> {
        verbs::resolve::bind(conn, id, downstream_id, by, now)
    }

    pub fn revise(
        conn: &rusqlite::Connection,
        revised: &Revised,
        next: &Prepared<'_>,
        by: By<'_>,
        now: i64,
    ) -> Result<Enqueued> {
        verbs::revise::revise(conn, revised, next, by, now)
    }
}
