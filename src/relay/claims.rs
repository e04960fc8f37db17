//! The parts of a step, for all lanes: renew leases, recover expired ones, claim.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::capacity::Capacity;
use super::lane::Lane;
use super::queue::{ClaimId, Work};
use crate::core::{Shard, millis};
use crate::error::Result;
use crate::handler::Held;
use crate::lease::Lease;
use crate::store::tables::lost_lease::IsAlive;
use crate::store::{ClaimRequest, RelayTx};

/// The leases of everything held, as renewed; true only once the step is committed.
#[derive(Default)]
pub(super) struct Renewed {
    pub held: Vec<Arc<Lease>>,
    pub lost: Vec<Arc<Lease>>,
    /// Abandoned, because the handler is long past its time limit and may never return.
    pub overdue: Vec<ClaimId>,
}

pub(super) fn renew(
    step: &mut RelayTx<'_>,
    held: &HashMap<ClaimId, Work>,
    aside: &HashSet<i64>,
    lease: Duration,
) -> Result<Renewed> {
    let mut renewed = Renewed::default();
    for (claim, Work { lane, held }) in held.iter().filter(|(c, _)| !aside.contains(&c.id)) {
        step.at = Some(claim.id);
        let delivery = held.delivery();
        let worked = delivery.lease.began().map_or(Duration::ZERO, |began| began.elapsed());
        if worked > lane.rules.policy.promise.time_limit.saturating_add(lease) {
            step.abandon(held, &lane.rules)?;
            renewed.overdue.push(*claim);
        } else if step.renew(delivery, millis(lease))? {
            renewed.held.push(Arc::clone(&delivery.lease));
        } else {
            renewed.lost.push(Arc::clone(&delivery.lease));
        }
    }
    Ok(renewed)
}

/// A round of claims over all lanes: what it may claim, and what it has found.
pub(super) struct Claims<'a> {
    /// The lanes in the order of their turn.
    pub lanes: Vec<Arc<Lane>>,
    pub capacity: Capacity,
    pub shard: Shard,
    pub lease_ms: i64,
    pub is_alive: IsAlive<'a>,
    /// Whether lookups come before sends, as in every other round.
    pub lookups_first: bool,
    pub found: Found,
}

#[derive(Default)]
pub(super) struct Found {
    pub works: Vec<Work>,
    /// The lane whose next row must wait for an idle worker, and then comes first.
    pub waits_for_idle_worker: Option<usize>,
    /// A lane had as many due rows as there was room for, or was not looked through to its end.
    pub more: bool,
}

impl Claims<'_> {
    pub fn claim(&mut self, step: &mut RelayTx<'_>) -> Result<()> {
        let lanes = std::mem::take(&mut self.lanes);
        for lane in &lanes {
            step.recover(&lane.rules)?;
        }
        for lane in &lanes {
            if self.lookups_first {
                self.claim_lookups(step, lane)?;
            }
            if self.capacity.room(lane) > 0 {
                self.claim_sends(step, lane)?;
            } else if self.capacity.waits_for_idle_worker(lane)
                && step.has_due(&lane.rules, self.shard)?
            {
                // The lane keeps its turn: lanes after it would keep the workers busy forever.
                self.found.waits_for_idle_worker = Some(lane.place);
                break;
            }
        }
        if !self.lookups_first {
            lanes.iter().try_for_each(|lane| self.claim_lookups(step, lane))?;
        }
        Ok(())
    }

    fn claim_sends(&mut self, step: &mut RelayTx<'_>, lane: &Arc<Lane>) -> Result<()> {
        let limit = self.capacity.room(lane);
        let claimed = step.claim(&self.request(lane, limit))?;
        let count = claimed.deliveries.len();
        self.hold(lane, claimed.deliveries.into_iter().map(Held::Send));
        if claimed.suspect_waits {
            self.capacity.suspect_waits = Some(lane.place);
        } else if self.capacity.suspect_waits == Some(lane.place) {
            self.capacity.suspect_waits = None;
        }
        lane.set_limited(claimed.is_limited);
        let is_full = count == limit || self.capacity.bytes_left == 0;
        // The next row of a limited operation comes due when the limit says so.
        self.found.more |= is_full || claimed.is_unfinished || claimed.is_limited;
        Ok(())
    }

    /// Claims lookups of one lane, for part of the workers only, so that sends and lookups do not
    /// wait for one another for long. A lane that cannot look up parks stale ones for a person.
    fn claim_lookups(&mut self, step: &mut RelayTx<'_>, lane: &Arc<Lane>) -> Result<()> {
        let limit = self.capacity.lookup_room(lane);
        if limit == 0 {
            return Ok(());
        }
        let request = self.request(lane, limit);
        if !lane.handler.reconciles() {
            self.found.more |= step.park_stale_lookups(&request)?;
            return Ok(());
        }
        let found = step.claim_lookups(&request, self.is_alive)?;
        self.found.more |= found.len() == limit;
        self.hold(lane, found.into_iter());
        Ok(())
    }

    fn request<'r>(&self, lane: &'r Lane, limit: usize) -> ClaimRequest<'r> {
        ClaimRequest {
            rules: &lane.rules,
            limit,
            starts: self.capacity.starts(lane),
            bytes: self.capacity.bytes_left,
            shard: self.shard,
            lease_ms: self.lease_ms,
            tries_suspects: self.capacity.tries_suspects(lane),
        }
    }

    fn hold(&mut self, lane: &Arc<Lane>, claimed: impl Iterator<Item = Held>) {
        for held in claimed {
            let work = Work { lane: Arc::clone(lane), held };
            self.capacity.hold(&work);
            self.found.works.push(work);
        }
    }
}
