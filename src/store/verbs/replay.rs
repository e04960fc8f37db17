//! Replay: another round of attempts for intents that a person sends back. Retry: a pending one
//! does not wait for its time any longer.

use rusqlite::{Connection, TransactionBehavior};

use crate::core::{Actor, Decision, Filter, verbs};
use crate::error::Result;
use crate::event::EventKind;
use crate::store::standing::{self, Standing};
use crate::store::tables::{contract, hold, unrecorded};
use crate::store::verbs::matching::each_match;
use crate::store::verbs::withdraw;

/// A verb that sends intents again.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Again {
    Replay,
    Retry,
}

/// Replays or retries all intents that match, chunk by chunk. Returns each with its result.
pub(crate) fn all(
    conn: &mut Connection,
    verb: Again,
    filter: &Filter,
    actor: &Actor,
    now: i64,
    dry_run: bool,
) -> Result<Vec<(i64, Result<()>)>> {
    if dry_run {
        let may = |tx: &Connection, id| verb.may(tx, id, now).map(drop);
        return each_match(conn, filter, TransactionBehavior::Deferred, may);
    }
    let act = |tx: &Connection, id| verb.apply(tx, id, actor, now);
    each_match(conn, filter, TransactionBehavior::Immediate, act)
}

/// Replays or retries one intent.
pub(crate) fn one(
    conn: &mut Connection,
    verb: Again,
    id: i64,
    actor: &Actor,
    now: i64,
) -> Result<()> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    verb.apply(&tx, id, actor, now)?;
    Ok(tx.commit()?)
}

impl Again {
    fn apply(self, conn: &Connection, id: i64, actor: &Actor, now: i64) -> Result<()> {
        let (found, decision) = self.may(conn, id, now)?;
        let kind = match self {
            Self::Replay => EventKind::Replayed,
            Self::Retry => {
                hold::try_with(conn, id, now)?;
                EventKind::Retried
            }
        };
        if let Some(decision) = decision {
            return withdraw::apply(conn, &found, kind, &decision, actor, now);
        }
        unrecorded::hurry(conn, id, now)?;
        withdraw::note(conn, &found, kind, None, actor, now)
    }

    /// Reads an intent and decides whether it is sent again; `None` where its outcome is kept, and
    /// the verb is another try to record that. Changes nothing.
    fn may(self, conn: &Connection, id: i64, now: i64) -> Result<(Standing, Option<Decision>)> {
        let found = standing::of(conn, id, now)?;
        if found.unrecorded.is_some() {
            return Ok((found, None));
        }
        let (status, facts) = (found.status, &found.facts);
        let verdict = match self {
            Self::Replay => {
                let promise = contract::promise(contract::of(conn, &found.operation)?.as_ref());
                verbs::replay(status, facts, promise, now)
            }
            Self::Retry => verbs::retry(status, hold::waits_for_time(conn, id)?, facts, now),
        };
        let decision = found.allowed(verdict)?;
        Ok((found, Some(decision)))
    }
}
