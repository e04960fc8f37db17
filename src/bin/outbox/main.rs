//! `outbox`: the operator's command for the outbox in an application's database file.

#![forbid(unsafe_code)]

mod advice;
mod args;
mod config;
mod confirm;
mod demo;
mod demo_downstream;
mod enqueue;
mod events;
mod failure;
mod input;
mod inspect;
mod key;
mod logging;
mod operate;
mod operations;
mod output;
mod relay;
mod relay_toml;
mod run;
mod show;
mod stats;
mod stored;
mod trail;

use std::io::Write as _;
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches};
use sqlite_outbox::Outbox;

use args::{Cli, Command};
use failure::{Failure, Result};
use output::{Out, escape};

fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    logging::start(cli.verbose);
    let chosen = is_db_on_command_line(&matches);
    match dispatch(cli, chosen) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.text.is_empty() {
                // Where nobody listens the exit code still says it.
                let _ = writeln!(std::io::stderr(), "error: {}", escape(&failure.text));
            }
            ExitCode::from(failure.code)
        }
    }
}

/// The demo writes into a file only where it was asked to by name: a variable that points to
/// production must not be enough.
fn is_db_on_command_line(matches: &clap::ArgMatches) -> bool {
    let named = |m: &clap::ArgMatches| m.value_source("db") == Some(ValueSource::CommandLine);
    named(matches) || matches.subcommand().is_some_and(|(_, inner)| named(inner))
}

fn dispatch(cli: Cli, is_db_named: bool) -> Result<()> {
    let out = Out::new(cli.json);
    let open = || open(cli.db.as_deref(), false);
    match cli.command {
        Command::Init => init(out, &self::open(cli.db.as_deref(), true)?),
        Command::Key(args) => key::run(out, &args),
        Command::Enqueue(args) => enqueue::run(out, &open, &args),
        Command::Relay(args) => relay::run(out, &open()?, &args),
        Command::List(args) => inspect::list(out, &open()?, &args, cli.show_secrets),
        Command::Show(args) => show::show(out, &open()?, &args, cli.show_secrets),
        Command::Replay(args) => operate::replay(out, &open()?, &args),
        Command::Resolve(args) => operate::resolve(out, &open()?, &args),
        Command::Confirm(args) => confirm::run(out, &open()?, &args),
        Command::Skip(args) => operate::skip(out, &open()?, &args),
        Command::Cancel(args) => operate::cancel(out, &open()?, &args),
        Command::Events(args) => events::run(out, &open()?, &args),
        Command::Stats => stats::run(out, &open()?),
        Command::Why(args) => operations::why(out, &open()?, &args),
        Command::Pause(args) => operations::pause(out, &open()?, &args),
        Command::Resume(args) => operations::resume(out, &open()?, &args),
        Command::Operations => operations::list(out, &open()?),
        Command::Demo => demo::run(out, cli.db.as_deref().filter(|_| is_db_named)),
    }
}

fn open(db: Option<&str>, create: bool) -> Result<Outbox> {
    let db = db.ok_or_else(|| Failure::usage("--db FILE is needed (or OUTBOX_DB)"))?;
    if db.is_empty() {
        return Err(Failure::usage("--db: must name a file"));
    }
    let opened = Outbox::builder().create(create).open(db);
    opened.map_err(|error| {
        let mut failure = Failure::from(error);
        let is_missing =
            ["no such file", "has no outbox"].iter().any(|t| failure.text.ends_with(t));
        if !create && is_missing {
            failure.text.push_str("; `init` creates it");
        }
        failure
    })
}

fn init(out: Out, outbox: &Outbox) -> Result<()> {
    let version = outbox.schema_version();
    if out.is_json() {
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
