//! `outbox stats`: counts by operation and status.

use serde::Serialize;
use sqlite_outbox::{Clock, OperationStats, Outbox, PauseKind, Status, StoredHold, SystemClock};

use crate::commands::operations::{print_holds, print_switch};
use crate::ui::failure::Result;
use crate::ui::output::{Out, distance, escape, quoted, table};

/// The counts of one operation, and what of it is held back.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    stats: &'a OperationStats,
    paused: Option<PauseKind>,
    paused_until: Option<i64>,
    throttled_until: Option<i64>,
    holds: &'a [StoredHold],
    only_registered: bool,
}

pub fn run(out: Out, outbox: &Outbox) -> Result<()> {
    let stats = outbox.stats()?;
    let (known, only_registered) = (outbox.operations()?, outbox.takes_only_registered()?);
    let contract =
        |line: &OperationStats| known.iter().find(|known| known.operation == line.operation);
    if stats.is_empty() {
        if !out.is_json {
            out.line("no intents yet")?;
        }
        return print_switch(out, only_registered);
    }
    if out.is_json {
        return stats.iter().try_for_each(|stats| {
            let known = contract(stats);
            out.json(&Line {
                stats,
                paused: known.and_then(|known| known.paused),
                paused_until: known.and_then(|known| known.paused_until),
                throttled_until: known.and_then(|known| known.throttled_until),
                holds: known.map_or(&[], |known| &known.holds),
                only_registered,
            })
        });
    }
    let now = SystemClock.now();
    out.line(as_table(&stats, now))?;
    if stats.iter().any(|line| !line.registered) {
        out.line("\n* no relay has ever registered this operation, so its intents wait")?;
    }
    for line in stats.iter().filter(|line| line.duplicate_effects > 0) {
        let many = usize::try_from(line.duplicate_effects).unwrap_or(usize::MAX);
        out.line(format_args!(
            "\n{}: {} carried out twice: `outbox events --kind duplicate_effect --operation {}` \
             names both ids",
            escape(&line.operation),
            if many == 1 { "1 intent was".into() } else { format!("{many} intents were") },
            quoted(&line.operation)
        ))?;
    }
    let sentences = stats.iter().filter_map(contract).filter_map(|known| {
        Some(format!("{} is paused {}", escape(&known.operation), escape(&known.pause_in_words()?)))
    });
    let sentences: Vec<String> = sentences.collect();
    if !sentences.is_empty() {
        out.line(format_args!("\n{}", sentences.join("\n")))?;
    }
    stats.iter().filter_map(contract).try_for_each(|known| print_holds(out, known))?;
    print_switch(out, only_registered)
}

/// A column for each status that some intent has, and for the due time where an intent is due.
fn as_table(stats: &[OperationStats], now: i64) -> String {
    let is_used = |status: &&Status| stats.iter().any(|line| line.count(**status) > 0);
    let used: Vec<&Status> = Status::ALL.iter().filter(is_used).collect();
    let is_any_due = stats.iter().any(|line| line.oldest_due_at.is_some());
    let words: Vec<String> = used.iter().map(|status| status.as_str().to_uppercase()).collect();
    let mut head = vec!["OPERATION"];
    head.extend(words.iter().map(String::as_str));
    if is_any_due {
        head.push("OLDEST DUE");
    }
    let mut table = table(&head);
    for line in stats {
        let mark = if line.registered { "" } else { " *" };
        let mut row = vec![format!("{}{mark}", escape(&line.operation))];
        row.extend(used.iter().map(|&&status| match line.count(status) {
            0 => "-".into(),
            number => number.to_string(),
        }));
        if is_any_due {
            row.push(line.oldest_due_at.map_or_else(|| "-".into(), |at| distance(at, now)));
        }
        table.add_row(row);
    }
    table.trim_fmt()
}
