//! A person's verb on all intents that match a filter.

use rusqlite::{Connection, TransactionBehavior};

use crate::core::Filter;
use crate::error::{ErrorKind, Result};
use crate::store::query::read;

/// The most rows that one transaction changes, so that other writers wait briefly.
const CHUNK: usize = 500;

/// Acts on all intents that match, chunk by chunk. Returns each with its result; the limit of the
/// filter counts those that were not refused.
pub(crate) fn each_match<T>(
    conn: &mut Connection,
    filter: &Filter,
    behavior: TransactionBehavior,
    act: impl Fn(&Connection, i64) -> Result<T>,
) -> Result<Vec<(i64, Result<T>)>> {
    let (mut matched, mut done_count) = (Vec::new(), 0);
    let mut page = filter.clone();
    loop {
        page.limit = Some(filter.limit.map_or(CHUNK, |max| (max - done_count).min(CHUNK)));
        let tx = conn.transaction_with_behavior(behavior)?;
        let ids = read::ids(&tx, &page)?;
        for &id in &ids {
            let done = match act(&tx, id) {
                Err(error) if error.kind() != ErrorKind::Refused => return Err(error),
                done => done,
            };
            done_count += usize::from(done.is_ok());
            matched.push((id, done));
        }
        tx.commit()?;
        let Some(&last) = ids.last() else { return Ok(matched) };
        page.after = Some(last);
        if filter.limit.is_some_and(|max| done_count >= max) {
            return Ok(matched);
        }
    }
}
