//! `outbox init`: creates the outbox's tables.

use sqlite_outbox::Outbox;

use crate::ui::failure::Result;
use crate::ui::output::{Out, escape};

pub fn run(out: Out, outbox: &Outbox) -> Result<()> {
    let version = Outbox::SCHEMA_VERSION;
    if out.is_json {
        return out.json(&serde_json::json!({
            "path": outbox.path(),
            "schema_version": version,
            "database_id": outbox.database_id(),
        }));
    }
    out.line(format_args!(
        "{}: schema version {version}, database {}",
        escape(outbox.path()),
        outbox.database_id()
    ))
}
