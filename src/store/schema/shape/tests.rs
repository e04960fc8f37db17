use super::is_same;

const TABLE: &str = "CREATE TABLE t (id INTEGER PRIMARY KEY, -- a comment, with (a bracket
    word TEXT CHECK (word IN ('a', 'B')), UNIQUE (id, word)) STRICT";

#[test]
fn meaning_ignores_spaces_comments_quotes_case_and_the_order_of_columns() {
    for same in [
        "create table \"t\"(id integer primary key,word text check(word in('a','B')),
         unique(id,word))strict",
        "CREATE TABLE t (word TEXT CHECK (word IN ('a', 'B')), /* moved, ) */
         UNIQUE (id, word), id INTEGER PRIMARY KEY) STRICT",
    ] {
        assert!(is_same(TABLE, same), "{same}");
    }
}

#[test]
fn meaning_sees_columns_checks_literals_options_and_order_inside_a_definition() {
    for other in [
        "CREATE TABLE t (id INTEGER PRIMARY KEY, UNIQUE (id, word)) STRICT",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT, UNIQUE (id, word)) STRICT",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT CHECK (word IN ('a', 'b')),
         UNIQUE (id, word)) STRICT",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT CHECK (word IN ('a', 'B')),
         UNIQUE (id, word))",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT CHECK (word IN ('a', 'B')),
         UNIQUE (word, id)) STRICT",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT CHECK (word IN ('a', 'B')),
         UNIQUE (id, word), more) STRICT",
    ] {
        assert!(!is_same(TABLE, other), "{other}");
    }
    let index = "CREATE INDEX i ON t (a, b) WHERE a = 'x''y'";
    assert!(is_same(index, "create index i on t(a,b) where a='x''y'"));
    assert!(!is_same(index, "CREATE INDEX i ON t (b, a) WHERE a = 'x''y'"));
    assert!(!is_same(index, "CREATE INDEX i ON t (a, b) WHERE a = 'x'"));
}
