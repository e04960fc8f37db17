//! The rules that must hold after every step, each by its name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::snapshot::{EventNow, LeaseNow, RowNow, Snapshot};
use super::verb::{Move, Verb};
use crate::core::status::Status;

/// A rule that does not hold.
#[derive(Debug, Clone)]
pub(crate) struct Violation {
    pub check: &'static str,
    pub text: String,
}

pub(crate) type Checked<T = ()> = Result<T, Violation>;

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.text)
    }
}

pub(crate) fn violation<T>(check: &'static str, text: impl Into<String>) -> Checked<T> {
    Err(Violation { check, text: text.into() })
}

impl From<rusqlite::Error> for Violation {
    fn from(error: rusqlite::Error) -> Self {
        Self { check: "no_errors", text: error.to_string() }
    }
}

/// The effect of a verb.
#[derive(Debug)]
pub(crate) struct Done {
    pub verb: Verb,
    /// The one row it was about, where it may move no other.
    pub row: Option<i64>,
    /// An outcome of a probe that failed leaves no event of its row.
    pub may_be_silent: bool,
}

/// The audit trail read so far: the last line of each intent.
#[derive(Debug, Default)]
pub(crate) struct Trails(BTreeMap<i64, (i64, Status)>);

/// Rows move as the table says. Returns which have.
pub(crate) fn moves(before: &Snapshot, after: &Snapshot, done: &Done) -> Checked<Vec<Move>> {
    let mut made = Vec::new();
    for (&id, row) in &after.rows {
        let from = before.status(id);
        if from == Some(row.status) {
            continue;
        }
        let described = || format!("intent {id}: {from:?} to {} by {:?}", row.status, done.verb);
        let is_allowed = match from {
            None => done.verb.enters() && row.status == Status::Pending,
            Some(from) => done.verb.allows(from, row.status),
        };
        if !is_allowed {
            return violation("moves", described());
        }
        if from.is_some() && done.row.is_some_and(|target| target != id) {
            return violation("moves_one_row", format!("{}, of {:?}", described(), done.row));
        }
        made.extend(from.map(|from| (done.verb, from, row.status)));
    }
    match before.rows.keys().find(|id| !after.rows.contains_key(id)) {
        Some(id) => violation("moves", format!("intent {id} is gone")),
        None => Ok(made),
    }
}

/// Every row has a receipt, or a lease row, or a place behind its head or one that is on the way.
pub(crate) fn one_place(now: &Snapshot) -> Checked {
    if now.strays > 0 {
        return violation("one_place", format!("{} places of no intent", now.strays));
    }
    for (&id, row) in &now.rows {
        let is_sound = match (&row.receipt, &row.lease) {
            (Some(_), Some(_)) => false,
            (Some(_), None) => row.place.is_none(),
            (None, Some(lease)) => is_consistent(row, lease),
            (None, None) => row.place.is_some() && (!now.is_head(id) || now.waits_for_later(id)),
        };
        if !is_sound {
            return violation("one_place", format!("intent {id}: {row:?}"));
        }
        let may_stand_aside =
            matches!(row.status, Status::Dead | Status::Unknown | Status::NeedsReview);
        let is_passed = row.receipt.is_none() && row.ordering_key.is_some() && row.place.is_none();
        if is_passed && !may_stand_aside {
            return violation("one_place", format!("intent {id} is in no line: {row:?}"));
        }
    }
    Ok(())
}

fn is_consistent(row: &RowNow, lease: &LeaseNow) -> bool {
    let is_held = lease.owner.is_some() && lease.token.is_some() && lease.due_at.is_some();
    let is_free = lease.owner.is_none() && lease.token.is_none();
    match row.status {
        Status::InFlight => is_held,
        Status::Unknown => lease.due_at.is_some() && (is_held || is_free),
        Status::Pending => is_free && (lease.can_act() || row.place.is_some()),
        Status::NeedsReview | Status::Dead => is_free && lease.due_at.is_none(),
        Status::Succeeded | Status::Cancelled => false,
    }
}

/// After a claim that had room for more, no row waits whose own endpoint answered every request.
pub(crate) fn faults_stay(
    now: &Snapshot,
    operation: &str,
    time: i64,
    failed: &BTreeSet<(String, Option<String>)>,
) -> Checked {
    for (id, row) in now.rows.iter().filter(|(_, row)| row.operation == operation) {
        let has_failed = failed.contains(&(operation.to_owned(), row.endpoint.clone()));
        let Some(lease) = row.lease.as_ref().filter(|_| row.endpoint.is_some() && !has_failed)
        else {
            continue;
        };
        let is_due = row.status == Status::Pending && lease.due_at.is_some_and(|at| at <= time);
        if is_due && lease.lost < 2 || lease.held.as_deref() == Some("origin") {
            return violation("faults_stay", format!("intent {id} waits: {row:?}"));
        }
    }
    Ok(())
}

/// At most one row of a line can act, and it is the first, or was on the way when an earlier one
/// came back. No line is stuck.
pub(crate) fn heads(now: &Snapshot) -> Checked {
    for line in now.lines() {
        let due = |id: &i64| now.rows[id].lease.as_ref().is_some_and(LeaseNow::can_act);
        let status = |id: &i64| now.rows[id].status;
        let acts =
            |id: &&i64| status(id) == Status::InFlight || status(id) == Status::Pending && due(id);
        let acting: Vec<i64> = line.iter().filter(acts).copied().collect();
        let described = || {
            let rows: Vec<_> = line.iter().map(|id| (id, status(id), due(id))).collect();
            format!("(id, status, is due): {rows:?}")
        };
        let first = line[0];
        match acting[..] {
            [] if status(&first) == Status::Pending => {
                return violation("no_line_is_stuck", described());
            }
            [] => {}
            [one] if one == first || status(&one) == Status::InFlight => {}
            [_] => return violation("only_heads_act", described()),
            _ => return violation("one_head", described()),
        }
    }
    Ok(())
}

/// Of each operation at most one row is in flight that was lost with its process twice before.
pub(crate) fn one_suspect(now: &Snapshot) -> Checked {
    let mut tried: BTreeMap<&str, i64> = BTreeMap::new();
    for (&id, row) in &now.rows {
        let is_suspect = row.lease.as_ref().is_some_and(|lease| lease.lost >= 2);
        if row.status != Status::InFlight || !is_suspect {
            continue;
        }
        if let Some(other) = tried.insert(&row.operation, id) {
            return violation("one_suspect", format!("intents {other} and {id} are in flight"));
        }
    }
    Ok(())
}

/// Every intent is settled once forever, and counted once.
pub(crate) fn settled_once(before: &Snapshot, after: &Snapshot) -> Checked {
    for (id, row) in &before.rows {
        if row.receipt.is_some() && after.rows.get(id).map(|row| &row.receipt) != Some(&row.receipt)
        {
            return violation("settled_once", format!("intent {id}: the receipt has changed"));
        }
    }
    Ok(())
}

pub(crate) fn counts(now: &Snapshot, duplicates: &BTreeMap<String, i64>) -> Checked {
    let mut counted: BTreeMap<(String, String), i64> = BTreeMap::new();
    for row in now.rows.values() {
        if let Some((status, _)) = &row.receipt {
            *counted.entry((row.operation.clone(), status.clone())).or_default() += 1;
        }
    }
    for (operation, number) in duplicates {
        counted.insert((operation.clone(), "duplicate_effect".into()), *number);
    }
    if counted == now.settled {
        return Ok(());
    }
    violation("counts", format!("there are {counted:?}, outbox_settled says {:?}", now.settled))
}

/// A provider's id belongs to one intent, for good.
pub(crate) fn bindings(before: &Snapshot, after: &Snapshot) -> Checked {
    for (name, id) in &before.bindings {
        if after.bindings.get(name) != Some(id) {
            return violation("bindings", format!("{name:?} was of intent {id}"));
        }
    }
    Ok(())
}

/// No receipt names what belongs to another intent.
pub(crate) fn receipts_are_bound(now: &Snapshot, binds: impl Fn(&str) -> bool) -> Checked {
    for (id, row) in now.rows.iter().filter(|(_, row)| binds(&row.operation)) {
        let Some((_, Some(downstream_id))) = &row.receipt else { continue };
        let owner = now.bindings.iter().find(|((_, name), _)| name == downstream_id);
        if owner.map(|(_, owner)| owner) != Some(id) {
            let text = format!("intent {id} has {downstream_id}, which is of {owner:?}");
            return violation("receipts_are_bound", text);
        }
    }
    Ok(())
}

impl Trails {
    /// The trail of each intent has no gaps, is connected, and ends where the intent stands; every
    /// move but a claim and a row that was given back is in it.
    pub fn follow(
        &mut self,
        events: &[EventNow],
        before: &Snapshot,
        after: &Snapshot,
        done: &Done,
    ) -> Checked {
        for event in events {
            let (seq, status) = self.0.get(&event.id).copied().unwrap_or((0, Status::Pending));
            if event.seq != seq + 1 {
                return violation("trail_has_no_gaps", format!("after {seq}: {event:?}"));
            }
            if unclaimed(event.from) != unclaimed(status) {
                return violation("trail_is_connected", format!("after {status}: {event:?}"));
            }
            self.0.insert(event.id, (event.seq, event.to));
        }
        for (&id, row) in &after.rows {
            let (_, described) = self.0.get(&id).copied().unwrap_or((0, Status::Pending));
            if unclaimed(described) != unclaimed(row.status) {
                let text = format!("intent {id} is {}, the trail says {described}", row.status);
                return violation("trail_ends_here", text);
            }
            let Some(from) = before.status(id).filter(|from| *from != row.status) else { continue };
            let is_on_record = events.iter().any(|e| e.id == id && e.to == row.status);
            let may_be_silent = match (from, row.status) {
                (Status::Pending, Status::InFlight) => true,
                (Status::InFlight, Status::Pending) => done.may_be_silent,
                _ => false,
            };
            if !is_on_record && !may_be_silent {
                let text = format!("intent {id}: {from} to {} by {:?}", row.status, done.verb);
                return violation("moves_leave_events", text);
            }
        }
        Ok(())
    }
}

/// A claim leaves no line in the trail.
fn unclaimed(status: Status) -> Status {
    if status == Status::InFlight { Status::Pending } else { status }
}
