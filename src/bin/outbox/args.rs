//! The command line. Its comments are printed as help, so they hold no markup.

#![allow(clippy::doc_markdown)]

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use sqlite_outbox::{Actor, EventKind, Shard, Status};

use crate::ui::input::{given, parse, parse_duration, parse_since};

/// A minimal configuration, shown by `relay --help`.
const RELAY_TOML: &str = r#"A minimal relay.toml (docs/relay-toml.md lists every key):

  [operations."stripe.charge"]
  endpoint = "https://api.example.com/v1/charges"   # for intents that name none
  downstream = "deduplicates"                       # or "unprotected"; required
  key_window = "24h"                                # how long the provider remembers a key
  headers = { authorization = "Bearer ${STRIPE_KEY}" }

${NAME} in a header is read from the environment when the relay starts. Intents of operations
that are not named wait, unless there is a [default] table with the same keys."#;

/// Looks after the outbox in an application's SQLite file, and sends what is in it.
///
/// Exit codes: 0 done, 1 failed, 2 usage, 3 refused by state.
#[derive(Debug, Parser)]
#[command(name = "outbox", version, max_term_width = 100)]
pub struct Cli {
    /// The application's SQLite file
    #[arg(long, value_name = "FILE", env = "OUTBOX_DB", global = true)]
    pub db: Option<OsString>,
    /// Print one JSON object per line
    #[arg(long, global = true)]
    pub json: bool,
    /// Print endpoints in full: a path or a query may hold a credential
    #[arg(long, global = true)]
    pub show_secrets: bool,
    /// Log more: -v every change of an intent, -vv details
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub verbose: u8,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the whole story on a temporary file, with a downstream that fails on purpose
    ///
    /// With --db FILE on the command line the demo uses that file and keeps it, so that you can
    /// look at it with list, show and stats. The file is created; one that holds an application's
    /// tables or other intents is refused. OUTBOX_DB is ignored.
    Demo,
    /// Create the outbox's tables, and the file if it is missing
    Init,
    /// Derive an idempotency key, or the key under which one of your own is sent
    Key(KeyArgs),
    /// Enqueue one intent, in a transaction of its own
    Enqueue(EnqueueArgs),
    /// Send intents until stopped, or with --drain until nothing is due
    ///
    /// Intents that become dead, unknown or in need of review are logged as warnings; -v logs
    /// every change.
    #[command(after_long_help = RELAY_TOML)]
    Relay(RelayArgs),
    /// List intents
    List(ListArgs),
    /// Show one intent, its receipt and its history
    Show(WhichArgs),
    /// Send dead intents again, under the same key
    Replay(ReplayArgs),
    /// Make pending intents due now, whatever time they wait for
    ///
    /// A wait after a failure, a delay, or a hold, which the intent then tries.
    Retry(ReplayArgs),
    /// Record what became of intents that are unknown or need review
    ///
    /// Ask the provider first, by the key that was sent or the entity: `show` prints both. A dead
    /// intent can be resolved as applied.
    Resolve(ResolveArgs),
    /// Settle the intents that a provider's own record lists, from JSON lines
    ///
    /// Each line is {"tenant_id": "", "idempotency_key": "…", "downstream_id": "…", "receipt": …},
    /// where only the key is required, as it is stored or as it was sent. A line without a key
    /// finds the intent to which its downstream_id is bound, or whose receipt has it; "provider"
    /// says whose id it is. Each line is committed separately, and the same lines can be given
    /// again. Exit code 2 if a line is malformed, otherwise 3 if an intent was not found, refused,
    /// left for review, or turned out to have been carried out twice.
    Confirm {
        /// The JSON lines; standard input if no file is named, or for -
        #[arg(value_name = "FILE")]
        file: Option<String>,
        #[command(flatten)]
        by: ActorArgs,
    },
    /// Let later intents of an ordering key go on without these
    ///
    /// The intents stay as they are: dead, unknown or in need of review.
    Skip(IntentsArgs),
    /// Withdraw intents that were definitely not applied, and stop retrying the others
    ///
    /// Exit code 3 if it was too late to withdraw one.
    Cancel(CancelArgs),
    /// Print the audit trail of all intents, in the order of commits
    Events(EventsArgs),
    /// Count intents by operation and status
    Stats,
    /// Explain why an intent is not sent now: the first rule that holds it back
    Why {
        #[command(flatten)]
        which: WhichArgs,
        /// As seen by a relay that sends only intents whose id modulo N is K
        #[arg(long, value_name = "K/N", value_parser = parse::<Shard>)]
        shard: Option<Shard>,
    },
    /// Pause an operation on every relay, for a time or until it is resumed
    ///
    /// Its intents wait and use up no attempts; requests on the way are finished.
    Pause {
        #[command(flatten)]
        what: PausedArgs,
        /// How long, such as 1h; without it, until the operation is resumed
        #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
        length: Option<Duration>,
        #[command(flatten)]
        by: ActorArgs,
    },
    /// Resume an operation, whether a person, refused credentials or the breaker paused it
    ///
    /// An operation that is not paused is left as it is, with exit code 0.
    Resume {
        #[command(flatten)]
        what: PausedArgs,
        #[command(flatten)]
        by: ActorArgs,
    },
    /// Set the stored limits of an operation, which every relay obeys
    ///
    /// Where a relay's configuration says a smaller number, that holds from its next start on.
    Limit(LimitArgs),
    /// Show the operations that relays have registered: contracts, owners, limits and pauses
    Operations {
        /// Take only intents of operations that a relay has registered; =off takes all again
        #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true,
              default_missing_value = "on")]
        only_registered: Option<Switch>,
        #[command(flatten)]
        by: ActorArgs,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

#[derive(Debug, Args)]
pub struct KeyArgs {
    /// The tenant that the intent belongs to
    #[arg(long, default_value = "")]
    pub tenant: String,
    /// The kind of action
    #[arg(long, required_unless_present = "stdin")]
    pub operation: Option<String>,
    /// The business object acted on
    #[arg(long, required_unless_present_any = ["stdin", "key"])]
    pub entity: Option<String>,
    /// The version of the action
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    pub version: i64,
    /// The arguments: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON", default_value = "{}", allow_negative_numbers = true)]
    pub args: String,
    /// A key of your own: prints the key under which it is sent
    #[arg(long, conflicts_with_all = ["entity", "version", "args"])]
    pub key: Option<String>,
    /// Read JSON lines {tenant_id, operation, entity_id, intent_version, args_json}
    #[arg(long, conflicts_with_all = ["tenant", "operation", "entity", "version", "args", "key"])]
    pub stdin: bool,
}

#[derive(Debug, Args)]
pub struct EnqueueArgs {
    /// The kind of action, such as stripe.charge
    pub operation: String,
    /// The business object acted on
    #[arg(long, value_name = "ID")]
    pub entity: String,
    /// The tenant that the intent belongs to
    #[arg(long)]
    pub tenant: Option<String>,
    /// The version of the action; the same action with other arguments needs the next
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    pub version: i64,
    /// An idempotency key of your own instead of a derived one
    #[arg(long)]
    pub key: Option<String>,
    /// Where to send the intent; defaults to the relay's endpoint for the operation
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
    /// Intents with the same ordering key are sent one after the other
    #[arg(long, value_name = "KEY")]
    pub ordering_key: Option<String>,
    /// How long to wait before the first attempt, such as 5m
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, allow_hyphen_values = true)]
    pub delay: Option<Duration>,
    /// How long the intent is of use, such as 1h; it is not sent after that
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, allow_hyphen_values = true)]
    pub expires_in: Option<Duration>,
    /// The cost of the intent, in the units of the operation's budgets
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub cost: u64,
}

#[derive(Debug, Args)]
pub struct RelayArgs {
    /// A file that says what to send where and how, as below; without it, the operations that the
    /// database file knows are sent to the endpoints that their intents name
    #[arg(long, value_name = "FILE")]
    pub config: Option<String>,
    /// Number of threads that send
    #[arg(long)]
    pub workers: Option<usize>,
    /// Send only intents whose id modulo N is K
    #[arg(long, value_name = "K/N", value_parser = parse::<Shard>)]
    pub shard: Option<Shard>,
    /// How long a claim lasts unless it is renewed
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub lease: Option<Duration>,
    /// Stop when nothing is due now
    #[arg(long)]
    pub drain: bool,
    /// Also send operations that are not named, to downstreams of this kind: deduplicates (applies
    /// a request once per idempotency key) or unprotected (applies every request)
    #[arg(long, value_name = "KIND")]
    pub downstream: Option<String>,
    /// How long those downstreams remember a key; defaults to 24h
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, requires = "downstream")]
    pub key_window: Option<Duration>,
    /// Private address ranges that endpoints of intents may lead to, such as 127.0.0.0/8
    #[arg(long, value_name = "CIDR", num_args = 1.., value_delimiter = ',')]
    pub allow_addresses: Vec<String>,
    /// How long to wait for requests on the way when stopped
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "30s")]
    pub grace: Duration,
}

/// The actor and the reason of an action.
#[derive(Debug, Args)]
pub struct ActorArgs {
    /// Why, for the audit trail
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Who, for the audit trail; defaults to $USER
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
}

impl ActorArgs {
    pub fn actor(&self) -> Actor {
        let user = || std::env::var("USER").ok().filter(|user| !user.is_empty());
        let name = self.actor.clone().or_else(user).unwrap_or_else(|| "cli".into());
        given(Actor::new(name), self.reason.as_deref(), Actor::reason)
    }
}

/// The intent that is meant.
#[derive(Debug, Args)]
pub struct WhichArgs {
    /// The intent's id; its idempotency key, as it is stored or as it was sent; or the provider's
    /// id of its effect
    #[arg(value_name = "ID|KEY")]
    pub which: String,
    /// The tenant that the key belongs to
    #[arg(long)]
    pub tenant: Option<String>,
}

/// The conditions that an intent must meet.
#[derive(Debug, Args)]
pub struct FilterArgs {
    /// pending, in_flight, unknown, needs_review, dead, succeeded or cancelled
    #[arg(long, value_parser = parse::<Status>)]
    pub status: Option<Status>,
    /// Only this kind of action
    #[arg(long)]
    pub operation: Option<String>,
    /// Only this tenant
    #[arg(long)]
    pub tenant: Option<String>,
    /// Only this agent run, as the header x-agent-run names it
    #[arg(long)]
    pub run: Option<String>,
    /// Only this business object
    #[arg(long)]
    pub entity: Option<String>,
    /// Only intents enqueued since: a duration ago such as 1h, or a UTC time
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    pub since: Option<i64>,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Print at most so many
    #[arg(long, default_value_t = 100)]
    pub limit: usize,
    /// Only intents with a greater id: the last one of the page before
    #[arg(long, value_name = "ID")]
    pub after: Option<i64>,
}

/// Flags that choose intents where no ids are given.
const FILTERS: [&str; 8] =
    ["status", "operation", "tenant", "run", "entity", "since", "limit", "all"];

#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The intents' ids
    #[arg(value_name = "ID", conflicts_with_all = FILTERS)]
    pub ids: Vec<i64>,
    /// Conditions instead of ids; without --status, only dead intents for replay and only pending
    /// ones for retry
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Do it to at most so many
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Choose every dead intent, or every pending one
    #[arg(long)]
    pub all: bool,
    /// Only print what would be done
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub by: ActorArgs,
}

#[derive(Debug, Args)]
pub struct CancelArgs {
    /// The intents' ids
    #[arg(value_name = "ID", conflicts_with_all = &FILTERS[..6],
          required_unless_present_any = &FILTERS[..6])]
    pub ids: Vec<i64>,
    /// Conditions instead of ids; only intents that are pending or in flight unless --status says
    /// otherwise
    #[command(flatten)]
    pub filter: FilterArgs,
    #[command(flatten)]
    pub by: ActorArgs,
}

/// An operation, or the intents of one tenant or agent run in it.
#[derive(Debug, Args)]
pub struct PausedArgs {
    /// The kind of action, such as stripe.charge; with --tenant or --run all of them by default
    #[arg(required_unless_present_any = ["tenant", "run"])]
    pub operation: Option<String>,
    /// Only the intents of this tenant
    #[arg(long, conflicts_with = "run")]
    pub tenant: Option<String>,
    /// Only the intents of this agent run, as the header x-agent-run names it
    #[arg(long)]
    pub run: Option<String>,
}

#[derive(Debug, Args)]
pub struct ResolveArgs {
    #[command(flatten)]
    pub finding: FindingArgs,
    /// The id that the provider gave to what was applied
    #[arg(long, value_name = "X", conflicts_with_all = ["not_applied", "dead"])]
    pub downstream_id: Option<String>,
    #[command(flatten)]
    pub intents: IntentsArgs,
}

/// The finding of a person.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct FindingArgs {
    /// The intent was applied: it is settled as succeeded
    #[arg(long)]
    pub applied: bool,
    /// The intent was not applied and cannot be any more: it is sent again under its key
    #[arg(long)]
    pub not_applied: bool,
    /// The intent is given up, whether it was applied or not
    #[arg(long)]
    pub dead: bool,
}

#[derive(Debug, Args)]
pub struct LimitArgs {
    /// The kind of action, such as stripe.charge
    pub operation: String,
    #[command(flatten)]
    pub values: LimitValues,
    #[command(flatten)]
    pub by: ActorArgs,
}

/// The new limits, as relay.toml has them; none removes one.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct LimitValues {
    /// At most so many in flight, or none
    #[arg(long, value_name = "N")]
    pub max_in_flight: Option<String>,
    /// At most so many sends in such a time, such as 20/s, or none
    #[arg(long, value_name = "N/TIME")]
    pub rate: Option<String>,
    /// At most so many sends in any stretch of such a time; several, with commas, all hold
    #[arg(long, value_name = "N/TIME")]
    pub max_per: Option<String>,
    /// At most so much cost in any stretch of such a time
    #[arg(long, value_name = "N/TIME")]
    pub max_cost: Option<String>,
    /// The same as --max-per, for each tenant
    #[arg(long, value_name = "N/TIME")]
    pub max_per_tenant: Option<String>,
    /// The same as --max-cost, for each tenant
    #[arg(long, value_name = "N/TIME")]
    pub max_cost_per_tenant: Option<String>,
    /// The same as --max-per, for each agent run
    #[arg(long, value_name = "N/TIME")]
    pub max_per_run: Option<String>,
    /// The same as --max-cost, for each agent run
    #[arg(long, value_name = "N/TIME")]
    pub max_cost_per_run: Option<String>,
}

/// Intents by id, and who does something about them.
#[derive(Debug, Args)]
pub struct IntentsArgs {
    /// The intents' ids
    #[arg(value_name = "ID", required = true)]
    pub ids: Vec<i64>,
    #[command(flatten)]
    pub by: ActorArgs,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Only events since: a duration ago such as 1h, or a UTC time
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    pub since: Option<i64>,
    /// Only events after this position: the last one that was read before
    #[arg(long, value_name = "POSITION", default_value_t = 0)]
    pub after: i64,
    /// Continue with new events as they are committed, until stopped
    #[arg(long)]
    pub follow: bool,
    /// Only this kind of action
    #[arg(long)]
    pub operation: Option<String>,
    /// Only this kind of event, such as attempt, resolved or duplicate_effect
    #[arg(long, value_parser = parse::<EventKind>)]
    pub kind: Option<EventKind>,
    /// Print at most so many
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}
