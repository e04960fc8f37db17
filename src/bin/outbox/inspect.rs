//! `outbox list` and `outbox show`: what is there, and what became of it.

use std::fmt::Write as _;

use serde::Serialize;
use sqlite_outbox::{AuditEvent, Clock, Entry, Filter, Outbox, Receipt, Status, SystemClock};

use crate::args::{FilterArgs, ListArgs, ShowArgs};
use crate::failure::{Failure, Result};
use crate::output::{Out, distance, escape, note, shorten, table, time, time_or_dash};

/// The columns of `outbox_status`, in their order.
#[derive(Serialize)]
struct Row<'a> {
    id: i64,
    tenant_id: &'a str,
    operation: &'a str,
    entity_id: &'a str,
    intent_version: i64,
    idempotency_key: &'a str,
    endpoint: Option<&'a str>,
    ordering_key: Option<&'a str>,
    status: &'a str,
    attempts: u32,
    next_attempt_at: Option<i64>,
    locked_until: Option<i64>,
    locked_by: Option<&'a str>,
    last_error: Option<&'a str>,
    downstream_id: Option<&'a str>,
    created_at: i64,
    finished_at: Option<i64>,
    registered: bool,
}

impl<'a> From<&'a Entry> for Row<'a> {
    fn from(entry: &'a Entry) -> Self {
        Self {
            id: entry.id,
            tenant_id: &entry.tenant_id,
            operation: &entry.operation,
            entity_id: &entry.entity_id,
            intent_version: entry.intent_version,
            idempotency_key: &entry.idempotency_key,
            endpoint: entry.endpoint.as_deref(),
            ordering_key: entry.ordering_key.as_deref(),
            status: entry.status.as_str(),
            attempts: entry.attempts,
            next_attempt_at: entry.next_attempt_at,
            locked_until: entry.locked_until,
            locked_by: entry.locked_by.as_deref(),
            last_error: entry.last_error.as_deref(),
            downstream_id: entry.downstream_id.as_deref(),
            created_at: entry.created_at,
            finished_at: entry.finished_at,
            registered: entry.registered,
        }
    }
}

#[derive(Serialize)]
struct Story<'a> {
    #[serde(flatten)]
    row: Row<'a>,
    receipt: Option<Proof<'a>>,
    events: Vec<Move<'a>>,
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

impl<'a> From<&'a AuditEvent> for Move<'a> {
    fn from(event: &'a AuditEvent) -> Self {
        Self {
            seq: event.seq,
            at: event.at,
            kind: &event.kind,
            from_status: &event.from_status,
            status: &event.status,
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

pub fn filter(args: &FilterArgs) -> Filter {
    Filter {
        status: args.status,
        operation: args.operation.clone(),
        tenant: args.tenant.clone(),
        entity: args.entity.clone(),
        created_since: args.since,
        after: None,
        limit: None,
    }
}

pub fn list(out: Out, outbox: &Outbox, args: &ListArgs, show_secrets: bool) -> Result<()> {
    let filter = Filter { after: args.after, limit: Some(args.limit), ..filter(&args.filter) };
    let mut entries = outbox.list(&filter)?;
    if !show_secrets {
        entries.iter_mut().for_each(hide_path);
    }
    if out.is_json() {
        entries.iter().try_for_each(|entry| out.json(&Row::from(entry)))?;
    } else if entries.is_empty() {
        out.line("no such intents")?;
    } else {
        out.line(as_table(&entries))?;
    }
    if let Some(last) = entries.last()
        && entries.len() == args.limit
    {
        note(format_args!("{} shown; --after {} shows what follows", args.limit, last.id));
    }
    Ok(())
}

/// Leaves scheme, host and port of an endpoint: what is behind them can be a credential.
fn hide_path(entry: &mut Entry) {
    let Some(endpoint) = &mut entry.endpoint else { return };
    let host = endpoint.find("://").map_or(0, |at| at + 3);
    let end = endpoint[host..].find(['/', '?', '#']).map(|at| host + at);
    if let Some(end) = end.filter(|&end| end + 1 < endpoint.len()) {
        endpoint.truncate(end);
        endpoint.push_str("/…");
    }
}

fn as_table(entries: &[Entry]) -> String {
    let with_tenant = entries.iter().any(|entry| !entry.tenant_id.is_empty());
    let mut head =
        vec!["ID", "STATUS", "OPERATION", "ENTITY", "VERSION", "ATTEMPTS", "WHEN", "NOTE"];
    if with_tenant {
        head.insert(2, "TENANT");
    }
    let mut table = table(&head);
    let now = SystemClock.now();
    for entry in entries {
        let mut row = vec![
            entry.id.to_string(),
            entry.status.to_string(),
            shorten(&escape(&entry.operation), 40),
            shorten(&escape(&entry.entity_id), 40),
            entry.intent_version.to_string(),
            entry.attempts.to_string(),
            when(entry, now),
            shorten(&escape(remark(entry)), 60),
        ];
        if with_tenant {
            row.insert(2, shorten(&escape(&entry.tenant_id), 24));
        }
        table.add_row(row);
    }
    table.trim_fmt()
}

/// The time that matters next, or mattered last.
fn when(entry: &Entry, now: i64) -> String {
    if let Some(at) = entry.finished_at {
        return format!("{} ago", distance(at, now));
    }
    match entry.locked_until.or(entry.next_attempt_at) {
        Some(at) if at > now => format!("in {}", distance(now, at)),
        Some(_) => "now".into(),
        None => "-".into(),
    }
}

fn remark(entry: &Entry) -> &str {
    if !entry.registered && entry.status == Status::Pending {
        return "not registered";
    }
    entry.last_error.as_deref().or(entry.downstream_id.as_deref()).unwrap_or("")
}

pub fn show(out: Out, outbox: &Outbox, args: &ShowArgs, show_secrets: bool) -> Result<()> {
    let Some(mut entry) = find(outbox, args)? else {
        return Err(Failure::refused(format!("there is no intent {}", args.which)));
    };
    if !show_secrets {
        hide_path(&mut entry);
    }
    let events = outbox.audit(entry.id)?;
    if out.is_json() {
        return out.json(&Story {
            row: Row::from(&entry),
            receipt: entry.receipt.as_ref().map(Proof::from),
            events: events.iter().map(Move::from).collect(),
        });
    }
    out.line(facts(&entry))?;
    if let Some(receipt) = &entry.receipt {
        out.line(proof(receipt))?;
    }
    out.line(story(&entry, &events))
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

fn facts(entry: &Entry) -> String {
    let mut lines = vec![format!("intent {} is {}\n", entry.id, entry.status)];
    let mut add = |name: &str, value: Option<&str>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            lines.push(format!("  {name:<14}{}", escape(value)));
        }
    };
    add("operation", Some(&entry.operation));
    add("entity", Some(&entry.entity_id));
    add("version", Some(&entry.intent_version.to_string()));
    add("tenant", Some(&entry.tenant_id));
    add("key", Some(&entry.idempotency_key));
    add("endpoint", entry.endpoint.as_deref());
    add("ordering key", entry.ordering_key.as_deref());
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

fn story(entry: &Entry, events: &[AuditEvent]) -> String {
    let mut lines = vec!["\nwhat happened".to_owned()];
    lines.push(format!("  {}  enqueued", time(entry.created_at)));
    for event in events {
        let mut line = format!("  {}  {}", time(event.at), escape(&event.kind));
        match (event.kind.as_str(), event.attempt) {
            ("attempt", 0) => line.push_str(" (not counted)"),
            ("attempt", number) => {
                let _ = write!(line, " {number}");
            }
            _ => {}
        }
        let _ = write!(line, ": {} -> {}", escape(&event.from_status), escape(&event.status));
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
