//! The audit trail as `show` and `events` print it. Of the intent's headers it shows only the agent
//! run and the tool version; it never shows a payload.

use std::fmt::Write as _;
use std::time::Duration;

use sqlite_outbox::{Entry, Event, EventKind, Status};

use crate::ui::output::{brief, duration, escape, shorten, time};

/// An event on one line, with its position for `--after`.
pub fn line(event: &Event) -> String {
    let mut text = format!(
        "{}  #{}  intent {} ({})  {}",
        time(event.at),
        event.position,
        event.outbox_id,
        escape(&event.operation),
        what(event)
    );
    for (name, value) in [
        ("took", took(event).as_ref()),
        ("downstream id", event.downstream_id.as_ref()),
        ("agent run", event.agent_run.as_ref()),
        ("tool version", event.tool_version.as_ref()),
    ] {
        let _ = value.map(|value| write!(text, ", {name} {}", brief(value)));
    }
    if let Some(why) = why(event) {
        let _ = write!(text, ": {why}");
    }
    text
}

/// The trail of one intent, from its beginning to what comes next.
pub fn story(entry: &Entry, events: &[Event]) -> String {
    let mut lines = vec!["\nwhat happened".to_owned()];
    lines.push(format!("  {}  enqueued", time(entry.created_at)));
    for event in events {
        lines.push(format!("  {}  {}", time(event.at), what(event)));
        let mut add = |text: String| lines.push(format!("{:28}{text}", ""));
        if let Some((claimed_at, took)) = event.claimed_at.zip(took(event)) {
            add(format!("claimed {}, took {took}", time(claimed_at)));
        }
        why(event).map(&mut add);
        if let Some(id) = &event.downstream_id {
            add(format!("downstream id {}", brief(id)));
        }
    }
    if !entry.status.is_settled() {
        let next = match (entry.status, entry.next_attempt_at, entry.next_lookup_at) {
            (Status::Unknown, _, Some(at)) => format!(", next lookup {}", time(at)),
            (_, Some(at), _) => format!(", next attempt {}", time(at)),
            _ => String::new(),
        };
        lines.push(format!("  now it is {}{next}", entry.status));
    }
    lines.join("\n")
}

/// The first report that an intent was carried out twice.
pub fn duplicate_effect(events: &[Event]) -> Option<&str> {
    let event = events.iter().find(|event| event.kind == EventKind::DuplicateEffect)?;
    Some(event.reason.as_deref().unwrap_or("carried out twice"))
}

/// The kind of an event, the statuses before and after it, and the actor.
fn what(event: &Event) -> String {
    let name = match (event.kind, event.attempt) {
        (EventKind::Attempt, 0) => "attempt (not counted)".into(),
        (EventKind::Attempt, number) => format!("attempt {number}"),
        (EventKind::Reconciled, _) => "lookup".into(),
        (EventKind::DuplicateEffect, _) => "DUPLICATE EFFECT".into(),
        (kind, _) => kind.as_str().replace('_', " "),
    };
    let mut text = if event.from_status == event.status {
        format!("{name}: still {}", event.status)
    } else {
        format!("{name}: {} -> {}", event.from_status, event.status)
    };
    if let Some(actor) = &event.actor {
        let _ = write!(text, ", by {}", brief(actor));
    }
    text
}

/// The time from the claim to the record of an attempt or a lookup.
fn took(event: &Event) -> Option<String> {
    let took = u64::try_from(event.at.saturating_sub(event.claimed_at?)).unwrap_or(0);
    Some(duration(Duration::from_millis(took)))
}

fn why(event: &Event) -> Option<String> {
    let why = [event.error_class.as_deref(), event.reason.as_deref()];
    let why: Vec<String> = why.into_iter().flatten().map(escape).collect();
    (!why.is_empty()).then(|| shorten(&why.join(": "), 500))
}
