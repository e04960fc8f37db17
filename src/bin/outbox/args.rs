//! The command line. Its comments are printed as help, so they hold no markup.

#![allow(clippy::doc_markdown)]

use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use sqlite_outbox::{EventKind, Shard, Status};

use crate::ui::input::{parse, parse_duration, parse_event_kind, parse_since, parse_status};

/// The least that a configuration needs; the README has all of it.
const RELAY_TOML: &str = r#"relay.toml, the least of it (the README lists every key):

  [operations."stripe.charge"]
  endpoint = "https://api.example.com/v1/charges"   # for intents that name none
  downstream = "deduplicates"                       # or "unprotected"; required
  key_window = "24h"                                # how long the provider remembers a key
  headers = { authorization = "Bearer ${STRIPE_KEY}" }

${NAME} in a header comes from the environment at the start. Operations that are not named wait,
unless there is a [default] table with the same keys."#;

/// Looks after the outbox in an application's SQLite file, and sends what is in it.
///
/// Exit codes: 0 done, 1 failed, 2 usage, 3 refused by state.
#[derive(Debug, Parser)]
#[command(name = "outbox", version, max_term_width = 100)]
pub struct Cli {
    /// The application's SQLite file
    #[arg(long, value_name = "FILE", env = "OUTBOX_DB", global = true)]
    pub db: Option<String>,
    /// Print one JSON object per line
    #[arg(long, global = true)]
    pub json: bool,
    /// Print the endpoints of intents whole: a path or query can be a credential
    #[arg(long, global = true)]
    pub show_secrets: bool,
    /// Log more: -v what happens to intents, -vv details
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub verbose: u8,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the whole story on a temporary file, with a downstream that fails on purpose
    ///
    /// With --db FILE on the command line it plays in that file and leaves it for you to look at
    /// with list, show and stats. The file is created; one that holds an application's tables or
    /// other intents is refused, and OUTBOX_DB is ignored.
    Demo,
    /// Create the outbox's tables, and the file if need be
    Init,
    /// Derive an idempotency key
    Key(KeyArgs),
    /// Write one intent in its own transaction
    Enqueue(EnqueueArgs),
    /// Send intents until stopped, or with --drain until nothing is due
    ///
    /// What becomes dead, unknown or needs review is logged as a warning; -v logs every move.
    #[command(after_long_help = RELAY_TOML)]
    Relay(RelayArgs),
    /// List intents
    List(ListArgs),
    /// Show one intent, its receipt and its history
    Show(ShowArgs),
    /// Give dead intents another round, under the same key
    Replay(ReplayArgs),
    /// Say what became of intents that are unknown or need review
    ///
    /// Ask the provider first, by the key or the entity that `show` prints. What is dead can be
    /// resolved as applied.
    Resolve(ResolveArgs),
    /// Settle intents that a provider's own record has, from JSON lines
    ///
    /// Each line is {"tenant_id": "", "idempotency_key": "…", "downstream_id": "…", "receipt": …},
    /// of which only the key must be there, as it is stored. Each line is committed by itself, so
    /// the same lines can be given again. Exit code 2 if a line is malformed, else 3 if one was
    /// not found, refused, left for review, or showed an effect that happened twice.
    Confirm(ConfirmArgs),
    /// Let later intents of an ordering key go on without these
    ///
    /// They stay as they are: dead, unknown or in need of review.
    Skip(IntentsArgs),
    /// Withdraw intents that surely were not applied, or keep them from being tried again
    ///
    /// Exit code 3 where it was too late to withdraw one.
    Cancel(IntentsArgs),
    /// Print what happened to all intents, in the order of commits
    Events(EventsArgs),
    /// Count intents by operation and status
    Stats,
    /// Say why an intent is not sent now: the first rule that keeps it
    Why(WhyArgs),
    /// Hold an operation back, for a time or until it is resumed, on every relay
    ///
    /// Its intents wait and use up no attempts; what is on the way is finished.
    Pause(PauseArgs),
    /// Let an operation go on, whoever or whatever paused it
    ///
    /// One that is not paused is left as it is, with exit code 0.
    Resume(ResumeArgs),
    /// Show the operations that relays have registered: contracts, owners, limits and pauses
    Operations,
}

#[derive(Debug, Args)]
pub struct KeyArgs {
    /// Whose intent it is
    #[arg(long, default_value = "")]
    pub tenant: String,
    /// The kind of action
    #[arg(long, required_unless_present = "stdin")]
    pub operation: Option<String>,
    /// The business object acted on
    #[arg(long, required_unless_present = "stdin")]
    pub entity: Option<String>,
    /// The version of the action
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    pub version: i64,
    /// The arguments: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON", default_value = "{}", allow_negative_numbers = true)]
    pub args: String,
    /// Read JSON lines {tenant_id, operation, entity_id, intent_version, args_json}
    #[arg(long, conflicts_with_all = ["tenant", "operation", "entity", "version", "args"])]
    pub stdin: bool,
}

#[derive(Debug, Args)]
pub struct EnqueueArgs {
    /// The kind of action, such as stripe.charge
    pub operation: String,
    /// The business object acted on
    #[arg(long, value_name = "ID")]
    pub entity: String,
    /// Whose intent it is
    #[arg(long)]
    pub tenant: Option<String>,
    /// The version of the action; the same action with other arguments needs the next
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    pub version: i64,
    /// An idempotency key of your own instead of a derived one
    #[arg(long)]
    pub key: Option<String>,
    /// Where to send it; defaults to the relay's endpoint for the operation
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// POST, PUT, PATCH, DELETE or GET
    #[arg(long)]
    pub method: Option<String>,
    /// The arguments that make the key: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON", allow_negative_numbers = true)]
    pub args: Option<String>,
    /// The body to send: text, @FILE, or - for standard input; defaults to the arguments
    #[arg(long, value_name = "TEXT", allow_negative_numbers = true)]
    pub payload: Option<String>,
    /// The body's media type
    #[arg(long, value_name = "TYPE")]
    pub content_type: Option<String>,
    /// A header to store and send, such as a trace id; may be repeated. Not for credentials
    #[arg(long, value_name = "NAME=VALUE")]
    pub header: Vec<String>,
    /// Intents with the same ordering key go out one after the other
    #[arg(long, value_name = "KEY")]
    pub ordering_key: Option<String>,
    /// How long to wait before the first attempt, such as 5m
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, allow_hyphen_values = true)]
    pub delay: Option<Duration>,
    /// How long it is of use, such as 1h; nothing is sent after that
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, allow_hyphen_values = true)]
    pub expires_in: Option<Duration>,
    /// What it costs, in the units of the operation's budgets
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub cost: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DownstreamArg {
    /// Applies a request once per idempotency key
    Deduplicates,
    /// Applies every request it gets
    Unprotected,
}

#[derive(Debug, Args)]
pub struct RelayArgs {
    /// What to send where and how, as below; without it, operations the file knows, at the
    /// endpoints that their intents name
    #[arg(long, value_name = "FILE")]
    pub config: Option<String>,
    /// Threads that send
    #[arg(long)]
    pub workers: Option<usize>,
    /// Only intents whose id modulo N is K
    #[arg(long, value_name = "K/N", value_parser = parse::<Shard>)]
    pub shard: Option<Shard>,
    /// How long a claim lasts without being renewed
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub lease: Option<Duration>,
    /// Stop when nothing is due now
    #[arg(long)]
    pub drain: bool,
    /// Also send operations that are not named, to downstreams that keep this contract
    #[arg(long, value_enum)]
    pub downstream: Option<DownstreamArg>,
    /// How long those downstreams remember a key; defaults to 24h
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, requires = "downstream")]
    pub key_window: Option<Duration>,
    /// Address ranges that endpoints of intents may lead to, such as 127.0.0.0/8
    #[arg(long, value_name = "CIDR", num_args = 1.., value_delimiter = ',')]
    pub allow_addresses: Vec<String>,
    /// How long to wait for what is on the way when stopped
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "30s")]
    pub grace: Duration,
}

/// Which intents are meant.
#[derive(Debug, Args)]
pub struct FilterArgs {
    /// pending, in_flight, unknown, needs_review, dead, succeeded or cancelled
    #[arg(long, value_parser = parse_status)]
    pub status: Option<Status>,
    /// Only this kind of action
    #[arg(long)]
    pub operation: Option<String>,
    /// Only this tenant
    #[arg(long)]
    pub tenant: Option<String>,
    /// Only this business object
    #[arg(long)]
    pub entity: Option<String>,
    /// Only those enqueued since: a duration ago such as 1h, or a UTC time
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    pub since: Option<i64>,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub filter: FilterArgs,
    /// At most so many
    #[arg(long, default_value_t = 100)]
    pub limit: usize,
    /// Only those with a greater id: the last one of the page before
    #[arg(long, value_name = "ID")]
    pub after: Option<i64>,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The intent's id, or its idempotency key
    #[arg(value_name = "ID|KEY")]
    pub which: String,
    /// Whose key it is
    #[arg(long)]
    pub tenant: Option<String>,
}

#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The intents' ids
    #[arg(value_name = "ID", conflicts_with_all = ["status", "operation", "tenant", "entity", "since", "limit", "all"])]
    pub ids: Vec<i64>,
    /// Which intents, where no ids are given; only dead ones unless --status says otherwise
    #[command(flatten)]
    pub filter: FilterArgs,
    /// At most so many
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Every dead intent
    #[arg(long)]
    pub all: bool,
    /// Only say what would be replayed
    #[arg(long)]
    pub dry_run: bool,
    /// Why, for the audit trail
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Who, for the audit trail; defaults to $USER
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
}

#[derive(Debug, Args)]
pub struct ResolveArgs {
    /// The intents' ids
    #[arg(value_name = "ID", required = true)]
    pub ids: Vec<i64>,
    #[command(flatten)]
    pub finding: FindingArgs,
    /// The id that the provider gave to the effect
    #[arg(long, value_name = "X", conflicts_with_all = ["not_applied", "dead"])]
    pub downstream_id: Option<String>,
    /// Why, for the audit trail
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Who, for the audit trail; defaults to $USER
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
}

/// What was found out.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct FindingArgs {
    /// It was applied: it is settled as succeeded
    #[arg(long)]
    pub applied: bool,
    /// It was not applied, and cannot be any more: it is sent again under its key
    #[arg(long)]
    pub not_applied: bool,
    /// It is given up, whether it was applied or not
    #[arg(long)]
    pub dead: bool,
}

#[derive(Debug, Args)]
pub struct ConfirmArgs {
    /// The lines; standard input where none is named, or for -
    #[arg(value_name = "FILE")]
    pub file: Option<String>,
    /// Who, for the audit trail; defaults to $USER
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
}

/// Intents by id, and who does something about them.
#[derive(Debug, Args)]
pub struct IntentsArgs {
    /// The intents' ids
    #[arg(value_name = "ID", required = true)]
    pub ids: Vec<i64>,
    /// Why, for the audit trail
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Who, for the audit trail; defaults to $USER
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Only those since: a duration ago such as 1h, or a UTC time
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    pub since: Option<i64>,
    /// Only those behind this position: the last one that was read before
    #[arg(long, value_name = "POSITION", default_value_t = 0)]
    pub after: i64,
    /// Go on with what is committed from now on, until stopped
    #[arg(long)]
    pub follow: bool,
    /// Only this kind of action
    #[arg(long)]
    pub operation: Option<String>,
    /// Only this kind of event, such as attempt, resolved or duplicate_effect
    #[arg(long, value_parser = parse_event_kind)]
    pub kind: Option<EventKind>,
    /// At most so many
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

#[derive(Debug, Args)]
pub struct WhyArgs {
    /// The intent's id
    #[arg(value_name = "ID")]
    pub id: i64,
    /// As seen by a relay that takes only intents whose id modulo N is K
    #[arg(long, value_name = "K/N", value_parser = parse::<Shard>)]
    pub shard: Option<Shard>,
}

#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The kind of action, such as stripe.charge
    pub operation: String,
    /// How long, such as 1h; without it, until it is resumed
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    pub length: Option<Duration>,
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Who, for the record; defaults to $USER
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
}

#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// The kind of action, such as stripe.charge
    pub operation: String,
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Who, for the record; defaults to $USER
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
}
