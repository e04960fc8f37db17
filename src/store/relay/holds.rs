//! The holds of an operation in a relay's transaction: which due rows wait aside, and how many of
//! those that wait are let through when the time of a hold has come.

use std::collections::HashMap;
use std::collections::btree_map::Entry;

use crate::core::endpoint::origin_of;
use crate::core::hold::{Admission, Domain, Hold};
use crate::error::Result;
use crate::handler::StoredIntent;
use crate::store::relay::claim::ClaimRequest;
use crate::store::relay::tx::{RelayTx, Rules};
use crate::store::tables::hold;

/// The holds of one operation as a transaction has read and left them.
#[derive(Default)]
pub(super) struct Holds {
    /// The kinds of domain of which there are any.
    kinds: Vec<Domain>,
    known: HashMap<(Domain, String), Option<Hold>>,
}

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
        for due in hold::due(self.conn, operation, self.now)? {
            if due.domain == Domain::Suspects {
                continue;
            }
            // As this transaction has left it, and without a probe that is gone.
            let Some(mut hold) = self.find_hold(operation, due.domain, &due.name)? else {
                continue;
            };
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
        for hold in self.holds_on(intent, rules)? {
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
        for hold in self.holds_on(intent, request.rules)? {
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
        let holds = self.holds_on(intent, rules)?;
        self.end_tries(holds, id)
    }

    fn end_tries(&mut self, holds: Vec<Hold>, id: i64) -> Result<()> {
        for hold in holds {
            if hold.cause.is_some() && hold.probe.is_some_and(|(probe, _)| probe == id) {
                self.save_hold(Hold { probe: None, until: Some(self.now), ..hold })?;
            }
        }
        Ok(())
    }

    /// The holds on the domains of an intent.
    fn holds_on(&mut self, intent: &StoredIntent, rules: &Rules) -> Result<Vec<Hold>> {
        let operation = &rules.operation;
        let kinds = self.holds(operation)?.kinds.clone();
        let mut found = Vec::new();
        for kind in kinds {
            if let Some(name) = name_in(kind, intent)
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
        let known = &mut self.holds(operation)?.known;
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

/// The name of the domain of this kind that the intent is in; `None` where it is in none.
fn name_in(kind: Domain, intent: &StoredIntent) -> Option<String> {
    match kind {
        Domain::Origin => origin_of(intent.endpoint.as_deref()?),
        Domain::Tenant => Some(intent.tenant_id.clone()),
        Domain::Endpoint | Domain::Run | Domain::Suspects | Domain::Network => None,
    }
}
