//! `outbox enqueue`: one intent in its own transaction.

use serde::Serialize;
use sqlite_outbox::{Enqueued, ErrorKind, IdempotencyKey, Intent, Outbox, Status};

use crate::args::EnqueueArgs;
use crate::ui::failure::{Failure, Result};
use crate::ui::input::{self, set_given};
use crate::ui::output::{Out, escape, note};

#[derive(Serialize)]
struct Report<'a> {
    id: i64,
    idempotency_key: &'a str,
    wire_key: &'a str,
    outcome: &'static str,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    downstream_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unsettled_version: Option<i64>,
}

/// Enqueues the intent. Its values are read before the file is opened, so that a mistake in them
/// does not touch the file.
pub fn run(out: Out, open: &dyn Fn() -> Result<Outbox>, args: &EnqueueArgs) -> Result<()> {
    let intent = intent(args)?;
    let outbox = open()?;
    let enqueued = outbox
        .transact(|tx| outbox.enqueue(tx, &intent))
        .map_err(|error| named_by_flag(error, args))?;
    warn_of_credentials(&args.header);
    let tenant = args.tenant.as_deref().unwrap_or_default();
    let sent = IdempotencyKey::wire_key(tenant, &args.operation, enqueued.key())?;
    report(out, &enqueued, &sent)
}

/// Headers that usually carry credentials.
const CREDENTIALS: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "x-api-key"];

fn warn_of_credentials(headers: &[String]) {
    let names = headers.iter().filter_map(|header| header.split_once('=')).map(|(name, _)| name);
    for name in names {
        if CREDENTIALS.iter().any(|credential| name.eq_ignore_ascii_case(credential)) {
            note(format_args!(
                "warning: --header {name}: a stored header is plain text in the file and in its \
                 backups; credentials belong into relay.toml, which takes them from the environment"
            ));
        }
    }
}

fn intent(args: &EnqueueArgs) -> Result<Intent> {
    if args.args.as_deref() == Some("-") && args.payload.as_deref() == Some("-") {
        return Err(Failure::usage("--payload: standard input is read by --args already"));
    }
    let mut intent = Intent::new(&args.operation, &args.entity).version(args.version);
    intent = intent.cost(args.cost);
    set_given!(intent, args, [tenant, key, endpoint, method], |text| (text));
    set_given!(intent, args, [content_type, ordering_key], |text| (text));
    set_given!(intent, args, [delay, expires_in], |&time| (time));
    if let Some(text) = &args.args {
        intent = intent.args_json(input::text("--args", text)?);
    }
    if let Some(text) = &args.payload {
        intent = intent.payload(input::text("--payload", text)?);
    }
    for header in &args.header {
        // The message does not repeat the header: it may be a credential, given by mistake.
        let (name, value) =
            header.split_once('=').ok_or_else(|| Failure::usage("--header: must be NAME=VALUE"))?;
        intent = intent.header(name, value);
    }
    Ok(intent)
}

/// The library's error under the flag: its text begins with the name of the field.
fn named_by_flag(error: sqlite_outbox::Error, args: &EnqueueArgs) -> Failure {
    let kind = error.kind();
    let mut failure = Failure::from(error);
    if kind == ErrorKind::Invalid
        && let Some((field, reason)) = failure.text.split_once(": ")
    {
        let flag = match field {
            "operation" => "OPERATION".to_owned(),
            "headers" => "--header".to_owned(),
            // The arguments stand in for a payload that was not given.
            "payload" if args.payload.is_none() => "--args".to_owned(),
            "idempotency_key" => "--key".to_owned(),
            field => format!("--{}", field.replace('_', "-")),
        };
        failure.text = format!("{flag}: {reason}");
    }
    failure
}

fn report(out: Out, enqueued: &Enqueued, wire_key: &str) -> Result<()> {
    let existing = if let Enqueued::Existing(entry) = enqueued { Some(entry) } else { None };
    let report = Report {
        id: enqueued.id(),
        idempotency_key: enqueued.key(),
        wire_key,
        outcome: if matches!(enqueued, Enqueued::New { .. }) { "new" } else { "existing" },
        status: existing.map_or(Status::Pending, |entry| entry.status),
        downstream_id: existing.and_then(|entry| entry.downstream_id.as_deref()),
        unsettled_version: match enqueued {
            Enqueued::New { unsettled_version, .. } => *unsettled_version,
            _ => None,
        },
    };
    if let Some(earlier) = report.unsettled_version {
        note(format_args!(
            "warning: an earlier version, intent {earlier}, is not settled; both will be sent \
             unless that one is cancelled"
        ));
    }
    if out.is_json {
        return out.json(&report);
    }
    let mut key = escape(report.idempotency_key);
    if wire_key != report.idempotency_key {
        key = format!("{key}, sent as {}", escape(wire_key));
    }
    if report.outcome == "new" {
        out.line(format_args!("intent {} is enqueued, key {key}", report.id))
    } else {
        out.line(format_args!("intent {} exists and is {}, key {key}", report.id, report.status))
    }
}
