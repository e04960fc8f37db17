//! Writing down what became of an attempt.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{OptionalExtension, named_params};

use crate::core::decide::{self, Decision, Facts};
use crate::core::outcome::{Finding, Outcome, Receipt};
use crate::core::reconcile::Observed;
use crate::core::status::Status;
use crate::error::Result;
use crate::event::EventKind;
use crate::handler::Delivery;
use crate::store::columns;
use crate::store::relay::tx::{Row, Rules, Step, id_taken};
use crate::store::tables::lost_lease;
use crate::store::tables::lost_lease::{IsAlive, Senders};

/// What a worker has to say about a delivery, until it is written.
#[derive(Debug)]
pub(crate) struct Record {
    pub delivery: Arc<Delivery>,
    pub told: Told,
    /// Where the next delay falls in its jitter, in `0.0..1.0`.
    pub roll: f64,
}

/// What became of a claim.
#[derive(Debug)]
pub(crate) enum Told {
    /// What an attempt taught.
    Outcome(Outcome),
    /// What a look-up taught, and how long the relay had known of the doubt when it began.
    Finding(Finding, Duration),
}

impl Step<'_> {
    /// Records what a worker has to say.
    pub fn record(&mut self, record: &Record, rules: &Rules, is_alive: IsAlive<'_>) -> Result<()> {
        let Record { delivery, told, roll } = record;
        match told {
            Told::Outcome(outcome) => self.record_outcome((delivery, outcome, *roll), rules),
            Told::Finding(finding, in_doubt_for) => {
                // Also where it has reported, or died, since the question was asked.
                let was = delivery.lookup.as_ref().is_some_and(|lookup| lookup.may_be_on_its_way);
                let senders = lost_lease::senders(&self.tx, delivery.id, is_alive)?;
                let may_be_on_its_way = was || senders != Senders::None;
                let observed = Observed { in_doubt_for: *in_doubt_for, may_be_on_its_way };
                self.record_finding((delivery, finding, *roll), observed, rules)
            }
        }
    }

    /// Records an outcome under the claim it was made for. An outcome whose lease is gone cannot
    /// overwrite anything; a success that comes late still counts.
    fn record_outcome(
        &mut self,
        (delivery, outcome, roll): (&Arc<Delivery>, &Outcome, f64),
        rules: &Rules,
    ) -> Result<()> {
        let policy = self.policy(rules)?;
        let row = Row::claimed(delivery);
        let failed_probe = self.is_failed_probe(delivery, outcome)?;
        let facts = if failed_probe { uncounted(delivery.facts, outcome) } else { delivery.facts };
        let mut decision = decide::decide(&facts, outcome, &policy, self.now, roll);
        if decision.status == Status::Pending {
            let facts = self.with_request(facts, row)?;
            decision = decide::decide(&facts, outcome, &policy, self.now, roll);
        }
        // It is the operation that waits now, not the row; but the row steps back, so that the
        // next probe is another one.
        let is_silent = failed_probe && decision.status == Status::Pending;
        let kind = (!is_silent).then_some(EventKind::Attempt);
        let written = match outcome {
            Outcome::Succeeded(receipt) => {
                self.settle(row, EventKind::Attempt, &decision, Some(receipt))?
            }
            _ if self.conclude(row, kind, &decision, rules.on_dead)? => {
                // Under its own claim alone: once that is lost, a later one may rely on the entry.
                if outcome.is_not_applied() {
                    self.give_back(delivery)?;
                }
                true
            }
            _ => self.settle_with_late_proof(row, &decision)?,
        };
        if !written {
            self.record_late(row, outcome, &decision)?;
        }
        self.learn((delivery, outcome, roll), rules, decision.due_at)
    }

    /// The facts of a claim with what somebody has asked for since.
    pub(crate) fn with_request(&self, facts: Facts, row: Row<'_>) -> Result<Facts> {
        let mut statement = self.tx.prepare_cached(
            "SELECT cancel_requested_at IS NOT NULL FROM main.outbox_lease
             WHERE id = ?1 AND token IS ?2",
        )?;
        let requested = statement.query_row((row.id, row.token), |r| r.get(0)).optional()?;
        Ok(Facts { cancel_requested: requested.unwrap_or(false), ..facts })
    }

    /// An earlier attempt proved success while this one was in flight: that is the outcome,
    /// whatever became of this one.
    pub(crate) fn settle_with_late_proof(&mut self, row: Row<'_>, own: &Decision) -> Result<bool> {
        let mut statement = self.tx.prepare_cached(
            "SELECT late_id, late_receipt FROM main.outbox_lease
             WHERE id = ?1 AND token IS ?2 AND state = 'in_flight' AND late_receipt IS NOT NULL",
        )?;
        let proof = statement
            .query_row((row.id, row.token), |r| {
                Ok((columns::lossy_option(r, 0)?, columns::lossy(r, 1)?))
            })
            .optional()?;
        drop(statement);
        let Some((late_id, late_receipt)) = proof else { return Ok(false) };
        let receipt = Receipt::from_json(late_id, &late_receipt);
        let decision = Decision {
            status: Status::Succeeded,
            message: Some("an earlier attempt had succeeded".into()),
            ..own.clone()
        };
        self.settle(row, EventKind::Late, &decision, Some(&receipt))
    }

    /// The lease was lost before this outcome came.
    pub(crate) fn record_late(
        &mut self,
        row: Row<'_>,
        outcome: &Outcome,
        decision: &Decision,
    ) -> Result<()> {
        let is_news = match row.token {
            Some(token) => lost_lease::heard_of(&self.tx, row.id, token)?,
            None => false,
        };
        if is_news && !outcome.is_not_applied() {
            self.ended_now(row.id)?;
        }
        let Some(Standing { status: now_is, token, downstream_id, facts }) =
            self.standing(row.id)?
        else {
            log::warn!("intent {}: its outcome came, but the row is gone", row.id);
            return Ok(());
        };
        let Outcome::Succeeded(receipt) = outcome else {
            log::warn!("intent {}: a failure came after its lease was lost; ignored", row.id);
            let row = Row { state: now_is, ..row };
            return self.event(row, EventKind::Late, now_is, decision, None);
        };
        log::warn!("intent {}: its success came after its lease was lost", row.id);
        match now_is {
            Status::Succeeded | Status::Cancelled => self.late_beside_settled(
                Row { state: now_is, ..row },
                decision,
                receipt,
                downstream_id,
            ),
            Status::InFlight => {
                // A look-up, too, may find that the row has been sent again meanwhile.
                let row = Row { state: now_is, ..row };
                let id = receipt.downstream_id.as_deref();
                if let Some((id, other)) = self.taken(row, id)? {
                    let decision = id_taken(decision, row.id, id, other);
                    return self.event(row, EventKind::Late, now_is, &decision, Some(receipt));
                }
                let row = Row { state: now_is, ..row };
                let other = self.other_id(row, downstream_id, id)?;
                self.keep_late_proof(row.id, receipt)?;
                self.event(row, EventKind::Late, now_is, decision, Some(receipt))?;
                other.map_or(Ok(()), |ids| self.duplicate_effect(row, decision, ids))
            }
            _ => {
                let decision = Decision { facts, ..decision.clone() };
                // An unknown row may be under the claim of a look-up, which has nothing more to say.
                let row = Row { state: now_is, token, ..row };
                self.settle(row, EventKind::Late, &decision, Some(receipt))?;
                Ok(())
            }
        }
    }

    /// A success that comes after the row was settled changes nothing; but its id may say that
    /// the effect happened twice.
    fn late_beside_settled(
        &mut self,
        row: Row<'_>,
        decision: &Decision,
        receipt: &Receipt,
        known: Option<String>,
    ) -> Result<()> {
        let id = receipt.downstream_id.as_deref();
        if let Some((id, other)) = self.taken(row, id)? {
            let decision = id_taken(decision, row.id, id, other);
            return self.event(row, EventKind::Late, row.state, &decision, Some(receipt));
        }
        if row.state == Status::Succeeded
            && let Some(ids) = self.other_id(row, known, id)?
        {
            return self.duplicate_effect(row, decision, ids);
        }
        self.event(row, EventKind::Late, row.state, decision, Some(receipt))
    }

    /// Where a row stands now, or `None` where it is gone.
    fn standing(&self, id: i64) -> Result<Option<Standing>> {
        let mut statement = self.tx.prepare_cached(
            "SELECT coalesce(r.status, l.state), coalesce(l.attempts, r.attempts), l.claimed_at,
                    l.token, coalesce(r.downstream_id, l.late_id), l.in_doubt_since
             FROM main.outbox o
             LEFT JOIN main.outbox_lease l ON l.id = o.id
             LEFT JOIN main.outbox_receipt r ON r.id = o.id
             WHERE o.id = ?1 AND coalesce(r.status, l.state) IS NOT NULL",
        )?;
        let found = statement
            .query_row([id], |row| {
                let Ok(status) = row.get::<_, String>(0)?.parse::<Status>() else {
                    return Ok(None);
                };
                Ok(Some(Standing {
                    status,
                    token: row.get(3)?,
                    downstream_id: columns::lossy_option(row, 4)?,
                    facts: Facts {
                        attempts: columns::counter(row, 1)?,
                        claimed_at: row.get::<_, Option<i64>>(2)?.unwrap_or_default(),
                        in_doubt_since: row.get(5)?,
                        ..Facts::default()
                    },
                }))
            })
            .optional()?;
        Ok(found.flatten())
    }

    fn keep_late_proof(&self, id: i64, receipt: &Receipt) -> Result<()> {
        let mut statement = self.tx.prepare_cached(
            "UPDATE main.outbox_lease SET late_id = :late_id, late_receipt = :late_receipt
             WHERE id = :id AND late_receipt IS NULL",
        )?;
        statement.execute(named_params! {
            ":id": id,
            ":late_id": receipt.downstream_id,
            ":late_receipt": receipt.to_json(),
        })?;
        Ok(())
    }
}

/// Where a row stands.
struct Standing {
    status: Status,
    token: Option<i64>,
    downstream_id: Option<String>,
    facts: Facts,
}

/// What is known about a row whose attempt was only a probe: it costs neither a try nor an attempt.
fn uncounted(facts: Facts, outcome: &Outcome) -> Facts {
    // Where the decision itself gives the attempt back, it is not given back twice.
    let counted = u32::from(matches!(outcome, Outcome::MaybeSent(_)));
    Facts {
        attempts: facts.attempts.saturating_sub(counted),
        tries: facts.tries.saturating_sub(1),
        ..facts
    }
}
