//! Replay: another round of attempts for intents that a person sends back. Retry: a pending one
//! does not wait for its time any longer.

use rusqlite::{Connection, TransactionBehavior};

use crate::core::{Actor, Decision, Filter, verbs};
use crate::error::{ErrorKind, Result};
use crate::event::EventKind;
use crate::store::query::read;
use crate::store::standing::{self, Standing};
use crate::store::tables::{contract, hold, unrecorded};
use crate::store::verbs::withdraw;

/// A verb that sends intents again.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Again {
    Replay,
    Retry,
}

/// The most rows that one transaction changes, so that other writers wait briefly.
const CHUNK: usize = 500;

/// Replays or retries all intents that match, chunk by chunk. Returns each with its result.
pub(crate) fn all(
    conn: &mut Connection,
    verb: Again,
    filter: &Filter,
    actor: &Actor,
    now: i64,
    dry_run: bool,
) -> Result<Vec<(i64, Result<()>)>> {
    let (mut matched, mut changed) = (Vec::new(), 0);
    let behavior =
        if dry_run { TransactionBehavior::Deferred } else { TransactionBehavior::Immediate };
    let mut page = filter.clone();
    loop {
        page.limit = Some(filter.limit.map_or(CHUNK, |max| (max - changed).min(CHUNK)));
        let tx = conn.transaction_with_behavior(behavior)?;
        let ids = read::ids(&tx, &page)?;
        for &id in &ids {
            let done = if dry_run {
                verb.may(&tx, id, now).map(drop)
            } else {
                verb.apply(&tx, id, actor, now)
            };
            let done = match done {
                Err(error) if error.kind() != ErrorKind::Refused => return Err(error),
                done => done,
            };
            changed += usize::from(done.is_ok());
            matched.push((id, done));
        }
        tx.commit()?;
        let Some(&last) = ids.last() else { return Ok(matched) };
        page.after = Some(last);
        if filter.limit.is_some_and(|max| changed >= max) {
            return Ok(matched);
        }
    }
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
