//! Suspects: rows that were in flight when their process died, more than once. One of an operation
//! is tried at a time, beside all other rows; the others wait aside behind a hold.

use crate::core::hold::{Admission, Cause, Domain, Hold};
use crate::core::{Gate, Gates, Policy, decide};
use crate::error::Result;
use crate::store::relay::claim::{ClaimRequest, Claimed, Tried};
use crate::store::relay::tx::RelayTx;
use crate::store::tables::candidate::Candidate;
use crate::store::tables::hold;

impl RelayTx<'_> {
    /// Lets the next suspect come due that the gates let through, unless one is under way. Returns
    /// whether it must wait until this relay may try it.
    pub(super) fn release_suspect(
        &mut self,
        request: &ClaimRequest<'_>,
        gates: &Gates,
    ) -> Result<bool> {
        let operation = request.rules.operation.as_str();
        if !self.has_holds_of(operation, Domain::Suspects)? {
            return Ok(false);
        }
        let Some(mut hold) = self.find_hold(operation, Domain::Suspects, "")? else {
            return Ok(false);
        };
        // Where one gate is closed: whether it lets through rows with an endpoint of their own.
        let is_own = match (&gates.configured, &gates.elsewhere) {
            (Gate::Closed { .. }, _) => Some(true),
            (_, Gate::Closed { .. }) => Some(false),
            _ => None,
        };
        if let Some(((id, None), is_own)) = hold.probe.zip(is_own)
            && hold::reclaim_unstarted(self.conn, id, hold.id, is_own)?
        {
            hold.probe = None;
        }
        let later = Some(self.now.saturating_add(request.lease_ms));
        let is_free = hold.probe.is_none();
        if !is_free || !request.tries_suspects {
            let waits = is_free && hold::has_waiting(self.conn, hold.id, request.shard)?;
            if hold.is_over(self.now) {
                self.save_hold(Hold { until: later, ..hold })?;
            }
            return Ok(waits);
        }
        let released = match is_own {
            Some(is_own) => hold::release_one(self.conn, hold.id, request.shard, is_own)?,
            None => hold::release(self.conn, hold.id, request.shard, 1)?.first().copied(),
        };
        if let Some(id) = released {
            self.save_hold(Hold { probe: Some((id, None)), until: later, ..hold })?;
        } else if !self.remove_hold(&hold)? && is_own.is_some() {
            self.save_hold(Hold { until: later, ..hold })?;
        }
        // Otherwise all that wait are of shards that other relays serve.
        Ok(false)
    }

    /// Claims a due row; a suspect only where it is the one of its operation that is tried.
    pub(super) fn claim_row(
        &mut self,
        candidate: Candidate,
        request: &ClaimRequest<'_>,
        policy: &Policy,
        claimed: &mut Claimed,
    ) -> Result<Tried> {
        let (id, facts) = (candidate.id, candidate.facts);
        if !facts.is_suspect() {
            return self.claim_one(candidate, request, policy);
        }
        let facts = facts.claimed(self.now, self.boot);
        let may_be_sent = decide::withheld(&facts, policy.promise, self.now).is_none();
        if may_be_sent
            && candidate.intent.is_ok()
            && !self.is_tried(id, request, policy, claimed)?
        {
            return Ok(Tried::Deferred);
        }
        let tried = self.claim_one(candidate, request, policy)?;
        match &tried {
            Tried::Claimed(delivery) => {
                let hold = self.suspects(id, request)?;
                let until = Some(self.now.saturating_add(request.lease_ms));
                self.save_hold(Hold { probe: Some((id, Some(delivery.token))), until, ..hold })?;
            }
            Tried::Waits => {}
            Tried::Parked | Tried::Deferred => self.end_suspect(&request.rules.operation)?,
        }
        Ok(tried)
    }

    /// Whether this suspect may be claimed now. Any other is put aside.
    fn is_tried(
        &mut self,
        id: i64,
        request: &ClaimRequest<'_>,
        policy: &Policy,
        claimed: &mut Claimed,
    ) -> Result<bool> {
        let hold = self.suspects(id, request)?;
        let is_next = hold.probe.is_none() || hold.admits(id, self.now) == Admission::Probe;
        // One of an unprotected downstream must take no other row of its claim along either.
        let is_beside_none = policy.promise.deduplicates() || claimed.deliveries.is_empty();
        let may_be_tried = request.tries_suspects && is_beside_none;
        if is_next && may_be_tried {
            return Ok(true);
        }
        claimed.suspect_waits |= is_next;
        let probe = hold.probe.filter(|_| !is_next);
        let until = Some(self.now.saturating_add(request.lease_ms));
        let hold = self.save_hold(Hold { until, probe, ..hold })?;
        hold::put_aside(self.conn, id, hold)?;
        Ok(false)
    }

    /// The hold of the operation's suspects, or a new one that this row brings about.
    fn suspects(&mut self, id: i64, request: &ClaimRequest<'_>) -> Result<Hold> {
        let operation = request.rules.operation.as_str();
        let known = self.find_hold(operation, Domain::Suspects, "")?;
        Ok(known.unwrap_or_else(|| Hold {
            cause: Some(Cause::Lost),
            since: self.now,
            culprit: Some(id),
            reason: "processes died with these in flight; one at a time is tried".into(),
            ..Hold::new(operation, Domain::Suspects, String::new())
        }))
    }

    /// Lets the next suspect through, once the last one was tried or is not sent.
    pub(super) fn end_suspect(&mut self, operation: &str) -> Result<()> {
        let Some(hold) = self.find_hold(operation, Domain::Suspects, "")? else { return Ok(()) };
        if let Some((id, token)) = hold.probe
            && hold::is_under_way(self.conn, id, token)?
        {
            return Ok(());
        }
        if !self.remove_hold(&hold)? {
            self.save_hold(Hold { probe: None, until: Some(self.now), ..hold })?;
        }
        Ok(())
    }
}
