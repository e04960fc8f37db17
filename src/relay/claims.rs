//! What one step does for all lanes: write back, renew, take back, claim.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::lane::Lane;
use super::space::Space;
use crate::core::millis;
use crate::core::shard::Shard;
use crate::error::Result;
use crate::handler::{Delivery, Lease};
use crate::liveness;
use crate::store::{ClaimRequest, Record, RelayTx};

pub(super) struct Plan {
    /// The lanes in the order of their turn.
    pub order: Vec<usize>,
    pub space: Space,
    pub holds_nothing: bool,
    pub shard: Shard,
    /// Whether look-ups come before sends, which they do every other time.
    pub lookups_first: bool,
}

#[derive(Default)]
pub(super) struct Claims {
    pub deliveries: Vec<(usize, Arc<Delivery>)>,
    /// The next row must be claimed alone.
    pub quiet: bool,
    /// The lane whose next row must wait for an idle worker; it comes first then.
    pub wants_idle: Option<usize>,
    /// A lane had as many due rows as there was room for, or was not looked through to its end.
    pub more: bool,
}

pub(super) fn write_back(
    step: &mut RelayTx<'_>,
    lanes: &[Lane],
    unrecorded: &[(usize, Record)],
    unreleased: &[Arc<Delivery>],
    path: &str,
) -> Result<()> {
    for (lane, record) in unrecorded {
        step.record(record, &lanes[*lane].rules, &|owner| liveness::is_alive(path, owner))?;
    }
    for delivery in unreleased {
        step.release(delivery)?;
    }
    Ok(())
}

/// What became of the leases of everything held; it counts only once the step is committed.
#[derive(Default)]
pub(super) struct Renewed {
    pub held: Vec<Arc<Lease>>,
    pub lost: Vec<Arc<Lease>>,
    /// Given up, because the handler is long past its time limit and may never come back.
    pub overdue: Vec<(i64, i64)>,
}

pub(super) fn renew(
    step: &mut RelayTx<'_>,
    lanes: &[Lane],
    held: &HashMap<(i64, i64), (usize, Arc<Delivery>)>,
    lease: Duration,
) -> Result<Renewed> {
    let mut renewed = Renewed::default();
    for (key, (lane, delivery)) in held {
        let lane = &lanes[*lane];
        let worked = delivery.lease.began().map_or(Duration::ZERO, |began| began.elapsed());
        if worked > lane.policy.promise.time_limit.saturating_add(lease) {
            step.abandon(delivery, &lane.rules)?;
            renewed.overdue.push(*key);
        } else if step.renew(delivery, millis(lease))? {
            renewed.held.push(Arc::clone(&delivery.lease));
        } else {
            renewed.lost.push(Arc::clone(&delivery.lease));
        }
    }
    Ok(renewed)
}

pub(super) fn claim(
    step: &mut RelayTx<'_>,
    lanes: &[Lane],
    plan: &mut Plan,
    lease_ms: i64,
    path: &str,
) -> Result<Claims> {
    let mut claims = Claims::default();
    step.check_schema()?;
    for lane in lanes {
        step.recover(&lane.rules)?;
    }
    for index in plan.order.clone() {
        if plan.lookups_first {
            claim_lookups(step, (index, &lanes[index]), plan, &mut claims, (lease_ms, path))?;
        }
        let limit = plan.space.room(index, &lanes[index]);
        if limit == 0 {
            // Its turn is kept: whoever comes after it would keep the workers busy for ever.
            let waits = plan.space.idle() == 0 && lanes[index].waits_for_idle();
            if waits && step.has_due(&lanes[index].rules, plan.shard)? {
                claims.wants_idle = Some(index);
                break;
            }
            continue;
        }
        let found = step.claim(&ClaimRequest {
            rules: &lanes[index].rules,
            limit,
            bytes: plan.space.bytes_left(),
            shard: plan.shard,
            lease_ms,
            holds_nothing: plan.holds_nothing && claims.deliveries.is_empty(),
        })?;
        claims.quiet |= found.solo_next;
        let bytes = found.deliveries.iter().map(|d| d.payload.len()).sum();
        plan.space.hold(index, found.deliveries.len(), bytes);
        let is_full = found.deliveries.len() == limit || plan.space.bytes_left() == 0;
        claims.more |= is_full || found.is_unfinished;
        let is_alone = found.deliveries.first().is_some_and(|d| d.must_be_alone());
        claims.deliveries.extend(found.deliveries.into_iter().map(|delivery| (index, delivery)));
        if is_alone {
            return Ok(claims);
        }
    }
    if !plan.lookups_first {
        for index in plan.order.clone() {
            claim_lookups(step, (index, &lanes[index]), plan, &mut claims, (lease_ms, path))?;
        }
    }
    Ok(claims)
}

/// Look-ups take turns with sends, and part of the workers only, so that neither waits for the
/// other for long. A lane that cannot ask only sets aside what nobody asks about.
fn claim_lookups(
    step: &mut RelayTx<'_>,
    (index, lane): (usize, &Lane),
    plan: &mut Plan,
    claims: &mut Claims,
    (lease_ms, path): (i64, &str),
) -> Result<()> {
    let limit = plan.space.lookup_room(index, lane);
    if limit == 0 {
        return Ok(());
    }
    let request = ClaimRequest {
        rules: &lane.rules,
        limit,
        bytes: plan.space.bytes_left(),
        shard: plan.shard,
        lease_ms,
        holds_nothing: false,
    };
    if !lane.handler.reconciles() {
        claims.more |= step.park_stale_lookups(&request)?;
        return Ok(());
    }
    let found = step.claim_lookups(&request, &|owner| liveness::is_alive(path, owner))?;
    plan.space.hold_lookups(index, found.len(), found.iter().map(|d| d.payload.len()).sum());
    claims.more |= found.len() == limit;
    claims.deliveries.extend(found.into_iter().map(|delivery| (index, delivery)));
    Ok(())
}
