//! Which part of the intents a relay takes.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// The intents with `id % count == index`, so that several relays share the work without competing.
///
/// ```
/// use sqlite_outbox::Shard;
///
/// let shard: Shard = "1/4".parse()?;
/// assert_eq!(shard, Shard::new(1, 4)?);
/// assert!(shard.holds(5) && !shard.holds(6));
/// # Ok::<(), sqlite_outbox::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shard {
    index: u32,
    count: u32,
}

impl Shard {
    /// Every intent: the only shard of one.
    pub const ALL: Self = Self { index: 0, count: 1 };

    /// Shard `index` of `count`, counted from 0.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) where `index` is not below `count`.
    pub fn new(index: u32, count: u32) -> Result<Self> {
        if index < count {
            return Ok(Self { index, count });
        }
        let why = format!("{index}/{count} must be K/N with K from 0 to N - 1");
        Err(Error::invalid("shard", why))
    }

    /// This shard's place, from 0.
    pub const fn index(self) -> u32 {
        self.index
    }

    /// How many shards there are.
    pub const fn count(self) -> u32 {
        self.count
    }

    /// Whether the intent with this row id belongs to the shard.
    pub fn holds(self, id: i64) -> bool {
        id.checked_rem(i64::from(self.count)) == Some(i64::from(self.index))
    }
}

impl Default for Shard {
    fn default() -> Self {
        Self::ALL
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = Error;

    /// Reads `K/N`, as [`Display`](fmt::Display) prints it.
    fn from_str(text: &str) -> Result<Self> {
        let numbers =
            text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((index, count)) => Self::new(index, count),
            None => Err(Error::invalid("shard", format!("{text:?} must be K/N, such as 0/4"))),
        }
    }
}
