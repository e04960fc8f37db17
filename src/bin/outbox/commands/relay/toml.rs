//! The keys of `relay.toml`, and the lines of mistakes in it.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use sqlite_outbox::{Jitter, Meaning, OnDead, Predicate, Shard};
use toml::de::{DeTable, DeValue};

use crate::ui::failure::{Failure, Result};
use crate::ui::input::{self, parse_duration};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayToml {
    #[serde(default)]
    pub relay: RelayTable,
    #[serde(default)]
    pub operations: BTreeMap<String, OperationTable>,
    pub default: Option<OperationTable>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayTable {
    pub workers: Option<usize>,
    pub batch: Option<usize>,
    pub lease: Option<Period>,
    pub shard: Option<Text<Shard>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperationTable {
    pub endpoint: Option<String>,
    pub downstream: String,
    pub key_window: Option<Period>,
    pub priority: Option<i32>,
    pub provider: Option<String>,
    pub max_attempts: Option<u32>,
    pub give_up_after: Option<Period>,
    pub backoff: Option<BackoffTable>,
    pub timeouts: Option<TimeoutsTable>,
    /// Any value: the parser's complaint about a wrong type would repeat a secret.
    pub headers: Option<toml::Value>,
    pub idempotency_header: Option<String>,
    #[serde(default)]
    pub quoted_key: bool,
    pub connection: Option<ConnectionWord>,
    /// In bytes.
    pub answer_max: Option<usize>,
    pub downstream_id: Option<String>,
    pub success_when: Option<When>,
    pub rejected_when: Option<When>,
    pub transient_when: Option<When>,
    pub limited_when: Option<When>,
    pub not_applied_when: Option<When>,
    /// The meanings of statuses, which are numbers of three digits.
    #[serde(default)]
    pub on_status: BTreeMap<String, Meaning>,
    pub repeat_safe: Option<bool>,
    pub binds: Option<BindsWord>,
    pub reconcile: Option<ReconcileTable>,
    pub max_in_flight: Option<usize>,
    pub breaker_after: Option<u32>,
    pub rate: Option<Per<u32>>,
    pub max_per: Option<Budgets<u32>>,
    pub max_cost: Option<Budgets<u64>>,
    pub max_per_tenant: Option<Budgets<u32>>,
    pub max_cost_per_tenant: Option<Budgets<u64>>,
    pub max_per_run: Option<Budgets<u32>>,
    pub max_cost_per_run: Option<Budgets<u64>>,
    pub owner: Option<String>,
    pub key_recipe: Option<String>,
    pub on_dead: Option<OnDead>,
    #[serde(default)]
    pub allow_addresses: Vec<String>,
    #[serde(default)]
    pub allow_origins: Vec<String>,
    #[serde(default)]
    pub weaken_stored_contract: bool,
}

/// The meaning of the ids in an operation's answers.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BindsWord {
    Create,
}

/// Whether the connection is closed after an answer.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionWord {
    Keep,
    Close,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackoffKind {
    Exponential,
    Schedule,
}

/// Both kinds of backoff in one struct: a tagged enum would lose the place of a mistake.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackoffTable {
    pub kind: BackoffKind,
    pub base: Option<Period>,
    pub cap: Option<Period>,
    pub jitter: Option<Jitter>,
    pub delays: Option<Vec<Period>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeoutsTable {
    pub resolve: Option<Period>,
    pub connect: Option<Period>,
    pub send: Option<Period>,
    pub response: Option<Period>,
    pub body: Option<Period>,
}

/// The lookup of an intent in the provider's own record.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReconcileTable {
    pub get: Option<String>,
    pub post: Option<String>,
    pub body: Option<String>,
    pub content_type: Option<String>,
    pub downstream_id: Option<String>,
    pub list: Option<ListTable>,
    pub when: Option<When>,
    #[serde(rename = "match")]
    pub matching: Option<MatchTable>,
    pub not_applied_when: Option<When>,
    #[serde(alias = "settle")]
    pub delay: Option<Period>,
    pub max_attempts: Option<u32>,
}

/// The list in the answer to a lookup.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListTable {
    pub at: String,
    pub first: bool,
}

/// A text in what a lookup finds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatchTable {
    pub pointer: String,
    pub equals: String,
}

/// A test of the body of an answer.
#[derive(Clone, Deserialize)]
#[serde(try_from = "WhenTable")]
pub struct When(pub Predicate);

/// A test as it is written: a pointer, and beside it one of the others.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WhenTable {
    pointer: String,
    equals: Option<serde_json::Value>,
    one_of: Option<Vec<serde_json::Value>>,
    exists: Option<bool>,
    non_null: Option<bool>,
    absent: Option<bool>,
}

impl TryFrom<WhenTable> for When {
    type Error = &'static str;

    fn try_from(table: WhenTable) -> std::result::Result<Self, &'static str> {
        let at = table.pointer.as_str();
        let words = [
            (table.exists, Predicate::exists(at)),
            (table.non_null, Predicate::non_null(at)),
            (table.absent, Predicate::absent(at)),
        ];
        if words.iter().any(|(word, _)| *word == Some(false)) {
            return Err("exists, non_null and absent can only be true; leave the others out");
        }
        let mut tests: Vec<Predicate> =
            words.into_iter().filter_map(|(word, test)| word.map(|_| test)).collect();
        tests.extend(table.equals.map(|value| Predicate::equals(at, value)));
        tests.extend(table.one_of.map(|values| Predicate::one_of(at, values)));
        match (tests.pop(), tests.is_empty()) {
            (Some(test), true) => Ok(Self(test)),
            _ => Err(
                "needs, beside pointer, exactly one of equals, one_of, exists, non_null, absent",
            ),
        }
    }
}

/// A text that the library reads, such as `"0/4"` for a shard.
#[derive(Clone, Copy)]
pub struct Text<T>(pub T);

impl<'de, T: FromStr<Err = sqlite_outbox::Error>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        input::parse(&text).map(Self).map_err(serde::de::Error::custom)
    }
}

/// A duration as people write it: `"250ms"`, `"30s"`, `"5m"`, `"2h"`, `"7d"`.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub struct Period(pub Duration);

impl TryFrom<String> for Period {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        parse_duration(&text).map(Self).map_err(|reason| format!("{text:?} is {reason}"))
    }
}

/// An amount in a time: `"20/s"`, `"100/m"`, `"5000/24h"`, `"5/100ms"`.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub struct Per<N: FromStr + Default + PartialEq>(pub N, pub Duration);

impl<N: FromStr + Default + PartialEq> TryFrom<String> for Per<N> {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        let parse = || {
            let (amount, time) = text.split_once('/')?;
            let amount = amount.trim().parse().ok().filter(|amount| *amount != N::default())?;
            let time = match time.trim() {
                unit @ ("s" | "m" | "h") => parse_duration(&format!("1{unit}")),
                time => parse_duration(time),
            };
            let time = time.ok().filter(|time| time.as_millis() > 0)?;
            Some(Self(amount, time))
        };
        let why = "is not an amount in a time, such as 20/s, 100/1h, 5000/24h or 5/100ms";
        parse().ok_or_else(|| format!("{text:?} {why}"))
    }
}

/// Amounts in times with commas between them, as `outbox limit` takes them: `"20/1m, 5000/24h"`.
#[derive(Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct Budgets<N: FromStr + Default + PartialEq>(pub Vec<Per<N>>);

impl<N: FromStr + Default + PartialEq> TryFrom<String> for Budgets<N> {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        let budgets = text.split(',').map(|part| Per::try_from(part.to_owned()));
        budgets.collect::<std::result::Result<_, _>>().map(Self)
    }
}

/// The longest configuration, in bytes.
const SIZE_MAX: u64 = 1 << 20;

/// The text of a configuration, kept so that later complaints can name their line too.
pub struct Source {
    name: String,
    text: String,
}

impl Source {
    pub fn read(path: &str) -> Result<Self> {
        if path.is_empty() {
            return Err(Failure::usage("--config: must name a file"));
        }
        Ok(Self { name: path.to_owned(), text: input::file("--config", path, SIZE_MAX)? })
    }

    pub fn parse(&self) -> Result<RelayToml> {
        toml::from_str(&self.text).map_err(|error| self.explain(error))
    }

    /// The parser's message with line and key. Its full text would quote the line, which may hold a
    /// secret.
    fn explain(&self, mut error: toml::de::Error) -> Failure {
        if let Some(path) = self.text.parse().ok().as_ref().and_then(path_without_quotes) {
            let why = format!("a name with a dot needs quotes: [operations.{:?}]", path.join("."));
            return self.fail(&[&["operations"], &path[..]].concat(), &why);
        }
        let line = error.span().map(|span| self.line_at(span.start));
        error.set_input(None);
        // Without its input the error prints its message and, on the next line, "in `key`".
        let text = error.to_string();
        let key = text.trim_end().rsplit_once("\nin `").map_or("", |(_, key)| key);
        self.complain(line, key.trim_end_matches('`'), without_secret(error.message()))
    }

    /// A complaint about the value at this path, or about the nearest table that is there.
    pub fn fail(&self, path: &[&str], reason: &str) -> Failure {
        // A header's line in place of its name holds the value.
        let header = path.iter().position(|key| *key == "headers").map_or(usize::MAX, |at| at + 1);
        let is_shown = |(at, key): &(usize, &&str)| *at != header || !key.contains(is_no_name);
        let shown: Vec<String> =
            path.iter().enumerate().filter(is_shown).map(|(_, key)| shown_key(key)).collect();
        self.complain(self.line_of(path), &shown.join("."), reason)
    }

    fn complain(&self, line: Option<usize>, key: &str, reason: &str) -> Failure {
        let line = line.map_or_else(String::new, |line| format!("line {line}: "));
        let key = if key.is_empty() { String::new() } else { format!("{key}: ") };
        Failure::usage(format!("{}: {line}{key}{reason}", self.name))
    }

    fn line_of(&self, path: &[&str]) -> Option<usize> {
        let document = DeTable::parse(&self.text).ok()?;
        let mut table = document.get_ref();
        let mut line = None;
        for wanted in path {
            let found = table.iter().find(|(key, _)| key.get_ref().as_ref() == *wanted);
            let Some((key, value)) = found else { break };
            line = Some(self.line_at(key.span().start));
            match value.get_ref() {
                DeValue::Table(inner) => table = inner,
                _ => break,
            }
        }
        line
    }

    fn line_at(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().get(..offset).unwrap_or(self.text.as_bytes());
        before.split(|byte| *byte == b'\n').count()
    }
}

/// The parts of an operation's name that has dots but no quotes: for TOML, tables within tables.
fn path_without_quotes(file: &toml::Table) -> Option<Vec<&str>> {
    fn path(value: &toml::Value) -> Option<Vec<&str>> {
        let table = value.as_table()?;
        if table.contains_key("downstream") {
            return Some(Vec::new());
        }
        table.iter().find_map(|(key, value)| Some([vec![key.as_str()], path(value)?].concat()))
    }
    let operations = file.get("operations")?.as_table()?.iter();
    let mut paths = operations.filter_map(|(key, value)| Some((key.as_str(), path(value)?)));
    paths.find(|(_, rest)| !rest.is_empty()).map(|(key, rest)| [vec![key], rest].concat())
}

/// Whether a character is neither of a key of this file nor of a header's name.
fn is_no_name(c: char) -> bool {
    !c.is_ascii_alphanumeric() && !"!#$%&'*+-.^_`|~".contains(c)
}

/// The parser's message; a key that is none is not repeated, for a whole header may stand there.
fn without_secret(message: &str) -> &str {
    let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.rsplit_once("`, "));
    match unknown.map(|(rest, _)| rest.split_once("`, expected").map_or(rest, |(key, _)| key)) {
        Some(key) if key.contains(is_no_name) => "a key has a character that no key has",
        _ => message,
    }
}

/// A key as it would be written in the file.
fn shown_key(key: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !key.is_empty() && key.chars().all(is_bare) { key.to_owned() } else { format!("{key:?}") }
}
