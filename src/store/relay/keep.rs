//! Outcomes that cannot be recorded, because an object of the application makes it fail: kept
//! where no such object reaches, and recorded once that succeeds.

use rusqlite::OptionalExtension;

use crate::core::{Decision, Draw, Facts, Finding, Outcome, Status, decide};
use crate::error::{Error, Result};
use crate::event::EventKind;
use crate::store::relay::record::{Record, Reported};
use crate::store::relay::tx::{RelayTx, Rules};
use crate::store::standing;
use crate::store::statement::query_row;
use crate::store::tables::answer;
use crate::store::tables::unrecorded::{self, Kept};
use crate::store::transitions::Row;

/// How much is written about a row whose outcome is kept. The next is tried where one fails,
/// because the application's object may hang on any of our tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parking {
    /// The row needs review, and its trail says so.
    Noted,
    /// The row needs review.
    Silent,
    /// The row stays as it is. No relay takes it back.
    Unmoved,
}

impl RelayTx<'_> {
    /// Keeps a report that could not be recorded, and parks its row.
    pub fn keep(
        &mut self,
        record: &Record,
        rules: &Rules,
        error: &Error,
        parking: Parking,
    ) -> Result<()> {
        let delivery = &record.delivery;
        let (outcome, status) = match &record.reported {
            Reported::Outcome(outcome) => (outcome.clone(), Status::InFlight),
            Reported::Finding(Finding::Applied(receipt), _) => {
                (Outcome::Succeeded(receipt.clone()), Status::Unknown)
            }
            // A question that may be asked again.
            Reported::Finding(..) => {
                return unrecorded::keep(self.conn, (delivery.id, 0), None, error, self.now);
            }
        };
        let claim = (delivery.id, delivery.token);
        unrecorded::keep(self.conn, claim, Some(&outcome), error, self.now)?;
        if parking == Parking::Unmoved {
            return Ok(());
        }
        if status == Status::InFlight {
            self.forget_probe(&delivery.operation, delivery.id, delivery.token)?;
            self.on_outcome(delivery, &outcome, rules, self.draw(record), None)?;
        }
        let decision = Decision {
            class: Some("unrecorded".into()),
            message: Some(format!("its outcome is known and kept, but not recorded: {error}")),
            ..Decision::plain(Status::NeedsReview, &delivery.facts)
        };
        let row = Row { status, ..Row::claimed(delivery, rules.on_dead) };
        let kind = (parking == Parking::Noted).then_some(EventKind::Unrecorded);
        if self.moves.apply(row, kind, &decision, None)? && outcome.is_not_applied() {
            self.refund(delivery)?;
        }
        Ok(())
    }

    /// Records an outcome that was kept, as it would have been; on the stored contract, where this
    /// relay has no `rules`. It counts for the downstream no more: it was heard when it came.
    pub fn record_kept(
        &mut self,
        kept: &Kept,
        outcome: &Outcome,
        rules: Option<&Rules>,
        roll: f64,
    ) -> Result<()> {
        let Kept { id, token, .. } = kept;
        if !unrecorded::forget(self.conn, *id, *token)? {
            // Another relay has recorded it.
            return Ok(());
        }
        answer::keep(self.conn, *id, outcome.failure(), self.now)?;
        let stored;
        let rules = if let Some(rules) = rules {
            rules
        } else {
            stored = self.stored_rules(&kept.operation)?;
            &stored
        };
        let Some(found) = standing::find(self.conn, *id, self.now)? else { return Ok(()) };
        let sql = "SELECT claimed_at FROM main.outbox_lease
                   WHERE id = ?1 AND last_token = ?2 AND state IN ('in_flight', 'needs_review')";
        let claimed_at: Option<Option<i64>> =
            query_row(self.conn, sql, (id, token), |row| row.get(0)).optional()?;
        let row = Row { on_dead: rules.on_dead, ..found.row() };
        let receipt = if let Outcome::Succeeded(receipt) = outcome { Some(receipt) } else { None };
        let Some(claimed_at) = claimed_at else {
            let decision = Decision::plain(Status::Succeeded, &found.facts);
            return self.record_late(Row { token: Some(*token), ..row }, outcome, &decision);
        };
        let facts = Facts { claimed_at: claimed_at.unwrap_or(self.now), ..found.facts };
        let facts = facts.aged(self.now, self.boot);
        let draw = Draw { now: self.now, roll };
        let decision = decide::decide(&facts, outcome, &self.policy(rules)?, draw);
        let has_moved = self.moves.apply(row, Some(EventKind::Attempt), &decision, receipt)?
            || self.settle_with_late_proof(row, &decision)?;
        if has_moved { Ok(()) } else { Err(Error::kept_by_trigger()) }
    }
}
