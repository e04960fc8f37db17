//! The commands with which a person can move on an intent that stands still.

use sqlite_outbox::{
    Clock, Entry, ErrorKind, Event, EventKind, OnDead, Outbox, Status, StoredContract, SystemClock,
};

use crate::commands::verbs;
use crate::ui::failure::Result;
use crate::ui::output::{quoted, time};

/// A sentence, then a line for each command that is accepted now; `None` if the intent goes on
/// automatically.
pub fn next_step(
    outbox: &Outbox,
    entry: &Entry,
    events: &[Event],
    contract: Option<&StoredContract>,
) -> Result<Option<String>> {
    let command = format!("outbox --db {}", quoted(outbox.path()));
    let mut lines = match entry.status {
        Status::Pending => {
            let is_paused = contract.is_some_and(|contract| contract.paused.is_some());
            return Ok(is_paused.then(|| {
                let operation = quoted(&entry.operation);
                format!("its operation is paused: `{command} resume {operation}` lets it go on")
            }));
        }
        Status::Dead => dead(outbox, entry, events, &command)?,
        Status::Unknown | Status::NeedsReview => {
            doubtful(outbox, entry, (events, contract), &command)?
        }
        _ => return Ok(None),
    };
    if blocks(entry, events, contract) {
        let id = entry.id;
        lines.push(format!(
            "`{command} skip {id}` lets later intents of its ordering key go on without it"
        ));
    }
    Ok(Some(lines.join("\n  ")))
}

fn dead(outbox: &Outbox, entry: &Entry, events: &[Event], command: &str) -> Result<Vec<String>> {
    let id = entry.id;
    let cancel = format!("`{command} cancel {id}` withdraws it");
    let class = events.iter().rev().find_map(|event| event.error_class.as_deref());
    if class == Some("expired") {
        let version = "it expired: enqueue the next version if it is still wanted";
        return Ok(vec![version.into(), cancel]);
    }
    if may_replay(outbox, id)? {
        let replay = format!(
            "`{command} replay {id}` sends it again under its key, once the cause is mended"
        );
        return Ok(vec![replay, cancel]);
    }
    let applied = format!("`{command} resolve {id} --applied --downstream-id …` if it was applied");
    let not_applied = format!("`{command} resolve {id} --not-applied` if it definitely was not");
    Ok(vec!["it was given up, and may have been applied".into(), applied, not_applied, cancel])
}

fn doubtful(
    outbox: &Outbox,
    entry: &Entry,
    (events, contract): (&[Event], Option<&StoredContract>),
    command: &str,
) -> Result<Vec<String>> {
    let id = entry.id;
    let is_unwanted = is_unwanted(events);
    let ask = "ask the provider about its key or entity";
    let mut lines = vec![match (entry.status, entry.next_lookup_at) {
        (Status::Unknown, Some(at)) => {
            let asked = if contract.is_some_and(|contract| contract.paused.is_some()) {
                "its operation is paused, so that no relay looks it up".into()
            } else if entry.locked_by.is_some() {
                "a lookup is on its way".into()
            } else if at > SystemClock.now() {
                format!("the next lookup is at {}", time(at))
            } else {
                format!("a lookup is due since {}, and no relay has made it yet", time(at))
            };
            format!(
                "it may have been applied, and nothing is sent until that is known: {asked}; \
                 if you cannot wait, {ask}"
            )
        }
        (Status::Unknown, None) => {
            format!("it may have been applied, and is not sent again: {ask}")
        }
        _ => format!("a person must find out what became of it: {ask}"),
    }];
    lines.push(format!("`{command} resolve {id} --applied --downstream-id …` if it was applied"));
    let then = if is_unwanted {
        "withdrawn, because its cancellation was requested"
    } else {
        "sent again under its key"
    };
    lines.push(format!(
        "`{command} resolve {id} --not-applied` if it definitely was not: it is {then}"
    ));
    lines.push(format!("`{command} resolve {id} --dead` gives it up"));
    if entry.status == Status::NeedsReview && !is_unwanted && may_replay(outbox, id)? {
        lines.push(format!(
            "`{command} replay {id}` sends it again under its key, which the downstream still \
             remembers"
        ));
    }
    Ok(lines)
}

/// Whether cancellation was requested, and no replay or resolution has come since.
fn is_unwanted(events: &[Event]) -> bool {
    let mut since = events
        .iter()
        .rev()
        .take_while(|event| !matches!(event.kind, EventKind::Replayed | EventKind::Resolved));
    since.any(|event| event.kind == EventKind::CancelRequested)
}

fn may_replay(outbox: &Outbox, id: i64) -> Result<bool> {
    match verbs::may_replay(outbox, id) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::Refused => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether later intents of the same ordering key wait for this one.
fn blocks(entry: &Entry, events: &[Event], contract: Option<&StoredContract>) -> bool {
    let goes_on = entry.status == Status::Dead
        && contract.is_some_and(|contract| contract.on_dead == OnDead::Continue);
    let mut since = events.iter().rev().take_while(|event| event.status != Status::Pending);
    let is_skipped = since.any(|event| event.kind == EventKind::Skipped);
    entry.ordering_key.is_some() && !goes_on && !is_skipped
}
