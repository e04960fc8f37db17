//! The index of a shard's due rows, so that those of a shard that nobody serves cost nothing.

use std::borrow::Cow;

use rusqlite::Connection;

use crate::core::Shard;
use crate::error::Result;

/// The index by which a statement finds due rows of a shard.
macro_rules! shard_index {
    () => {
        "outbox_lease_due /* shard */"
    };
}

/// The place of a condition that lets the shard's index be used. In statements that name
/// `outbox_lease` l.
macro_rules! shard_rows {
    () => {
        " /* rows */"
    };
}

pub(crate) use {shard_index, shard_rows};

/// Makes the index, where there are several shards. It stays in the file when the number of shards
/// changes.
pub(crate) fn create_index(conn: &Connection, shard: Shard) -> Result<()> {
    if shard == Shard::ALL {
        return Ok(());
    }
    let (count, index) = (shard.count(), shard.index());
    Ok(conn.execute_batch(&format!(
        "CREATE INDEX IF NOT EXISTS main.outbox_lease_due_{index}_of_{count}
         ON outbox_lease (operation, state, due_at, id)
         WHERE due_at IS NOT NULL AND id % {count} = {index}"
    ))?)
}

/// A statement as the relay of a shard runs it.
pub(crate) fn of_shard(sql: &'static str, shard: Shard) -> Cow<'static, str> {
    if shard == Shard::ALL {
        return Cow::Borrowed(sql);
    }
    let (count, index) = (shard.count(), shard.index());
    let by_index = sql.replace(shard_index!(), &format!("outbox_lease_due_{index}_of_{count}"));
    Cow::Owned(by_index.replace(shard_rows!(), &format!(" AND l.id % {count} = {index}")))
}
