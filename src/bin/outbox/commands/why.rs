//! `outbox why`: the first rule that keeps an intent from being sent now.

use serde_json::json;
use sqlite_outbox::Outbox;

use crate::args::WhyArgs;
use crate::ui::failure::Result;
use crate::ui::output::{Out, escape};

pub fn run(out: Out, outbox: &Outbox, args: &WhyArgs) -> Result<()> {
    let (rule, text) = outbox.why(args.id, args.shard)?;
    if out.is_json() {
        return out.json(&json!({ "id": args.id, "rule": rule, "text": text }));
    }
    out.line(format_args!("intent {}: {}", args.id, escape(&text)))
}
