//! `outbox init`: creates the outbox's tables.

use sqlite_outbox::Outbox;

use crate::ui::failure::Result;
use crate::ui::output::{Out, escape};

pub fn run(out: Out, outbox: &Outbox) -> Result<()> {
    let version = Outbox::SCHEMA_VERSION;
    let path = outbox.path().display().to_string();
    if out.is_json {
        return out.json(&serde_json::json!({
            "path": path,
            "schema_version": version,
            "database_id": outbox.database_id(),
        }));
    }
    out.line(format_args!(
        "{}: schema version {version}, database {}",
        escape(&path),
        outbox.database_id()
    ))
}
