//! Taking due rows under a lease, and taking back leases that ran out.

use std::sync::Arc;

use rusqlite::named_params;

use crate::core::budget::{Budget, Fit, UsedUp};
use crate::core::decide::{self, Decision, Facts, Policy};
use crate::core::flow::Gate;
use crate::core::status::Status;
use crate::error::Result;
use crate::event::EventKind;
use crate::handler::{Delivery, Lease};
use crate::store::columns;
use crate::store::relay::tx::{Row, Rules, Step};
use crate::store::relay::writer::HAS_DUE;
use crate::store::tables::budget::Asking;
use crate::store::tables::candidate::{
    CANDIDATES, Candidate, FACTS, facts_columns, read_candidate, read_facts,
};
use crate::store::tables::{lost_lease, ordering};

/// Which rows a relay has room for.
#[derive(Debug)]
pub(crate) struct ClaimRequest<'a> {
    pub rules: &'a Rules,
    /// At most so many rows.
    pub limit: usize,
    /// No more rows once their payloads have so many bytes.
    pub bytes: usize,
    /// Only rows whose `id % count == index`.
    pub shard: (u32, u32),
    /// How long the lease lasts.
    pub lease_ms: i64,
    /// Whether this relay holds nothing at all, so that a row whose process died may be tried.
    pub holds_nothing: bool,
}

/// What a claim found.
#[derive(Debug, Default)]
pub(crate) struct Claimed {
    pub deliveries: Vec<Arc<Delivery>>,
    /// Rows were moved out of the way, and there may be others behind them.
    pub is_unfinished: bool,
    /// The next due row died with its process before and must be claimed alone: the relay
    /// should let what it holds finish first.
    pub wants_to_be_alone: bool,
}

/// What became of one due row.
enum Tried {
    Claimed(Arc<Delivery>),
    /// It waits for a person, or is settled.
    Parked,
    /// Its tenant's budget is used up.
    PutOff,
    /// It does not fit what is left for the operation, and nothing goes before it.
    Waits,
}

/// What came of one look at due rows.
#[derive(Default)]
struct Batch {
    put_off: usize,
    /// Rows were put off, so that there may be others for the room that is left.
    goes_on: bool,
    /// Nothing was found that could be claimed or moved out of the way.
    is_stuck: bool,
}

/// One claim puts off hardly more rows of tenants whose budget is used up.
const PUT_OFF_MAX: usize = 500;

/// How many expired leases one step takes back of one operation.
const RECOVER_MAX: i64 = 100;

impl Step<'_> {
    /// Claims due rows of one operation, oldest first. Rows that may not be sent any more, and
    /// rows that cannot be read, are parked on the way and never fail the claim.
    pub fn claim(&mut self, request: &ClaimRequest<'_>) -> Result<Claimed> {
        let policy = self.policy(request.rules)?;
        let mut claimed = Claimed::default();
        let (limit, probe) = match self.gate(request.rules, request.shard)? {
            Gate::Open(limit) => (limit.min(request.limit), None),
            Gate::Probe(passed_over) => (1, Some(passed_over)),
            Gate::Closed { .. } => return Ok(claimed),
        };
        let (conn, purse) = self.purse(&request.rules.operation)?;
        purse.forget(conn)?;
        let (mut passed_over, mut put_off) = (probe.unwrap_or(0), 0);
        loop {
            let batch = self.claim_batch(request, &policy, (limit, passed_over), &mut claimed)?;
            put_off += batch.put_off;
            if batch.is_stuck && passed_over > 0 {
                // There is no such row, or it does not fit: the first one does.
                passed_over = 0;
            } else if !batch.goes_on || put_off >= PUT_OFF_MAX {
                claimed.is_unfinished |= batch.goes_on;
                break;
            }
        }
        if probe.is_some() {
            self.begin_probe(&request.rules.operation, claimed.deliveries.first());
        }
        self.take_from_bucket(request.rules, claimed.deliveries.len());
        Ok(claimed)
    }

    /// Claims rows until there is no room, or all that were found have been looked at.
    fn claim_batch(
        &mut self,
        request: &ClaimRequest<'_>,
        policy: &Policy,
        (limit, passed_over): (usize, usize),
        claimed: &mut Claimed,
    ) -> Result<Batch> {
        let mut batch = Batch::default();
        let room = limit.saturating_sub(claimed.deliveries.len());
        let bytes: usize = claimed.deliveries.iter().map(|d| d.payload.len()).sum();
        let bytes = request.bytes.saturating_sub(bytes);
        let candidates = self.candidates(request, (room, bytes), passed_over)?;
        batch.is_stuck = candidates.is_empty();
        for candidate in candidates {
            let alone = candidate.facts.lost > 0;
            if alone && !(request.holds_nothing && claimed.deliveries.is_empty()) {
                claimed.wants_to_be_alone = claimed.deliveries.is_empty();
                return Ok(batch);
            }
            match self.claim_one(candidate, request, policy)? {
                Tried::Claimed(delivery) => {
                    claimed.deliveries.push(delivery);
                    if alone {
                        return Ok(batch);
                    }
                }
                Tried::PutOff => batch.put_off += 1,
                Tried::Parked => claimed.is_unfinished = true,
                Tried::Waits => {
                    batch.is_stuck = claimed.deliveries.is_empty();
                    return Ok(batch);
                }
            }
        }
        let taken: usize = claimed.deliveries.iter().map(|d| d.payload.len()).sum();
        let has_room = claimed.deliveries.len() < limit && taken < request.bytes;
        batch.goes_on = batch.put_off > 0 && has_room;
        Ok(batch)
    }

    /// Whether anything of this operation is due and may be sent.
    pub fn has_due(&mut self, rules: &Rules, shard: (u32, u32)) -> Result<bool> {
        let (index, count) = shard;
        if matches!(self.gate(rules, shard)?, Gate::Closed { .. }) {
            return Ok(false);
        }
        let mut statement = self.tx.prepare_cached(HAS_DUE)?;
        Ok(statement.query_row((&rules.operation, self.now, count, index), |row| row.get(0))?)
    }

    fn candidates(
        &self,
        request: &ClaimRequest<'_>,
        (limit, bytes_max): (usize, usize),
        passed_over: usize,
    ) -> Result<Vec<Candidate>> {
        let mut statement = self.tx.prepare_cached(CANDIDATES)?;
        let (index, count) = request.shard;
        let rows = statement.query_map(
            named_params! {
                ":operation": request.rules.operation,
                ":now": self.now,
                ":count": count,
                ":index": index,
                ":limit": i64::try_from(limit).unwrap_or(i64::MAX),
                ":passed_over": i64::try_from(passed_over).unwrap_or(0),
            },
            |row| read_candidate(row, &request.rules.operation),
        )?;
        let mut candidates = Vec::new();
        let mut bytes = 0;
        for row in rows {
            let candidate: Candidate = row?;
            bytes += candidate.intent.as_ref().map_or(0, |intent| intent.payload.len());
            candidates.push(candidate);
            if bytes >= bytes_max {
                break;
            }
        }
        Ok(candidates)
    }

    fn claim_one(
        &mut self,
        candidate: Candidate,
        request: &ClaimRequest<'_>,
        policy: &Policy,
    ) -> Result<Tried> {
        let operation = &request.rules.operation;
        let intent = match candidate.intent {
            Ok(intent) => intent,
            Err(why) => {
                let decision = unreadable(candidate.facts, &why);
                let row = pending_row(candidate.id, operation, false, candidate.token);
                self.apply(row, Some(EventKind::Unreadable), &decision, request.rules.on_dead)?;
                log::warn!("intent {} cannot be read and is parked: {why}", candidate.id);
                return Ok(Tried::Parked);
            }
        };
        let facts = Facts { claimed_at: self.now, ..candidate.facts };
        let asking = Asking { id: candidate.id, tenant_id: &intent.tenant_id, cost: intent.cost };
        let withheld = match decide::decide_before_send(&facts, policy, self.now)
            .or_else(|| decide::decide_used_up(&facts, policy, self.now))
        {
            Some(decision) => Some(decision),
            None => match self.fit(operation, asking)? {
                Fit::Fits => None,
                Fit::Never(budget) => Some(never_fits(facts, intent.cost, &budget)),
                Fit::PutOff(used_up) => return self.put_off(candidate.id, used_up),
                Fit::Waits(_) => return Ok(Tried::Waits),
            },
        };
        if let Some(decision) = withheld {
            let is_keyed = intent.ordering_key.is_some();
            let row = pending_row(candidate.id, operation, is_keyed, candidate.token);
            self.conclude(row, Some(EventKind::Withheld), &decision, request.rules.on_dead)?;
            return Ok(Tried::Parked);
        }
        let expires_at = self.now.saturating_add(request.lease_ms);
        let token = self.token()?;
        if !self.take(candidate.id, expires_at, token)? {
            return Ok(Tried::Parked);
        }
        let (conn, purse) = self.purse(operation)?;
        purse.enter(conn, asking, token)?;
        let facts = Facts {
            attempts: facts.attempts.saturating_add(1),
            tries: facts.tries.saturating_add(1),
            ..facts
        };
        let lease = Arc::new(Lease::new(expires_at, Arc::clone(&self.clock)));
        let claim = (token, lease);
        let delivery = intent.delivery(candidate.id, operation, policy.downstream, facts, claim);
        Ok(Tried::Claimed(Arc::new(delivery)))
    }

    /// Lets a row wait until its tenant has something left. It costs no try and leaves no event.
    fn put_off(&self, id: i64, used_up: UsedUp) -> Result<Tried> {
        let mut statement = self.tx.prepare_cached(
            "UPDATE main.outbox_lease
             SET due_at = :until, error_class = 'budget', last_error = :why
             WHERE id = :id AND state = 'pending'",
        )?;
        statement.execute(named_params! {
            ":until": used_up.until, ":why": used_up.to_string(), ":id": id,
        })?;
        Ok(Tried::PutOff)
    }

    fn fit(&mut self, operation: &str, asking: Asking<'_>) -> Result<Fit> {
        let (conn, purse) = self.purse(operation)?;
        purse.fit(conn, asking)
    }

    /// Counts the attempt together with the claim, so that a crash cannot make it free.
    fn take(&self, id: i64, expires_at: i64, token: i64) -> Result<bool> {
        let mut statement = self.tx.prepare_cached(
            "UPDATE main.outbox_lease
             SET state = 'in_flight', due_at = :expires_at, attempts = attempts + 1,
                 tries = tries + 1, token = :token, last_token = :token, owner = :owner,
                 claimed_at = :now
             WHERE id = :id AND state = 'pending'",
        )?;
        let changed = statement.execute(named_params! {
            ":id": id,
            ":expires_at": expires_at,
            ":token": token,
            ":owner": self.owner,
            ":now": self.now,
        })?;
        Ok(changed == 1)
    }

    /// Extends a lease that is still held. Returns whether it was.
    pub fn renew(&self, delivery: &Delivery, lease_ms: i64) -> Result<bool> {
        let expires_at = self.now.saturating_add(lease_ms);
        let mut statement = self.tx.prepare_cached(
            "UPDATE main.outbox_lease SET due_at = ?3
             WHERE id = ?1 AND token = ?2 AND owner IS NOT NULL",
        )?;
        Ok(statement.execute((delivery.id, delivery.token, expires_at))? == 1)
    }

    /// Gives a row back that no worker has started; the attempt is not counted.
    pub fn release(&mut self, delivery: &Delivery) -> Result<bool> {
        if delivery.lookup.is_some() {
            return self.release_lookup(delivery);
        }
        self.forget_probe(&delivery.operation, delivery.id, delivery.token)?;
        if self.settle_with_late_proof(Row::claimed(delivery), &not_started(delivery.facts))? {
            self.give_back(delivery)?;
            return Ok(true);
        }
        let mut statement = self.tx.prepare_cached(
            "UPDATE main.outbox_lease
             SET state = 'pending', due_at = ?3, attempts = max(attempts - 1, 0),
                 tries = max(tries - 1, 0), token = NULL, owner = NULL
             WHERE id = ?1 AND token = ?2 AND state = 'in_flight'",
        )?;
        let changed = statement.execute((delivery.id, delivery.token, self.now))?;
        drop(statement);
        if changed == 0 {
            lost_lease::heard_of(&self.tx, delivery.id, delivery.token)?;
            return Ok(false);
        }
        self.give_back(delivery)?;
        if delivery.ordering_key.is_some() {
            ordering::yield_to_earlier(&self.tx, delivery.id, self.now)?;
        }
        Ok(true)
    }

    /// Takes back leases of one operation that ran out. Whoever held them may have sent.
    pub fn recover(&mut self, rules: &Rules) -> Result<usize> {
        let expired = self.expired(&rules.operation)?;
        for lost in &expired {
            let row = Row {
                id: lost.id,
                operation: &rules.operation,
                is_keyed: lost.is_keyed,
                state: Status::InFlight,
                token: lost.token,
                known: None,
            };
            self.lose(row, &lost.facts, &lost.owner, rules)?;
        }
        Ok(expired.len())
    }

    /// Takes back the row of a handler that may never return.
    pub fn abandon(&mut self, delivery: &Delivery, rules: &Rules) -> Result<()> {
        if delivery.lookup.is_some() {
            return self.abandon_lookup(delivery);
        }
        let (owner, row) = (self.owner.to_owned(), Row::claimed(delivery));
        let facts = self.with_request(delivery.facts, row)?;
        self.lose(row, &facts, &owner, rules)
    }

    fn lose(&mut self, row: Row<'_>, facts: &Facts, owner: &str, rules: &Rules) -> Result<()> {
        let token = row.token.unwrap_or_default();
        self.forget_probe(&rules.operation, row.id, token)?;
        let decision = decide::decide_lost(facts, &self.policy(rules)?, self.now);
        if self.apply(row, Some(EventKind::LeaseLost), &decision, rules.on_dead)? {
            return lost_lease::note(&self.tx, row.id, token, owner);
        }
        self.settle_with_late_proof(row, &decision).map(drop)
    }

    fn expired(&self, operation: &str) -> Result<Vec<ExpiredLease>> {
        let mut statement = self.tx.prepare_cached(EXPIRED)?;
        let rows = statement.query_map(
            named_params! { ":operation": operation, ":now": self.now, ":limit": RECOVER_MAX },
            |row| {
                Ok(ExpiredLease {
                    id: row.get(0)?,
                    token: row.get(1)?,
                    facts: read_facts(row)?,
                    owner: columns::lossy(row, FACTS)?,
                    is_keyed: row.get(FACTS + 1)?,
                })
            },
        )?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

pub(crate) const EXPIRED: &str = concat!(
    "SELECT ",
    facts_columns!(),
    ", l.owner, o.ordering_key IS NOT NULL
    FROM main.outbox_lease l INDEXED BY outbox_lease_due
    LEFT JOIN main.outbox o ON o.id = l.id
    WHERE l.operation = :operation AND l.state = 'in_flight' AND l.due_at <= :now
    ORDER BY l.due_at, l.id LIMIT :limit"
);

struct ExpiredLease {
    id: i64,
    token: Option<i64>,
    owner: String,
    facts: Facts,
    is_keyed: bool,
}

fn pending_row(id: i64, operation: &str, is_keyed: bool, token: Option<i64>) -> Row<'_> {
    Row { id, operation, is_keyed, state: Status::Pending, token, known: None }
}

/// What became of an attempt that was claimed and not begun.
fn not_started(facts: Facts) -> Decision {
    let facts = Facts { attempts: facts.attempts.saturating_sub(1), ..facts };
    Decision { status: Status::Pending, due_at: None, facts, class: None, message: None }
}

pub(crate) fn unreadable(facts: Facts, why: &str) -> Decision {
    Decision {
        status: Status::NeedsReview,
        due_at: None,
        facts,
        class: Some("unreadable".into()),
        message: Some(why.to_owned()),
    }
}

fn never_fits(facts: Facts, cost: i64, budget: &Budget) -> Decision {
    Decision {
        status: Status::NeedsReview,
        due_at: None,
        facts,
        class: Some("budget".into()),
        message: Some(format!("costs {cost}, which is more than the whole budget {budget}")),
    }
}
