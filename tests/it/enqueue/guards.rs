//! The guards of the file and the checks of the library: each refuses what the other refuses, so
//! that a plain INSERT fails where the intent could only die.

use std::cell::Cell;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestRunner;
use sqlite_outbox::Intent;
use sqlite_outbox::rusqlite::Connection;

use crate::support::world::{World, pay};

/// Both answers to one row: of the library, and of the file to a plain INSERT. Nothing stays.
struct Both {
    world: World,
    conn: Connection,
    /// How many rows were taken, and how many refused.
    counts: Cell<(u32, u32)>,
}

impl Both {
    fn new() -> Self {
        let world = World::new();
        let conn = Connection::open(world.path()).unwrap();
        conn.execute_batch("PRAGMA synchronous = OFF").unwrap();
        Self { world, conn, counts: Cell::default() }
    }

    fn library(&self, intent: &Intent) -> Result<(), String> {
        let mut answer = Ok(());
        let rolled_back = self.world.outbox.transact(|tx| {
            let enqueued = self.world.outbox.enqueue(tx, intent);
            answer = enqueued.map(drop).map_err(|error| error.to_string());
            Err::<(), Box<dyn std::error::Error>>("nothing stays".into())
        });
        rolled_back.unwrap_err();
        answer
    }

    fn file(&self, sql: &str, values: impl sqlite_outbox::rusqlite::Params) -> Result<(), String> {
        self.conn.execute_batch("BEGIN").unwrap();
        let inserted = self.conn.execute(sql, values).map(drop).map_err(|e| e.to_string());
        self.conn.execute_batch("ROLLBACK").unwrap();
        inserted
    }

    fn agree(
        &self,
        column: &str,
        value: &str,
        library: &Result<(), String>,
        file: &Result<(), String>,
    ) {
        assert_eq!(library.is_ok(), file.is_ok(), "{value:?}: {library:?}, {file:?}");
        let (taken, refused) = self.counts.get();
        let is_taken = u32::from(file.is_ok());
        self.counts.set((taken + is_taken, refused + 1 - is_taken));
        if let Err(text) = file {
            assert!(text.contains(&format!("outbox.{column}: ")), "{value:?}: {text}");
        }
    }

    /// The values that were tried are neither all good nor all bad.
    fn has_seen_both(&self) {
        let (taken, refused) = self.counts.get();
        assert!(taken > 100 && refused > 100, "{taken} taken, {refused} refused");
    }

    fn endpoint(&self, endpoint: &str, entity: &str, key: &str, tenant: &str) {
        let intent = Intent::new("pay", entity).key(key).tenant(tenant).endpoint(endpoint);
        let sql = "INSERT INTO outbox
                       (operation, entity_id, idempotency_key, tenant_id, endpoint, payload)
                   VALUES ('pay', ?1, ?2, ?3, ?4, '{}')";
        let file = self.file(sql, (entity, key, tenant, endpoint));
        self.agree("endpoint", endpoint, &self.library(&intent), &file);
    }

    fn text(&self, column: &str, value: &str, intent: &Intent) {
        let set = |name: &str, usual: &str| {
            if name == column { value.to_owned() } else { usual.to_owned() }
        };
        let sql = "INSERT INTO outbox (operation, entity_id, idempotency_key, tenant_id,
                                       content_type, ordering_key, payload)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'x')";
        let values = [
            set("operation", "pay"),
            set("entity_id", "a"),
            set("idempotency_key", "k"),
            set("tenant_id", ""),
            set("content_type", "text/plain"),
            set("ordering_key", "o"),
        ];
        self.agree(column, value, &self.library(intent), &self.file(sql, values));
    }

    fn headers(&self, headers: &[(String, String)]) {
        let mut intent = pay("a").key("k");
        let mut json = Vec::new();
        for (name, value) in headers {
            intent = intent.header(name, value);
            let text = |text: &str| serde_json::Value::from(text).to_string();
            json.push(format!("{}:{}", text(name), text(value)));
        }
        let json = format!("{{{}}}", json.join(","));
        let sql = "INSERT INTO outbox (operation, entity_id, idempotency_key, headers, payload)
                   VALUES ('pay', 'a', 'k', ?1, '{}')";
        self.agree("headers", &json, &self.library(&intent), &self.file(sql, [&json]));
    }
}

/// Runs `check` on so many values, the same ones each time.
fn each<S: Strategy>(cases: u32, values: S, check: impl Fn(S::Value)) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    );
    let checked = runner.run(&values, |value| {
        check(value);
        Ok(())
    });
    checked.unwrap();
}

/// Text of any character that may matter, with and without the usual ones around.
fn odd_text() -> impl Strategy<Value = String> {
    let odd = || select(vec!["", " ", "\t", "\r\n", "\0", "\u{7f}", "ä", "\u{85}", "/", "a", "~"]);
    (odd(), vec(prop_oneof![odd(), odd(), Just("b/c")], 0..4), odd())
        .prop_map(|(first, rest, last)| format!("{first}{}{last}", rest.concat()))
}

/// Words of a list, and the empty one.
fn one_of(words: &'static str) -> impl Strategy<Value = &'static str> {
    select(words.split_whitespace().chain([""]).collect::<Vec<_>>())
}

#[test]
fn guards_agree_on_endpoints() {
    let both = Both::new();
    let scheme = one_of("https:// https:// http:// HTTPS:// https:/ ftp://");
    let host = one_of(
        "h a.example A-b_c. 127.0.0.1 [::1] [2001:db8::1] [::ffff:1.2.3.4] [] [::1 ::1] [::1]x [1]
         [::g] [:] a[b] [1:2:3:4:5:6:7:8:9] [1:2:3:4:5:6:7::] [1:2:3:4:5:6:7:8:9:a] u@h u:p@h h%41
         h~ h! {h} {entity_id} h.. [::1]] [[::1] \\ h\\x",
    );
    let port = one_of(
        ": :0 :1 :80 :65535 :65536 :99999 :000080 :+80 :-1 :8o :80:80 :18446744073709551696
         :{entity_id} :0000 :٣",
    );
    let rest = one_of(
        "/ ? /x /a:99999/b?c=d:0 /%7Bx%7D /{idempotency_key} /{entity_id}?a={idempotency_key}
         /{order} /} /{entity_id #f /x#f /[x] /@ ?@ ?a=\" /\" /` /?` /< /?< /> /?> /^|\\ /?^|\\
         /\0x /ä /~!$&'()*+,;= /{{entity_id}} /{entity{idempotency_key}_id}",
    );
    let ids = (one_of("a . .. ..."), one_of("k . .."), one_of("t"));
    let values = (scheme, host, port, rest, ids);
    each(1500, values, |(scheme, host, port, rest, (entity, key, tenant))| {
        let endpoint = format!("{scheme}{host}{port}{rest}");
        let or = |text: &'static str, usual| if text.is_empty() { usual } else { text };
        both.endpoint(&endpoint, or(entity, "a"), or(key, "k"), tenant);
    });
    // Every visible character in every place where a URL may have one.
    let places = [
        ("https://", "h/"),
        ("https://h", ""),
        ("https://h:8", "0/"),
        ("https://h/", "x"),
        ("https://h?", "x"),
        ("https://h/?a=", "?"),
        ("http", "://h/"),
        ("https://[::1", "]/"),
    ];
    for c in (' '..='\u{80}').chain(['\0', '\n', '\u{e9}']) {
        for (before, after) in places {
            both.endpoint(&format!("{before}{c}{after}"), "a", "k", "");
        }
    }
    for length in [2047, 2048, 2049] {
        both.endpoint(&format!("https://h/{}", "x".repeat(length - 10)), "a", "k", "");
    }
    both.has_seen_both();
}

#[test]
fn guards_agree_on_headers() {
    let both = Both::new();
    let name = prop_oneof![
        one_of("x X x-a x_b!#$%&'*+-.^_`|~9 x: a(b a\0 ä \"x\" [x] x\\").prop_map(str::to_owned),
        one_of(
            "Host te TE t Content-Length Transfer-encoding connection Expect UPGRADE trailer
             Keep-Alive proxy-x Proxy-Authorization proxy idempotency-key content-type x-host"
        )
        .prop_map(str::to_owned),
        odd_text(),
    ];
    let good = select(vec!["v", "a b=c; d:e", "\"\\/", "\\u0000"]).prop_map(str::to_owned);
    let value = prop_oneof![good.clone(), good, odd_text()];
    each(1500, vec((name, value), 0..4), |headers| both.headers(&headers));
    for c in '\0'..='\u{80}' {
        both.headers(&[(format!("x{c}"), "v".into())]);
        both.headers(&[("x".into(), format!("a{c}b"))]);
    }
    let many = |n: usize| (0..n).map(|i| (format!("x{i}"), "v".to_owned())).collect::<Vec<_>>();
    both.headers(&many(50));
    both.headers(&many(51));
    for length in [8190, 8191, 8192] {
        both.headers(&[("x".into(), "v".repeat(length))]);
        both.headers(&[("x".into(), "v".repeat(length - 3)), ("y".into(), "\"\"".into())]);
    }
    both.has_seen_both();
}

#[test]
fn guards_agree_on_texts() {
    let both = Both::new();
    each(500, odd_text(), |text| {
        let plain =
            |intent: Intent| intent.key("k").content_type("text/plain").payload("x").args_json("1");
        let usual = || plain(pay("a"));
        both.text("content_type", &text, &usual().content_type(&text));
        both.text("operation", &text, &plain(Intent::new(&text, "a")));
        both.text("entity_id", &text, &plain(pay(&text)));
        both.text("idempotency_key", &text, &usual().key(&text));
        both.text("tenant_id", &text, &usual().tenant(&text));
        both.text("ordering_key", &text, &usual().ordering_key(&text));
    });
    both.has_seen_both();
}
