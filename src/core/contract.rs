//! The promise of a downstream about repeated requests, stored in the file per operation.

use std::fmt;
use std::time::Duration;

use super::hold::StoredHold;
#[cfg(feature = "serde")]
use super::json;
use super::pause::{Pause, PauseKind};
use super::utc;
use super::word::words;
use crate::error::{Error, Result};

const DEDUPLICATES: &str = "deduplicates";
const UNPROTECTED: &str = "unprotected";

/// How a downstream treats a request that it gets twice. There is no default: a wrong answer here
/// is a double charge.
///
/// The enum is exhaustive on purpose: code that branches on the promise must answer a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Downstream {
    /// The downstream applies a request once per idempotency key, and remembers the key for
    /// `window` from the request it applied. The relay counts from the first attempt that may have
    /// been applied. Providers publish the figure; 24 hours is common, some say 30 minutes.
    DeduplicatesByKey {
        /// How long the provider remembers a key.
        window: Duration,
    },
    /// The downstream applies every request it gets. Once a request may have been applied, no
    /// other is sent automatically.
    Unprotected,
}

impl Downstream {
    /// The contract of this word, as [`as_str`](Self::as_str) prints it, and the time for which the
    /// downstream remembers a key: `deduplicates` needs one, `unprotected` must have none.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sqlite_outbox::Downstream;
    ///
    /// let window = Duration::from_secs(24 * 3600);
    /// let promise = Downstream::from_word("deduplicates", Some(window))?;
    /// assert_eq!(promise, Downstream::DeduplicatesByKey { window });
    /// assert!(Downstream::from_word("deduplicates", None).is_err());
    /// # Ok::<(), sqlite_outbox::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) names `downstream` or `key_window`.
    pub fn from_word(word: &str, window: Option<Duration>) -> Result<Self> {
        match (word, window) {
            (DEDUPLICATES, Some(window)) => Ok(Self::DeduplicatesByKey { window }),
            (DEDUPLICATES, None) => {
                let why = "is needed: for how long the downstream remembers a key, as the provider \
                           publishes it";
                Err(Error::invalid("key_window", why))
            }
            (UNPROTECTED, None) => Ok(Self::Unprotected),
            (UNPROTECTED, Some(_)) => {
                Err(Error::invalid("key_window", "an unprotected downstream remembers no keys"))
            }
            _ => {
                let why = format!("{word:?} must be one of {DEDUPLICATES}, {UNPROTECTED}");
                Err(Error::invalid("downstream", why))
            }
        }
    }

    /// The word in the file, in JSON and on the command line, without the window.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DeduplicatesByKey { .. } => DEDUPLICATES,
            Self::Unprotected => UNPROTECTED,
        }
    }

    /// For how long the downstream remembers a key; `None` where it is unprotected.
    pub const fn window(self) -> Option<Duration> {
        match self {
            Self::DeduplicatesByKey { window } => Some(window),
            Self::Unprotected => None,
        }
    }

    /// The one of the two that allows less: `Unprotected`, else the shorter window.
    #[must_use]
    pub(crate) fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::DeduplicatesByKey { window: a }, Self::DeduplicatesByKey { window: b }) => {
                Self::DeduplicatesByKey { window: a.min(b) }
            }
            _ => Self::Unprotected,
        }
    }
}

impl fmt::Display for Downstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Two columns of a contract: the word and, in milliseconds, the time a key is remembered.
#[cfg(feature = "serde")]
impl serde::Serialize for Downstream {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = to.serialize_map(Some(2))?;
        map.serialize_entry("downstream", self.as_str())?;
        map.serialize_entry("window_ms", &self.window().map(super::millis))?;
        map.end()
    }
}

/// The part of a contract by which a second request is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Promise {
    pub downstream: Downstream,
    /// The longest one attempt may take.
    pub time_limit: Duration,
    /// Whether some relay can look up what became of an intent.
    pub reconciles: bool,
    /// Whether a read may be repeated where the downstream does not deduplicate.
    pub repeat_safe: bool,
}

impl Promise {
    pub fn deduplicates(self) -> bool {
        matches!(self.downstream, Downstream::DeduplicatesByKey { .. })
    }
}

/// The contract of one operation as the file holds it. Every relay on the file obeys it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct StoredContract {
    /// The operation.
    pub operation: String,
    /// How its downstream treats a repeated request.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub downstream: Downstream,
    /// Whether a dead intent blocks later intents of its ordering key.
    pub on_dead: OnDead,
    /// The provider's name, where one was given.
    pub provider: Option<String>,
    /// Who looks after the operation, where that was said.
    pub owner: Option<String>,
    /// How its idempotency keys are made, where that was said.
    pub key_recipe: Option<String>,
    /// Whether some relay can ask what became of an intent that is in doubt.
    pub reconciles: bool,
    /// Whether a GET that `Http` sent may be repeated although the downstream is unprotected.
    pub repeat_safe: bool,
    /// The answers that are taken for word that a request was not applied, although by themselves
    /// they leave it open.
    pub repeat_rules: Vec<String>,
    /// Whether the ids in its receipts name what was created, so that no two intents can have one.
    pub binds_ids: bool,
    /// At most so many in flight, over all relays.
    pub max_in_flight: Option<usize>,
    /// At most so many sends in such a time, over all relays.
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "json::rate"))]
    pub rate: Option<(u32, Duration)>,
    /// At most so many sends in any stretch of such a time, over all relays; all of them hold.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::budgets"))]
    pub max_per: Vec<(u64, Duration)>,
    /// At most so much cost in any stretch of such a time, over all relays.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::budgets"))]
    pub max_cost: Vec<(u64, Duration)>,
    /// The same as `max_per`, for each tenant.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::budgets"))]
    pub max_per_tenant: Vec<(u64, Duration)>,
    /// The same as `max_cost`, for each tenant.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::budgets"))]
    pub max_cost_per_tenant: Vec<(u64, Duration)>,
    /// The same as `max_per`, for each agent run.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::budgets"))]
    pub max_per_run: Vec<(u64, Duration)>,
    /// The same as `max_cost`, for each agent run.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::budgets"))]
    pub max_cost_per_run: Vec<(u64, Duration)>,
    /// Who or what has paused the operation. Its intents wait then, and use up nothing.
    pub paused: Option<PauseKind>,
    /// When the pause ends, or when the next intent may try whether it can, in UTC milliseconds;
    /// `None` where the pause has no end.
    pub paused_until: Option<i64>,
    /// Since when the operation is paused, in UTC milliseconds.
    pub paused_since: Option<i64>,
    /// Which person or relay paused it.
    pub paused_by: Option<String>,
    /// Why the operation is paused.
    pub paused_reason: Option<String>,
    /// The intent whose outcome began the pause, or made it go on.
    pub paused_culprit: Option<i64>,
    /// Until when intents that name no endpoint wait because the downstream asked for it, in UTC
    /// milliseconds.
    pub throttled_until: Option<i64>,
    /// Since when they wait for that, in UTC milliseconds.
    pub throttled_since: Option<i64>,
    /// The intent to which the downstream said so.
    pub throttled_by: Option<i64>,
    /// The parts of the operation that are held back while others go on: origins and endpoints that
    /// its intents name, and everything where the machine has no network.
    pub holds: Vec<StoredHold>,
}

impl StoredContract {
    /// The pause in words, as the rest of a sentence that begins with "is paused"; `None` where the
    /// operation is not paused.
    pub fn pause_in_words(&self) -> Option<String> {
        let pause = Pause {
            kind: self.paused?,
            until: self.paused_until,
            reason: self.paused_reason.clone().unwrap_or_default(),
            actor: self.paused_by.clone().unwrap_or_default(),
            since: self.paused_since.unwrap_or_default(),
            culprit: self.paused_culprit,
        };
        Some(pause.in_words())
    }

    /// A sentence for each part of the operation that is held back.
    pub fn holds_in_words(&self) -> Vec<String> {
        let throttled = self.throttled_until.map(|until| {
            let since =
                self.throttled_since.map_or_else(String::new, |at| format!(" since {}", utc(at)));
            let by = self.throttled_by.map_or_else(String::new, |id| format!(" (intent {id})"));
            let until = utc(until);
            format!("its downstream asked to be left alone{since}{by}, until {until}")
        });
        throttled.into_iter().chain(self.holds.iter().map(StoredHold::in_words)).collect()
    }
}

words! {
    /// Whether a dead intent blocks later intents of its ordering key.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum OnDead, "on_dead" {
        /// Later intents wait until the dead one is replayed, resolved or skipped.
        #[default]
        Block = "block",
        /// Later intents go on without the dead one.
        Continue = "continue",
    }
}

impl OnDead {
    /// The one of the two that lets less through.
    pub(crate) fn stricter(self, other: Self) -> Self {
        if self == Self::Block { self } else { other }
    }
}
