//! `outbox show`: one intent, its receipt, its history, and what can be done about it.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use sqlite_outbox::{Entry, ErrorKind, Event, EventKind, Outbox, Receipt, Status, StoredContract};

use crate::args::ShowArgs;
use crate::failure::{Failure, Result};
use crate::inspect::{Row, hide_path};
use crate::output::{Out, escape, shorten, time, time_or_dash};
use crate::stored::{self, Contract, Request};

#[derive(Serialize)]
struct Story<'a> {
    #[serde(flatten)]
    row: Row<'a>,
    #[serde(flatten)]
    request: Request<'a>,
    contract: Option<&'a Contract>,
    receipt: Option<Proof<'a>>,
    events: Vec<Move<'a>>,
    next_step: Option<String>,
}

#[derive(Serialize)]
struct Proof<'a> {
    downstream_id: Option<&'a str>,
    status: Option<u16>,
    headers: serde_json::Map<String, serde_json::Value>,
    body: Option<&'a str>,
    truncated: bool,
}

impl<'a> From<&'a Receipt> for Proof<'a> {
    fn from(receipt: &'a Receipt) -> Self {
        let headers =
            receipt.headers.iter().map(|(name, value)| (name.clone(), value.as_str().into()));
        Self {
            downstream_id: receipt.downstream_id.as_deref(),
            status: receipt.status,
            headers: headers.collect(),
            body: receipt.body.as_deref(),
            truncated: receipt.truncated,
        }
    }
}

/// One line of the audit trail, under the names of `outbox_event`'s columns.
#[derive(Serialize)]
struct Move<'a> {
    seq: i64,
    at: i64,
    kind: &'a str,
    from_status: &'a str,
    status: &'a str,
    attempt: u32,
    claimed_at: Option<i64>,
    token: Option<i64>,
    actor: Option<&'a str>,
    error_class: Option<&'a str>,
    reason: Option<&'a str>,
    downstream_id: Option<&'a str>,
}

impl<'a> From<&'a Event> for Move<'a> {
    fn from(event: &'a Event) -> Self {
        Self {
            seq: event.seq,
            at: event.at,
            kind: event.kind.as_str(),
            from_status: event.from.as_str(),
            status: event.to.as_str(),
            attempt: event.attempt,
            claimed_at: event.claimed_at,
            token: event.token,
            actor: event.actor.as_deref(),
            error_class: event.error_class.as_deref(),
            reason: event.reason.as_deref(),
            downstream_id: event.downstream_id.as_deref(),
        }
    }
}

pub fn show(out: Out, outbox: &Outbox, args: &ShowArgs, show_secrets: bool) -> Result<()> {
    let Some(mut entry) = find(outbox, args)? else {
        return Err(Failure::refused(format!("there is no intent {}", args.which)));
    };
    if !show_secrets {
        hide_path(&mut entry);
    }
    let events = outbox.audit(entry.id)?;
    let request = stored::request(&entry);
    let contract = stored::contract(outbox, &entry.operation)?;
    let next_step = next_step(outbox, &entry, &events)?;
    if out.is_json() {
        return out.json(&Story {
            row: Row::from(&entry),
            request,
            contract: contract.as_ref(),
            receipt: entry.receipt.as_ref().map(Proof::from),
            events: events.iter().map(Move::from).collect(),
            next_step: next_step.map(|next| next.replace("\n  ", " ")),
        });
    }
    out.line(facts(&entry, contract.as_ref()))?;
    if let Some(receipt) = &entry.receipt {
        out.line(proof(receipt))?;
    }
    out.line(story(&entry, &events))?;
    next_step.map_or(Ok(()), |next| out.line(format_args!("\nwhat helps\n  {next}")))
}

/// A number is an id first, because ids are what lists show; a tenant makes it a key.
fn find(outbox: &Outbox, args: &ShowArgs) -> Result<Option<Entry>> {
    if let (None, Ok(id)) = (&args.tenant, args.which.parse())
        && let Some(entry) = outbox.entry(id)?
    {
        return Ok(Some(entry));
    }
    Ok(outbox.entry_by_key(args.tenant.as_deref().unwrap_or(""), &args.which)?)
}

fn facts(entry: &Entry, contract: Option<&Contract>) -> String {
    let mut lines = vec![format!("intent {} is {}\n", entry.id, entry.status)];
    let mut add = |name: &str, value: Option<&str>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            lines.push(format!("  {name:<14}{}", escape(value)));
        }
    };
    add("operation", Some(&entry.operation));
    add("contract", Some(&contract.map_or_else(unregistered, in_words)));
    add("entity", Some(&entry.entity_id));
    add("version", Some(&entry.intent_version.to_string()));
    add("tenant", Some(&entry.tenant_id));
    add("key", Some(&entry.idempotency_key));
    add("endpoint", entry.endpoint.as_deref());
    let size = entry.payload_bytes.map(|bytes| format!("{bytes} bytes"));
    add("method", entry.method.as_deref());
    add("content type", entry.content_type.as_deref());
    add("payload", Some(size.as_deref().unwrap_or("stripped")));
    add("headers", Some(&entry.header_names.join(", ")));
    add("expires", entry.expires_at.map(time).as_deref());
    add("ordering key", entry.ordering_key.as_deref());
    add("waits behind", entry.waits_behind.map(|id| format!("intent {id}")).as_deref());
    add("created", Some(&time(entry.created_at)));
    add("attempts", Some(&entry.attempts.to_string()));
    add("next attempt", entry.next_attempt_at.map(time).as_deref());
    add("held by", entry.locked_by.as_deref());
    add("held until", entry.locked_until.map(time).as_deref());
    add("last error", entry.last_error.as_deref());
    add("finished", entry.finished_at.map(time).as_deref());
    add("downstream id", entry.downstream_id.as_deref());
    lines.join("\n")
}

fn unregistered() -> String {
    "none stored: no relay has ever registered this operation".into()
}

fn in_words(contract: &Contract) -> String {
    let mut text = contract.downstream.to_owned();
    if let Some(window) = contract.key_window_ms {
        let window = humantime::format_duration(Duration::from_millis(window));
        let _ = write!(text, ", remembers a key for {window}");
    }
    if contract.on_dead == "continue" {
        text.push_str("; a dead intent lets its ordering key continue");
    }
    if let Some(provider) = &contract.provider {
        let _ = write!(text, "; provider {provider}");
    }
    text
}

/// What a person can do where the relay does nothing more by itself.
fn next_step(outbox: &Outbox, entry: &Entry, events: &[Event]) -> Result<Option<String>> {
    let outbox_db = format!("outbox --db {}", quoted(outbox.path()));
    let id = entry.id;
    if !matches!(entry.status, Status::Dead | Status::Unknown | Status::NeedsReview) {
        let known = outbox.operations()?;
        let is_held =
            |known: &StoredContract| known.operation == entry.operation && known.paused.is_some();
        let waits = entry.status == Status::Pending && known.iter().any(is_held);
        return Ok(waits.then(|| {
            let operation = quoted(&entry.operation);
            format!("its operation is paused: `{outbox_db} resume {operation}` lets it go on")
        }));
    }
    let cancel = format!("or `{outbox_db} cancel {id}` withdraws it");
    let class = events.iter().rev().find_map(|event| event.error_class.as_deref());
    if entry.status == Status::Dead && class == Some("expired") {
        return Ok(Some(format!(
            "it expired: enqueue the next version if it is still wanted,\n  {cancel}"
        )));
    }
    match outbox.check_replay(id) {
        Ok(()) if entry.status == Status::Dead => Ok(Some(format!(
            "`{outbox_db} replay {id}` sends it again under its key, once the cause is mended,\n  {cancel}"
        ))),
        Ok(()) => Ok(Some(format!(
            "`{outbox_db} replay {id}` sends it again under its key, which the downstream still remembers"
        ))),
        Err(error) if error.kind() == ErrorKind::Refused => {
            Ok(Some(ask_provider(entry, &outbox_db)))
        }
        Err(error) => Err(error.into()),
    }
}

/// There is no command that settles it yet; what may be said is what is true today.
fn ask_provider(entry: &Entry, outbox_db: &str) -> String {
    let tenant = match entry.tenant_id.as_str() {
        "" => String::new(),
        tenant => format!(" --tenant {}", quoted(tenant)),
    };
    let blocks = if entry.ordering_key.is_some() { " It holds back its ordering key." } else { "" };
    format!(
        "it may have been applied, and is not sent again: ask the provider about its key or \
         entity.{blocks}\n  If it was applied, leave it. If it surely was not, enqueue the next version:\n  \
         `{outbox_db} enqueue {} --entity {}{tenant} --version {} …`",
        quoted(&entry.operation),
        quoted(&entry.entity_id),
        entry.intent_version.saturating_add(1)
    )
}

/// A word for a shell; what could harm a terminal is escaped.
fn quoted(text: &str) -> String {
    let text = escape(text);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@=+,".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

fn proof(receipt: &Receipt) -> String {
    let mut text = "\nreceipt".to_owned();
    if let Some(status) = receipt.status {
        let _ = write!(text, "\n  {:<14}{status}", "answer");
    }
    for (name, value) in &receipt.headers {
        let _ = write!(text, "\n  {:<14}{}", escape(name), escape(value));
    }
    if let Some(body) = &receipt.body {
        let more = if receipt.truncated { " (not all of it)" } else { "" };
        let _ = write!(text, "\n  {:<14}{}{more}", "body", shorten(&escape(body), 400));
    }
    text
}

fn story(entry: &Entry, events: &[Event]) -> String {
    let mut lines = vec!["\nwhat happened".to_owned()];
    lines.push(format!("  {}  enqueued", time(entry.created_at)));
    for event in events {
        let mut line = format!("  {}  {}", time(event.at), event.kind.as_str());
        match (event.kind, event.attempt) {
            (EventKind::Attempt, 0) => line.push_str(" (not counted)"),
            (EventKind::Attempt, number) => {
                let _ = write!(line, " {number}");
            }
            _ => {}
        }
        let _ = write!(line, ": {} -> {}", event.from, event.to);
        if let Some(actor) = &event.actor {
            let _ = write!(line, ", by {}", escape(actor));
        }
        lines.push(line);
        let why = [event.error_class.as_deref(), event.reason.as_deref()];
        let why: Vec<String> = why.into_iter().flatten().map(escape).collect();
        if !why.is_empty() {
            lines.push(format!("{:28}{}", "", why.join(": ")));
        }
        if let Some(id) = &event.downstream_id {
            lines.push(format!("{:28}downstream id {}", "", escape(id)));
        }
    }
    if !entry.status.is_settled() {
        lines.push(format!(
            "  now it is {}, next attempt {}",
            entry.status,
            time_or_dash(entry.next_attempt_at)
        ));
    }
    lines.join("\n")
}
