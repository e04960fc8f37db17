//! Claiming due rows under a lease.

use std::sync::Arc;

use rusqlite::{named_params, params};

use crate::core::hold::{Domain, Hold};
use crate::core::{Facts, Fit, Gate, Gates, Policy, Scope, Shard, Status, UsedUp, decide};
use crate::error::{Error, Result};
use crate::event::EventKind;
use crate::handler::{Delivery, StoredIntent};
use crate::lease::Lease;
use crate::store::relay::due::has_due;
use crate::store::relay::rebase::count_from_now;
use crate::store::relay::tx::{RelayTx, Rules};
use crate::store::statement::execute;
use crate::store::tables::candidate::{
    CANDIDATES, CANDIDATES_CONFIGURED, CANDIDATES_OWN, Candidate, Candidates, read_candidate,
};
use crate::store::tables::ledger::{self, Asking};
use crate::store::tables::shard::of_shard;
use crate::store::tables::wire_key;
use crate::store::transitions::Row;

/// Which rows a relay has room for.
#[derive(Debug)]
pub(crate) struct ClaimRequest<'a> {
    pub rules: &'a Rules,
    /// At most this many rows.
    pub limit: usize,
    /// At most this many, where the operation has a rate or budgets: so many workers are idle.
    pub starts: usize,
    /// No more rows once their payloads have this many bytes.
    pub bytes: usize,
    /// Only the rows of this shard.
    pub shard: Shard,
    /// How long the lease lasts.
    pub lease_ms: i64,
    /// Whether a row that may end this process can be tried now: it would take no row along of an
    /// unprotected downstream.
    pub tries_suspects: bool,
}

/// The result of a claim.
#[derive(Debug, Default)]
pub(crate) struct Claimed {
    pub deliveries: Vec<Arc<Delivery>>,
    /// Rows were moved out of the way, and there may be others behind them.
    pub is_unfinished: bool,
    /// A suspect is the next of its operation, and could not be tried now.
    pub suspect_waits: bool,
    /// The operation has a rate or budgets, so that a claim means: about to be sent.
    pub is_limited: bool,
}

/// The result for a single due row.
pub(super) enum Tried {
    Claimed(Arc<Delivery>),
    /// The row waits for a person, or is settled.
    Parked,
    /// The row waits aside behind a hold.
    Deferred,
    /// The row does not fit the operation's budget, and no row goes before it.
    Waits,
}

/// The result of one look at due rows.
#[derive(Default)]
struct Batch {
    deferred: usize,
    /// Rows were deferred, so that there may be others for the room that is left.
    goes_on: bool,
    /// No row was found that could be claimed or moved out of the way.
    is_stuck: bool,
}

/// How much is looked for: at most `limit` rows with `bytes` of payloads, behind the first
/// `passed_over` due rows.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub limit: usize,
    pub bytes: usize,
    pub passed_over: usize,
}

/// A claim defers or moves aside hardly more rows than this: others get the lock in between.
const DEFERRED_MAX: usize = 200;
/// So many due rows are looked at for one whose origin was not tried since the machine is offline.
const NETWORK_PROBES_MAX: usize = 64;
/// In so many places, one after the other.
const NETWORK_PLACES: usize = 16;

impl RelayTx<'_> {
    /// Claims due rows of one operation, oldest first. Rows that may not be sent any more, and
    /// rows that cannot be read, are parked on the way and never fail the claim.
    pub fn claim(&mut self, request: &ClaimRequest<'_>) -> Result<Claimed> {
        let policy = self.policy(request.rules)?;
        let mut claimed = Claimed::default();
        let gates = self.gates(request.rules, request.shard)?;
        if gates.are_closed() {
            return Ok(claimed);
        }
        self.release_held(request)?;
        claimed.suspect_waits = self.release_suspect(request, &gates)?;
        claimed.is_limited = self.is_limited(&request.rules.operation)?;
        let conn = self.conn;
        self.ledger(&request.rules.operation)?.forget(conn)?;
        if gates.tries_network {
            self.claim_network_probe(&gates, request, &policy, &mut claimed)?;
        } else if gates.configured == gates.elsewhere {
            self.claim_through(&gates.configured, &CANDIDATES, request, &policy, &mut claimed)?;
        } else {
            let configured = &CANDIDATES_CONFIGURED;
            self.claim_through(&gates.configured, configured, request, &policy, &mut claimed)?;
            self.claim_through(&gates.elsewhere, &CANDIDATES_OWN, request, &policy, &mut claimed)?;
        }
        self.take_from_bucket(request.rules, claimed.deliveries.len());
        self.at = None;
        Ok(claimed)
    }

    /// Claims of these rows as many as this gate lets through, oldest first. While there are many
    /// to be moved aside, the newest have a turn in between: they must not wait for that.
    fn claim_through(
        &mut self,
        gate: &Gate,
        due: &Candidates,
        request: &ClaimRequest<'_>,
        policy: &Policy,
        claimed: &mut Claimed,
    ) -> Result<()> {
        if claimed.deliveries.iter().any(|delivery| is_alone(delivery, policy)) {
            return Ok(());
        }
        let before = claimed.deliveries.len();
        let most = if claimed.is_limited { request.starts } else { usize::MAX };
        let (limit, probe) = match *gate {
            Gate::Open(limit) => (limit.min(request.limit).min(most), None),
            Gate::Probe(passed_over) => (1, Some(passed_over)),
            Gate::Closed { .. } => return Ok(()),
        };
        let mut room = Room { limit, bytes: request.bytes, passed_over: probe.unwrap_or(0) };
        let mut deferred = 0;
        loop {
            let batch = self.claim_batch(due.oldest, request, policy, room, claimed)?;
            deferred += batch.deferred;
            if batch.is_stuck && room.passed_over > 0 {
                // No row at that offset, or it exceeds the budget: retry from the first row.
                room.passed_over = 0;
            } else if !batch.goes_on || deferred >= DEFERRED_MAX {
                if batch.goes_on {
                    claimed.is_unfinished = true;
                    self.claim_batch(due.newest, request, policy, room, claimed)?;
                }
                break;
            }
        }
        if probe.is_some() {
            self.begin_probe(&request.rules.operation, claimed.deliveries.get(before));
        }
        Ok(())
    }

    /// Claims a row that tries whether the machine's network is there again: where it can, a row
    /// whose origin was not tried yet, because an origin that is gone for itself does not stand for
    /// all.
    fn claim_network_probe(
        &mut self,
        gates: &Gates,
        request: &ClaimRequest<'_>,
        policy: &Policy,
        claimed: &mut Claimed,
    ) -> Result<()> {
        let due = match (&gates.configured, &gates.elsewhere) {
            (Gate::Closed { .. }, _) => CANDIDATES_OWN,
            (_, Gate::Closed { .. }) => CANDIDATES_CONFIGURED,
            _ => CANDIDATES,
        };
        let Some(network) = self.network(request.rules)? else { return Ok(()) };
        // The place moves on with every try, as the first rows may all go to the same origin. Where
        // none of that place may go, or fits the operation's budget, one of the first does.
        let place = network.probes as usize % NETWORK_PLACES * NETWORK_PROBES_MAX;
        for passed_over in [place, 0] {
            let room = Room { limit: NETWORK_PROBES_MAX, bytes: request.bytes, passed_over };
            let mut candidates = self.candidates(due.oldest, request, self.now, room)?;
            candidates.sort_by_key(|candidate| {
                let intent = candidate.intent.as_ref();
                intent.is_ok_and(|intent| network.has_tried(&request.rules.origin_of(intent)))
            });
            for candidate in candidates {
                match self.claim_row(candidate, request, policy, claimed)? {
                    Tried::Claimed(delivery) => {
                        let until = Some(self.now.saturating_add(request.lease_ms));
                        let probe = Some((delivery.id, Some(delivery.token)));
                        self.save_hold(Hold { until, probe, ..network })?;
                        if matches!(gates.configured, Gate::Probe(_))
                            && delivery.intent.endpoint.is_none()
                        {
                            self.begin_probe(&request.rules.operation, Some(&delivery));
                        }
                        claimed.deliveries.push(delivery);
                        return Ok(());
                    }
                    Tried::Parked | Tried::Deferred => claimed.is_unfinished = true,
                    Tried::Waits => {}
                }
            }
            if passed_over == 0 || claimed.is_unfinished {
                break;
            }
        }
        Ok(())
    }

    /// Claims rows until there is no room, or all that were found have been looked at.
    fn claim_batch(
        &mut self,
        sql: &'static str,
        request: &ClaimRequest<'_>,
        policy: &Policy,
        room: Room,
        claimed: &mut Claimed,
    ) -> Result<Batch> {
        let mut batch = Batch::default();
        let taken: usize = claimed.deliveries.iter().map(|d| d.intent.payload.len()).sum();
        let left = Room {
            limit: room.limit.saturating_sub(claimed.deliveries.len()),
            bytes: room.bytes.saturating_sub(taken),
            ..room
        };
        let candidates = self.candidates(sql, request, self.now, left)?;
        batch.is_stuck = candidates.is_empty();
        for candidate in candidates {
            if !self.touch(candidate.id) {
                claimed.is_unfinished = true;
                return Ok(batch);
            }
            match self.claim_row(candidate, request, policy, claimed)? {
                Tried::Claimed(delivery) => {
                    let is_alone = is_alone(&delivery, policy);
                    claimed.deliveries.push(delivery);
                    if is_alone {
                        claimed.is_unfinished = true;
                        return Ok(batch);
                    }
                }
                Tried::Deferred => batch.deferred += 1,
                Tried::Parked => claimed.is_unfinished = true,
                Tried::Waits => {
                    batch.is_stuck = claimed.deliveries.is_empty();
                    return Ok(batch);
                }
            }
        }
        let taken: usize = claimed.deliveries.iter().map(|d| d.intent.payload.len()).sum();
        let has_room = claimed.deliveries.len() < room.limit && taken < room.bytes;
        batch.goes_on = batch.deferred > 0 && has_room;
        Ok(batch)
    }

    /// Whether anything of this operation is due and may be sent.
    pub fn has_due(&mut self, rules: &Rules, shard: Shard) -> Result<bool> {
        let gates = self.gates(rules, shard)?;
        Ok(!gates.are_closed() && has_due(self.conn, &rules.operation, &gates, shard, self.now)?)
    }

    /// The rows that `sql` finds due at `until`, as far as there is room.
    pub(super) fn candidates(
        &self,
        sql: &'static str,
        request: &ClaimRequest<'_>,
        until: i64,
        room: Room,
    ) -> Result<Vec<Candidate>> {
        let mut statement = self.conn.prepare_cached(&of_shard(sql, request.shard))?;
        let rows = statement.query_map(
            named_params! {
                ":operation": request.rules.operation,
                ":now": until,
                ":count": request.shard.count(),
                ":index": request.shard.index(),
                ":limit": i64::try_from(room.limit).unwrap_or(i64::MAX),
                ":passed_over": i64::try_from(room.passed_over).unwrap_or(0),
            },
            |row| read_candidate(row, &request.rules.operation),
        )?;
        let mut candidates = Vec::new();
        let mut bytes = 0;
        for row in rows {
            let candidate: Candidate = row?;
            bytes += candidate.intent.as_ref().map_or(0, |intent| intent.payload.len());
            candidates.push(candidate);
            if bytes >= room.bytes {
                break;
            }
        }
        Ok(candidates)
    }

    pub(super) fn claim_one(
        &mut self,
        candidate: Candidate,
        request: &ClaimRequest<'_>,
        policy: &Policy,
    ) -> Result<Tried> {
        let (conn, id, rules) = (self.conn, candidate.id, request.rules);
        let operation = &rules.operation;
        let row = row_of(id, candidate.token, Status::Pending, rules);
        let intent = match candidate.intent {
            Ok(intent) => intent,
            Err(why) => return self.park_unreadable(row, &candidate.facts, &why),
        };
        if count_from_now(conn, id, intent.created_at, self.now)? {
            return Ok(Tried::Deferred);
        }
        let facts = candidate.facts.claimed(self.now, self.boot);
        let may_be_sent = decide::withheld(&facts, policy.promise, self.now).is_none();
        if may_be_sent && self.waits_aside(id, &intent, rules)? {
            return Ok(Tried::Deferred);
        }
        let deduplicates = policy.promise.deduplicates();
        let (tenant_id, cost) = (intent.tenant_id.as_str(), intent.cost);
        let asking = Asking { id, tenant_id, cost, deduplicates };
        let withheld = match decide::decide_before_send(&facts, policy, self.now)
            .or_else(|| decide::decide_used_up(&facts, policy, self.now))
        {
            Some(decision) => Some(decision),
            None => match self.ledger(operation)?.fit(conn, asking)? {
                Fit::Fits => None,
                Fit::Never(budget) => Some(decide::decide_never_fits(&facts, intent.cost, &budget)),
                Fit::PutOff(used_up) => return self.defer(id, &intent, rules, &used_up),
                Fit::Waits(used_up) => return self.wait_in_turn(id, &intent, rules, &used_up),
            },
        };
        if let Some(decision) = withheld {
            let row = Row { is_keyed: intent.ordering_key.is_some(), ..row };
            self.moves.apply(row, Some(EventKind::Withheld), &decision, None)?;
            if decision.status == Status::Unknown {
                self.withheld.push((id, candidate.last_token));
            }
            self.forget_tries(id, &intent, rules)?;
            return Ok(Tried::Parked);
        }
        let expires_at = self.now.saturating_add(request.lease_ms);
        let token = self.token()?;
        let facts = facts.counted();
        self.take(id, &facts, expires_at, token)?;
        let other_key = intent.other_key(operation);
        if let (None, Some(sent_as)) = (candidate.last_token, &other_key) {
            wire_key::keep(conn, id, sent_as)?;
        }
        self.ledger(operation)?.enter(conn, asking, token, policy.promise.time_limit)?;
        self.begin_tries(id, token, &intent, request)?;
        Ok(Tried::Claimed(Arc::new(Delivery {
            id,
            operation: operation.clone(),
            intent,
            other_key,
            downstream: policy.promise.downstream,
            repeat_rules: policy.repeat_rules.clone(),
            facts,
            token,
            lease: Arc::new(Lease::new(expires_at, Arc::clone(&self.clock))),
            downstream_id: None,
        })))
    }

    fn park_unreadable(&mut self, row: Row<'_>, facts: &Facts, why: &str) -> Result<Tried> {
        let decision = decide::decide_unreadable(facts, why);
        self.moves.apply(row, Some(EventKind::Unreadable), &decision, None)?;
        log::warn!("intent {} cannot be read and is parked: {why}", row.id);
        Ok(Tried::Parked)
    }

    /// Lets a row wait aside until its tenant or run has something left. Others try the holds that
    /// it was to try.
    fn defer(
        &mut self,
        id: i64,
        intent: &StoredIntent,
        rules: &Rules,
        used_up: &UsedUp,
    ) -> Result<Tried> {
        let (domain, name) = match used_up.budget.scope {
            Scope::Run => (Domain::Run, ledger::run_of(self.conn, id)?.unwrap_or_default()),
            _ => (Domain::Tenant, intent.tenant_id.clone()),
        };
        self.wait_for_budget(Hold::new(&rules.operation, domain, name), used_up, id)?;
        self.forget_tries(id, intent, rules)?;
        Ok(Tried::Deferred)
    }

    /// Counts the attempt together with the claim, so that a crash cannot make it free.
    fn take(&self, id: i64, facts: &Facts, expires_at: i64, token: i64) -> Result<()> {
        let sql = "UPDATE main.outbox_lease
                   SET state = 'in_flight', due_at = ?2, attempts = ?3, tries = ?4, token = ?5,
                       last_token = ?5, owner = ?6, claimed_at = ?7, doubt_boot = ?8
                   WHERE id = ?1 AND state = 'pending'";
        let values = params![
            id,
            expires_at,
            facts.attempts,
            facts.tries,
            token,
            self.owner,
            self.now,
            facts.doubt_boot,
        ];
        // The write lock is held since the row was found: only a trigger can have kept it.
        if execute(self.conn, sql, values)? == 1 { Ok(()) } else { Err(Error::kept_by_trigger()) }
    }
}

/// Whether a row is claimed without any other: a suspect that nothing must be in doubt beside.
fn is_alone(delivery: &Delivery, policy: &Policy) -> bool {
    delivery.facts.is_suspect() && !policy.promise.deduplicates()
}

/// The row that was found under this claim. Its ordering key is not known here.
pub(super) fn row_of(id: i64, token: Option<i64>, status: Status, rules: &Rules) -> Row<'_> {
    Row {
        id,
        operation: &rules.operation,
        is_keyed: false,
        status,
        token,
        has_lease: true,
        on_dead: rules.on_dead,
        delivery: None,
    }
}
