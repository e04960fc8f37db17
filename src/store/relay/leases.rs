//! Leases after the claim: renewed, released, recovered.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, ToSql, named_params};

use crate::core::decide::Lost;
use crate::core::{Backoff, Decision, Facts, OnDead, Policy, Status, decide};
use crate::error::{Error, Result};
use crate::event::EventKind;
use crate::handler::{Delivery, Held};
use crate::store::columns;
use crate::store::relay::claim::row_of;
use crate::store::relay::tx::{RelayTx, Rules};
use crate::store::statement::{execute, query_row};
use crate::store::tables::candidate::{FACTS, facts_columns, read_facts};
use crate::store::tables::unrecorded::may_move;
use crate::store::tables::{contract, lost_lease};
use crate::store::transitions::Row;

/// The most leases that one statement recovers.
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
            if facts.is_suspect() {
                self.end_suspect(row.operation)?;
            }
            self.refund(delivery)?;
            return Ok(true);
        }
        lost_lease::heard_of(self.conn, delivery.id, delivery.token)?;
        Ok(false)
    }

    /// Recovers rows of one operation whose leases ran out. Their relays may have sent them.
    pub fn recover(&mut self, rules: &Rules) -> Result<()> {
        let values = named_params! {
            ":operation": rules.operation, ":now": self.now, ":limit": RECOVER_MAX,
        };
        for lease in self.ended(EXPIRED, values)? {
            if !self.touch(lease.id) {
                break;
            }
            self.recover_one(&lease, Lost::Expired, rules)?;
        }
        self.at = None;
        Ok(())
    }

    /// Recovers rows of all operations, also of those that no relay names: where the lease ran out,
    /// or its owner is one of `dead`. An operation without `rules` is treated as the stored
    /// contract says, or as unprotected where there is none.
    pub fn recover_all<'r>(
        &mut self,
        dead: &[String],
        rules: impl Fn(&str) -> Option<&'r Rules>,
    ) -> Result<()> {
        let names = json(dead);
        let values = named_params! { ":dead": names, ":now": self.now, ":limit": RECOVER_MAX };
        for lease in self.ended(ENDED, values)? {
            if !self.touch(lease.id) {
                break;
            }
            if lease.state != Status::InFlight {
                self.free_lookup(lease.id, lease.token, 0)?;
                continue;
            }
            let how = if dead.contains(&lease.owner) { Lost::Died } else { Lost::Expired };
            if let Some(rules) = rules(&lease.operation) {
                self.recover_one(&lease, how, rules)?;
            } else {
                let rules = self.stored_rules(&lease.operation)?;
                self.recover_one(&lease, how, &rules)?;
            }
        }
        self.at = None;
        Ok(())
    }

    /// The rules of an operation that this relay does not name. Its own relay holds the row to its
    /// number of attempts when it claims it.
    pub(super) fn stored_rules(&mut self, operation: &str) -> Result<Rules> {
        let promise = contract::promise(self.moves.contract(operation)?.as_deref());
        let lookup_delay = Duration::from_secs(120).max(promise.time_limit.saturating_mul(2));
        Ok(Rules {
            operation: operation.to_owned(),
            policy: Policy {
                promise,
                backoff: Backoff::default(),
                attempts_max: u32::MAX,
                give_up_after: Duration::MAX,
                retry_after_max: Duration::MAX,
                lookup_delay,
                lookups_max: u32::MAX,
                repeat_rules: Arc::default(),
            },
            on_dead: OnDead::Continue,
            breaker_after: None,
            network: None,
        })
    }

    /// Gives up the row of a handler that may never return.
    pub fn abandon(&mut self, held: &Held, rules: &Rules) -> Result<()> {
        let policy = self.policy(rules)?;
        self.give_up(held, rules, EventKind::LeaseLost, |facts, now| {
            decide::decide_lost(facts, Lost::Expired, &policy, now)
        })
    }

    /// Gives up the row of a handler that has not returned when this relay must stop.
    pub fn stop_waiting(&mut self, held: &Held, rules: &Rules) -> Result<()> {
        let policy = self.policy(rules)?;
        self.give_up(held, rules, EventKind::Stopped, |facts, now| {
            decide::decide_stopped(facts, &policy, now)
        })
    }

    fn give_up(
        &mut self,
        held: &Held,
        rules: &Rules,
        kind: EventKind,
        decide: impl FnOnce(&Facts, i64) -> Decision,
    ) -> Result<()> {
        let delivery = match held {
            Held::Send(delivery) => delivery,
            Held::LookUp(delivery, _) => return self.end_lookup(delivery, 0).map(drop),
        };
        let row = Row::claimed(delivery, rules.on_dead);
        let facts = delivery.facts.aged(self.now, self.boot);
        let decision = decide(&self.with_request(facts, row)?, self.now);
        self.part_with(row, kind, &decision, self.owner).map(drop)
    }

    fn recover_one(&mut self, lease: &EndedLease, how: Lost, rules: &Rules) -> Result<()> {
        let row = row_of(lease.id, lease.token, Status::InFlight, rules);
        let row = Row { is_keyed: lease.is_keyed, ..row };
        let facts = lease.facts.aged(self.now, self.boot);
        let decision = decide::decide_lost(&facts, how, &self.policy(rules)?, self.now);
        let has_moved = self.part_with(row, EventKind::LeaseLost, &decision, &lease.owner)?;
        if has_moved { Ok(()) } else { Err(Error::kept_by_trigger()) }
    }

    /// Ends a claim whose request may still be on its way: until `owner` reports or dies.
    fn part_with(
        &mut self,
        row: Row<'_>,
        kind: EventKind,
        decision: &Decision,
        owner: &str,
    ) -> Result<bool> {
        let token = row.token.unwrap_or_default();
        self.forget_probe(row.operation, row.id, token)?;
        let mut has_moved = self.moves.apply(row, Some(kind), decision, None)?;
        if has_moved {
            lost_lease::note(self.conn, row.id, token, owner)?;
        } else {
            has_moved = self.settle_with_late_proof(row, decision)?;
        }
        if decision.facts.is_suspect() {
            self.end_suspect(row.operation)?;
        }
        Ok(has_moved)
    }

    fn ended(&self, sql: &str, values: &[(&str, &dyn ToSql)]) -> Result<Vec<EndedLease>> {
        let mut statement = self.conn.prepare_cached(sql)?;
        let rows = statement.query_map(values, |row| {
            Ok(EndedLease {
                id: row.get(0)?,
                token: row.get(1)?,
                facts: read_facts(row)?,
                owner: columns::lossy(row, FACTS)?,
                is_keyed: row.get(FACTS + 1)?,
                operation: columns::lossy(row, FACTS + 2)?,
                // The statements ask for two states alone.
                state: columns::lossy(row, FACTS + 3)?.parse().unwrap_or(Status::Unknown),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

/// Whether [`RelayTx::recover_all`] has anything to do, without taking the write lock.
pub(crate) fn has_ended(conn: &Connection, dead: &[String], now: i64) -> Result<bool> {
    let values = named_params! { ":dead": json(dead), ":now": now };
    Ok(query_row(conn, HAS_ENDED, values, |row| row.get(0))?)
}

fn json(names: &[String]) -> String {
    serde_json::Value::from(names).to_string()
}

macro_rules! ended_leases {
    () => {
        concat!(
            "SELECT ",
            facts_columns!(),
            ", l.owner, o.ordering_key IS NOT NULL, l.operation, l.state "
        )
    };
}

pub(crate) const EXPIRED: &str = concat!(
    ended_leases!(),
    "FROM main.outbox_lease l INDEXED BY outbox_lease_due
    LEFT JOIN main.outbox o ON o.id = l.id
    WHERE l.operation = :operation AND l.state = 'in_flight' AND l.due_at <= :now
      AND ",
    may_move!(),
    " ORDER BY l.due_at, l.id LIMIT :limit"
);

/// Leases of all operations, found by skipping through the index: what is in flight is little.
/// Lookups are read only where a relay has died; one whose lease ran out is claimed as it is.
macro_rules! from_ended {
    () => {
        concat!(" FROM (WITH RECURSIVE found(operation) AS (
                   SELECT (SELECT min(operation) FROM main.outbox_lease WHERE due_at IS NOT NULL)
                   UNION ALL
                   SELECT (SELECT min(n.operation) FROM main.outbox_lease n
                           WHERE n.operation > found.operation AND n.due_at IS NOT NULL)
                   FROM found WHERE found.operation IS NOT NULL)
               SELECT operation, 'in_flight' AS state FROM found
               UNION ALL SELECT operation, 'unknown' FROM found WHERE :dead <> '[]') f
          CROSS JOIN main.outbox_lease l INDEXED BY outbox_lease_due
                  ON l.operation = f.operation AND l.state = f.state
          WHERE l.due_at IS NOT NULL
            AND (l.state = 'in_flight' AND l.due_at <= :now
                 OR l.owner IN (SELECT value FROM json_each(:dead)))
            AND ", may_move!())
    };
}

pub(crate) const ENDED: &str = concat!(
    "WITH e AS (SELECT l.*",
    from_ended!(),
    " LIMIT :limit) ",
    ended_leases!(),
    "FROM e l LEFT JOIN main.outbox o ON o.id = l.id"
);

pub(crate) const HAS_ENDED: &str = concat!("SELECT EXISTS (SELECT 1", from_ended!(), ")");

struct EndedLease {
    id: i64,
    token: Option<i64>,
    operation: String,
    state: Status,
    owner: String,
    facts: Facts,
    is_keyed: bool,
}
