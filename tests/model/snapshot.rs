//! The state of the file, read by statements of the test's own.

use std::collections::BTreeMap;

use rusqlite::Connection;

use crate::core::status::Status;

/// The state of an intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RowNow {
    pub operation: String,
    pub tenant: String,
    pub ordering_key: Option<String>,
    /// The endpoint that the intent names.
    pub endpoint: Option<String>,
    /// The row's position in the order of its key, while it has one.
    pub place: Option<i64>,
    pub status: Status,
    pub receipt: Option<(String, Option<String>)>,
    pub lease: Option<LeaseNow>,
}

impl RowNow {
    pub fn due_at(&self) -> Option<i64> {
        self.lease.as_ref()?.due_at
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaseNow {
    pub due_at: Option<i64>,
    pub token: Option<i64>,
    pub owner: Option<String>,
    /// Attempts in a row that were lost with their process.
    pub lost: i64,
    /// The hold behind which the row waits aside.
    pub held_by: Option<i64>,
    /// The kind of that hold.
    pub held: Option<String>,
}

impl LeaseNow {
    /// Whether the row comes due by itself, now or later.
    pub fn can_act(&self) -> bool {
        self.due_at.is_some() || self.held_by.is_some()
    }
}

/// A line of the audit trail.
#[derive(Debug, Clone)]
pub(crate) struct EventNow {
    pub id: i64,
    pub seq: i64,
    pub kind: String,
    pub from: Status,
    pub to: Status,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    pub rows: BTreeMap<i64, RowNow>,
    /// By provider and its id: whose it is.
    pub bindings: BTreeMap<(String, String), i64>,
    /// The counts, by operation and word.
    pub settled: BTreeMap<(String, String), i64>,
    /// The counter of fencing tokens.
    pub token: i64,
    /// Places in leases or lines of no intent.
    pub strays: i64,
}

impl Snapshot {
    pub fn read(conn: &Connection) -> rusqlite::Result<Self> {
        let mut statement = conn.prepare_cached(
            "SELECT o.id, o.operation, o.tenant_id, o.ordering_key, k.position,
                    r.status, r.downstream_id, l.state, l.due_at, l.token, l.owner, l.lost,
                    l.held_by, h.domain, o.endpoint
             FROM outbox o
             LEFT JOIN outbox_keyed k ON k.id = o.id
             LEFT JOIN outbox_receipt r ON r.id = o.id
             LEFT JOIN outbox_lease l ON l.id = o.id
             LEFT JOIN outbox_hold h ON h.id = l.held_by",
        )?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, read_row(row)?)))?;
        let rows = rows.collect::<Result<_, _>>()?;
        let mut statement =
            conn.prepare_cached("SELECT provider, downstream_id, id FROM outbox_binding")?;
        let bindings = statement.query_map([], |r| Ok(((r.get(0)?, r.get(1)?), r.get(2)?)))?;
        let bindings = bindings.collect::<Result<_, _>>()?;
        let mut statement =
            conn.prepare_cached("SELECT operation, status, total FROM outbox_settled")?;
        let settled = statement.query_map([], |r| Ok(((r.get(0)?, r.get(1)?), r.get(2)?)))?;
        let settled = settled.collect::<Result<_, _>>()?;
        let mut statement = conn.prepare_cached(
            "SELECT token,
                    (SELECT count(*) FROM outbox_lease WHERE id NOT IN (SELECT id FROM outbox)
                        OR held_by IS NOT NULL AND held_by NOT IN (SELECT id FROM outbox_hold))
                    + (SELECT count(*) FROM outbox_keyed WHERE id NOT IN (SELECT id FROM outbox))
             FROM outbox_meta",
        )?;
        let (token, strays) = statement.query_row([], |r| Ok((r.get(0)?, r.get(1)?)))?;
        Ok(Self { rows, bindings, settled, token, strays })
    }

    pub fn status(&self, id: i64) -> Option<Status> {
        self.rows.get(&id).map(|row| row.status)
    }

    /// The lines of ordering keys, each in its order.
    pub fn lines(&self) -> Vec<Vec<i64>> {
        let mut lines: BTreeMap<_, Vec<(i64, i64)>> = BTreeMap::new();
        for (&id, row) in &self.rows {
            if let (Some(key), Some(place)) = (&row.ordering_key, row.place) {
                lines.entry((&row.tenant, key)).or_default().push((place, id));
            }
        }
        let in_order = |mut line: Vec<(i64, i64)>| {
            line.sort_unstable();
            line.into_iter().map(|(_, id)| id).collect()
        };
        lines.into_values().map(in_order).collect()
    }

    /// Whether it waits until a later one of its line that is on the way has come back.
    pub fn waits_for_later(&self, id: i64) -> bool {
        let lines = self.lines();
        let line = lines.iter().find(|line| line.contains(&id));
        let is_on_the_way = |id: &i64| self.status(*id) == Some(Status::InFlight);
        line.is_some_and(|line| line.iter().any(is_on_the_way))
    }

    /// Whether it is the first of its line, or stands in none.
    pub fn is_head(&self, id: i64) -> bool {
        self.lines().iter().all(|line| !line.contains(&id) || line.first() == Some(&id))
    }
}

fn read_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<RowNow> {
    let settled: Option<String> = row.get(5)?;
    let state: Option<String> = row.get(7)?;
    let word = settled.as_deref().or(state.as_deref()).unwrap_or("pending");
    Ok(RowNow {
        operation: row.get(1)?,
        tenant: row.get(2)?,
        ordering_key: row.get(3)?,
        endpoint: row.get(14)?,
        place: row.get(4)?,
        status: word.parse::<Status>().expect("a status"),
        receipt: match &settled {
            Some(status) => Some((status.clone(), row.get(6)?)),
            None => None,
        },
        lease: match state {
            Some(_) => Some(LeaseNow {
                due_at: row.get(8)?,
                token: row.get(9)?,
                owner: row.get(10)?,
                lost: row.get(11)?,
                held_by: row.get(12)?,
                held: row.get(13)?,
            }),
            None => None,
        },
    })
}

/// The lines of the audit trail behind a position, and the last position.
pub(crate) fn events(conn: &Connection, after: i64) -> rusqlite::Result<(Vec<EventNow>, i64)> {
    let mut statement = conn.prepare_cached(
        "SELECT outbox_id, seq, kind, from_status, status, position FROM outbox_event
         WHERE position > ?1 ORDER BY position",
    )?;
    let mut last = after;
    let rows = statement.query_map([after], |row| {
        last = row.get(5)?;
        let status = |word: String| word.parse::<Status>().expect("a status");
        Ok(EventNow {
            id: row.get(0)?,
            seq: row.get(1)?,
            kind: row.get(2)?,
            from: status(row.get(3)?),
            to: status(row.get(4)?),
        })
    })?;
    let found = rows.collect::<Result<_, _>>()?;
    Ok((found, last))
}
