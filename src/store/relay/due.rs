//! Whether anything of an operation is due, and when the next row will be.

use rusqlite::{Connection, ToSql};

use crate::core::{Gate, Gates, Shard};
use crate::error::Result;
use crate::store::tables::hold;

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
    Ok(conn.prepare_cached(sql)?.query_row(values, |row| row.get(0))?
        || (!gates.are_closed() && hold::has_due(conn, operation, shard, now)?))
}

/// Whether a lookup may ask the downstream now.
pub(crate) fn may_look_up(gate: &Gate) -> bool {
    gate.stopped().is_none()
}

/// Whether a lookup of this shard is due.
pub(crate) const HAS_LOOKUP: &str = "
    SELECT EXISTS (SELECT 1 FROM main.outbox_lease INDEXED BY outbox_lease_due
                   WHERE operation = ?1 AND state = 'unknown' AND due_at <= ?2
              AND NOT EXISTS (SELECT 1 FROM main.outbox_unrecorded u
                              WHERE u.id = outbox_lease.id AND u.retry_at IS NOT NULL)
              AND id % ?3 = ?4)";

/// When the next lookup of this shard is due.
pub(crate) const NEXT_LOOKUP: &str = "
    SELECT (SELECT due_at FROM main.outbox_lease INDEXED BY outbox_lease_due
            WHERE operation = ?1 AND state = 'unknown' AND due_at IS NOT NULL
              AND NOT EXISTS (SELECT 1 FROM main.outbox_unrecorded u
                              WHERE u.id = outbox_lease.id AND u.retry_at IS NOT NULL)
              AND id % ?2 = ?3
            ORDER BY due_at, id LIMIT 1)";

pub(crate) const HAS_DUE: &str = "
    SELECT EXISTS (SELECT 1 FROM main.outbox_lease INDEXED BY outbox_lease_due
                   WHERE operation = ?1 AND state = 'pending' AND due_at <= ?2
              AND NOT EXISTS (SELECT 1 FROM main.outbox_unrecorded u
                              WHERE u.id = outbox_lease.id AND u.retry_at IS NOT NULL)
              AND id % ?3 = ?4)
        OR EXISTS (SELECT 1 FROM main.outbox_lease INDEXED BY outbox_lease_due
                   WHERE operation = ?1 AND state = 'in_flight' AND due_at <= ?2
              AND NOT EXISTS (SELECT 1 FROM main.outbox_unrecorded u
                              WHERE u.id = outbox_lease.id AND u.retry_at IS NOT NULL))";

/// The same, of rows that name an endpoint of their own.
pub(crate) const HAS_DUE_OWN: &str = "
    SELECT EXISTS (SELECT 1 FROM main.outbox_lease INDEXED BY outbox_lease_own
                   WHERE operation = ?1 AND state = 'pending' AND due_at <= ?2
              AND NOT EXISTS (SELECT 1 FROM main.outbox_unrecorded u
                              WHERE u.id = outbox_lease.id AND u.retry_at IS NOT NULL)
              AND own_endpoint
                     AND id % ?3 = ?4)
        OR EXISTS (SELECT 1 FROM main.outbox_lease INDEXED BY outbox_lease_due
                   WHERE operation = ?1 AND state = 'in_flight' AND due_at <= ?2
              AND NOT EXISTS (SELECT 1 FROM main.outbox_unrecorded u
                              WHERE u.id = outbox_lease.id AND u.retry_at IS NOT NULL))";

/// The same, of rows that name none.
pub(crate) const HAS_DUE_CONFIGURED: &str = "
    SELECT EXISTS (SELECT 1 FROM main.outbox_lease INDEXED BY outbox_lease_due
                   WHERE operation = ?1 AND state = 'pending' AND due_at <= ?2
              AND NOT EXISTS (SELECT 1 FROM main.outbox_unrecorded u
                              WHERE u.id = outbox_lease.id AND u.retry_at IS NOT NULL)
                     AND NOT own_endpoint AND id % ?3 = ?4)
        OR EXISTS (SELECT 1 FROM main.outbox_lease INDEXED BY outbox_lease_due
                   WHERE operation = ?1 AND state = 'in_flight' AND due_at <= ?2
              AND NOT EXISTS (SELECT 1 FROM main.outbox_unrecorded u
                              WHERE u.id = outbox_lease.id AND u.retry_at IS NOT NULL))";

pub(crate) const HAS_EXPIRED: &str = "
    SELECT EXISTS (SELECT 1 FROM main.outbox_lease INDEXED BY outbox_lease_due
                   WHERE operation = ?1 AND state = 'in_flight' AND due_at <= ?2
              AND NOT EXISTS (SELECT 1 FROM main.outbox_unrecorded u
                              WHERE u.id = outbox_lease.id AND u.retry_at IS NOT NULL))";

/// The first due time of a pending row, and the first expiry of a lease.
pub(crate) const NEXT_DUE: &str = "
    SELECT (SELECT due_at FROM main.outbox_lease INDEXED BY outbox_lease_due
            WHERE operation = ?1 AND state = 'pending' AND due_at IS NOT NULL
              AND NOT EXISTS (SELECT 1 FROM main.outbox_unrecorded u
                              WHERE u.id = outbox_lease.id AND u.retry_at IS NOT NULL)
              AND id % ?2 = ?3
            ORDER BY due_at, id LIMIT 1),
           (SELECT min(due_at) FROM main.outbox_lease INDEXED BY outbox_lease_due
            WHERE operation = ?1 AND state = 'in_flight' AND due_at IS NOT NULL
              AND NOT EXISTS (SELECT 1 FROM main.outbox_unrecorded u
                              WHERE u.id = outbox_lease.id AND u.retry_at IS NOT NULL))";

macro_rules! first_in {
    ($state:literal) => {
        concat!(
            "(SELECT min(due_at) FROM main.outbox_lease INDEXED BY outbox_lease_due
              WHERE operation = f.operation AND state = '",
            $state,
            "' AND due_at IS NOT NULL
              AND NOT EXISTS (SELECT 1 FROM main.outbox_unrecorded u
                              WHERE u.id = outbox_lease.id AND u.retry_at IS NOT NULL))"
        )
    };
}

/// The first due time of each operation by state, found by skipping through the index, and when the
/// first of its holds is to be tried.
pub(crate) const FIRST_DUE: &str = concat!(
    "WITH RECURSIVE found(operation) AS (
        SELECT (SELECT min(operation) FROM main.outbox_lease WHERE due_at IS NOT NULL)
        UNION ALL
        SELECT (SELECT min(l.operation) FROM main.outbox_lease l
                WHERE l.operation > found.operation AND l.due_at IS NOT NULL)
        FROM found WHERE found.operation IS NOT NULL)
    SELECT f.operation, ",
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
/// The first due time of a pending row that names an endpoint of its own.
pub(crate) const NEXT_DUE_OWN: &str = "
    SELECT (SELECT due_at FROM main.outbox_lease INDEXED BY outbox_lease_own
            WHERE operation = ?1 AND state = 'pending' AND due_at IS NOT NULL
              AND NOT EXISTS (SELECT 1 FROM main.outbox_unrecorded u
                              WHERE u.id = outbox_lease.id AND u.retry_at IS NOT NULL)
              AND own_endpoint
              AND id % ?2 = ?3
            ORDER BY due_at, id LIMIT 1)";
