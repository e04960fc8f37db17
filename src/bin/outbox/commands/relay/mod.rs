//! `outbox relay`: sends what is in the outbox.

mod plan;
mod run;
mod toml;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sqlite_outbox::{Event, EventKind, Outbox, Relay, Status};

use self::plan::Plan;
pub use self::toml::{Budgets, Per};
use crate::args::RelayArgs;
use crate::ui::failure::Result;
use crate::ui::output::{Out, escape, note};
use crate::ui::stop::StopSignal;

pub fn run(out: Out, outbox: &Outbox, args: &RelayArgs) -> Result<()> {
    // Watched first: a signal that comes while the relay is being built must stop it, too.
    let signal = StopSignal::watch()?;
    let plan = Plan::new(outbox, args)?;
    let bar = args.drain.then(|| progress(outbox)).transpose()?;
    let drawn = bar.clone();
    let builder = plan.apply(Relay::builder(outbox), args).observe(move |event| {
        let Some(bar) = &drawn else { return log_event(event) };
        bar.suspend(|| log_event(event));
        if event.kind == EventKind::Attempt {
            bar.inc(1);
        }
    });
    let relay = builder.build().map_err(|error| plan.explain(error, args))?;
    if let Some(bar) = bar {
        let report = run::drain(&relay, &signal);
        bar.finish_and_clear();
        return run::report_drain(out, &report?);
    }
    let handle = relay.start()?;
    note(format_args!(
        "relaying {} ({}); Ctrl-C stops",
        escape(&outbox.path().display().to_string()),
        escape(&plan.summary())
    ));
    run::until_stopped(out, handle, &signal, args.grace)
}

/// Events that need a person are warnings, so that they are logged without -v.
fn log_event(event: &Event) {
    let level = match event.status {
        _ if event.from_status == event.status => log::Level::Info,
        Status::Dead | Status::Unknown | Status::NeedsReview => log::Level::Warn,
        _ => log::Level::Info,
    };
    if !log::log_enabled!(level) {
        return;
    }
    let class = event.error_class.as_deref();
    log::log!(
        level,
        "intent {} ({}): {}, {} -> {}{}",
        event.outbox_id,
        escape(&event.operation),
        event.kind.as_str(),
        event.from_status,
        event.status,
        class.map(|class| format!(", {}", escape(class))).unwrap_or_default()
    );
}

/// A progress bar on standard error, if that is a terminal. With -v there is none: log lines would
/// break it.
fn progress(outbox: &Outbox) -> Result<ProgressBar> {
    let pending = outbox.stats()?.iter().map(|line| line.count(Status::Pending)).sum();
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
