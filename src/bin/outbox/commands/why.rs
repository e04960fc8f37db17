//! `outbox why`: the first rule that keeps an intent from being sent now.

use serde_json::json;
use sqlite_outbox::{Outbox, Shard};

use crate::args::WhichArgs;
use crate::commands::show::find;
use crate::ui::failure::Result;
use crate::ui::output::{Out, escape};

pub fn run(out: Out, outbox: &Outbox, which: &WhichArgs, shard: Option<Shard>) -> Result<()> {
    let id = find(outbox, which)?.id;
    let (rule, text) = outbox.why(id, shard)?;
    if out.is_json {
        return out.json(&json!({ "id": id, "rule": rule, "text": text }));
    }
    out.line(format_args!("intent {id}: {}", escape(&text)))
}
