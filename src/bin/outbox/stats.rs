//! `outbox stats`: counts by operation and status.

use serde_json::{Map, Value, json};
use sqlite_outbox::{Clock, OperationStats, Outbox, Status, SystemClock};

use crate::failure::Result;
use crate::output::{Out, distance, escape, table};

pub fn run(out: Out, outbox: &Outbox) -> Result<()> {
    let stats = outbox.stats()?;
    if out.is_json() {
        return stats.iter().try_for_each(|line| out.json(&to_json(line)));
    }
    if stats.is_empty() {
        return out.line("no intents yet");
    }
    let mut head = vec!["OPERATION"];
    let words = Status::ALL.map(|status| status.as_str().to_uppercase());
    head.extend(words.iter().map(String::as_str));
    head.push("OLDEST DUE");
    let mut table = table(&head);
    let now = SystemClock.now();
    for line in &stats {
        let mark = if line.registered { "" } else { " *" };
        let mut row = vec![format!("{}{mark}", escape(&line.operation))];
        row.extend(line.counts.iter().map(|n| if *n == 0 { "-".into() } else { n.to_string() }));
        row.push(line.oldest_due_at.map_or_else(|| "-".into(), |at| distance(at, now)));
        table.add_row(row);
    }
    out.line(table.trim_fmt())?;
    if stats.iter().any(|line| !line.registered) {
        out.line("\n* no relay has ever registered this operation, so its intents wait")?;
    }
    Ok(())
}

fn to_json(line: &OperationStats) -> Value {
    let mut object = Map::new();
    object.insert("operation".into(), json!(line.operation));
    object.insert("registered".into(), json!(line.registered));
    for (status, count) in Status::ALL.into_iter().zip(line.counts) {
        object.insert(status.as_str().into(), json!(count));
    }
    object.insert("oldest_due_at".into(), json!(line.oldest_due_at));
    Value::Object(object)
}
