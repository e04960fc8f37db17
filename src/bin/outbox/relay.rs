//! `outbox relay`: sends what is in the outbox.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sqlite_outbox::{Event, EventKind, Outbox, Relay, Status};

use crate::args::RelayArgs;
use crate::config::Plan;
use crate::failure::Result;
use crate::output::{Out, escape, note};
use crate::run;

pub fn run(out: Out, outbox: &Outbox, args: &RelayArgs) -> Result<()> {
    // First of all: a signal that comes while the relay is being built must not kill it later.
    let signals = run::watch_signals()?;
    let plan = Plan::new(outbox, args)?;
    let mut builder = plan.apply(Relay::builder(outbox), args).observe(log_event);
    let bar = args.drain.then(|| progress(outbox)).transpose()?;
    if let Some(bar) = bar.clone() {
        builder = builder.observe(move |event| {
            if event.kind == EventKind::Attempt {
                bar.inc(1);
            }
        });
    }
    let relay = builder.build().map_err(|error| plan.explain(error, args))?;
    if let Some(bar) = bar {
        let report = run::drain(&relay, &signals);
        bar.finish_and_clear();
        return run::report_drain(out, &report?);
    }
    let handle = relay.start()?;
    note(format_args!(
        "relaying {} ({}); Ctrl-C stops",
        escape(outbox.path()),
        escape(&plan.summary())
    ));
    run::until_stopped(out, handle, &signals, args.grace)
}

fn log_event(event: &Event) {
    log::info!(
        "intent {} ({}): {}, {} -> {}{}",
        event.id,
        escape(&event.operation),
        event.kind.as_str(),
        event.from,
        event.to,
        event
            .error_class
            .as_deref()
            .map(|class| format!(", {}", escape(class)))
            .unwrap_or_default()
    );
}

/// A bar on standard error, which draws nothing unless that is a terminal. Where every move is
/// logged there too, the bar would only be torn apart.
fn progress(outbox: &Outbox) -> Result<ProgressBar> {
    let place = Status::ALL.iter().position(|status| *status == Status::Pending).unwrap_or(0);
    let pending = outbox.stats()?.iter().map(|line| line.counts[place]).sum();
    let target = if log::max_level() >= log::LevelFilter::Info {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    };
    let bar = ProgressBar::with_draw_target(Some(pending), target);
    let style =
        ProgressStyle::with_template("{bar:30} {pos} of {len} pending intents tried, {eta}");
    Ok(style.map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style)))
}
