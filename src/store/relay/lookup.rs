//! Lookups of rows in doubt: which are due, under which claim, and what was found.

use std::sync::Arc;

use rusqlite::named_params;

use crate::core::decide::decide_unreadable;
use crate::core::reconcile::{STALE_AFTER, decide_finding, decide_lookups_used_up, decide_stale};
use crate::core::{Facts, Finding, Observed, Outcome, Policy, Status, millis};
use crate::error::{Error, Result};
use crate::event::EventKind;
use crate::handler::{Delivery, Held, Lookup};
use crate::lease::Lease;
use crate::store::relay::claim::{ClaimRequest, Room, row_of};
use crate::store::relay::due::may_look_up;
use crate::store::relay::record::Record;
use crate::store::relay::tx::{RelayTx, Rules};
use crate::store::statement::execute;
use crate::store::tables::binding;
use crate::store::tables::candidate::{Candidate, LOOKUPS};
use crate::store::tables::lost_lease::{self, IsAlive, Senders};
use crate::store::transitions::Row;

impl RelayTx<'_> {
    /// Claims rows in doubt whose lookup is due. Rates and budgets limit sends and not lookups; a
    /// downstream whose operation is paused or throttled gets neither.
    pub fn claim_lookups(
        &mut self,
        request: &ClaimRequest<'_>,
        is_alive: IsAlive<'_>,
    ) -> Result<Vec<Held>> {
        let gates = self.gates(request.rules, request.shard)?;
        if !may_look_up(&gates.configured) {
            return Ok(Vec::new());
        }
        let policy = self.policy(request.rules)?;
        let mut claimed = Vec::new();
        for candidate in self.lookups_due(request, self.now)? {
            if self.touch(candidate.id) {
                claimed.extend(self.claim_lookup(candidate, request, &policy, is_alive)?);
            }
        }
        self.at = None;
        Ok(claimed)
    }

    /// Parks rows for a person that no relay with a lookup has asked about for a day. For a relay
    /// without a lookup. Returns whether there may be more.
    pub fn park_stale_lookups(&mut self, request: &ClaimRequest<'_>) -> Result<bool> {
        let gates = self.gates(request.rules, request.shard)?;
        if !may_look_up(&gates.configured) {
            return Ok(false);
        }
        let due = self.lookups_due(request, self.now.saturating_sub(millis(STALE_AFTER)))?;
        for candidate in &due {
            if !self.touch(candidate.id) {
                break;
            }
            let row = row_of(candidate.id, candidate.token, Status::Unknown, request.rules);
            let decision = decide_stale(&candidate.facts);
            self.moves.apply(row, Some(EventKind::Reconciled), &decision, None)?;
            log::warn!("intent {}: no relay looks up what became of it", candidate.id);
        }
        self.at = None;
        Ok(due.len() == request.limit)
    }

    fn lookups_due(&self, request: &ClaimRequest<'_>, until: i64) -> Result<Vec<Candidate>> {
        let room = Room { limit: request.limit, bytes: usize::MAX, passed_over: 0 };
        self.candidates(LOOKUPS, request, until, room)
    }

    fn claim_lookup(
        &mut self,
        candidate: Candidate,
        request: &ClaimRequest<'_>,
        policy: &Policy,
        is_alive: IsAlive<'_>,
    ) -> Result<Option<Held>> {
        // Parking does not change the row's position, so that its ordering key is ignored here.
        let row = row_of(candidate.id, candidate.token, Status::Unknown, request.rules);
        let intent = match candidate.intent {
            Ok(intent) => intent,
            Err(why) => {
                let decision = decide_unreadable(&candidate.facts, &why);
                self.moves.apply(row, Some(EventKind::Unreadable), &decision, None)?;
                return Ok(None);
            }
        };
        if let Some(decision) = decide_lookups_used_up(&candidate.facts, policy) {
            self.moves.apply(row, Some(EventKind::Reconciled), &decision, None)?;
            return Ok(None);
        }
        let token = self.token()?;
        let expires_at = self.now.saturating_add(request.lease_ms);
        let facts = Facts {
            lookups: candidate.facts.lookups.saturating_add(1),
            claimed_at: self.now,
            ..candidate.facts
        };
        self.take_lookup((candidate.id, candidate.token), facts.lookups, (expires_at, token))?;
        let senders = lost_lease::senders(self.conn, candidate.id, is_alive)?;
        let attempt_token = match senders {
            Senders::Dead => {
                lost_lease::forget(self.conn, candidate.id)?;
                self.ended_now(candidate.id)?
            }
            Senders::None | Senders::Alive(_) => candidate.last_token,
        };
        let lookup =
            Lookup { attempt_token, may_be_on_its_way: matches!(senders, Senders::Alive(_)) };
        let lease = Arc::new(Lease::new(expires_at, Arc::clone(&self.clock)));
        let delivery = Delivery {
            id: candidate.id,
            operation: request.rules.operation.clone(),
            other_key: intent.other_key(&request.rules.operation),
            intent,
            downstream: policy.promise.downstream,
            repeat_rules: policy.repeat_rules.clone(),
            facts,
            token,
            lease,
            downstream_id: binding::id_of(self.conn, candidate.id)?,
        };
        Ok(Some(Held::LookUp(Arc::new(delivery), lookup)))
    }

    /// Counts the lookup together with its claim, so that a crash cannot make it free.
    fn take_lookup(
        &self,
        (id, before): (i64, Option<i64>),
        lookups: u32,
        (expires_at, token): (i64, i64),
    ) -> Result<()> {
        let sql = "UPDATE main.outbox_lease
                   SET due_at = :expires_at, token = :token, owner = :owner, lookups = :lookups
                   WHERE id = :id AND state = 'unknown' AND token IS :before";
        let values = named_params! {
            ":id": id,
            ":expires_at": expires_at,
            ":token": token,
            ":owner": self.owner,
            ":lookups": lookups,
            ":before": before,
        };
        if execute(self.conn, sql, values)? == 1 { Ok(()) } else { Err(Error::kept_by_trigger()) }
    }

    /// Restarts the quiet period of a row in doubt: an attempt of it has ended at some time until
    /// now, and its request may still be under way in the network.
    pub(crate) fn ended_now(&mut self, id: i64) -> Result<Option<i64>> {
        let token = self.token()?;
        let sql =
            "UPDATE main.outbox_lease SET last_token = ?2 WHERE id = ?1 AND state = 'unknown'";
        execute(self.conn, sql, (id, token))?;
        Ok(Some(token))
    }

    /// Lets others look up a row. `uncounted` is 1 for a lookup that no worker has begun, and 0 for
    /// a lookup that may never return.
    pub(super) fn end_lookup(&self, delivery: &Delivery, uncounted: u32) -> Result<bool> {
        self.free_lookup(delivery.id, Some(delivery.token), uncounted)
    }

    pub(super) fn free_lookup(&self, id: i64, token: Option<i64>, uncounted: u32) -> Result<bool> {
        let sql = "UPDATE main.outbox_lease
                   SET due_at = ?3, token = NULL, owner = NULL, lookups = max(lookups - ?4, 0)
                   WHERE id = ?1 AND token = ?2 AND state = 'unknown'";
        Ok(execute(self.conn, sql, (id, token, self.now, uncounted))? == 1)
    }

    /// Records a finding under the claim it was made for. A late finding changes nothing, unless it
    /// found the effect: that is a proof, whichever relay brings it and when.
    pub(super) fn record_finding(
        &mut self,
        record: &Record,
        finding: &Finding,
        observed: Observed,
        rules: &Rules,
    ) -> Result<()> {
        let delivery = &record.delivery;
        let policy = self.policy(rules)?;
        let row = Row { status: Status::Unknown, ..Row::claimed(delivery, rules.on_dead) };
        let facts = self.with_request(delivery.facts, row)?;
        let decision = decide_finding(&facts, finding, observed, &policy, self.draw(record));
        if let Finding::Applied(receipt) = finding {
            let kind = Some(EventKind::Reconciled);
            if !self.moves.apply(row, kind, &decision, Some(receipt))? {
                let outcome = Outcome::Succeeded(receipt.clone());
                self.record_late(row, &outcome, &decision)?;
            }
            return Ok(());
        }
        // A lookup that never left is not worth an event, and may go on for days.
        let is_silent = matches!(finding, Finding::NotAsked(_));
        let kind = (!is_silent).then_some(EventKind::Reconciled);
        if !self.moves.apply(row, kind, &decision, None)? {
            log::debug!("intent {}: a finding came after its claim was lost; ignored", row.id);
            return Ok(());
        }
        if decision.facts.in_doubt_since.is_none() {
            // Nothing was applied: no attempt is on the way, and none of them cost anything.
            lost_lease::forget(self.conn, row.id)?;
            self.refund_doubt(delivery)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
