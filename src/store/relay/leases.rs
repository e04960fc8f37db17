//! Leases after the claim: renewed, released, recovered.

use rusqlite::named_params;

use crate::core::{Facts, OnDead, Status, decide};
use crate::error::Result;
use crate::event::EventKind;
use crate::handler::{Delivery, Held};
use crate::store::columns;
use crate::store::relay::claim::row_of;
use crate::store::relay::tx::{RelayTx, Rules};
use crate::store::statement::execute;
use crate::store::tables::candidate::{FACTS, facts_columns, read_facts};
use crate::store::tables::lost_lease;
use crate::store::transitions::Row;

/// The most expired leases of one operation that one transaction recovers.
const RECOVER_MAX: i64 = 100;

impl RelayTx<'_> {
    /// Extends a lease that is still held. Returns whether it was.
    pub fn renew(&self, delivery: &Delivery, lease_ms: i64) -> Result<bool> {
        let expires_at = self.now.saturating_add(lease_ms);
        let sql = "UPDATE main.outbox_lease SET due_at = ?3
                   WHERE id = ?1 AND token = ?2 AND owner IS NOT NULL";
        Ok(execute(self.conn, sql, (delivery.id, delivery.token, expires_at))? == 1)
    }

    /// Releases a row that no worker has started; the attempt or the lookup is not counted.
    pub fn release(&mut self, held: &Held) -> Result<bool> {
        let delivery = match held {
            Held::Send(delivery) => delivery,
            Held::LookUp(delivery, _) => return self.end_lookup(delivery, 1),
        };
        self.forget_probe(&delivery.operation, delivery.id, delivery.token)?;
        let row = Row::claimed(delivery, OnDead::Block);
        let facts = self.with_request(delivery.facts, row)?;
        let decision = decide::decide_not_started(&facts, self.now);
        if self.moves.apply(row, None, &decision, None)?
            || self.settle_with_late_proof(row, &decision)?
        {
            self.refund(delivery)?;
            return Ok(true);
        }
        lost_lease::heard_of(self.conn, delivery.id, delivery.token)?;
        Ok(false)
    }

    /// Recovers rows of one operation whose leases ran out. Their relays may have sent them.
    pub fn recover(&mut self, rules: &Rules) -> Result<usize> {
        let expired = self.expired(&rules.operation)?;
        for lost in &expired {
            let row = row_of(lost.id, lost.token, Status::InFlight, rules);
            let row = Row { is_keyed: lost.is_keyed, ..row };
            self.lose(row, &lost.facts, &lost.owner, rules)?;
        }
        Ok(expired.len())
    }

    /// Gives up the row of a handler that may never return.
    pub fn abandon(&mut self, held: &Held, rules: &Rules) -> Result<()> {
        let delivery = match held {
            Held::Send(delivery) => delivery,
            Held::LookUp(delivery, _) => return self.end_lookup(delivery, 0).map(drop),
        };
        let row = Row::claimed(delivery, rules.on_dead);
        let facts = self.with_request(delivery.facts, row)?;
        self.lose(row, &facts, self.owner, rules)
    }

    fn lose(&mut self, row: Row<'_>, facts: &Facts, owner: &str, rules: &Rules) -> Result<()> {
        let token = row.token.unwrap_or_default();
        self.forget_probe(&rules.operation, row.id, token)?;
        let decision = decide::decide_lost(facts, &self.policy(rules)?, self.now);
        if self.moves.apply(row, Some(EventKind::LeaseLost), &decision, None)? {
            return lost_lease::note(self.conn, row.id, token, owner);
        }
        self.settle_with_late_proof(row, &decision).map(drop)
    }

    fn expired(&self, operation: &str) -> Result<Vec<ExpiredLease>> {
        let mut statement = self.conn.prepare_cached(EXPIRED)?;
        let rows = statement.query_map(
            named_params! { ":operation": operation, ":now": self.now, ":limit": RECOVER_MAX },
            |row| {
                Ok(ExpiredLease {
                    id: row.get(0)?,
                    token: row.get(1)?,
                    facts: read_facts(row)?,
                    owner: columns::lossy(row, FACTS)?,
                    is_keyed: row.get(FACTS + 1)?,
                })
            },
        )?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

pub(crate) const EXPIRED: &str = concat!(
    "SELECT ",
    facts_columns!(),
    ", l.owner, o.ordering_key IS NOT NULL
    FROM main.outbox_lease l INDEXED BY outbox_lease_due
    LEFT JOIN main.outbox o ON o.id = l.id
    WHERE l.operation = :operation AND l.state = 'in_flight' AND l.due_at <= :now
    ORDER BY l.due_at, l.id LIMIT :limit"
);

struct ExpiredLease {
    id: i64,
    token: Option<i64>,
    owner: String,
    facts: Facts,
    is_keyed: bool,
}
