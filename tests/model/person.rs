//! Verbs of applications and persons: they tell the truth as far as they can see it, or the intent
//! is known by hearsay alone from then on.

use std::time::Duration;

use super::bench::{OPERATIONS, begin, downstream};
use super::check::{Checked, Done, violation};
use super::op::{Named, Op, Word};
use super::sequence::Machine;
use super::verb::Verb;
use crate::clock::Clock;
use crate::core::{Actor, Downstream, Intent, Receipt, Resolution, Status};
use crate::error::{Error, ErrorKind, Result as Fallible};
use crate::store::tables::pause;
use crate::store::verbs::replay::{self, Again};
use crate::store::verbs::revise::{Revised, revise};
use crate::store::verbs::withdraw::{cancel, request_cancel, skip};
use crate::store::verbs::{enqueue, resolve};

const PAYLOAD_MAX: usize = 1024;

impl Machine<'_> {
    pub fn enqueue(&mut self, op: Op) -> Checked<Option<Done>> {
        let Op::Enqueue { operation, line, host, delay_s, expires_s } = op else { return Ok(None) };
        if !self.has_room() {
            return Ok(None);
        }
        self.entities += 1;
        let name = OPERATIONS[usize::from(operation)];
        let mut intent = Intent::new(name, format!("e{}", self.entities))
            .payload("{}")
            .delay(Duration::from_secs(delay_s.into()));
        if let Some(line) = line {
            // Two lines of one name, and one that operations share.
            intent = intent.tenant(["a", "b", "a"][usize::from(line)]);
            intent = intent.ordering_key(["x", "x", "y"][usize::from(line)]);
        }
        if let Some(host) = host {
            intent = intent.endpoint(format!("https://host-{host}.example/"));
        }
        if let Some(expires_s) = expires_s {
            intent = intent.expires_in(Duration::from_secs(expires_s.into()));
        }
        let now = self.bench.clock.now();
        let done = Done { verb: Verb::Enqueue, row: None, may_be_silent: false };
        self.act(done, |conn| enqueue::enqueue(conn, &intent.prepare(now, PAYLOAD_MAX)?).map(drop))
    }

    /// Does something in a transaction of the application's; a refusal is as good as any answer.
    fn act(
        &mut self,
        done: Done,
        f: impl FnOnce(&rusqlite::Connection) -> Fallible<()>,
    ) -> Checked<Option<Done>> {
        let tx = begin(&mut self.bench.person)?;
        let acted = f(&tx);
        if acted.is_ok() {
            tx.commit()?;
        }
        accepted(done, acted)
    }

    /// The row that is meant: one it makes sense for, now and then any.
    pub fn target(&self, op: Op) -> Option<i64> {
        let pick = op.pick()?;
        let suits = |status| pick > 240 || op.suits().contains(&status);
        let rows = self.before.rows.iter().filter(|(_, row)| suits(row.status));
        let ids: Vec<i64> = rows.map(|(id, _)| *id).collect();
        (!ids.is_empty()).then(|| ids[usize::from(pick) % ids.len()])
    }

    pub fn by_a_person(&mut self, op: Op) -> Checked<Option<Done>> {
        let Some(id) = self.target(op) else { return Ok(None) };
        let now = self.bench.clock.now();
        let done = |verb| Done { verb, row: Some(id), may_be_silent: false };
        match op {
            Op::Resolve { word, .. } => self.resolve(id, word),
            Op::Confirm { id: named, .. } => self.confirm(id, named),
            Op::Bind { id: named, .. } => {
                let Some(name) = self.name(id, named) else { return Ok(None) };
                self.act(done(Verb::Other), |conn| resolve::bind(conn, id, &name, &person(), now))
            }
            Op::Revise { .. } => self.revise(id),
            Op::Cancel { .. } => {
                self.act(done(Verb::Cancel), |conn| cancel(conn, id, &person(), now))
            }
            Op::RequestCancel { .. } => {
                let asked = self
                    .act(done(Verb::Cancel), |c| request_cancel(c, id, &person(), now).map(drop))?;
                self.model.unwanted.extend(asked.as_ref().map(|_| id));
                Ok(asked)
            }
            Op::Skip { .. } => self.act(done(Verb::Other), |conn| skip(conn, id, &person(), now)),
            _ => {
                let conn = &mut self.bench.person;
                let replayed = replay::one(conn, Again::Replay, id, &person(), now);
                if replayed.is_ok() {
                    self.model.unwanted.remove(&id);
                }
                accepted(done(Verb::Replay), replayed)
            }
        }
    }

    /// A person who looks sees what was applied until now, and waits while a relay that has ended
    /// may have something on the way.
    fn resolve(&mut self, id: i64, word: Word) -> Checked<Option<Done>> {
        let effect = self.downstreams.effects(id).last().cloned();
        let resolution = match (word, effect) {
            (Word::Dead, _) => Resolution::Dead,
            (_, Some(effect)) => Resolution::Applied { downstream_id: Some(effect) },
            (Word::Applied, None) => Resolution::Applied { downstream_id: None },
            (Word::Truth, None) if self.downstreams.is_lingering(id) => return Ok(None),
            (Word::Truth, None) => Resolution::NotApplied,
        };
        let alive = self.relays.each_ref().map(|relay| relay.owner.clone());
        let is_alive = |owner: &str| alive.iter().any(|known| known == owner);
        let now = self.bench.clock.now();
        let conn = &mut self.bench.person;
        let resolved = resolve::resolve(conn, id, &resolution, &person(), &is_alive, now);
        let done = Done { verb: Verb::Resolve, row: Some(id), may_be_silent: false };
        let done = accepted(done, resolved.map(drop))?;
        if done.is_some() {
            self.model.unwanted.remove(&id);
            if resolution != Resolution::NotApplied {
                self.model.hearsay.insert(id);
            } else if self.model.may_be_on_its_way(id, is_alive) {
                let text = format!("intent {id} is sent back while it may be on its way");
                return violation("promise", text);
            } else {
                self.model.cleared(id);
            }
        }
        Ok(done)
    }

    fn confirm(&mut self, id: i64, named: Named) -> Checked<Option<Done>> {
        if self.downstreams.effects(id).is_empty() {
            self.model.hearsay.insert(id);
        }
        let receipt = match self.name(id, named) {
            Some(name) => Receipt::new().downstream_id(name),
            None => Receipt::new(),
        };
        let now = self.bench.clock.now();
        let done = Done { verb: Verb::Confirm, row: Some(id), may_be_silent: false };
        self.act(done, |conn| {
            let mut statement =
                conn.prepare_cached("SELECT tenant_id, idempotency_key FROM outbox WHERE id = ?1")?;
            let key: (String, String) =
                statement.query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
            resolve::confirm(conn, (&key.0, &key.1), &receipt, &person(), now).map(drop)
        })
    }

    /// An id at the provider. Its own is the one of its effect, where there is one.
    fn name(&self, id: i64, named: Named) -> Option<String> {
        match named {
            Named::Own => {
                let effect = self.downstreams.effects(id).last().cloned();
                Some(effect.unwrap_or_else(|| format!("own_{id}")))
            }
            Named::Another => Some(format!("another_{id}")),
            Named::OfAnotherIntent => {
                let bound = self.before.bindings.iter().find(|(_, owner)| **owner != id);
                bound.map(|((_, name), _)| name.clone())
            }
            Named::None => None,
        }
    }

    fn revise(&mut self, id: i64) -> Checked<Option<Done>> {
        let row = &self.before.rows[&id];
        let (operation, tenant) = (row.operation.clone(), row.tenant.clone());
        let now = self.bench.clock.now();
        let done = Done { verb: Verb::Revise, row: Some(id), may_be_silent: false };
        self.act(done, |conn| {
            let mut statement =
                conn.prepare_cached("SELECT entity_id, intent_version FROM outbox WHERE id = ?1")?;
            let (entity, version): (String, i64) =
                statement.query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let revised = Revised::find(conn, id, version, now)?;
            let intent = Intent::new(operation, entity).tenant(tenant).payload("{}");
            let next = revised.next(&intent);
            revise(conn, &revised, &next.prepare(now, PAYLOAD_MAX)?, &person(), now).map(drop)
        })
    }

    pub fn pause(&mut self, operation: u8, seconds: Option<u16>) -> Checked<Option<Done>> {
        let now = self.bench.clock.now();
        let until = seconds.map(|seconds| now + i64::from(seconds) * 1000);
        let name = OPERATIONS[usize::from(operation)];
        let done = Done { verb: Verb::Other, row: None, may_be_silent: false };
        accepted(done, pause::pause(&mut self.bench.person, name, until, &person(), now))
    }

    pub fn resume(&mut self, operation: u8) -> Checked<Option<Done>> {
        let name = OPERATIONS[usize::from(operation)];
        let now = self.bench.clock.now();
        let done = Done { verb: Verb::Other, row: None, may_be_silent: false };
        accepted(done, pause::resume(&mut self.bench.person, name, &person(), now).map(drop))
    }

    /// Checks that intents which the library withdrew or gave up were not applied, that succeeded
    /// ones were, and that no downstream has done twice what it must not.
    pub fn check_truth(&self) -> Checked {
        for (&id, row) in &self.before.rows {
            let effects = self.downstreams.effects(id).len();
            let operation = OPERATIONS.iter().position(|name| *name == row.operation);
            let may_count = downstream(operation.unwrap_or_default()) == Downstream::Unprotected
                || !self.setup.has_jumps();
            if effects > 1 && may_count {
                return violation("one_effect", format!("intent {id} has {effects}"));
            }
            if self.model.hearsay.contains(&id) {
                continue;
            }
            let is_true = match row.status {
                Status::Succeeded => effects > 0,
                Status::Cancelled | Status::Dead => effects == 0,
                _ => true,
            };
            if !is_true {
                let text = format!("intent {id} is {} with {effects} effects", row.status);
                return violation("status_is_true", text);
            }
            let is_given_up = matches!(row.status, Status::Cancelled | Status::Dead);
            if is_given_up && self.model.is_in_doubt(id) {
                let text = format!("intent {id} is {}, but may have been applied", row.status);
                return violation("nothing_is_given_up_in_doubt", text);
            }
        }
        Ok(())
    }
}

fn person() -> Actor {
    Actor::new("person").reason("as the sequence says")
}

fn accepted(done: Done, acted: Result<(), Error>) -> Checked<Option<Done>> {
    match acted {
        Ok(()) => Ok(Some(done)),
        Err(error) => match error.kind() {
            ErrorKind::Refused | ErrorKind::TooLate | ErrorKind::Conflict => Ok(None),
            _ => Err(error.into()),
        },
    }
}
