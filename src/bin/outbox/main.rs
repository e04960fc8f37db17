//! `outbox`: the operator's command for the outbox in an application's database file.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod ui;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches};
use sqlite_outbox::Outbox;

use args::{Cli, Command, Switch};
use commands::{confirm, demo, enqueue, events, init, key, list, operations, relay, show, stats};
use commands::{limit, verbs, why};
use ui::failure::{Failure, Result};
use ui::logging;
use ui::output::{Out, escape};

fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    logging::start(cli.verbose);
    let chosen = is_db_on_command_line(&matches);
    match dispatch(cli, chosen) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.text.is_empty() {
                // With a closed standard error the exit code still reports the failure.
                let _ = writeln!(std::io::stderr(), "error: {}", escape(&failure.text));
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Whether `--db` is on the command line. The demo writes only into a file that is named there: a
/// variable that points to production must not be enough.
fn is_db_on_command_line(matches: &clap::ArgMatches) -> bool {
    let named = |m: &clap::ArgMatches| m.value_source("db") == Some(ValueSource::CommandLine);
    named(matches) || matches.subcommand().is_some_and(|(_, inner)| named(inner))
}

fn dispatch(cli: Cli, is_db_named: bool) -> Result<()> {
    let out = Out { is_json: cli.json };
    let db = cli.db.as_deref().map(Path::new);
    let open = || open(db, Access::Change);
    let look = || self::open(db, Access::Look);
    match cli.command {
        Command::Init => init::run(out, &self::open(db, Access::Create)?),
        Command::Key(args) => key::run(out, &args),
        Command::Enqueue(args) => enqueue::run(out, &open, &args),
        Command::Relay(args) => relay::run(out, &open()?, &args),
        Command::List(args) => list::run(out, &look()?, &args, cli.show_secrets),
        Command::Show(which) => show::run(out, &look()?, &which, cli.show_secrets),
        Command::Replay(args) => verbs::replay(out, &open()?, &args),
        Command::Retry(args) => verbs::retry(out, &open()?, &args),
        Command::Resolve(args) => verbs::resolve(out, &open()?, &args),
        Command::Confirm { file, by } => confirm::run(out, &open()?, file.as_deref(), &by),
        Command::Skip(args) => verbs::skip(out, &open()?, &args),
        Command::Cancel(args) => verbs::cancel(out, &open()?, &args),
        Command::Events(args) => events::run(out, &look()?, &args),
        Command::Stats => stats::run(out, &look()?),
        Command::Why { which, shard } => why::run(out, &look()?, &which, shard),
        Command::Pause { what, length, by } => operations::pause(out, &open()?, &what, length, &by),
        Command::Resume { what, by } => operations::resume(out, &open()?, &what, &by),
        Command::Limit(args) => limit::run(out, &open()?, &args),
        Command::Operations { only_registered: Some(switch), by } => {
            operations::only_registered(out, &open()?, switch == Switch::On, &by)
        }
        Command::Operations { .. } => operations::list(out, &look()?),
        Command::Demo => demo::run(out, db.filter(|_| is_db_named)),
    }
}

/// The access that a command needs to the file before its own work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Only read an outbox of this build: a file of an earlier one is left as it is.
    Look,
    /// Migrate the tables of an earlier build.
    Change,
    /// Create the file and the tables, too.
    Create,
}

fn open(db: Option<&Path>, access: Access) -> Result<Outbox> {
    let db = db.ok_or_else(|| Failure::usage("--db FILE is needed (or OUTBOX_DB)"))?;
    if db.as_os_str().is_empty() {
        return Err(Failure::usage("--db: must name a file"));
    }
    let create = access == Access::Create;
    let opened = Outbox::builder().create(create).migrate(access != Access::Look).open(db);
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
