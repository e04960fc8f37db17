//! Recording the outcomes of claims.

use std::sync::Arc;

use rusqlite::OptionalExtension;

use crate::core::verbs::id_taken;
use crate::core::{Decision, Draw, Facts, Finding, Observed, Outcome, Receipt, Status, decide};
use crate::error::Result;
use crate::event::EventKind;
use crate::handler::Delivery;
use crate::store::columns;
use crate::store::relay::tx::{RelayTx, Rules};
use crate::store::standing;
use crate::store::statement::{execute, query_row};
use crate::store::tables::answer;
use crate::store::tables::lost_lease::{self, IsAlive, Senders};
use crate::store::transitions::Row;

/// The report of a worker about a delivery, until it is written.
#[derive(Debug)]
pub(crate) struct Record {
    pub delivery: Arc<Delivery>,
    pub reported: Reported,
    /// Where the next delay falls in its jitter, in `0.0..1.0`.
    pub roll: f64,
}

/// The result of a claim.
#[derive(Debug)]
pub(crate) enum Reported {
    /// The outcome of an attempt.
    Outcome(Outcome),
    /// The finding of a lookup, and what was known of the doubt when the lookup began.
    Finding(Finding, Observed),
}

impl RelayTx<'_> {
    /// Records the report of a worker.
    pub fn record(&mut self, record: &Record, rules: &Rules, is_alive: IsAlive<'_>) -> Result<()> {
        let failure = match &record.reported {
            Reported::Outcome(outcome) => outcome.failure(),
            Reported::Finding(finding, _) => finding.failure(),
        };
        answer::keep(self.conn, record.delivery.id, failure, self.now)?;
        match &record.reported {
            Reported::Outcome(outcome) => self.record_outcome(record, outcome, rules),
            Reported::Finding(finding, observed) => {
                // A sender that has reported, or died, since the lookup began counts as well.
                let senders = lost_lease::senders(self.conn, record.delivery.id, is_alive)?;
                let may_be_on_its_way = observed.may_be_on_its_way || senders != Senders::None;
                let observed = Observed { may_be_on_its_way, ..*observed };
                self.record_finding(record, finding, observed, rules)
            }
        }
    }

    pub(super) fn draw(&self, record: &Record) -> Draw {
        Draw { now: self.now, roll: record.roll }
    }

    /// Records an outcome under the claim it was made for. An outcome whose lease is gone cannot
    /// overwrite anything; a success that comes late still counts.
    fn record_outcome(&mut self, record: &Record, outcome: &Outcome, rules: &Rules) -> Result<()> {
        let delivery = &record.delivery;
        let (policy, draw) = (self.policy(rules)?, self.draw(record));
        let row = Row::claimed(delivery, rules.on_dead);
        let failed_probe = self.is_failed_probe(delivery, outcome, rules)?;
        let mut facts = delivery.facts.aged(self.now, self.boot);
        if failed_probe {
            facts = decide::uncounted(&facts, outcome);
        }
        let receipt = if let Outcome::Succeeded(receipt) = outcome { Some(receipt) } else { None };
        if receipt.is_none() {
            facts = self.with_request(facts, row)?;
        }
        let decision = decide::decide(&facts, outcome, &policy, draw);
        // The operation is paused, not this row: another row is the next probe. A request that may
        // have been applied is in the trail all the same.
        let is_silent =
            failed_probe && outcome.is_not_applied() && decision.status == Status::Pending;
        let kind = (!is_silent).then_some(EventKind::Attempt);
        if self.moves.apply(row, kind, &decision, receipt)? {
            // Refund only under the claim that was charged: after the lease is lost, a later claim
            // may be using the entry.
            if outcome.is_not_applied() {
                self.refund(delivery)?;
            } else {
                self.account(delivery)?;
            }
        } else if receipt.is_some() || !self.settle_with_late_proof(row, &decision)? {
            self.record_late(row, outcome, &decision)?;
        }
        if delivery.facts.is_suspect() {
            self.end_suspect(row.operation)?;
        }
        self.on_outcome(delivery, outcome, rules, draw, decision.due_at)
    }

    /// The facts of a claim with a cancellation that was requested since.
    pub(super) fn with_request(&self, facts: Facts, row: Row<'_>) -> Result<Facts> {
        let sql = "SELECT cancel_requested_at IS NOT NULL FROM main.outbox_lease
                   WHERE id = ?1 AND ?2 IN (token, last_token)";
        let requested = query_row(self.conn, sql, (row.id, row.token), |r| r.get(0)).optional()?;
        Ok(Facts { cancel_requested: requested.unwrap_or(false), ..facts })
    }

    /// Settles a row of which an earlier attempt proved success while this one was in flight: that
    /// is the outcome, whatever became of this attempt.
    pub(super) fn settle_with_late_proof(&mut self, row: Row<'_>, own: &Decision) -> Result<bool> {
        let sql = "SELECT late_id, late_receipt FROM main.outbox_lease
             WHERE id = ?1 AND token IS ?2 AND state = 'in_flight' AND late_receipt IS NOT NULL";
        let proof = query_row(self.conn, sql, (row.id, row.token), |r| {
            Ok((columns::lossy_option(r, 0)?, columns::lossy(r, 1)?))
        })
        .optional()?;
        let Some((late_id, late_receipt)) = proof else { return Ok(false) };
        let receipt = Receipt::from_json(late_id, &late_receipt);
        let decision = Decision {
            status: Status::Succeeded,
            message: Some("an earlier attempt had succeeded".into()),
            ..own.clone()
        };
        self.moves.apply(row, Some(EventKind::Late), &decision, Some(&receipt))
    }

    /// Records an outcome whose lease was lost before it came.
    pub(super) fn record_late(
        &mut self,
        row: Row<'_>,
        outcome: &Outcome,
        decision: &Decision,
    ) -> Result<()> {
        let is_news = match row.token {
            Some(token) => lost_lease::heard_of(self.conn, row.id, token)?,
            None => false,
        };
        if is_news && !outcome.is_not_applied() {
            self.ended_now(row.id)?;
        }
        let Some(found) = standing::find(self.conn, row.id, decision.facts.claimed_at)? else {
            log::warn!("intent {}: its outcome came, but the row is gone", row.id);
            return Ok(());
        };
        let standing = Row { status: found.status, ..row };
        let Outcome::Succeeded(receipt) = outcome else {
            if self.clears_doubt(row, outcome, found.status)? {
                log::warn!("intent {}: word came late that it was never sent", row.id);
                let row = Row { on_dead: row.on_dead, delivery: row.delivery, ..found.row() };
                return self.moves.apply(row, Some(EventKind::Late), decision, None).map(drop);
            }
            log::warn!("intent {}: a failure came after its lease was lost; ignored", row.id);
            return self.moves.event(standing, EventKind::Late, found.status, decision, None);
        };
        log::warn!("intent {}: its success came after its lease was lost", row.id);
        match found.status {
            Status::Succeeded | Status::Cancelled => {
                let known = found.downstream_id;
                self.moves.beside_settled(standing, EventKind::Late, decision, receipt, known)
            }
            // A lookup, too, may find that the row has been sent again meanwhile.
            Status::InFlight => {
                self.late_beside_attempt(standing, decision, receipt, found.downstream_id)
            }
            _ => {
                // An unknown row may be under the claim of a lookup, which is answered by this.
                let decision = Decision { facts: found.facts, ..decision.clone() };
                let row = Row { on_dead: row.on_dead, delivery: row.delivery, ..found.row() };
                self.moves.apply(row, Some(EventKind::Late), &decision, Some(receipt)).map(drop)
            }
        }
    }

    /// Whether this is the word that the only attempt that may have been applied never left.
    fn clears_doubt(&self, row: Row<'_>, outcome: &Outcome, now: Status) -> Result<bool> {
        let was_sure = row.delivery.is_some_and(|of| of.facts.in_doubt_since.is_none());
        let waits = matches!(now, Status::Pending | Status::Unknown | Status::NeedsReview);
        if !(was_sure && waits && matches!(outcome, Outcome::NotSent(_))) {
            return Ok(false);
        }
        let sql = "SELECT last_token IS ?2 FROM main.outbox_lease WHERE id = ?1";
        Ok(query_row(self.conn, sql, (row.id, row.token), |r| r.get(0)).optional()? == Some(true))
    }

    /// Keeps a success that comes late while a later attempt is in flight: it settles the row when
    /// that attempt ends, whatever its outcome.
    fn late_beside_attempt(
        &mut self,
        row: Row<'_>,
        decision: &Decision,
        receipt: &Receipt,
        known: Option<String>,
    ) -> Result<()> {
        let id = receipt.downstream_id.as_deref();
        if let Some(taken) = self.moves.taken(row, id)? {
            let decision = id_taken(decision, taken);
            return self.moves.event(row, EventKind::Late, row.status, &decision, Some(receipt));
        }
        let other = self.moves.other_id(row, known, id)?;
        let sql = "UPDATE main.outbox_lease SET late_id = ?2, late_receipt = ?3
                   WHERE id = ?1 AND late_receipt IS NULL";
        execute(self.conn, sql, (row.id, &receipt.downstream_id, receipt.to_json()))?;
        self.moves.event(row, EventKind::Late, row.status, decision, Some(receipt))?;
        other.map_or(Ok(()), |ids| self.moves.duplicate_effect(row, decision, ids))
    }
}
