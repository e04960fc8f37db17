//! The one place where intents move: a decision is applied to a row under the claim it was made
//! for, with its event, receipt, counts, bindings and place in line.
//!
//! Relays, persons, webhooks and applications all come here with a decision of `core`.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, named_params};

use crate::core::verbs::id_taken;
use crate::core::{Actor, Decision, OnDead, Receipt, Status};
use crate::error::Result;
use crate::event::{Event, EventKind};
use crate::handler::Delivery;
use crate::store::columns;
use crate::store::statement::query_row;
use crate::store::tables::audit::insert_event;
use crate::store::tables::contract::{self, Contract};
use crate::store::tables::settled::DUPLICATE_EFFECT;
use crate::store::tables::{binding, lost_lease, ordering, settled};

/// The row a decision is about, and the claim it must still be under.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a> {
    pub id: i64,
    pub operation: &'a str,
    pub is_keyed: bool,
    pub status: Status,
    pub token: Option<i64>,
    /// A row that is queued behind another of its ordering key may have no lease row.
    pub has_lease: bool,
    /// The caller's own configuration for a dead row; the stored contract may be stricter.
    pub on_dead: OnDead,
    /// The delivery, where a relay holds it: what is known of the intent already.
    pub delivery: Option<&'a Delivery>,
}

impl<'a> Row<'a> {
    /// The row of a delivery, under its claim.
    pub fn claimed(delivery: &'a Delivery, on_dead: OnDead) -> Self {
        Self {
            id: delivery.id,
            operation: &delivery.operation,
            is_keyed: delivery.intent.ordering_key.is_some(),
            status: Status::InFlight,
            token: Some(delivery.token),
            has_lease: true,
            on_dead,
            delivery: Some(delivery),
        }
    }
}

/// Who moves the rows of one transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Author<'a> {
    /// The relay that signs its leases with this name.
    Relay(&'a str),
    /// A person, a webhook or the application.
    Actor(&'a Actor),
}

/// The moves of one write transaction.
#[derive(Debug)]
pub(crate) struct Transitions<'a> {
    pub conn: &'a Connection,
    pub now: i64,
    author: Author<'a>,
    contracts: BTreeMap<String, Option<Arc<Contract>>>,
    settled: BTreeMap<(String, Status), i64>,
    events: Vec<Event>,
}

impl<'a> Transitions<'a> {
    pub fn new(conn: &'a Connection, author: Author<'a>, now: i64) -> Self {
        let (contracts, settled) = (BTreeMap::new(), BTreeMap::new());
        Self { conn, now, author, contracts, settled, events: Vec::new() }
    }

    /// Writes the counts and returns the events. Their observers wait until the transaction is
    /// committed.
    pub fn finish(self) -> Result<Vec<Event>> {
        for ((operation, status), count) in &self.settled {
            settled::count(self.conn, operation, status.as_str(), *count)?;
        }
        Ok(self.events)
    }

    /// The stored contract of an operation, read once in a transaction.
    pub fn contract(&mut self, operation: &str) -> Result<Option<Arc<Contract>>> {
        if let Some(known) = self.contracts.get(operation) {
            return Ok(known.clone());
        }
        let stored = contract::of(self.conn, operation)?.map(Arc::new);
        self.contracts.insert(operation.to_owned(), stored.clone());
        Ok(stored)
    }

    /// Applies a decision, if the row is still under the claim it was made for. Returns whether it
    /// is. Without a kind, a row that stays unsettled gets no event.
    ///
    /// A success with an id that belongs to another intent settles nothing: a person must look.
    pub fn apply(
        &mut self,
        row: Row<'_>,
        kind: Option<EventKind>,
        decision: &Decision,
        receipt: Option<&Receipt>,
    ) -> Result<bool> {
        if !decision.status.is_settled() {
            return self.park(row, kind, decision, receipt);
        }
        let kind = kind.unwrap_or(EventKind::Attempt);
        let id = receipt.and_then(|receipt| receipt.downstream_id.as_deref());
        if let Some(taken) = self.taken(row, id)? {
            return self.park(row, Some(kind), &id_taken(decision, taken), receipt);
        }
        self.settle(row, kind, decision, receipt)
    }

    /// Moves a row to a status in which it acts later, or waits for a lookup or a person.
    fn park(
        &mut self,
        row: Row<'_>,
        kind: Option<EventKind>,
        decision: &Decision,
        receipt: Option<&Receipt>,
    ) -> Result<bool> {
        let is_relay = matches!(self.author, Author::Relay(_));
        // A proof that came late settles the row first, unless it is what the row is parked for.
        let keeps_proof = is_relay && kind != Some(EventKind::Late);
        if !is_relay {
            // A relay that holds the row may be sending it: its claim ends, its request does not.
            lost_lease::note_in_flight(self.conn, row.id)?;
        }
        if !row.has_lease {
            ordering::enter(self.conn, row.id)?;
        }
        let facts = &decision.facts;
        let changed = self.conn.prepare_cached(PARK)?.execute(named_params! {
            ":status": decision.status.as_str(),
            ":due_at": decision.due_at,
            ":attempts": facts.attempts,
            ":tries": facts.tries,
            ":lost": facts.lost,
            ":in_doubt_since": facts.in_doubt_since,
            ":first_sent_at": facts.first_sent_at,
            ":lookups": facts.lookups,
            ":cancel_requested": facts.cancel_requested,
            ":error_class": decision.class,
            ":last_error": decision.message,
            ":id": row.id,
            ":state": row.status.as_str(),
            ":token": row.token,
            ":is_relay": is_relay,
            ":keeps_proof": keeps_proof,
        })?;
        if changed == 0 {
            return Ok(false);
        }
        self.keep_order(row, decision.status)?;
        if let Some(kind) = kind {
            self.event(row, kind, decision.status, decision, receipt)?;
        }
        Ok(true)
    }

    /// Gives a row with an ordering key the place that its new status calls for.
    fn keep_order(&mut self, row: Row<'_>, status: Status) -> Result<()> {
        if !row.is_keyed {
            return Ok(());
        }
        match status {
            Status::Dead if self.goes_on_without(row)? => {
                ordering::leave(self.conn, row.id).map(drop)
            }
            // Later intents may have passed it while it was dead or in doubt.
            Status::Pending if row.status != Status::InFlight => {
                if ordering::take_place(self.conn, row.id)? {
                    ordering::queue(self.conn, row.id)?;
                }
                Ok(())
            }
            _ => ordering::yield_to_earlier(self.conn, row.id, self.now),
        }
    }

    fn goes_on_without(&mut self, row: Row<'_>) -> Result<bool> {
        let stored = self.contract(row.operation)?.map_or(OnDead::Block, |stored| stored.on_dead());
        Ok(row.on_dead.stricter(stored) == OnDead::Continue)
    }

    fn settle(
        &mut self,
        row: Row<'_>,
        kind: EventKind,
        decision: &Decision,
        receipt: Option<&Receipt>,
    ) -> Result<bool> {
        let is_relay = matches!(self.author, Author::Relay(_));
        // Without a receipt it is withdrawn, which a proof of success that came meanwhile forbids.
        let values = (row.id, row.status.as_str(), row.token, receipt.is_some());
        let late_id =
            query_row(self.conn, UNLEASE, values, |r| columns::lossy_option(r, 0)).optional()?;
        if late_id.is_none() && row.has_lease {
            return Ok(false);
        }
        settled::write(self.conn, row.id, decision, receipt, self.now)?;
        if row.is_keyed {
            ordering::leave(self.conn, row.id)?;
        }
        // Only an attempt in doubt, or one that an actor's verb ends, is noted as lost.
        if decision.facts.in_doubt_since.is_some() || !is_relay {
            lost_lease::forget(self.conn, row.id)?;
        }
        let id = receipt.and_then(|receipt| receipt.downstream_id.as_deref());
        let other = self.other_id(row, late_id.flatten(), id)?;
        self.event(row, kind, decision.status, decision, receipt)?;
        if let Some(ids) = other {
            self.duplicate_effect(Row { status: decision.status, ..row }, decision, ids)?;
        }
        *self.settled.entry((row.operation.to_owned(), decision.status)).or_default() += 1;
        Ok(true)
    }

    /// Puts on record a success of an intent that is settled already: the row stays as it is, but
    /// the success's id may say that the effect happened twice. `known` is the id on record. A
    /// webhook that repeats a known success leaves no event.
    pub fn beside_settled(
        &mut self,
        row: Row<'_>,
        kind: EventKind,
        decision: &Decision,
        receipt: &Receipt,
        known: Option<String>,
    ) -> Result<()> {
        let id = receipt.downstream_id.as_deref();
        if let Some(taken) = self.taken(row, id)? {
            let decision = id_taken(decision, taken);
            return self.event(row, kind, row.status, &decision, Some(receipt));
        }
        if row.status == Status::Succeeded {
            if let Some(ids) = self.other_id(row, known, id)? {
                return self.duplicate_effect(row, decision, ids);
            }
            let is_known = match id {
                Some(id) => settled::has_heard_of(self.conn, row.id, id)?,
                None => true,
            };
            if is_known && kind == EventKind::Confirmed {
                return Ok(());
            }
        }
        self.event(row, kind, row.status, decision, Some(receipt))
    }

    /// Gives an id to this row where its operation binds ids. Returns a sentence that names both
    /// intents where another has the id already.
    pub fn taken(&mut self, row: Row<'_>, id: Option<&str>) -> Result<Option<String>> {
        let Some(id) = id else { return Ok(None) };
        let Some(contract) = self.contract(row.operation)?.filter(|contract| contract.binds) else {
            return Ok(None);
        };
        let other = binding::bind(self.conn, contract.provider(row.operation), id, row.id)?;
        Ok(other.map(|other| binding::taken(row.id, id, other)))
    }

    /// Another id under which the provider knows the row, where `id` is new: the intent was carried
    /// out twice.
    pub fn other_id<'i>(
        &mut self,
        row: Row<'_>,
        known: Option<String>,
        id: Option<&'i str>,
    ) -> Result<Option<(String, &'i str)>> {
        let Some(id) = id else { return Ok(None) };
        // A relay reads bound ids only where its operation binds them: every success comes here.
        let asks_bindings = match self.author {
            Author::Actor(_) => true,
            Author::Relay(_) => self.contract(row.operation)?.is_some_and(|c| c.binds),
        };
        let mut other = known.filter(|known| known != id);
        if other.is_none() && asks_bindings {
            other = binding::other_id(self.conn, row.id, id)?;
        }
        match other {
            Some(other) if !settled::has_heard_of(self.conn, row.id, id)? => Ok(Some((other, id))),
            _ => Ok(None),
        }
    }

    /// Puts on record that a row was carried out under two ids.
    pub fn duplicate_effect(
        &mut self,
        row: Row<'_>,
        decision: &Decision,
        (first, second): (String, &str),
    ) -> Result<()> {
        let event = Event {
            reason: Some(format!(
                "carried out twice: the provider knows it as {first:?} and as {second:?}; undo one \
                 of them there"
            )),
            error_class: Some(DUPLICATE_EFFECT.to_owned()),
            downstream_id: Some(second.to_owned()),
            ..self.new_event(row, EventKind::DuplicateEffect, row.status, decision)
        };
        settled::count(self.conn, row.operation, DUPLICATE_EFFECT, 1)?;
        self.events.push(insert_event(self.conn, event, row.delivery)?);
        Ok(())
    }

    /// Writes the audit trail and keeps the event for observers.
    pub fn event(
        &mut self,
        row: Row<'_>,
        kind: EventKind,
        to: Status,
        decision: &Decision,
        receipt: Option<&Receipt>,
    ) -> Result<()> {
        let event = Event {
            downstream_id: receipt.and_then(|r| r.downstream_id.clone()),
            ..self.new_event(row, kind, to, decision)
        };
        self.events.push(insert_event(self.conn, event, row.delivery)?);
        Ok(())
    }

    /// The event of a move, without its position and without its intent, which the insert adds.
    fn new_event(&self, row: Row<'_>, kind: EventKind, to: Status, decision: &Decision) -> Event {
        let (actor, reason, token) = match self.author {
            Author::Relay(owner) => (owner, None, row.token),
            // The claim that a person's verb ends is not the person's.
            Author::Actor(actor) => (actor.name(), actor.why(), None),
        };
        Event {
            position: 0,
            outbox_id: row.id,
            seq: 0,
            operation: String::new(),
            at: self.now,
            kind,
            from_status: row.status,
            status: to,
            attempt: decision.facts.attempts,
            claimed_at: token.is_some().then_some(decision.facts.claimed_at),
            token,
            actor: Some(actor.to_owned()),
            error_class: decision.class.as_deref().map(str::to_owned),
            reason: decision.message.as_deref().or(reason).map(str::to_owned),
            downstream_id: None,
            agent_run: None,
            tool_version: None,
            wire_key: None,
            key_hash: String::new(),
            args_hash: None,
        }
    }
}

/// A relay does not overwrite a proof of success that came late: the row is settled with that
/// proof. Nor does it end a request to cancel, which may have come after its claim. A person's
/// decision ends both. A decision without a failure keeps the last one.
pub(crate) const PARK: &str = "
    UPDATE main.outbox_lease
    SET state = :status, due_at = :due_at, attempts = :attempts, tries = :tries, lost = :lost,
        in_doubt_since = :in_doubt_since, first_sent_at = :first_sent_at, lookups = :lookups,
        cancel_requested_at =
            CASE WHEN :cancel_requested OR :is_relay THEN cancel_requested_at END,
        error_class = coalesce(:error_class, error_class),
        last_error = coalesce(:last_error, last_error),
        token = NULL, owner = NULL, resume_at = NULL, held_by = NULL, late_id = NULL,
        late_receipt = NULL
    WHERE id = :id AND state = :state AND token IS :token
      AND (state <> 'in_flight' OR late_receipt IS NULL OR NOT :keeps_proof)";

pub(crate) const UNLEASE: &str = "
    DELETE FROM main.outbox_lease
    WHERE id = ?1 AND state = ?2 AND token IS ?3
      AND (state <> 'in_flight' OR late_receipt IS NULL OR ?4)
    RETURNING late_id";
