//! Whether an operation may send now: its flow, its budgets, and the row whose turn it is.

use rusqlite::{Connection, OptionalExtension, Row};

use crate::core::flow::gates;
use crate::core::hold::{Admission, Hold};
use crate::core::{Fit, FlowControl, Gate, Gates, Shard, UsedUp};
use crate::error::Result;
use crate::store::statement::query_row;
use crate::store::tables::hold::{Place, holds_on};
use crate::store::tables::ledger::{Asking, Ledger};
use crate::store::tables::shard::{of_shard, shard_index, shard_rows};
use crate::store::tables::unrecorded::may_move;

/// The same question for a claim, for a relay that looks whether anything is due, and for a person
/// who asks why a row waits.
///
/// A row that has to wait for the operation's budget of costs keeps all behind it waiting, so that
/// small ones do not starve it. A row that could not go in any case, because its tenant, its origin
/// or the configured endpoint stands still, keeps none.
pub(crate) fn gates_of(
    conn: &Connection,
    flow: &FlowControl,
    ledger: &Ledger,
    network: Option<&Hold>,
    shard: Shard,
) -> Result<Gates> {
    let (operation, now) = (&ledger.operation, ledger.now);
    let in_flight = if flow.needs_count(now) { count_in_flight(conn, operation)? } else { 0 };
    let mut gates = gates(flow, in_flight, &ledger.left(conn)?, network, now);
    if !ledger.counts_cost() || gates.are_closed() {
        return Ok(gates);
    }
    let sql = if gates.configured.is_closed() { NEXT_COST_OWN } else { NEXT_COST };
    let is_open = matches!(gates.configured, Gate::Open(_));
    let Some(next) = next(conn, ledger, sql, shard)? else { return Ok(gates) };
    let mut waits = next.waits(conn, ledger)?;
    if let Some(used_up) = waits {
        gates.configured.wait_for(used_up);
    }
    // The configured endpoint stands still, or one row is to try it: the others do not wait for it.
    if !is_open && !next.is_own {
        let own = self::next(conn, ledger, NEXT_COST_OWN, shard)?;
        waits = own.map_or(Ok(None), |own| own.waits(conn, ledger))?;
    }
    if let Some(used_up) = waits {
        gates.elsewhere.wait_for(used_up);
    }
    Ok(gates)
}

/// The row that a claim would look at first.
struct Next {
    id: i64,
    is_own: bool,
    deduplicates: bool,
    /// Its tenant, its cost and its endpoint; nothing where the claim cannot read them.
    read: Option<(String, i64, Option<String>)>,
}

impl Next {
    /// The operation's budget that the row waits for in its turn. What the claim would move out of
    /// the way waits for none.
    fn waits(&self, conn: &Connection, ledger: &Ledger) -> Result<Option<UsedUp>> {
        let Some((tenant_id, cost, endpoint)) = &self.read else { return Ok(None) };
        let (id, cost, deduplicates) = (self.id, *cost, self.deduplicates);
        let Fit::Waits(used_up) = ledger.fit(conn, Asking { id, tenant_id, cost, deduplicates })?
        else {
            return Ok(None);
        };
        let place = Place { tenant_id, endpoint: endpoint.as_deref() };
        let holds = holds_on(conn, id, &ledger.operation, place)?;
        let is_free = |hold: &Hold| hold.admits(id, ledger.now) == Admission::Free;
        Ok(holds.iter().all(is_free).then_some(used_up))
    }
}

fn next(
    conn: &Connection,
    ledger: &Ledger,
    sql: &'static str,
    shard: Shard,
) -> Result<Option<Next>> {
    let values = (&ledger.operation, ledger.now, shard.count(), shard.index());
    let read = |row: &Row<'_>| {
        let tenant_and_cost = row.get(3).ok().zip(row.get(4).ok());
        let read = tenant_and_cost.zip(row.get(5).ok());
        Ok(Next {
            id: row.get(0)?,
            is_own: row.get(1)?,
            deduplicates: row.get::<_, Option<bool>>(2)?.unwrap_or_default(),
            read: read.map(|((tenant_id, cost), endpoint)| (tenant_id, cost, endpoint)),
        })
    };
    Ok(query_row(conn, &of_shard(sql, shard), values, read).optional()?)
}

/// A row that has expired, is cancelled or has no attempts left costs nothing: it is not sent.
macro_rules! next_cost {
    ($index:expr, $rows:expr) => {
        concat!(
            "SELECT l.id, l.own_endpoint,
                    (SELECT downstream = 'deduplicates' FROM main.outbox_operation
                     WHERE operation = ?1),
                    o.tenant_id,
                    CASE WHEN CASE WHEN o.created_at < 1000000000000 THEN o.expires_at + l.shift
                                   ELSE o.expires_at END <= ?2
                              OR l.cancel_requested_at IS NOT NULL
                              OR l.attempts >= (SELECT attempts_max FROM main.outbox_operation
                                                WHERE operation = ?1)
                         THEN 0 ELSE o.cost END,
                    o.endpoint
             FROM main.outbox_lease l INDEXED BY ",
            $index,
            " LEFT JOIN main.outbox o ON o.id = l.id
             WHERE l.operation = ?1 AND l.state = 'pending' AND l.due_at <= ?2
               AND l.id % ?3 = ?4",
            $rows,
            " AND ",
            may_move!(),
            " ORDER BY l.due_at, l.id LIMIT 1"
        )
    };
}

pub(crate) const NEXT_COST: &str = next_cost!(shard_index!(), shard_rows!());

/// The same, of rows that name an endpoint of their own.
pub(crate) const NEXT_COST_OWN: &str = next_cost!("outbox_lease_own", " AND l.own_endpoint");

fn count_in_flight(conn: &Connection, operation: &str) -> Result<usize> {
    let sql = "SELECT count(*) FROM main.outbox_lease INDEXED BY outbox_lease_due
               WHERE operation = ?1 AND state = 'in_flight' AND due_at IS NOT NULL";
    let count: i64 = query_row(conn, sql, [operation], |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}
