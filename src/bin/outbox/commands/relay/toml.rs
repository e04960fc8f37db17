//! What may stand in `relay.toml`, and where in it something is wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use toml::de::{DeTable, DeValue};

use crate::ui::failure::{Failure, Result};
use crate::ui::input::{parse_duration, parse_shard};

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
    pub lease: Option<Period>,
    pub shard: Option<Shard>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperationTable {
    pub endpoint: Option<String>,
    pub downstream: DownstreamWord,
    pub key_window: Option<Period>,
    pub provider: Option<String>,
    pub max_attempts: Option<u32>,
    pub give_up_after: Option<Period>,
    pub backoff: Option<BackoffTable>,
    pub timeouts: Option<TimeoutsTable>,
    /// Read as it is: the parser's complaints about types would repeat a value.
    pub headers: Option<toml::Value>,
    pub idempotency_header: Option<String>,
    pub downstream_id: Option<String>,
    pub success_when: Option<BodyWhen>,
    pub on_conflict: Option<ConflictWord>,
    pub binds: Option<BindsWord>,
    pub reconcile: Option<ReconcileTable>,
    pub max_in_flight: Option<usize>,
    pub breaker_after: Option<u32>,
    pub rate: Option<RateWord>,
    pub max_per: Option<RateWord>,
    pub max_cost: Option<RateWord>,
    pub max_per_tenant: Option<RateWord>,
    pub max_cost_per_tenant: Option<RateWord>,
    pub owner: Option<String>,
    pub key_recipe: Option<String>,
    pub on_dead: Option<DeadWord>,
    #[serde(default)]
    pub allow_addresses: Vec<String>,
    #[serde(default)]
    pub allow_origins: Vec<String>,
    #[serde(default)]
    pub weaken_stored_contract: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DownstreamWord {
    Deduplicates,
    Unprotected,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConflictWord {
    InProgress,
    Applied,
    Permanent,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadWord {
    Block,
    Continue,
}

/// What an operation does with the ids it gets.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BindsWord {
    Create,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackoffKind {
    Exponential,
    Schedule,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JitterWord {
    Full,
    Equal,
    None,
}

/// One struct for both kinds: a tagged enum would lose the place of a mistake.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackoffTable {
    pub kind: BackoffKind,
    pub base: Option<Period>,
    pub cap: Option<Period>,
    pub jitter: Option<JitterWord>,
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

/// How the system of record is asked what became of an intent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReconcileTable {
    pub get: String,
    pub downstream_id: Option<String>,
    pub when: Option<BodyWhen>,
    pub settle: Option<Period>,
    pub max_attempts: Option<u32>,
}

/// What the body of an answer must say.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BodyWhen {
    pub pointer: String,
    pub equals: serde_json::Value,
}

/// A duration as people write it.
#[derive(Clone, Copy)]
pub struct Period(pub Duration);

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text)
            .map(Self)
            .map_err(|reason| serde::de::Error::custom(format!("{text:?} is {reason}")))
    }
}

/// `20/s`, `100/m`, `1000/h`, `5/100ms`: so many sends in such a time.
#[derive(Clone, Copy)]
pub struct RateWord(pub u32, pub Duration);

impl RateWord {
    fn parse(text: &str) -> Option<Self> {
        let (count, per) = text.split_once('/')?;
        let per = match per.trim() {
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3600),
            other => parse_duration(other).ok()?,
        };
        let count = count.trim().parse().ok()?;
        (count > 0 && per >= Duration::from_millis(1)).then_some(Self(count, per))
    }
}

impl<'de> Deserialize<'de> for RateWord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || {
            let why = "is not a rate such as 20/s, 100/1h, 5000/24h or 5/100ms";
            serde::de::Error::custom(format!("{text:?} {why}"))
        };
        Self::parse(&text).ok_or_else(wrong)
    }
}

/// `K/N`.
#[derive(Clone, Copy)]
pub struct Shard(pub (u32, u32));

impl<'de> Deserialize<'de> for Shard {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_shard(&text)
            .map(Self)
            .map_err(|reason| serde::de::Error::custom(format!("{text:?} {reason}")))
    }
}

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
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self { name: path.to_owned(), text }),
            Err(error) => Err(Failure::usage(format!("--config: {path}: {error}"))),
        }
    }

    pub fn parse(&self) -> Result<RelayToml> {
        toml::from_str(&self.text).map_err(|error| {
            let Some(span) = error.span() else {
                return Failure::usage(format!("{}: {}", self.name, error.message()));
            };
            let line = self.line_at(span.start);
            let key = self.key_before(span.start).map(|key| format!("{key}: ")).unwrap_or_default();
            // Only the message: the parser's full text quotes the line, which may hold a secret.
            Failure::usage(format!("{}: line {line}: {key}{}", self.name, error.message()))
        })
    }

    /// A complaint about the value at this path, or about the nearest table that is there.
    pub fn fail(&self, path: &[&str], reason: &str) -> Failure {
        let shown: Vec<String> = path.iter().map(|key| shown_key(key)).collect();
        let shown = shown.join(".");
        match self.line_of(path) {
            Some(line) => Failure::usage(format!("{}: line {line}: {shown}: {reason}", self.name)),
            None if shown.is_empty() => Failure::usage(format!("{}: {reason}", self.name)),
            None => Failure::usage(format!("{}: {shown}: {reason}", self.name)),
        }
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

    /// The key whose value starts here.
    fn key_before(&self, offset: usize) -> Option<&str> {
        let before = self.text.get(..offset)?;
        let line = before.lines().next_back()?;
        let before_sign = line.trim_end().trim_end_matches('[').trim_end().strip_suffix('=')?;
        before_sign.rsplit(['{', ',']).next().map(str::trim)
    }
}

/// A key as it would be written in the file.
fn shown_key(key: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !key.is_empty() && key.chars().all(is_bare) { key.to_owned() } else { format!("{key:?}") }
}
