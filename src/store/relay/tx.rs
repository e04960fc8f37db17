//! The write transaction of a relay: outcomes recorded, leases renewed and recovered, rows
//! claimed, all or nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};

use crate::clock::Clock;
use crate::core::endpoint::origin_of;
use crate::core::{FlowControl, OnDead, Policy};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::handler::StoredIntent;
use crate::store::relay::rebase::{self, STEP_MIN_MS};
use crate::store::relay::stops::Stops;
use crate::store::schema;
use crate::store::statement::query_row;
use crate::store::tables::hold::Holds;
use crate::store::tables::ledger::Ledger;
use crate::store::transitions::{Author, Transitions};

/// A relay's own rules for one operation, before the stored contract is taken into account.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub operation: String,
    pub policy: Policy,
    pub on_dead: OnDead,
    /// Failures in a row that open the circuit breaker; `None` switches it off.
    pub breaker_after: Option<u32>,
    /// Where its handler goes over the machine's network: the origin to which rows go that name no
    /// endpoint, or nothing.
    pub network: Option<String>,
}

impl Rules {
    /// The origin to which an intent goes; nothing where that cannot be told.
    pub fn origin_of(&self, intent: &StoredIntent) -> String {
        let own = intent.endpoint.as_deref().and_then(origin_of);
        own.or_else(|| self.network.clone()).unwrap_or_default()
    }
}

/// An open transaction of a relay. Holds the write lock until it is committed or dropped.
pub(crate) struct RelayTx<'a> {
    tx: Transaction<'a>,
    pub(super) conn: &'a Connection,
    pub(super) moves: Transitions<'a>,
    pub(super) owner: &'a str,
    pub(super) now: i64,
    pub(super) clock: Arc<dyn Clock>,
    /// Milliseconds since the machine's start, where that can be told.
    pub(super) boot: Option<i64>,
    pub(super) token: Option<i64>,
    /// The flow control read so far, by operation: as it was, and as it is now.
    pub(super) flows: BTreeMap<String, (FlowControl, FlowControl)>,
    /// The budgets read so far, by operation.
    pub(super) ledgers: BTreeMap<String, Ledger>,
    /// The holds read so far, by operation.
    pub(super) holds: BTreeMap<String, Holds>,
    /// Operations and domains that were found to stand still.
    pub(super) stops: Stops,
    /// Rows that were not sent again, each with its last attempt, which may be in doubt.
    pub(super) withheld: Vec<(i64, Option<i64>)>,
    /// How many rows it may move at most, and how many it has begun to.
    pub portion: usize,
    pub touched: usize,
    /// The row that it is about: the culprit, where a write fails.
    pub at: Option<i64>,
    /// The row it was about last.
    pub last: Option<i64>,
}

/// The result of a committed transaction.
#[derive(Debug, Default)]
pub(crate) struct Committed {
    pub events: Vec<Event>,
    /// Operations and domains that were found to stand still.
    pub stops: Stops,
    /// Rows that were not sent again, each with its last attempt, which may be in doubt.
    pub withheld: Vec<(i64, Option<i64>)>,
}

impl<'a> RelayTx<'a> {
    /// Takes the write lock for the relay that signs as `owner`. The connection is in no
    /// transaction.
    pub fn begin(
        conn: &'a Connection,
        owner: &'a str,
        now: i64,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
        // What is entered into a ledger is sent from now on, however long the lock was waited for;
        // and in that time the clock may have been set, or the file moved along with it.
        let (boot, at) = (clock.boot(), clock.now());
        rebase::mind_step(conn, at, boot.as_ref())?;
        let now = if now.saturating_sub(at) > STEP_MIN_MS { at } else { now.max(at) };
        Ok(Self {
            tx,
            conn,
            moves: Transitions::new(conn, Author::Relay(owner), now),
            owner,
            now,
            boot: boot.map(|boot| boot.ms),
            clock,
            token: None,
            flows: BTreeMap::new(),
            ledgers: BTreeMap::new(),
            holds: BTreeMap::new(),
            stops: Stops::default(),
            withheld: Vec::new(),
            portion: usize::MAX,
            touched: 0,
            at: None,
            last: None,
        })
    }

    /// Makes everything durable and hands out the events, which no observer may see before.
    pub fn commit(self) -> Result<Committed> {
        self.save_flows()?;
        let Self { tx, moves, stops, withheld, .. } = self;
        let events = moves.finish()?;
        tx.commit()?;
        Ok(Committed { events, stops, withheld })
    }

    /// Begins with a row. Returns whether there is room for it in this transaction.
    pub fn touch(&mut self, id: i64) -> bool {
        let has_room = self.touched < self.portion;
        if has_room {
            self.touched += 1;
            (self.at, self.last) = (Some(id), Some(id));
        }
        has_room
    }

    /// Refuses to go on in a file whose schema another build has migrated.
    pub fn check_schema(&self) -> Result<()> {
        let sql = "SELECT schema_version FROM main.outbox_meta WHERE id = 1";
        let version: Option<i64> = query_row(self.conn, sql, [], |row| row.get(0)).optional()?;
        if version == Some(schema::VERSION) { Ok(()) } else { Err(migrated()) }
    }

    /// The token of this transaction's claims. Drawn once, from a counter that never goes back, and
    /// only while the schema is the one this build knows: also where a migration has begun, because
    /// an outcome that comes late draws one.
    pub(super) fn token(&mut self) -> Result<i64> {
        if let Some(token) = self.token {
            return Ok(token);
        }
        let sql = "UPDATE main.outbox_meta SET token = token + 1
                   WHERE id = 1 AND abs(schema_version) = ?1 RETURNING token";
        let token = query_row(self.conn, sql, [schema::VERSION], |row| row.get(0)).optional()?;
        self.token = token;
        token.ok_or_else(migrated)
    }

    /// The operation's rules as they hold: the relay's own, or the stored contract if stricter.
    pub(super) fn policy(&mut self, rules: &Rules) -> Result<Policy> {
        let mut policy = rules.policy.clone();
        if let Some(stored) = self.moves.contract(&rules.operation)? {
            let promise = &mut policy.promise;
            promise.downstream = promise.downstream.stricter(stored.downstream);
            promise.reconciles |= stored.reconciles;
            promise.repeat_safe &= stored.repeats.reads;
            policy.repeat_rules = stored.repeats.rules.clone().unwrap_or_default();
            policy.attempts_max = stored.attempts_max.unwrap_or(policy.attempts_max);
            policy.give_up_after = stored.give_up_after.unwrap_or(policy.give_up_after);
        }
        Ok(policy)
    }
}

fn migrated() -> Error {
    let text = "the outbox schema was migrated by another build; restart with that build";
    Error::new(ErrorKind::Schema, text)
}
