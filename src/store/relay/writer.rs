//! A relay's write connection: its questions that need no lock, and its transactions.

use std::collections::HashMap;
use std::sync::Arc;

use file_id::FileId;
use rusqlite::Connection;

use crate::clock::{Boot, Clock};
use crate::core::{Gate, Gates, Shard, Stopped};
use crate::error::{Error, ErrorKind, Result};
use crate::store::connection;
use crate::store::relay::due::{
    FIRST_DUE, HAS_LOOKUP, NEXT_DUE, NEXT_DUE_OWN, NEXT_LOOKUP, has_due, may_look_up,
};
use crate::store::relay::leases;
use crate::store::relay::rebase::{self, Longest};
use crate::store::relay::tx::{RelayTx, Rules};
use crate::store::statement::query_row;
use crate::store::tables::gates::gates_of;
use crate::store::tables::ledger::Ledger;
use crate::store::tables::shard::{self, of_shard};
use crate::store::tables::unrecorded::{self, Kept};
use crate::store::tables::{hold, pause};

/// A relay's write connection.
pub(crate) struct Writer {
    conn: Connection,
    owner: String,
    /// The file's identity when this was opened.
    file: Option<FileId>,
}

impl Writer {
    pub(crate) fn new(conn: Connection, owner: String) -> Self {
        let file = connection::file_of(&conn).and_then(connection::identity);
        Self { conn, owner, file }
    }

    /// Makes what finds the rows of this shard without walking over those of others.
    pub fn index_shard(&self, shard: Shard) -> Result<()> {
        shard::create_index(&self.conn, shard)
    }

    /// For tests that ask about order and not about durability.
    #[cfg(test)]
    pub fn hurry(&self) -> Result<()> {
        Ok(self.conn.execute_batch("PRAGMA synchronous = OFF")?)
    }

    /// Whether anything is due now for this operation, without taking the write lock: a row of
    /// this shard that may be sent, or any relay's lease that ran out. `lookups_after` counts only
    /// lookups that are overdue by at least this many milliseconds; `None` ignores lookups.
    pub fn has_due(
        &self,
        rules: &Rules,
        shard: Shard,
        now: i64,
        lookups_after: Option<i64>,
    ) -> Result<bool> {
        let gates = self.gates(rules, shard, now)?;
        if let Some(after) = lookups_after.filter(|_| may_look_up(&gates.configured)) {
            let values =
                (&rules.operation, now.saturating_sub(after), shard.count(), shard.index());
            if query_row(&self.conn, &of_shard(HAS_LOOKUP, shard), values, |row| row.get(0))? {
                return Ok(true);
            }
        }
        has_due(&self.conn, &rules.operation, &gates, shard, now)
    }

    /// When the next row of this operation may be sent, or the next lease of it runs out.
    pub fn next_due(
        &self,
        rules: &Rules,
        shard: Shard,
        now: i64,
        lookups_after: Option<i64>,
    ) -> Result<Option<i64>> {
        let values = (&rules.operation, shard.count(), shard.index());
        let (pending, expiry): (Option<i64>, Option<i64>) =
            query_row(&self.conn, &of_shard(NEXT_DUE, shard), values, |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        let lookup = match lookups_after {
            Some(after) => {
                let due: Option<i64> =
                    query_row(&self.conn, &of_shard(NEXT_LOOKUP, shard), values, |row| row.get(0))?;
                due.map(|due| due.saturating_add(after))
            }
            None => None,
        };
        let Gates { configured, elsewhere, .. } = self.gates(rules, shard, now)?;
        let lookup = if may_look_up(&configured) { lookup } else { opened(&configured, lookup) };
        let own = match configured {
            Gate::Closed { .. } => query_row(&self.conn, NEXT_DUE_OWN, values, |row| row.get(0))?,
            _ => None,
        };
        let held = hold::next_until(&self.conn, &rules.operation, now)?;
        let pending =
            [opened(&configured, pending), opened(&elsewhere, own), opened(&elsewhere, held)];
        Ok(pending.into_iter().flatten().chain(expiry).chain(lookup).min())
    }

    /// How far unstarted deliveries must be released: the operation is paused or throttled.
    pub fn stopped(&self, rules: &Rules, now: i64) -> Result<Option<Stopped>> {
        Ok(self.gates(rules, Shard::ALL, now)?.configured.stopped())
    }

    fn gates(&self, rules: &Rules, shard: Shard, now: i64) -> Result<Gates> {
        let flow = pause::load(&self.conn, &rules.operation)?.unwrap_or_default();
        let ledger = Ledger::open(&self.conn, &rules.operation, &flow.limits, now)?;
        let network = pause::network(&self.conn, rules.network.is_some())?;
        gates_of(&self.conn, &flow, &ledger, network.as_ref(), shard)
    }

    /// Whether there are leases of `dead` relays, or leases of any operation that ran out.
    pub fn has_ended(&self, dead: &[String], now: i64) -> Result<bool> {
        leases::has_ended(&self.conn, dead, now)
    }

    /// When each operation that has any such row first has one due, a lease that ends, or a hold
    /// to try; and the last intent.
    pub fn first_due(&self) -> Result<(HashMap<String, i64>, i64)> {
        let sql = "SELECT coalesce(max(id), 0) FROM main.outbox";
        let last_id = query_row(&self.conn, sql, [], |row| row.get(0))?;
        let mut statement = self.conn.prepare_cached(FIRST_DUE)?;
        let mut rows = statement.query([])?;
        let mut found = HashMap::new();
        while let Some(row) = rows.next()? {
            // A name that was edited into bytes that are not text belongs to no operation.
            let Ok(operation) = row.get(0) else { continue };
            let due: [Option<i64>; 3] = [row.get(1)?, row.get(2)?, row.get(3)?];
            if let Some(due) = due.into_iter().flatten().min() {
                found.entry(operation).and_modify(|at: &mut i64| *at = due.min(*at)).or_insert(due);
            }
        }
        Ok((found, last_id))
    }

    /// The same, as far as it can be told from the intents that were enqueued after this one; and
    /// the last intent. An intent of a line waits longer perhaps.
    pub fn enqueued_since(&self, last_id: i64) -> Result<(HashMap<String, i64>, i64)> {
        let mut statement = self
            .conn
            .prepare_cached("SELECT id, operation, available_at FROM main.outbox WHERE id > ?1")?;
        let mut rows = statement.query([last_id])?;
        let (mut found, mut last_id) = (HashMap::new(), last_id);
        while let Some(row) = rows.next()? {
            last_id = last_id.max(row.get(0)?);
            if let (Ok(operation), Ok(due)) = (row.get(1), row.get::<_, i64>(2)) {
                found.entry(operation).and_modify(|at: &mut i64| *at = due.min(*at)).or_insert(due);
            }
        }
        Ok((found, last_id))
    }

    /// Outcomes and rows that are to be tried again, because writing them has failed.
    pub fn unrecorded_due(&self, now: i64) -> Result<Vec<Kept>> {
        unrecorded::due(&self.conn, now)
    }

    /// When the next of them is to be tried again.
    pub fn next_unrecorded(&self, now: i64) -> Result<Option<i64>> {
        unrecorded::next_retry(&self.conn, now)
    }

    /// Lets a row be claimed and taken back again that could not be moved.
    pub fn let_move(&self, kept: &Kept, now: i64) -> Result<()> {
        unrecorded::let_move(&self.conn, kept.id, now)
    }

    /// Notes that a row cannot be moved, in a transaction of its own.
    pub fn set_aside(&self, id: i64, error: &Error, now: i64) -> Result<()> {
        unrecorded::keep(&self.conn, (id, 0), None, error, now)
    }

    /// Notes that a kept outcome could not be recorded again.
    pub fn keep_on(&self, kept: &Kept, error: &Error, now: i64) -> Result<()> {
        unrecorded::keep(&self.conn, (kept.id, kept.token), kept.outcome.as_ref(), error, now)
    }

    /// Refuses to go on where the file was deleted or replaced: what is written now goes nowhere.
    pub fn check_file(&self) -> Result<()> {
        let path = connection::file_of(&self.conn).unwrap_or_default();
        if connection::identity(&path) == self.file {
            return Ok(());
        }
        let path = path.display();
        let text = format!("{path}: the file was deleted or replaced; restart on the new one");
        Err(Error::new(ErrorKind::WrongFile, text))
    }

    /// A number that changes when another connection has committed.
    pub fn data_version(&self) -> Result<i64> {
        let sql = "PRAGMA main.data_version";
        Ok(query_row(&self.conn, sql, [], |row| row.get(0))?)
    }

    /// Moves the WAL into the database and cuts it, unless a reader or writer would have to wait.
    pub fn checkpoint(&self) -> Result<()> {
        let at_most = std::time::Duration::from_millis(50);
        Ok(connection::give_up_waiting(at_most, || {
            self.conn.query_row("PRAGMA main.wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        })?)
    }

    /// Moves the product's own times where the wall clock was set since the file was last written.
    pub fn mind_clock(
        &mut self,
        now: i64,
        boot: Option<&Boot>,
        longest: Longest,
        is_watched: bool,
    ) -> Result<()> {
        rebase::mind_clock(&mut self.conn, now, boot, Some(longest), is_watched)
    }

    /// The newest intent, where it was made while the clock was ahead.
    pub fn newest_ahead(&self, now: i64) -> Result<Option<i64>> {
        rebase::newest_ahead(&self.conn, now)
    }

    /// Begins a transaction. It holds the write lock until it is committed or dropped.
    pub fn begin(&self, now: i64, clock: Arc<dyn Clock>) -> Result<RelayTx<'_>> {
        RelayTx::begin(&self.conn, &self.owner, now, clock)
    }
}

/// When a row that is due then may pass this gate. Where a closed gate has no end, only another
/// commit can open it, and commits wake the relay.
fn opened(gate: &Gate, due: Option<i64>) -> Option<i64> {
    match gate {
        Gate::Closed { until, .. } => due.zip(*until).map(|(due, until)| due.max(until)),
        _ => due,
    }
}
