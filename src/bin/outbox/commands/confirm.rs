//! `outbox confirm`: settles intents that a provider's own record lists, line by line.

use std::fs::File;
use std::io::{BufRead, BufReader};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlite_outbox::{Actor, ErrorKind, Event, EventKind, Outbox, Receipt, Status};

use crate::args::ActorArgs;
use crate::ui::failure::{Failure, REFUSED, Result, USAGE, is_of_this_intent};
use crate::ui::input::{LINE_MAX, read_line};
use crate::ui::output::{Out, escape, note};

/// A line of JSON. The members are checked one by one, so that a complaint names its member and
/// repeats no value.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(default)]
    tenant_id: Value,
    #[serde(default)]
    idempotency_key: Value,
    #[serde(default)]
    provider: Value,
    #[serde(default)]
    downstream_id: Value,
    #[serde(default)]
    receipt: Value,
}

/// The intent that one line names, by its key or by the provider's id alone, and its receipt.
struct Confirmation {
    tenant: Option<String>,
    key: Option<String>,
    provider: Option<String>,
    receipt: Receipt,
}

impl Confirmation {
    /// The tenant and the key of the intent; where the line has none, of the one with its id.
    fn of(&self, outbox: &Outbox) -> sqlite_outbox::Result<Option<(String, String)>> {
        if let Some(key) = &self.key {
            return Ok(Some((self.tenant.clone().unwrap_or_default(), key.clone())));
        }
        let id = self.receipt.downstream_id.as_deref().unwrap_or_default();
        let found = outbox.entry_by_downstream_id(self.provider.as_deref(), id)?;
        let found = found.filter(|e| self.tenant.as_ref().is_none_or(|t| *t == e.tenant_id));
        Ok(found.map(|entry| (entry.tenant_id, entry.idempotency_key)))
    }
}

/// The outcome for one line.
#[derive(Default, Serialize)]
struct Answer {
    line: usize,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Answer {
    fn malformed(line: usize, reason: String) -> Self {
        Self { line, outcome: "malformed", reason: Some(reason), ..Self::default() }
    }

    /// Prints the outcome; the complaint about a malformed line goes to standard error.
    fn print(&self, out: Out) -> Result<()> {
        let Self { line, outcome, .. } = self;
        let is_malformed = *outcome == "malformed";
        let reason = self.reason.as_ref().map(|reason| format!(": {}", escape(reason)));
        let reason = reason.unwrap_or_default();
        if is_malformed {
            note(format_args!("error: line {line}{reason}"));
        }
        if out.is_json {
            return out.json(self);
        }
        if is_malformed {
            return Ok(());
        }
        let intent = self.id.zip(self.status);
        let intent = intent.map(|(id, status)| format!(", intent {id} is {status}"));
        out.line(format_args!("line {line}: {outcome}{}{reason}", intent.unwrap_or_default()))
    }
}

pub fn run(out: Out, outbox: &Outbox, file: Option<&str>, by: &ActorArgs) -> Result<()> {
    let (name, mut source) = open(file)?;
    let actor = by.actor();
    let (mut is_any_malformed, mut is_any_open) = (false, false);
    // A closed standard output does not keep the remaining lines from being confirmed.
    let mut said = Ok(());
    let failed = |error| Failure::failed(format!("{name}: {error}"));
    let (mut bytes, mut line) = (Vec::new(), 0);
    while read_line(&mut *source, &mut bytes).map_err(failed)? > 0 {
        line += 1;
        let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes);
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        let answer = match parse(bytes) {
            Ok(confirmation) => confirm(outbox, line, &confirmation, &actor)?,
            Err(reason) => Answer::malformed(line, reason),
        };
        is_any_malformed |= answer.outcome == "malformed";
        is_any_open |= !matches!(answer.outcome, "confirmed" | "known");
        said = said.and(answer.print(out));
    }
    match (is_any_malformed, is_any_open) {
        (true, _) => Err(Failure::quiet(USAGE)),
        (_, true) => Err(Failure::quiet(REFUSED)),
        _ => said,
    }
}

/// The source of the lines, and its name for messages.
fn open(file: Option<&str>) -> Result<(String, Box<dyn BufRead>)> {
    match file.filter(|name| *name != "-") {
        None => Ok(("standard input".into(), Box::new(std::io::stdin().lock()))),
        Some(name) => {
            let file = File::open(name)
                .map_err(|error| Failure::usage(format!("FILE: {name}: {error}")))?;
            Ok((name.to_owned(), Box::new(BufReader::new(file))))
        }
    }
}

/// Bytes that some programs put at the beginning of a text file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

fn parse(line: &[u8]) -> std::result::Result<Confirmation, String> {
    if line.len() as u64 > LINE_MAX {
        return Err(format!("longer than {LINE_MAX} bytes"));
    }
    if !line.trim_ascii_start().starts_with(b"{") {
        return Err("must be an object such as {\"idempotency_key\": \"…\"}".into());
    }
    let line: Line = serde_json::from_slice(line).map_err(|error| explain(&error))?;
    let key = text("idempotency_key", line.idempotency_key)?;
    let mut receipt = Receipt::new();
    if let Some(id) = text("downstream_id", line.downstream_id)? {
        receipt = receipt.downstream_id(id);
    }
    if !line.receipt.is_null() {
        receipt = receipt.body(line.receipt.to_string());
    }
    if key.is_none() && receipt.downstream_id.is_none() {
        return Err("idempotency_key: must be a string, or downstream_id must be there".into());
    }
    let (tenant, provider) = (text("tenant_id", line.tenant_id)?, text("provider", line.provider)?);
    Ok(Confirmation { tenant, key, provider, receipt })
}

/// A text that may be left out or be null, as exports write it.
fn text(member: &str, value: Value) -> std::result::Result<Option<String>, String> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        _ => Err(format!("{member}: must be a string")),
    }
}

/// The parser's message without its line number: for the parser, every line is line 1.
fn explain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line 1 column ") {
        Some((text, column)) => format!("{text} at column {column}"),
        None => text,
    }
}

/// Confirms one line in a transaction of its own, so that a wrong line does not affect the others.
fn confirm(
    outbox: &Outbox,
    line: usize,
    confirmation: &Confirmation,
    actor: &Actor,
) -> Result<Answer> {
    let idempotency_key = confirmation.key.clone();
    let mut answer = Answer { line, outcome: "known", idempotency_key, ..Answer::default() };
    let confirmed = confirmation.of(outbox).and_then(|of| {
        let Some((tenant, key)) = of else { return Ok(None) };
        let of = (tenant.as_str(), key.as_str());
        let event = outbox.transact(|tx| outbox.confirm(tx, of, &confirmation.receipt, actor))?;
        Ok(Some((event, outbox.entry_by_key(&tenant, &key)?)))
    });
    match confirmed {
        Ok(None) => {
            answer.outcome = "not_found";
            answer.reason = Some("no intent is known by this downstream_id".into());
        }
        Ok(Some((None, entry))) => {
            answer.id = entry.as_ref().map(|entry| entry.id);
            answer.status = entry.map(|entry| entry.status);
        }
        Ok(Some((Some(event), _))) => {
            answer.outcome = outcome(&event);
            answer.id = Some(event.outbox_id);
            answer.status = Some(event.status);
            answer.reason = event.reason;
        }
        Err(error) => {
            answer.outcome = match error.kind() {
                ErrorKind::NotFound => "not_found",
                // The downstream id is wrong, and the message names it.
                ErrorKind::Invalid => return Ok(Answer::malformed(line, error.to_string())),
                kind if is_of_this_intent(kind) => "refused",
                _ => {
                    let failure = Failure::from(error);
                    return Err(Failure {
                        text: format!("line {line}: {}", failure.text),
                        ..failure
                    });
                }
            };
            answer.reason = Some(error.to_string());
        }
    }
    Ok(answer)
}

/// The word for the event that was recorded.
fn outcome(event: &Event) -> &'static str {
    if event.kind == EventKind::DuplicateEffect {
        "duplicate_effect"
    } else if event.error_class.is_some() || event.status != Status::Succeeded {
        // The id is another intent's, or it was cancelled: a person must look.
        "needs_review"
    } else {
        "confirmed"
    }
}
