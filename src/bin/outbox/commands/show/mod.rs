//! `outbox show`: one intent, its receipt, its history, and what can be done about it.

mod advice;

use std::fmt::Write as _;

use serde::Serialize;
use sqlite_outbox::{Entry, Event, FailingAnswer, OnDead, Outbox, Receipt, StoredContract};

use self::advice::Case;
use crate::args::WhichArgs;
use crate::commands::list::{cut_answer, hide_path};
use crate::ui::failure::{Failure, Result};
use crate::ui::output::{Out, brief, duration, escape, shorten, time};
use crate::ui::trail;

#[derive(Serialize)]
struct Story<'a> {
    #[serde(flatten)]
    entry: &'a Entry,
    contract: Option<&'a StoredContract>,
    /// The report that the intent was carried out twice, with the provider's two ids.
    duplicate_effect: Option<&'a str>,
    events: &'a [Event],
    next_step: Option<String>,
}

pub fn run(out: Out, outbox: &Outbox, which: &WhichArgs, show_secrets: bool) -> Result<()> {
    let mut entry = find(outbox, which)?;
    if !show_secrets {
        hide_path(&mut entry);
        cut_answer(&mut entry);
    }
    let events = outbox.audit(entry.id)?;
    let known = outbox.operations()?;
    let contract = known.iter().find(|known| known.operation == entry.operation);
    let next_step = Case { outbox, entry: &entry, events: &events, contract }.next_step()?;
    if out.is_json {
        return out.json(&Story {
            entry: &entry,
            contract,
            duplicate_effect: trail::duplicate_effect(&events),
            events: &events,
            next_step: next_step.map(|next| next.replace("\n  ", "; ")),
        });
    }
    out.line(facts(&entry, &events, contract))?;
    if let Some(proof) = entry.receipt.as_ref().map(proof).filter(|proof| !proof.is_empty()) {
        out.line(format_args!("\nreceipt{proof}"))?;
    }
    if let Some(answer) = &entry.last_answer {
        out.line(format_args!("\nlast failing answer{}", failing(answer)))?;
    }
    out.line(trail::story(&entry, &events))?;
    next_step.map_or(Ok(()), |next| out.line(format_args!("\nwhat helps\n  {next}")))
}

/// The intent with this id or key, or the provider's id of its effect. A number is tried as an id
/// first, because lists show ids; with a tenant it is none.
pub fn find(outbox: &Outbox, args: &WhichArgs) -> Result<Entry> {
    let (which, tenant) = (args.which.as_str(), args.tenant.as_deref());
    let mut found = None;
    if let (None, Ok(id)) = (tenant, which.parse()) {
        found = outbox.entry(id)?;
    }
    if found.is_none() {
        found = outbox.entry_by_key(tenant.unwrap_or(""), which)?;
    }
    if found.is_none() {
        found = outbox.entry_by_downstream_id(None, which)?;
    }
    found
        .filter(|entry| tenant.is_none_or(|tenant| entry.tenant_id == tenant))
        .ok_or_else(|| Failure::refused(format!("there is no intent {which}")))
}

fn facts(entry: &Entry, events: &[Event], contract: Option<&StoredContract>) -> String {
    let mut lines = vec![format!("intent {} is {}", entry.id, entry.status)];
    if let Some(twice) = trail::duplicate_effect(events) {
        lines.push(format!("DUPLICATE EFFECT: it was {}", escape(twice)));
    }
    lines.push(String::new());
    let mut add = |name: &str, value: Option<&str>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            lines.push(format!("  {name:<14}{}", escape(value)));
        }
    };
    add("operation", Some(&entry.operation));
    add("contract", Some(&contract.map_or(UNREGISTERED.into(), in_words)));
    add("entity", Some(&entry.entity_id));
    add("version", Some(&entry.intent_version.to_string()));
    add("tenant", Some(&entry.tenant_id));
    add("key", Some(&entry.idempotency_key));
    add("key as sent", Some(&*entry.wire_key).filter(|sent| *sent != entry.idempotency_key));
    add("endpoint", entry.endpoint.as_deref());
    let size = entry.payload_bytes.map(|bytes| format!("{bytes} bytes"));
    add("method", entry.method.as_deref());
    add("content type", entry.content_type.as_deref());
    add("payload", Some(size.as_deref().unwrap_or("stripped")));
    add("headers", Some(&entry.header_names.join(", ")));
    add("expires", entry.expires_at.map(time).as_deref());
    add("ordering key", entry.ordering_key.as_deref());
    add("waits behind", entry.waits_behind.map(|id| format!("intent {id}")).as_deref());
    let intent = |id| format!("intent {id}");
    add("revises", entry.revises.map(intent).as_deref());
    add("revised by", entry.revised_by.map(intent).as_deref());
    // The agent run and the tool version are headers of the intent, the same in every event.
    let newest = events.last();
    add("agent run", newest.and_then(|event| event.agent_run.as_deref()));
    add("tool version", newest.and_then(|event| event.tool_version.as_deref()));
    add("created", Some(&time(entry.created_at)));
    add("attempts", Some(&entry.attempts.to_string()));
    add("next attempt", entry.next_attempt_at.map(time).as_deref());
    add("next lookup", entry.next_lookup_at.map(time).as_deref());
    add("held by", entry.locked_by.as_deref());
    add("held until", entry.locked_until.map(time).as_deref());
    add("last error", entry.last_error.as_deref());
    add("finished", entry.finished_at.map(time).as_deref());
    add("downstream id", entry.downstream_id.as_deref().map(brief).as_deref());
    lines.join("\n")
}

const UNREGISTERED: &str = "none stored: no relay has ever registered this operation";

fn in_words(contract: &StoredContract) -> String {
    let mut text = contract.downstream.to_string();
    if let Some(window) = contract.downstream.window() {
        let _ = write!(text, ", remembers a key for {}", duration(window));
    }
    if contract.on_dead == OnDead::Continue {
        text.push_str("; a dead intent lets its ordering key continue");
    }
    if let Some(provider) = &contract.provider {
        let _ = write!(text, "; provider {provider}");
    }
    if contract.reconciles {
        text.push_str("; a relay looks up intents in doubt");
    }
    if contract.binds_ids {
        text.push_str("; no two intents can have one id");
    }
    text
}

/// The receipt's lines. A receipt by a person's resolution holds no more than an id: no line.
fn proof(receipt: &Receipt) -> String {
    let mut text = String::new();
    if let Some(status) = receipt.status {
        let _ = write!(text, "\n  {:<14}{status}", "answer");
    }
    add_headers(&mut text, &receipt.headers);
    if let Some(body) = &receipt.body {
        let more = match (receipt.truncated, receipt.body_bytes) {
            (true, Some(bytes)) => format!(" (not all of its {bytes} bytes)"),
            (true, None) => " (not all of it)".to_owned(),
            (false, _) => String::new(),
        };
        let _ = write!(text, "\n  {:<14}{}{more}", "body", shorten(&escape(body), 400));
    }
    if let Some(note) = &receipt.note {
        let _ = write!(text, "\n  {:<14}{}", "note", escape(note));
    }
    text
}

/// The lines of an answer that was no success, as far as it is there.
fn failing(answer: &FailingAnswer) -> String {
    let mut text = format!("\n  {:<14}{}", "at", time(answer.at));
    let _ = write!(text, "\n  {:<14}{}", "status", answer.status);
    add_headers(&mut text, &answer.headers);
    let _ = write!(text, "\n  {:<14}{}", "body", escape(&answer.body));
    let (bytes, hash) = (answer.body_bytes, escape(&answer.body_sha256));
    let _ = write!(text, "\n  {:<14}{bytes} bytes, SHA-256 {hash}", "");
    text
}

fn add_headers(text: &mut String, headers: &[(String, String)]) {
    for (name, value) in headers {
        let _ = write!(text, "\n  {:<14}{}", escape(name), escape(value));
    }
}
