//! Revising: a new version takes the place of an earlier one that was definitely not applied.

use rusqlite::{Connection, OptionalExtension, named_params};

use crate::core::{Actor, Intent, Prepared, verbs};
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::store::query::read;
use crate::store::savepoint;
use crate::store::standing::{self, Standing};
use crate::store::statement::{execute, query_row};
use crate::store::tables::ordering;
use crate::store::verbs::enqueue::{self, Enqueued};
use crate::store::verbs::withdraw;

/// The intent that is revised, and the fields its next version must share.
#[derive(Debug)]
pub(crate) struct Revised {
    found: Standing,
    tenant_id: String,
    operation: String,
    entity_id: String,
    ordering_key: Option<String>,
    version: i64,
}

impl Revised {
    /// Reads the intent that is to be revised, if it is the version the caller believes it to be.
    pub fn find(conn: &Connection, id: i64, expected_version: i64, now: i64) -> Result<Self> {
        let found = standing::of(conn, id, now)?;
        let sql = "SELECT tenant_id, operation, entity_id, ordering_key, intent_version
                   FROM main.outbox WHERE id = ?1";
        let revised = query_row(conn, sql, [id], |row| {
            Ok(Self {
                found,
                tenant_id: row.get(0)?,
                operation: row.get(1)?,
                entity_id: row.get(2)?,
                ordering_key: row.get(3)?,
                version: row.get(4)?,
            })
        })?;
        if revised.version != expected_version {
            let version = revised.version;
            let text = format!("intent {id} is version {version}, not {expected_version}");
            return Err(Error::new(ErrorKind::Refused, text));
        }
        Ok(revised)
    }

    /// The caller's intent as the next version of this one.
    pub fn next(&self, intent: &Intent) -> Intent {
        let next = intent.clone().version(self.version.saturating_add(1));
        match &self.ordering_key {
            Some(key) if next.ordering_key.is_none() => next.ordering_key(key),
            _ => next,
        }
    }

    fn check(&self, next: &Prepared<'_>) -> Result<()> {
        let fields = [
            ("tenant", next.intent.tenant_id == self.tenant_id),
            ("operation", next.intent.operation == self.operation),
            ("entity", next.intent.entity_id == self.entity_id),
            ("ordering_key", next.intent.ordering_key == self.ordering_key),
        ];
        match fields.into_iter().find(|(_, is_same)| !is_same) {
            Some((field, _)) => {
                let id = self.found.id;
                let why =
                    format!("a revision of intent {id} must have the same; enqueue another action");
                Err(Error::invalid(field, why))
            }
            None => Ok(()),
        }
    }
}

/// Writes the next version in the place of the revised one, and withdraws the revised one.
pub(crate) fn revise(
    conn: &Connection,
    revised: &Revised,
    next: &Prepared<'_>,
    actor: &Actor,
    now: i64,
) -> Result<Enqueued> {
    revised.check(next)?;
    let old = &revised.found;
    if let Some(successor) = successor(conn, old.id)? {
        return asked_before(conn, old, successor, next);
    }
    let decision = old.allowed(verbs::withdraw(old.status, &old.facts))?;
    savepoint::all_or_nothing(conn, || {
        let enqueued = enqueue::enqueue(conn, next)?;
        let Enqueued::New { id, key, .. } = enqueued else {
            let text = format!(
                "version {} exists as intent {} already, beside intent {} and not in its place",
                next.intent.version,
                enqueued.id(),
                old.id
            );
            return Err(Error::new(ErrorKind::Conflict, text));
        };
        take_over(conn, old.id, id)?;
        let reason = match actor.why() {
            Some(reason) => format!("revised by intent {id}: {reason}"),
            None => format!("revised by intent {id}"),
        };
        let actor = Actor::new(actor.name()).reason(reason);
        withdraw::apply(conn, old, EventKind::Revised, &decision, &actor, now)?;
        if old.is_keyed && !ordering::take_place(conn, id)? {
            ordering::let_act(conn, id, now)?;
        }
        // The revised version is withdrawn; an earlier one may still be unsettled.
        let unsettled_version = enqueue::unsettled_version(conn, next)?;
        Ok(Enqueued::New { id, key, unsettled_version })
    })
}

/// Answers the same revision, asked again, with the version that was made.
fn asked_before(
    conn: &Connection,
    old: &Standing,
    successor: i64,
    next: &Prepared<'_>,
) -> Result<Enqueued> {
    if read::id_of_key(conn, &next.intent.tenant_id, &next.key)? == Some(successor) {
        return enqueue::enqueue(conn, next);
    }
    let text = format!("intent {} is revised already, by intent {successor}", old.id);
    Err(Error::new(ErrorKind::TooLate, text))
}

pub(crate) const SUCCESSOR: &str = "SELECT id FROM main.outbox_revision WHERE revises = ?1";

fn successor(conn: &Connection, id: i64) -> Result<Option<i64>> {
    Ok(conn.prepare_cached(SUCCESSOR)?.query_row([id], |row| row.get(0)).optional()?)
}

/// Gives the new version the old one's place in the line, and records where it comes from.
fn take_over(conn: &Connection, old: i64, id: i64) -> Result<()> {
    let sql = "INSERT INTO main.outbox_revision (id, revises, position)
         VALUES (:id, :old, coalesce((SELECT position FROM main.outbox_keyed WHERE id = :old),
                                     (SELECT position FROM main.outbox_revision WHERE id = :old),
                                     :old))";
    execute(conn, sql, named_params! { ":id": id, ":old": old })?;
    let sql = "UPDATE main.outbox_keyed
         SET position = (SELECT position FROM main.outbox_revision WHERE id = ?1) WHERE id = ?1";
    execute(conn, sql, [id]).map(drop)
}
