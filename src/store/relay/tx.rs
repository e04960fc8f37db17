//! One write transaction of a relay: outcomes recorded, leases renewed and recovered, rows
//! claimed, all or nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rusqlite::{OptionalExtension, Transaction, named_params};

use crate::clock::Clock;
use crate::core::contract::OnDead;
use crate::core::decide::{Decision, Policy};
use crate::core::flow::Flow;
use crate::core::outcome::Receipt;
use crate::core::status::Status;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, EventKind};
use crate::handler::Delivery;
use crate::store::tables::audit::{NewEvent, insert_event};
use crate::store::tables::budget::Purse;
use crate::store::tables::contract::Contract;
use crate::store::tables::settled::Settlement;
use crate::store::tables::{binding, contract, ordering, settled};
use crate::store::{columns, schema};

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

/// An open step.
pub(crate) struct Step<'a> {
    pub(crate) tx: Transaction<'a>,
    pub(crate) owner: &'a str,
    pub(crate) now: i64,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) token: Option<i64>,
    contracts: BTreeMap<String, Option<Arc<Contract>>>,
    /// The flows read so far: as they were, and as they are now.
    pub(crate) flows: BTreeMap<String, (Flow, Flow)>,
    /// The budgets read so far and what is spent of them.
    pub(crate) purses: BTreeMap<String, Purse>,
    /// Operations found to be paused or throttled.
    pub(crate) stopped: BTreeSet<String>,
    settled: BTreeMap<(String, Status), i64>,
    pub(crate) events: Vec<Event>,
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
pub(crate) struct Row<'a> {
    pub id: i64,
    pub operation: &'a str,
    pub is_keyed: bool,
    pub state: Status,
    pub token: Option<i64>,
    /// What is known of its intent already.
    pub known: Option<&'a Delivery>,
}

impl<'a> Row<'a> {
    /// The row of a delivery, under its claim.
    pub fn claimed(delivery: &'a Delivery) -> Self {
        Self {
            id: delivery.id,
            operation: &delivery.operation,
            is_keyed: delivery.ordering_key.is_some(),
            state: Status::InFlight,
            token: Some(delivery.token),
            known: Some(delivery),
        }
    }
}

impl<'a> Step<'a> {
    pub(crate) fn begun(
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

impl<'a> Step<'a> {
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
    pub(crate) fn token(&mut self) -> Result<i64> {
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
    pub(crate) fn policy(&mut self, rules: &Rules) -> Result<Policy> {
        let mut policy = rules.policy.clone();
        if let Some(stored) = self.contract(&rules.operation)? {
            policy.downstream = policy.downstream.stricter(stored.downstream);
            policy.attempts_max = stored.attempts_max.unwrap_or(policy.attempts_max);
            policy.give_up_after = stored.give_up_after.unwrap_or(policy.give_up_after);
            policy.reconciles |= stored.reconciles;
        }
        Ok(policy)
    }

    /// The stored contract of an operation, read once in a step.
    pub(crate) fn contract(&mut self, operation: &str) -> Result<Option<Arc<Contract>>> {
        if let Some(known) = self.contracts.get(operation) {
            return Ok(known.clone());
        }
        let stored = contract::of(&self.tx, operation)?.map(Arc::new);
        self.contracts.insert(operation.to_owned(), stored.clone());
        Ok(stored)
    }

    /// Stores a decision of any kind, if the row is still under the claim it was made for.
    pub(crate) fn conclude(
        &mut self,
        row: Row<'_>,
        kind: Option<EventKind>,
        decision: &Decision,
        on_dead: OnDead,
    ) -> Result<bool> {
        if decision.status.is_settled() {
            return self.settle(row, kind.unwrap_or(EventKind::Attempt), decision, None);
        }
        self.apply(row, kind, decision, on_dead)
    }

    /// Stores a decision, if the row is still under the claim it was made for. Returns whether.
    /// Without a kind it leaves no event: a probe that failed has told nothing about its row.
    pub(crate) fn apply(
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
                 lookups = :lookups, error_class = :error_class, last_error = :last_error, token = NULL, owner = NULL
             WHERE id = :id AND state = :state AND token IS :token
               AND (state <> 'in_flight' OR late_receipt IS NULL)",
        )?;
        let changed = statement.execute(named_params! {
            ":status": decision.status.as_str(),
            ":due_at": decision.due_at,
            ":attempts": decision.facts.attempts,
            ":tries": decision.facts.tries,
            ":lost": decision.facts.lost,
            ":in_doubt_since": decision.facts.in_doubt_since,
            ":first_sent_at": decision.facts.first_sent_at,
            ":lookups": decision.facts.lookups,
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
        if row.is_keyed {
            match decision.status {
                Status::Dead if on_dead == OnDead::Continue => {
                    ordering::leave(&self.tx, row.id)?;
                }
                // Later ones may have passed it while it was in doubt.
                Status::Pending if row.state == Status::Unknown => {
                    if ordering::take_place(&self.tx, row.id)? {
                        ordering::queue(&self.tx, row.id)?;
                    }
                }
                _ => ordering::yield_to_earlier(&self.tx, row.id, self.now)?,
            }
        }
        if let Some(kind) = kind {
            self.event(row, kind, decision.status, decision, None)?;
        }
        Ok(true)
    }

    /// Settles a row, if it is still under that claim. Returns whether. An id that belongs to
    /// another intent settles nothing: a person must look.
    pub(crate) fn settle(
        &mut self,
        row: Row<'_>,
        kind: EventKind,
        decision: &Decision,
        receipt: Option<&Receipt>,
    ) -> Result<bool> {
        let id = receipt.and_then(|receipt| receipt.downstream_id.as_deref());
        if let Some((id, other)) = self.taken(row, id)? {
            return self.apply(
                row,
                Some(kind),
                &id_taken(decision, row.id, id, other),
                OnDead::Block,
            );
        }
        let mut statement = self.tx.prepare_cached(
            "DELETE FROM main.outbox_lease
             WHERE id = ?1 AND state = ?2 AND token IS ?3
               AND (state <> 'in_flight' OR late_receipt IS NULL OR ?4)
             RETURNING late_id",
        )?;
        // Without a receipt it is withdrawn, which a proof of success that came meanwhile forbids.
        let values = (row.id, row.state.as_str(), row.token, receipt.is_some());
        let deleted = statement.query_row(values, |r| columns::lossy_option(r, 0)).optional()?;
        drop(statement);
        let Some(late_id) = deleted else { return Ok(false) };
        settled::write(
            &self.tx,
            &Settlement {
                id: row.id,
                status: decision.status,
                attempts: decision.facts.attempts,
                receipt,
                is_keyed: row.is_keyed,
                was_in_doubt: decision.facts.in_doubt_since.is_some(),
                now: self.now,
            },
        )?;
        let other = self.other_id(row, late_id, id)?;
        self.event(row, kind, decision.status, decision, receipt)?;
        if let Some(ids) = other {
            self.duplicate_effect(Row { state: decision.status, ..row }, decision, ids)?;
        }
        let operation = row.operation.to_owned();
        *self.settled.entry((operation, decision.status)).or_default() += 1;
        Ok(true)
    }

    /// Gives an id to this row where its operation binds them. Returns whose it is already.
    pub(crate) fn taken<'i>(
        &mut self,
        row: Row<'_>,
        id: Option<&'i str>,
    ) -> Result<Option<(&'i str, i64)>> {
        let Some(id) = id else { return Ok(None) };
        let Some(contract) = self.contract(row.operation)? else { return Ok(None) };
        if !contract.binds {
            return Ok(None);
        }
        let provider = binding::provider(row.operation, Some(&contract));
        Ok(binding::bind(&self.tx, provider, id, row.id)?.map(|other| (id, other)))
    }

    /// Another id that the row has already, where this one is news: it was carried out twice.
    pub(crate) fn other_id<'i>(
        &mut self,
        row: Row<'_>,
        known: Option<String>,
        id: Option<&'i str>,
    ) -> Result<Option<(String, &'i str)>> {
        let Some(id) = id else { return Ok(None) };
        let other = match known.filter(|known| known != id) {
            Some(known) => Some(known),
            None if binding::binds(self.contract(row.operation)?.as_deref()) => {
                binding::other_id(&self.tx, row.id, id)?
            }
            None => None,
        };
        match other {
            Some(other) if !settled::has_heard_of(&self.tx, row.id, id)? => Ok(Some((other, id))),
            _ => Ok(None),
        }
    }

    /// Puts on record that it was.
    pub(crate) fn duplicate_effect(
        &mut self,
        row: Row<'_>,
        decision: &Decision,
        (first, second): (String, &str),
    ) -> Result<()> {
        let event = self.line(row, EventKind::DuplicateEffect, row.state, decision);
        let event = settled::duplicate_effect(&self.tx, row.operation, &event, (&first, second))?;
        self.events.push(event);
        Ok(())
    }

    /// Writes the audit trail and keeps the event for observers.
    pub(crate) fn event(
        &mut self,
        row: Row<'_>,
        kind: EventKind,
        to: Status,
        decision: &Decision,
        receipt: Option<&Receipt>,
    ) -> Result<()> {
        let line = NewEvent {
            downstream_id: receipt.and_then(|r| r.downstream_id.as_deref()),
            ..self.line(row, kind, to, decision)
        };
        let event = insert_event(&self.tx, &line)?;
        self.events.push(event);
        Ok(())
    }

    fn line<'e>(
        &self,
        row: Row<'e>,
        kind: EventKind,
        to: Status,
        decision: &'e Decision,
    ) -> NewEvent<'e>
    where
        'a: 'e,
    {
        NewEvent {
            known: row.known,
            outbox_id: row.id,
            at: self.now,
            kind,
            from: row.state,
            to,
            attempt: decision.facts.attempts,
            claimed_at: row.token.is_some().then_some(decision.facts.claimed_at),
            token: row.token,
            actor: Some(self.owner),
            error_class: decision.class.as_deref(),
            reason: decision.message.as_deref(),
            downstream_id: None,
        }
    }

    fn count_settled(&mut self) -> Result<()> {
        for ((operation, status), count) in std::mem::take(&mut self.settled) {
            settled::count(&self.tx, &operation, status.as_str(), count)?;
        }
        Ok(())
    }
}

/// A success whose id names the effect of another intent.
pub(crate) fn id_taken(decision: &Decision, id: i64, downstream_id: &str, other: i64) -> Decision {
    let mut facts = decision.facts;
    facts.in_doubt_since.get_or_insert(facts.claimed_at);
    Decision {
        status: Status::NeedsReview,
        due_at: None,
        facts,
        class: Some("duplicate_id".into()),
        message: Some(binding::taken(id, downstream_id, other)),
    }
}

fn migrated() -> Error {
    let text = "the outbox schema was migrated by another build; restart with that build";
    Error::new(ErrorKind::Schema, text)
}
