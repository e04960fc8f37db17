//! Replay: another round of attempts for intents that a person sends back.

use rusqlite::{Connection, TransactionBehavior};

use crate::core::{Actor, Decision, Filter, verbs};
use crate::error::{ErrorKind, Result};
use crate::event::EventKind;
use crate::store::query::read;
use crate::store::standing::{self, Standing};
use crate::store::tables::contract;
use crate::store::verbs::withdraw;

/// The most rows that one transaction replays, so that other writers wait briefly.
const CHUNK: usize = 500;

/// Replays all intents that match, chunk by chunk. Returns each with its result.
pub(crate) fn replay(
    conn: &mut Connection,
    filter: &Filter,
    actor: &Actor,
    now: i64,
    dry_run: bool,
) -> Result<Vec<(i64, Result<()>)>> {
    let (mut matched, mut replayed) = (Vec::new(), 0);
    let behavior =
        if dry_run { TransactionBehavior::Deferred } else { TransactionBehavior::Immediate };
    let mut page = filter.clone();
    loop {
        page.limit = Some(filter.limit.map_or(CHUNK, |max| (max - replayed).min(CHUNK)));
        let tx = conn.transaction_with_behavior(behavior)?;
        let ids = read::ids(&tx, &page)?;
        for &id in &ids {
            let done = if dry_run {
                may_replay(&tx, id, now).map(drop)
            } else {
                replay_in(&tx, id, actor, now)
            };
            let done = match done {
                Err(error) if error.kind() != ErrorKind::Refused => return Err(error),
                done => done,
            };
            replayed += usize::from(done.is_ok());
            matched.push((id, done));
        }
        tx.commit()?;
        let Some(&last) = ids.last() else { return Ok(matched) };
        page.after = Some(last);
        if filter.limit.is_some_and(|max| replayed >= max) {
            return Ok(matched);
        }
    }
}

/// Replays one intent.
pub(crate) fn replay_one(conn: &mut Connection, id: i64, actor: &Actor, now: i64) -> Result<()> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    replay_in(&tx, id, actor, now)?;
    Ok(tx.commit()?)
}

fn replay_in(conn: &Connection, id: i64, actor: &Actor, now: i64) -> Result<()> {
    let (found, decision) = may_replay(conn, id, now)?;
    withdraw::apply(conn, &found, EventKind::Replayed, &decision, actor, now)
}

/// Reads an intent and decides on another round for it. Changes nothing.
fn may_replay(conn: &Connection, id: i64, now: i64) -> Result<(Standing, Decision)> {
    let found = standing::of(conn, id, now)?;
    let promise = contract::promise(contract::of(conn, &found.operation)?.as_ref());
    let decision = found.allowed(verbs::replay(found.status, &found.facts, promise, now))?;
    Ok((found, decision))
}
