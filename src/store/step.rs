//! One write transaction of a relay: outcomes recorded, leases renewed and recovered, rows
//! claimed, all or nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Transaction, named_params};

use super::budget::Purse;
use super::contract::{self, Contract};
use super::schema;
use crate::clock::Clock;
use crate::core::contract::OnDead;
use crate::core::decide::{Decision, Policy};
use crate::core::flow::Flow;
use crate::core::outcome::Receipt;
use crate::core::status::Status;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, EventKind};
use crate::handler::Delivery;

/// What a relay knows about one operation: its name and its own rules, before the stored
/// contract is taken into account.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub operation: String,
    pub policy: Policy,
    pub on_dead: OnDead,
    /// Failures in a row that open the breaker; `None` switches it off.
    pub breaker_after: Option<u32>,
}

pub(super) const HEAD: &str = "
    SELECT id FROM main.outbox_keyed WHERE tenant_id = ?1 AND ordering_key = ?2
    ORDER BY position, id LIMIT 1";

/// An open step.
pub(crate) struct Step<'a> {
    pub(super) tx: Transaction<'a>,
    pub(super) owner: &'a str,
    pub(super) now: i64,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) token: Option<i64>,
    contracts: BTreeMap<String, Option<Contract>>,
    /// The flows read so far: as they were, and as they are now.
    pub(super) flows: BTreeMap<String, (Flow, Flow)>,
    /// The budgets read so far and what is spent of them.
    pub(super) purses: BTreeMap<String, Purse>,
    /// Operations found to be paused or throttled.
    pub(super) stopped: BTreeSet<String>,
    settled: BTreeMap<(String, Status), i64>,
    pub(super) events: Vec<Event>,
}

/// What a committed step did.
#[derive(Debug, Default)]
pub(crate) struct Stepped {
    pub events: Vec<Event>,
    /// Operations that were found to be paused or throttled.
    pub stopped: BTreeSet<String>,
}

/// The row a decision is about, and the claim it must still be under.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub id: i64,
    pub operation: &'a str,
    pub tenant_id: &'a str,
    pub ordering_key: Option<&'a str>,
    pub state: Status,
    pub token: Option<i64>,
}

impl<'a> Row<'a> {
    /// The row of a delivery, under its claim.
    pub fn claimed(delivery: &'a Delivery) -> Self {
        Self {
            id: delivery.id,
            operation: &delivery.operation,
            tenant_id: &delivery.tenant_id,
            ordering_key: delivery.ordering_key.as_deref(),
            state: Status::InFlight,
            token: Some(delivery.token),
        }
    }
}

impl<'a> Step<'a> {
    pub(super) fn begun(
        tx: Transaction<'a>,
        owner: &'a str,
        now: i64,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            tx,
            owner,
            now,
            clock,
            token: None,
            contracts: BTreeMap::new(),
            flows: BTreeMap::new(),
            purses: BTreeMap::new(),
            stopped: BTreeSet::new(),
            settled: BTreeMap::new(),
            events: Vec::new(),
        }
    }
}

impl Step<'_> {
    /// Makes everything durable and hands out the events, which nobody may see before.
    pub fn commit(mut self) -> Result<Stepped> {
        self.count_settled()?;
        self.save_flows()?;
        let Step { tx, events, stopped, .. } = self;
        tx.commit()?;
        Ok(Stepped { events, stopped })
    }

    /// Refuses to go on in a file whose schema another build has moved on.
    pub fn check_schema(&self) -> Result<()> {
        let mut statement =
            self.tx.prepare_cached("SELECT schema_version FROM main.outbox_meta WHERE id = 1")?;
        let version: Option<i64> = statement.query_row([], |row| row.get(0)).optional()?;
        if version == Some(schema::VERSION) { Ok(()) } else { Err(migrated()) }
    }

    /// The token of this step's claims. Drawn once, from a counter that never goes back, and
    /// only while the schema is the one this build knows.
    pub(super) fn token(&mut self) -> Result<i64> {
        if let Some(token) = self.token {
            return Ok(token);
        }
        let mut statement = self.tx.prepare_cached(
            "UPDATE main.outbox_meta SET token = token + 1
             WHERE id = 1 AND schema_version = ?1 RETURNING token",
        )?;
        let token = statement.query_row([schema::VERSION], |row| row.get(0)).map_err(|error| {
            if error != rusqlite::Error::QueryReturnedNoRows {
                return Error::from(error);
            }
            migrated()
        })?;
        drop(statement);
        self.token = Some(token);
        Ok(token)
    }

    /// The operation's rules as they hold: the relay's own, or the stored contract if stricter.
    pub(super) fn policy(&mut self, rules: &Rules) -> Result<Policy> {
        if !self.contracts.contains_key(&rules.operation) {
            let stored = contract::of(&self.tx, &rules.operation)?;
            self.contracts.insert(rules.operation.clone(), stored);
        }
        let mut policy = rules.policy.clone();
        if let Some(Some(stored)) = self.contracts.get(&rules.operation) {
            policy.downstream = policy.downstream.stricter(stored.downstream);
            policy.attempts_max = stored.attempts_max.unwrap_or(policy.attempts_max);
            policy.give_up_after = stored.give_up_after.unwrap_or(policy.give_up_after);
        }
        Ok(policy)
    }

    /// Stores a decision, if the row is still under the claim it was made for. Returns whether.
    /// Without a kind it leaves no event: a probe that failed has told nothing about its row.
    pub(super) fn apply(
        &mut self,
        row: Row<'_>,
        kind: Option<EventKind>,
        decision: &Decision,
        on_dead: OnDead,
    ) -> Result<bool> {
        let mut statement = self.tx.prepare_cached(
            "UPDATE main.outbox_lease
             SET state = :status, due_at = :due_at, attempts = :attempts, tries = :tries,
                 lost = :lost, in_doubt_since = :in_doubt_since, first_sent_at = :first_sent_at,
                 error_class = :error_class, last_error = :last_error, token = NULL, owner = NULL
             WHERE id = :id AND state = :state AND token IS :token AND late_receipt IS NULL",
        )?;
        let due_at = match decision.status {
            // Due for a look-up at once.
            Status::Unknown => Some(self.now),
            _ => decision.due_at,
        };
        let changed = statement.execute(named_params! {
            ":status": decision.status.as_str(),
            ":due_at": due_at,
            ":attempts": decision.facts.attempts,
            ":tries": decision.facts.tries,
            ":lost": decision.facts.lost,
            ":in_doubt_since": decision.facts.in_doubt_since,
            ":first_sent_at": decision.facts.first_sent_at,
            ":error_class": decision.class,
            ":last_error": decision.message,
            ":id": row.id,
            ":state": row.state.as_str(),
            ":token": row.token,
        })?;
        drop(statement);
        if changed == 0 {
            return Ok(false);
        }
        if let Some(ordering_key) = row.ordering_key {
            match decision.status {
                Status::Dead if on_dead == OnDead::Continue => self.leave_line(row.id)?,
                _ => self.yield_to_earlier(row.id, row.tenant_id, ordering_key)?,
            }
        }
        if let Some(kind) = kind {
            self.event(row, kind, decision.status, decision, None)?;
        }
        Ok(true)
    }

    /// Settles a row, if it is still under that claim. Returns whether.
    pub(super) fn settle(
        &mut self,
        row: Row<'_>,
        kind: EventKind,
        decision: &Decision,
        receipt: Option<&Receipt>,
    ) -> Result<bool> {
        let mut statement = self.tx.prepare_cached(
            "DELETE FROM main.outbox_lease WHERE id = ?1 AND state = ?2 AND token IS ?3",
        )?;
        let changed = statement.execute((row.id, row.state.as_str(), row.token))?;
        drop(statement);
        if changed == 0 {
            return Ok(false);
        }
        self.insert_receipt(row.id, decision, receipt)?;
        if row.ordering_key.is_some() {
            self.leave_line(row.id)?;
        }
        self.event(row, kind, decision.status, decision, receipt)?;
        let operation = row.operation.to_owned();
        *self.settled.entry((operation, decision.status)).or_default() += 1;
        Ok(true)
    }

    fn insert_receipt(
        &self,
        id: i64,
        decision: &Decision,
        receipt: Option<&Receipt>,
    ) -> Result<()> {
        let mut statement = self.tx.prepare_cached(
            "INSERT INTO main.outbox_receipt (id, status, finished_at, attempts, downstream_id, receipt)
             VALUES (:id, :status, :finished_at, :attempts, :downstream_id, :receipt)",
        )?;
        statement.execute(named_params! {
            ":id": id,
            ":status": decision.status.as_str(),
            ":finished_at": self.now,
            ":attempts": decision.facts.attempts,
            ":downstream_id": receipt.and_then(|r| r.downstream_id.as_deref()),
            ":receipt": receipt.map(Receipt::to_json),
        })?;
        Ok(())
    }

    /// Takes a row out of its key's line; the schema lets the next one act.
    pub(super) fn leave_line(&self, id: i64) -> Result<()> {
        let mut statement =
            self.tx.prepare_cached("DELETE FROM main.outbox_keyed WHERE id = ?1")?;
        statement.execute([id])?;
        Ok(())
    }

    /// A row that is not on the way any more gives way to an earlier one of its key that was
    /// replayed meanwhile.
    pub(super) fn yield_to_earlier(
        &self,
        id: i64,
        tenant_id: &str,
        ordering_key: &str,
    ) -> Result<()> {
        let mut statement = self.tx.prepare_cached(HEAD)?;
        let first = statement.query_row((tenant_id, ordering_key), |row| row.get::<_, i64>(0));
        let Some(first) = first.optional()?.filter(|&first| first != id) else { return Ok(()) };
        let mut queue = self.tx.prepare_cached(
            "UPDATE main.outbox_lease SET resume_at = due_at, due_at = NULL
             WHERE id = ?1 AND state = 'pending' AND due_at IS NOT NULL",
        )?;
        queue.execute([id])?;
        let mut promote = self.tx.prepare_cached(
            "UPDATE main.outbox_lease SET due_at = coalesce(resume_at, ?2), resume_at = NULL
             WHERE id = ?1 AND state = 'pending' AND due_at IS NULL",
        )?;
        promote.execute((first, self.now))?;
        Ok(())
    }

    /// Writes the audit trail and keeps the event for observers.
    pub(super) fn event(
        &mut self,
        row: Row<'_>,
        kind: EventKind,
        to: Status,
        decision: &Decision,
        receipt: Option<&Receipt>,
    ) -> Result<()> {
        let claimed_at = row.token.is_some().then_some(decision.facts.claimed_at);
        insert_event(
            &self.tx,
            &NewEvent {
                outbox_id: row.id,
                at: self.now,
                kind,
                from: row.state,
                to,
                attempt: decision.facts.attempts,
                claimed_at,
                token: row.token,
                actor: Some(self.owner),
                error_class: decision.class.as_deref(),
                reason: decision.message.as_deref(),
                downstream_id: receipt.and_then(|r| r.downstream_id.as_deref()),
            },
        )?;
        self.events.push(Event {
            id: row.id,
            operation: row.operation.to_owned(),
            at: self.now,
            kind,
            from: row.state,
            to,
            attempt: decision.facts.attempts,
            token: row.token,
            error_class: decision.class.as_deref().map(str::to_owned),
        });
        Ok(())
    }

    fn count_settled(&mut self) -> Result<()> {
        for ((operation, status), count) in std::mem::take(&mut self.settled) {
            add_settled(&self.tx, &operation, status, count)?;
        }
        Ok(())
    }
}

fn migrated() -> Error {
    let text = "the outbox schema was migrated by another build; restart with that build";
    Error::new(ErrorKind::Schema, text)
}

/// Adds to the number of intents that were ever settled.
pub(super) fn add_settled(
    conn: &Connection,
    operation: &str,
    status: Status,
    count: i64,
) -> Result<()> {
    let mut statement = conn.prepare_cached(
        "INSERT INTO main.outbox_settled (operation, status, total) VALUES (?1, ?2, ?3)
         ON CONFLICT (operation, status) DO UPDATE SET total = total + excluded.total",
    )?;
    statement.execute((operation, status.as_str(), count))?;
    Ok(())
}

/// A line for the audit trail.
pub(super) struct NewEvent<'a> {
    pub outbox_id: i64,
    pub at: i64,
    pub kind: EventKind,
    pub from: Status,
    pub to: Status,
    pub attempt: u32,
    pub claimed_at: Option<i64>,
    pub token: Option<i64>,
    pub actor: Option<&'a str>,
    pub error_class: Option<&'a str>,
    pub reason: Option<&'a str>,
    pub downstream_id: Option<&'a str>,
}

pub(super) const INSERT_EVENT: &str = "
    INSERT INTO main.outbox_event
        (outbox_id, seq, at, kind, from_status, status, attempt, claimed_at, token, actor,
         error_class, reason, downstream_id)
    VALUES (:outbox_id,
            (SELECT coalesce(max(seq), 0) + 1 FROM main.outbox_event WHERE outbox_id = :outbox_id),
            :at, :kind, :from_status, :status, :attempt, :claimed_at, :token, :actor,
            :error_class, :reason, :downstream_id)";

pub(super) fn insert_event(conn: &Connection, event: &NewEvent<'_>) -> Result<()> {
    let mut statement = conn.prepare_cached(INSERT_EVENT)?;
    statement.execute(named_params! {
        ":outbox_id": event.outbox_id,
        ":at": event.at,
        ":kind": event.kind.as_str(),
        ":from_status": event.from.as_str(),
        ":status": event.to.as_str(),
        ":attempt": event.attempt,
        ":claimed_at": event.claimed_at,
        ":token": event.token,
        ":actor": event.actor,
        ":error_class": event.error_class,
        ":reason": event.reason,
        ":downstream_id": event.downstream_id,
    })?;
    Ok(())
}
