//! Compares a file's tables with schema.sql by meaning, because a migrated table has another text,
//! and comments change.

use rusqlite::Connection;

use crate::error::{Error, ErrorKind, Result};

/// A table, index, trigger or view.
#[derive(Debug)]
pub(super) struct Object {
    pub kind: String,
    pub name: String,
    pub sql: String,
}

/// The objects of a fresh file of this schema.
pub(super) fn defined(schema: &str) -> Result<Vec<Object>> {
    let fresh = Connection::open_in_memory()?;
    fresh.execute_batch(schema)?;
    objects(&fresh)
}

/// The objects of a file, tables first.
pub(super) fn objects(conn: &Connection) -> Result<Vec<Object>> {
    let mut statement = conn.prepare(
        "SELECT type, name, sql FROM main.sqlite_schema
         WHERE sql IS NOT NULL AND name NOT GLOB 'sqlite_*'
         ORDER BY type <> 'table', type, name",
    )?;
    let rows = statement.query_map([], |row| {
        Ok(Object { kind: row.get(0)?, name: row.get(1)?, sql: row.get(2)? })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Refuses a file in which something of the schema is missing or different: a version number alone
/// may lie.
pub(super) fn check(conn: &Connection, schema: &str) -> Result<()> {
    let present = objects(conn)?;
    for object in defined(schema)? {
        let found = present.iter().find(|p| p.name == object.name && p.kind == object.kind);
        let wrong = match found {
            None => "is missing",
            Some(found) if !is_same(&found.sql, &object.sql) => "is not as schema.sql defines it",
            Some(_) => continue,
        };
        let text = format!(
            "the {} {} {wrong}; restore it from a backup or from schema.sql",
            object.kind, object.name
        );
        return Err(Error::new(ErrorKind::Schema, text));
    }
    Ok(())
}

/// Whether two definitions mean the same: the same words, whatever their case, quotes, spaces and
/// comments; and in a table the same columns and constraints, whatever their order.
pub(super) fn is_same(a: &str, b: &str) -> bool {
    a == b || meaning(a) == meaning(b)
}

fn meaning(sql: &str) -> Vec<Vec<String>> {
    let tokens = tokens(sql);
    let is_table = tokens.get(1).is_some_and(|word| word == "table");
    let open = tokens.iter().position(|token| token == "(");
    let (true, Some(open)) = (is_table, open) else { return vec![tokens] };
    let mut depth = 1;
    let mut parts = vec![tokens[..open].to_vec(), Vec::new()];
    for token in &tokens[open + 1..] {
        match token.as_str() {
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => {}
        }
        // A part ends at a comma between definitions, and at the end of their list.
        if depth == 1 && token == "," || depth == 0 && token == ")" {
            parts.push(Vec::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(token.clone());
        }
    }
    parts.sort();
    parts
}

/// The words, literals and signs of a statement, without spaces and comments. Only literals keep
/// their case and their quotes.
fn tokens(sql: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = sql.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("--") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let '\'' | '"' | '`' = first {
            let length = quoted(rest, first);
            let text = &rest[..length];
            let is_literal = first == '\'';
            tokens.push(if is_literal { text.to_owned() } else { bare(text) });
            length
        } else if is_word(first) {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            tokens.push(rest[..length].to_lowercase());
            length
        } else {
            tokens.push(first.into());
            first.len_utf8()
        };
        rest = rest[length..].trim_start();
    }
    tokens
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn bare(quoted: &str) -> String {
    quoted[1..].trim_end_matches(['"', '`']).to_lowercase()
}

/// How long a quoted text at the beginning is, with its quotes; a doubled quote does not end it.
fn quoted(text: &str, quote: char) -> usize {
    let mut length = 1;
    loop {
        match text[length..].find(quote) {
            Some(at) => length += at + 1,
            None => return text.len(),
        }
        if !text[length..].starts_with(quote) {
            return length;
        }
        length += 1;
    }
}

#[cfg(test)]
mod tests;
