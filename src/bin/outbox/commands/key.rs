//! `outbox key`: derives idempotency keys.

use serde::Deserialize;
use serde_json::json;
use sqlite_outbox::IdempotencyKey;

use crate::args::KeyArgs;
use crate::ui::failure::{Failure, Result, USAGE};
use crate::ui::input;
use crate::ui::output::{Out, escape, note};

/// An action as a line on standard input describes it. Other members are ignored, so that test
/// vectors can be piped in as they are.
#[derive(Deserialize)]
struct Action {
    #[serde(default)]
    tenant_id: String,
    operation: String,
    entity_id: String,
    #[serde(default = "first")]
    intent_version: i64,
    args_json: String,
}

fn first() -> i64 {
    1
}

impl Action {
    fn derive(&self) -> sqlite_outbox::Result<IdempotencyKey> {
        let Self { tenant_id, operation, entity_id, intent_version, args_json } = self;
        IdempotencyKey::derive(tenant_id, operation, entity_id, *intent_version, args_json)
    }
}

pub fn run(out: Out, args: &KeyArgs) -> Result<()> {
    if args.stdin {
        return lines(out);
    }
    if let Some(key) = &args.key {
        return as_sent(out, args, key);
    }
    let action = Action {
        tenant_id: args.tenant.clone(),
        operation: args.operation.clone().unwrap_or_default(),
        entity_id: args.entity.clone().unwrap_or_default(),
        intent_version: args.version,
        args_json: input::text("--args", &args.args)?,
    };
    check(&action).map_err(|reason| Failure::usage(format!("--{reason}")))?;
    let derived = action.derive().map_err(|error| Failure::usage(format!("--{error}")))?;
    if out.is_json {
        return out.json(&derived);
    }
    out.line(escape(&derived.key))
}

/// Prints the key under which a key of the caller's own is sent.
fn as_sent(out: Out, args: &KeyArgs, key: &str) -> Result<()> {
    let operation = args.operation.as_deref().filter(|operation| !operation.is_empty());
    let operation = operation.ok_or_else(|| Failure::usage("--operation: must not be empty"))?;
    let sent = IdempotencyKey::wire_key(&args.tenant, operation, key).map_err(|error| {
        let text = error.to_string();
        Failure::usage(format!("--key: {}", text.trim_start_matches("idempotency_key: ")))
    })?;
    if out.is_json {
        return out.json(&json!({ "idempotency_key": key, "wire_key": sent }));
    }
    out.line(escape(&sent))
}

/// Refuses an action that could never be stored.
fn check(action: &Action) -> std::result::Result<(), &'static str> {
    match action {
        Action { operation, .. } if operation.is_empty() => Err("operation: must not be empty"),
        Action { entity_id, .. } if entity_id.is_empty() => Err("entity: must not be empty"),
        Action { intent_version: ..1, .. } => Err("version: must be 1 or more"),
        _ => Ok(()),
    }
}

/// Prints the key of each line, and names each line that has none.
fn lines(out: Out) -> Result<()> {
    let (mut bad, mut number, mut line) = (0_usize, 0_usize, Vec::new());
    let failed = |error| Failure::failed(format!("standard input: {error}"));
    while input::read_line(&mut std::io::stdin().lock(), &mut line).map_err(failed)? > 0 {
        number += 1;
        if line.trim_ascii().is_empty() {
            continue;
        }
        match derive_line(&line) {
            Ok(derived) => out.json(&derived)?,
            Err(reason) => {
                bad += 1;
                note(format_args!("error: line {number}: {}", escape(&reason)));
            }
        }
    }
    if bad > 0 { Err(Failure::quiet(USAGE)) } else { Ok(()) }
}

fn derive_line(line: &[u8]) -> std::result::Result<IdempotencyKey, String> {
    if line.len() as u64 > input::LINE_MAX {
        return Err(format!("longer than {} bytes", input::LINE_MAX));
    }
    let action: Action = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    check(&action)?;
    action.derive().map_err(|error| error.to_string())
}
