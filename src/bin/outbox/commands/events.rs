//! `outbox events`: the audit trail of all intents, in the order of commits.

use std::time::Duration;

use sqlite_outbox::{Event, Outbox};

use crate::args::EventsArgs;
use crate::ui::failure::Result;
use crate::ui::output::Out;
use crate::ui::stop::StopSignal;
use crate::ui::trail;

/// Number of events that are read at once.
const PAGE: usize = 500;

/// Pause between two reads while no event is new, as an idle relay waits.
const POLL: Duration = Duration::from_millis(20);

pub fn run(out: Out, outbox: &Outbox, args: &EventsArgs) -> Result<()> {
    let signal = args.follow.then(StopSignal::watch).transpose()?;
    let is_stopped = || signal.as_ref().is_some_and(StopSignal::has_arrived);
    let since = args.since.unwrap_or(i64::MIN);
    // With --follow old events are read and skipped once; otherwise each read would begin there.
    let asked_since = if args.follow { i64::MIN } else { since };
    let (mut after, mut left) = (args.after, args.limit.unwrap_or(usize::MAX));
    while left > 0 {
        let page = outbox.events(after, asked_since, PAGE)?;
        for event in page.iter().filter(|event| event.at >= since && is_meant(event, args)) {
            if left == 0 || is_stopped() {
                return Ok(());
            }
            // Each line is flushed by its end.
            if out.is_json { out.json(event) } else { out.line(trail::line(event)) }?;
            left -= 1;
        }
        if let Some(last) = page.last() {
            after = last.position;
        }
        if page.len() < PAGE {
            match &signal {
                None => return Ok(()),
                Some(signal) => _ = signal.wait(POLL),
            }
        }
        if is_stopped() {
            return Ok(());
        }
    }
    Ok(())
}

fn is_meant(event: &Event, args: &EventsArgs) -> bool {
    args.operation.as_ref().is_none_or(|operation| *operation == event.operation)
        && args.kind.is_none_or(|kind| kind == event.kind)
}
