//! Whether anything of an operation is due, and when the next row will be.

use rusqlite::{Connection, ToSql};

use crate::core::{Gate, Gates, Shard};
use crate::error::Result;
use crate::store::tables::hold;
use crate::store::tables::shard::{of_shard, shard_index, shard_rows};
use crate::store::tables::unrecorded::may_move;

/// Whether a row of this shard is due that these gates let through, or any relay's lease ran out.
pub(crate) fn has_due(
    conn: &Connection,
    operation: &str,
    gates: &Gates,
    shard: Shard,
    now: i64,
) -> Result<bool> {
    let values: [&dyn ToSql; 4] = [&operation, &now, &shard.count(), &shard.index()];
    let (sql, values) = match (&gates.configured, &gates.elsewhere) {
        _ if gates.are_closed() => (HAS_EXPIRED, &values[..2]),
        (Gate::Closed { .. }, _) => (HAS_DUE_OWN, &values[..]),
        (_, Gate::Closed { .. }) => (HAS_DUE_CONFIGURED, &values[..]),
        _ => (HAS_DUE, &values[..]),
    };
    Ok(conn.prepare_cached(&of_shard(sql, shard))?.query_row(values, |row| row.get(0))?
        || (!gates.are_closed() && hold::has_due(conn, operation, shard, now)?))
}

/// Whether a lookup may ask the downstream now.
pub(crate) fn may_look_up(gate: &Gate) -> bool {
    gate.stopped().is_none()
}

/// Whether a row in this state is due, with the index that finds it.
macro_rules! is_due {
    ($state:literal, $index:expr, $rows:expr) => {
        concat!(
            "EXISTS (SELECT 1 FROM main.outbox_lease l INDEXED BY ",
            $index,
            " WHERE l.operation = ?1 AND l.state = '",
            $state,
            "' AND l.due_at <= ?2 AND ",
            may_move!(),
            $rows,
            ")"
        )
    };
}

/// When the first row in this state is due.
macro_rules! first_due {
    ($state:literal, $index:expr, $rows:expr) => {
        concat!(
            "(SELECT l.due_at FROM main.outbox_lease l INDEXED BY ",
            $index,
            " WHERE l.operation = ?1 AND l.state = '",
            $state,
            "' AND l.due_at IS NOT NULL AND ",
            may_move!(),
            $rows,
            " ORDER BY l.due_at, l.id LIMIT 1)"
        )
    };
}

macro_rules! is_expired {
    () => {
        is_due!("in_flight", "outbox_lease_due", "")
    };
}

/// Whether a lookup of this shard is due.
pub(crate) const HAS_LOOKUP: &str = concat!(
    "SELECT ",
    is_due!("unknown", shard_index!(), concat!(" AND l.id % ?3 = ?4", shard_rows!()))
);

/// When the next lookup of this shard is due.
pub(crate) const NEXT_LOOKUP: &str = concat!(
    "SELECT ",
    first_due!("unknown", shard_index!(), concat!(" AND l.id % ?2 = ?3", shard_rows!()))
);

pub(crate) const HAS_DUE: &str = concat!(
    "SELECT ",
    is_due!("pending", shard_index!(), concat!(" AND l.id % ?3 = ?4", shard_rows!())),
    " OR ",
    is_expired!()
);

/// The same, of rows that name an endpoint of their own.
pub(crate) const HAS_DUE_OWN: &str = concat!(
    "SELECT ",
    is_due!("pending", "outbox_lease_own", " AND l.own_endpoint AND l.id % ?3 = ?4"),
    " OR ",
    is_expired!()
);

/// The same, of rows that name none.
pub(crate) const HAS_DUE_CONFIGURED: &str = concat!(
    "SELECT ",
    is_due!(
        "pending",
        shard_index!(),
        concat!(" AND NOT l.own_endpoint AND l.id % ?3 = ?4", shard_rows!())
    ),
    " OR ",
    is_expired!()
);

pub(crate) const HAS_EXPIRED: &str = concat!("SELECT ", is_expired!());

/// The first due time of a pending row, and the first expiry of a lease.
pub(crate) const NEXT_DUE: &str = concat!(
    "SELECT ",
    first_due!("pending", shard_index!(), concat!(" AND l.id % ?2 = ?3", shard_rows!())),
    ", ",
    first_due!("in_flight", "outbox_lease_due", "")
);

/// The first due time of a pending row that names an endpoint of its own.
pub(crate) const NEXT_DUE_OWN: &str = concat!(
    "SELECT ",
    first_due!("pending", "outbox_lease_own", " AND l.own_endpoint AND l.id % ?2 = ?3")
);

macro_rules! first_in {
    ($state:literal) => {
        concat!(
            "(SELECT min(due_at) FROM main.outbox_lease l INDEXED BY outbox_lease_due
              WHERE operation = f.operation AND state = '",
            $state,
            "' AND due_at IS NOT NULL
              AND ",
            may_move!(),
            ")"
        )
    };
}

/// The operations that have due times, found by skipping through the index.
macro_rules! operations_with_due {
    () => {
        "RECURSIVE found(operation) AS (
            SELECT (SELECT min(operation) FROM main.outbox_lease WHERE due_at IS NOT NULL)
            UNION ALL
            SELECT (SELECT min(l.operation) FROM main.outbox_lease l
                    WHERE l.operation > found.operation AND l.due_at IS NOT NULL)
            FROM found WHERE found.operation IS NOT NULL)"
    };
}

pub(crate) use operations_with_due;

/// The first due time of each operation by state, and when the
/// first of its holds is to be tried.
pub(crate) const FIRST_DUE: &str = concat!(
    "WITH ",
    operations_with_due!(),
    " SELECT f.operation, ",
    first_in!("pending"),
    ", ",
    first_in!("in_flight"),
    ", ",
    first_in!("unknown"),
    " FROM found f WHERE f.operation IS NOT NULL
    UNION ALL
    SELECT operation, min(until), NULL, NULL FROM main.outbox_hold INDEXED BY outbox_hold_until
    WHERE until IS NOT NULL AND operation <> '' GROUP BY operation"
);
