//! `outbox list`: intents, one per line.

use std::io::IsTerminal;

use sqlite_outbox::{Clock, Entry, Filter, Outbox, Status, SystemClock};

use crate::args::{FilterArgs, ListArgs};
use crate::ui::failure::Result;
use crate::ui::output::{Out, distance, escape, note, shorten, table};

pub fn filter(args: &FilterArgs) -> Filter {
    let mut filter = Filter::default();
    filter.status = args.status;
    filter.operation.clone_from(&args.operation);
    filter.tenant.clone_from(&args.tenant);
    filter.run.clone_from(&args.run);
    filter.entity.clone_from(&args.entity);
    filter.created_since = args.since;
    filter
}

pub fn run(out: Out, outbox: &Outbox, args: &ListArgs, show_secrets: bool) -> Result<()> {
    let mut filter = filter(&args.filter).limit(args.limit);
    filter.after = args.after;
    let mut entries = outbox.list(&filter)?;
    if !show_secrets {
        entries.iter_mut().for_each(hide_path);
    }
    if out.is_json {
        entries.iter().try_for_each(|entry| out.json(entry))?;
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

/// Cuts an endpoint after its port: the path and the query may hold a credential.
pub fn hide_path(entry: &mut Entry) {
    let Some(endpoint) = &entry.endpoint else { return };
    let origin = entry.endpoint_origin().unwrap_or_default();
    if endpoint.trim_end_matches('/') != origin {
        entry.endpoint = Some(origin + "/…");
    }
}

/// Cuts the body and the values of the last failing answer, which the downstream has chosen.
pub fn cut_answer(entry: &mut Entry) {
    let Some(answer) = &mut entry.last_answer else { return };
    answer.body = shorten(&answer.body, 400);
    answer.headers.iter_mut().for_each(|(_, value)| *value = shorten(value, 200));
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
    // Cut on a terminal only; output to a pipe or a file is complete, but for what a downstream has
    // chosen.
    let is_screen = std::io::stdout().is_terminal();
    let fit = |text: &str, max| {
        let text = escape(text);
        if is_screen { shorten(&text, max) } else { text }
    };
    for entry in entries {
        let mut row = vec![
            entry.id.to_string(),
            entry.status.to_string(),
            fit(&entry.operation, 40),
            fit(&entry.entity_id, 40),
            entry.intent_version.to_string(),
            entry.attempts.to_string(),
            when(entry, now),
            fit(&shorten(remark(entry), 250), 60),
        ];
        if with_tenant {
            row.insert(2, fit(&entry.tenant_id, 24));
        }
        table.add_row(row);
    }
    table.trim_fmt()
}

/// The time of the next step, or of the end.
fn when(entry: &Entry, now: i64) -> String {
    if let Some(at) = entry.finished_at {
        return format!("{} ago", distance(at, now));
    }
    match entry.locked_until.or(entry.next_attempt_at).or(entry.next_lookup_at) {
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
