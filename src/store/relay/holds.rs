//! The holds of an operation in a relay's transaction: which due rows wait aside, and how many of
//! those that wait are let through when the time of a hold has come.

use std::collections::HashMap;
use std::collections::btree_map::Entry;

use crate::core::endpoint::{endpoint_name, origin_of};
use crate::core::hold::{Admission, Cause, Domain, Heard, Hold, Lesson};
use crate::core::{Draw, Failure, Stopped, UsedUp};
use crate::error::Result;
use crate::handler::StoredIntent;
use crate::store::relay::claim::{ClaimRequest, Tried};
use crate::store::relay::tx::{RelayTx, Rules};
use crate::store::tables::hold::{self, Holds, Place};
use crate::store::tables::ledger;

/// So many endpoints of an origin that ask to be left alone speak for the whole origin.
const THROTTLED_MAX: usize = 3;

/// How long a hold waits between the rows it lets through once it has ended.
const RELEASE_STEP_MS: i64 = 500;

impl RelayTx<'_> {
    /// Lets rows come due behind holds whose time has come: one that tries it, or after a success
    /// twice as many as before, until none is left.
    pub(super) fn release_held(&mut self, request: &ClaimRequest<'_>) -> Result<()> {
        let operation = &request.rules.operation;
        if self.holds(operation)?.kinds.is_empty() {
            return Ok(());
        }
        for due in hold::due(self.conn, operation, request.shard, self.now)? {
            if due.domain == Domain::Suspects {
                continue;
            }
            // As this transaction has left it, and without a probe that is gone.
            let Some(mut hold) = self.find_hold(operation, due.domain, &due.name)? else {
                continue;
            };
            if hold.cause == Some(Cause::Budget) {
                self.release_share(hold, request)?;
                continue;
            }
            if hold.cause == Some(Cause::Operator) {
                hold.cause = None;
            }
            let count = hold.lets_through();
            let released = hold::release(self.conn, hold.id, request.shard, count)?;
            if released.is_empty() && count > 0 && hold::waiting(self.conn, hold.id)? > 0 {
                // The rows are of a shard that another relay serves.
                continue;
            }
            if hold.cause.is_none() {
                hold.probes = hold.probes.saturating_add(1);
                hold.until = Some(self.now.saturating_add(RELEASE_STEP_MS));
                if released.len() < count && self.remove_hold(&hold)? {
                    continue;
                }
            } else if let Some(&id) = released.first() {
                hold.probe = Some((id, None));
                // Were the probe to vanish, another is let through then.
                hold.until = Some(self.now.saturating_add(request.lease_ms));
            } else if hold.probe.is_some() {
                hold.until = Some(self.now.saturating_add(request.lease_ms));
            } else {
                // Nothing waits: the next row that comes due tries it.
                hold.until = None;
            }
            self.save_hold(hold)?;
        }
        Ok(())
    }

    /// Puts a due row aside where a hold stops its domain. Returns whether it does. A row that is
    /// to try a hold is noted there.
    pub(super) fn waits_aside(
        &mut self,
        id: i64,
        intent: &StoredIntent,
        rules: &Rules,
    ) -> Result<bool> {
        let mut tries = Vec::new();
        for hold in self.holds_on(id, intent, rules)? {
            match hold.admits(id, self.now) {
                Admission::Free => {}
                Admission::Probe => tries.push(hold),
                Admission::Behind => {
                    hold::put_aside(self.conn, id, hold.id)?;
                    self.end_tries(tries, id)?;
                    return Ok(true);
                }
            }
        }
        for hold in tries {
            self.save_hold(Hold { probe: Some((id, None)), ..hold })?;
        }
        Ok(false)
    }

    /// Notes the claim of a row that tries a hold.
    pub(super) fn begin_tries(
        &mut self,
        id: i64,
        token: i64,
        intent: &StoredIntent,
        request: &ClaimRequest<'_>,
    ) -> Result<()> {
        for hold in self.holds_on(id, intent, request.rules)? {
            if hold.cause.is_some() && hold.probe == Some((id, None)) {
                let until = Some(self.now.saturating_add(request.lease_ms));
                self.save_hold(Hold { probe: Some((id, Some(token))), until, ..hold })?;
            }
        }
        Ok(())
    }

    /// Lets another row try the holds that this one was to try: it was not sent, or its claim
    /// ended without an outcome.
    pub(super) fn forget_tries(
        &mut self,
        id: i64,
        intent: &StoredIntent,
        rules: &Rules,
    ) -> Result<()> {
        let holds = self.holds_on(id, intent, rules)?;
        self.end_tries(holds, id)
    }

    /// Lets a row wait that does not fit the operation's budget. Rows behind it wait as well,
    /// unless it was only to try a hold: such a row waits aside, with its domain.
    pub(super) fn wait_in_turn(
        &mut self,
        id: i64,
        intent: &StoredIntent,
        rules: &Rules,
        used_up: &UsedUp,
    ) -> Result<Tried> {
        let mut tried = Tried::Waits;
        for mut hold in self.holds_on(id, intent, rules)? {
            if hold.admits(id, self.now) == Admission::Probe {
                hold::put_aside(self.conn, id, hold.id)?;
                hold.defer_try(used_up.until, self.now);
                self.save_hold(hold)?;
                tried = Tried::Deferred;
            }
        }
        Ok(tried)
    }

    fn end_tries(&mut self, holds: Vec<Hold>, id: i64) -> Result<()> {
        for hold in holds {
            if hold.cause.is_some() && hold.probe.is_some_and(|(probe, _)| probe == id) {
                self.save_hold(Hold { probe: None, until: Some(self.now), ..hold })?;
            }
        }
        Ok(())
    }

    /// Takes into account what an outcome says about the endpoint that its intent names, and about
    /// the origin of that.
    pub(super) fn on_outcome_elsewhere(
        &mut self,
        endpoint: &str,
        heard: &Heard<'_>,
        rules: &Rules,
        draw: Draw,
    ) -> Result<()> {
        let Some((origin, name)) = origin_of(endpoint).zip(endpoint_name(endpoint)) else {
            return Ok(());
        };
        let operation = &rules.operation;
        self.hear(operation, Domain::Endpoint, name, |hold| {
            hold.on_outcome(heard, None, draw);
        })?;
        let throttles = match heard.lesson() {
            Lesson::Throttles(failure) => {
                let held = hold::throttled(self.conn, operation, &origin, draw.now)?;
                (held >= THROTTLED_MAX).then_some(failure)
            }
            _ => None,
        };
        self.hear(operation, Domain::Origin, origin, |hold| match throttles {
            Some(failure) => hold.throttle(heard, failure, draw),
            None => hold.on_outcome(heard, rules.breaker_after, draw),
        })
    }

    /// Takes into account what an outcome says about the machine's network. Returns whether the
    /// machine is offline.
    pub(super) fn on_network(
        &mut self,
        heard: &Heard<'_>,
        intent: &StoredIntent,
        rules: &Rules,
        draw: Draw,
    ) -> Result<bool> {
        let origin = rules.origin_of(intent);
        self.hear("", Domain::Network, String::new(), |hold| {
            hold.on_network(heard, &origin, draw);
        })?;
        let is_offline = heard.outcome.failure().is_some_and(Failure::is_offline)
            && self.network(rules)?.is_some_and(|hold| hold.cause.is_some());
        if is_offline {
            self.stops.operation(&rules.operation, Stopped::All);
        }
        Ok(is_offline)
    }

    /// The hold on everything that goes over the machine's network, where the operation does.
    pub(super) fn network(&mut self, rules: &Rules) -> Result<Option<Hold>> {
        if rules.network.is_some() { self.find_hold("", Domain::Network, "") } else { Ok(None) }
    }

    /// Lets the state of a domain hear of an outcome, and keeps it where it is one.
    fn hear(
        &mut self,
        operation: &str,
        domain: Domain,
        name: String,
        change: impl FnOnce(&mut Hold),
    ) -> Result<()> {
        let before = self.find_hold(operation, domain, &name)?;
        let mut hold = before.clone().unwrap_or_else(|| Hold::new(operation, domain, name));
        change(&mut hold);
        let was_held = before.as_ref().is_some_and(|hold| hold.cause.is_some());
        let is_held = hold.cause.is_some();
        let whose = if operation.is_empty() { String::new() } else { format!("{operation:?}: ") };
        if let Some(stored) = hold.stored().filter(|_| !was_held) {
            log::warn!("{whose}{}", stored.in_words());
            self.stops.domain(operation, domain, &hold.name);
        } else if was_held && !is_held {
            log::info!("{whose}the {domain} {} goes on", hold.name);
        }
        if !is_held && hold.failures == 0 && (before.is_none() || self.remove_hold(&hold)?) {
            return Ok(());
        }
        if before.as_ref() == Some(&hold) { Ok(()) } else { self.save_hold(hold).map(drop) }
    }

    /// The holds on the domains of an intent.
    pub(super) fn holds_on(
        &mut self,
        id: i64,
        intent: &StoredIntent,
        rules: &Rules,
    ) -> Result<Vec<Hold>> {
        let operation = &rules.operation;
        let kinds = self.holds(operation)?.kinds.clone();
        let mut found = Vec::new();
        for kind in kinds {
            let name = match kind {
                Domain::Run => ledger::run_of(self.conn, id)?,
                kind => Place::of(intent).name_in(kind),
            };
            if let Some(name) = name
                && let Some(hold) = self.find_hold(operation, kind, &name)?
            {
                found.push(hold);
            }
        }
        Ok(found)
    }

    /// A hold, read once in a transaction.
    pub(super) fn find_hold(
        &mut self,
        operation: &str,
        domain: Domain,
        name: &str,
    ) -> Result<Option<Hold>> {
        let conn = self.conn;
        let Holds { kinds, known } = self.holds(operation)?;
        if domain != Domain::Network && !kinds.contains(&domain) {
            return Ok(None);
        }
        let key = (domain, name.to_owned());
        if let Some(hold) = known.get(&key) {
            return Ok(hold.clone());
        }
        let found = hold::find(conn, operation, domain, name)?;
        known.insert(key, found.clone());
        Ok(found)
    }

    /// Writes a hold, and returns its id.
    pub(super) fn save_hold(&mut self, mut hold: Hold) -> Result<i64> {
        hold.id = hold::save(self.conn, &hold)?;
        let holds = self.holds(&hold.operation)?;
        if !holds.kinds.contains(&hold.domain) {
            holds.kinds.push(hold.domain);
        }
        let id = hold.id;
        holds.known.insert((hold.domain, hold.name.clone()), Some(hold));
        Ok(id)
    }

    pub(super) fn has_holds_of(&mut self, operation: &str, domain: Domain) -> Result<bool> {
        Ok(self.holds(operation)?.kinds.contains(&domain))
    }

    /// Removes a hold, unless rows wait behind it. Returns whether it is gone.
    pub(super) fn remove_hold(&mut self, hold: &Hold) -> Result<bool> {
        let is_gone = hold::remove(self.conn, hold.id)?;
        if is_gone {
            let known = &mut self.holds(&hold.operation)?.known;
            known.insert((hold.domain, hold.name.clone()), None);
        }
        Ok(is_gone)
    }

    fn holds(&mut self, operation: &str) -> Result<&mut Holds> {
        Ok(match self.holds.entry(operation.to_owned()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let kinds = hold::kinds(self.conn, operation)?;
                unknown.insert(Holds { kinds, known: HashMap::new() })
            }
        })
    }
}
