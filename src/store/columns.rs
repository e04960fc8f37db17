//! Reading columns that may hold anything: a hand-edited row must still be read.

use rusqlite::types::ValueRef;
use rusqlite::{Row, RowIndex};

/// Reads a counter; a value that was edited out of its range is read as the nearest one in it.
pub(crate) fn counter(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<u32> {
    let value: i64 = row.get(column)?;
    Ok(u32::try_from(value.max(0)).unwrap_or(u32::MAX))
}

/// Reads text of any kind; bytes that are not UTF-8 are replaced, NULL is empty.
pub(crate) fn lossy(row: &Row<'_>, index: usize) -> rusqlite::Result<String> {
    Ok(lossy_option(row, index)?.unwrap_or_default())
}

/// Reads text of any kind, or NULL as `None`.
pub(crate) fn lossy_option(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<String>> {
    Ok(match row.get_ref(index)? {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            Some(String::from_utf8_lossy(bytes).into_owned())
        }
    })
}
