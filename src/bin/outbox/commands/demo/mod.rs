//! `outbox demo`: the whole story in a few seconds.

mod downstream;

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use sqlite_outbox::rusqlite::{self, Connection, OpenFlags};
use sqlite_outbox::{
    Backoff, Downstream, Entry, Http, Intent, Jitter, Operation, Outbox, Relay, Status, Timeouts,
};

use self::downstream::{Ledger, PaymentService};
use crate::ui::failure::{FAILED, Failure, Result};
use crate::ui::output::{Out, count, escape, note, table};

const CHARGE: &str = "demo.charge";
const MAIL: &str = "demo.mail";
const TEXT: &str = "demo.text";
const ORDERS: i64 = 12;

/// Time after which the demo gives up, far longer than it takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The result for one intent.
#[derive(Serialize)]
struct Line {
    id: i64,
    entity_id: String,
    service: &'static str,
    status: Status,
    attempts: u32,
    #[serde(flatten)]
    ledger: Ledger,
}

pub fn run(out: Out, db: Option<&Path>) -> Result<()> {
    let Some(path) = db else {
        let fail = |error| Failure::failed(format!("no temporary folder: {error}"));
        let folder = tempfile::Builder::new().prefix("outbox-demo-").tempdir().map_err(fail)?;
        return conclude(out, &story(out, &folder.path().join("demo.db"))?, None);
    };
    refuse_application(path)?;
    conclude(out, &story(out, path)?, Some(path))
}

/// Refuses a file that an application uses: intents of the demo could not be deleted from it.
fn refuse_application(path: &Path) -> Result<()> {
    // A missing file, or one that is not a database, is reported by the opening that follows.
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let Ok(conn) = Connection::open_with_flags(path, flags) else { return Ok(()) };
    let Ok(tables) = foreign_tables(&conn) else { return Ok(()) };
    let path = path.display();
    let why = if tables.is_empty() {
        if !holds_other_intents(&conn).unwrap_or(false) {
            return Ok(());
        }
        "holds intents that are not the demo's".into()
    } else {
        let shown = tables[..tables.len().min(3)].join(", ");
        let more = if tables.len() > 3 { ", …" } else { "" };
        format!("belongs to an application: it has other tables than the demo's ({shown}{more})")
    };
    Err(Failure::refused(format!("--db: {path} {why}; name a new file, or none")))
}

/// Whether the file holds intents but not the orders that a demo leaves beside its own.
fn holds_other_intents(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row(
        "SELECT EXISTS (SELECT 1 FROM outbox)
            AND NOT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'demo_orders')",
        [],
        |row| row.get(0),
    )
}

fn foreign_tables(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = conn.prepare(
        "SELECT name FROM sqlite_schema
         WHERE type = 'table' AND name NOT IN ('demo_orders', 'outbox')
           AND name NOT GLOB 'outbox_*' AND name NOT GLOB 'sqlite_*'
         ORDER BY name",
    )?;
    statement.query_map([], |row| row.get(0))?.collect()
}

fn story(out: Out, path: &Path) -> Result<Vec<Line>> {
    let outbox = Outbox::open(path)?;
    let service = PaymentService::start()
        .map_err(|error| Failure::failed(format!("the demo's service cannot start: {error}")))?;

    let tell = |text: &str| if out.is_json { Ok(()) } else { out.line(text) };
    tell(&format!(
        "An app takes {ORDERS} orders. Each order and the intent to charge for it are\n\
         committed in one transaction, so that neither can exist without the other.\n\
         The last order also gets a mail and a text message, by services that cannot\n\
         tell a repeated request from a new one; the mail service lists what it sent.\n"
    ))?;
    let intents = take_orders(&outbox)?;
    tell("A relay sends the intents to services that fail on purpose:\n")?;
    let handle = relay(&outbox, &service)?.start()?;
    let decided = wait_until_decided(&outbox, &intents);
    handle.shutdown(Duration::from_secs(5))?;
    let line = |entry: Entry| Line {
        id: entry.id,
        service: downstream::Failure::of(&entry.entity_id).description,
        status: entry.status,
        attempts: entry.attempts,
        ledger: service.ledger(&entry.entity_id),
        entity_id: entry.entity_id,
    };
    Ok(decided?.into_iter().map(line).collect())
}

/// The business rows and the intents, in one transaction.
fn take_orders(outbox: &Outbox) -> Result<Vec<i64>> {
    outbox.transact(|tx| {
        let sql = |error| Failure::from(sqlite_outbox::Error::from(error));
        tx.execute_batch(
            "CREATE TABLE IF NOT EXISTS demo_orders (
                 id INTEGER PRIMARY KEY, amount INTEGER NOT NULL)",
        )
        .map_err(sql)?;
        let mut ids = Vec::new();
        for place in 1..=ORDERS {
            let amount = 1000 + 250 * place;
            tx.execute("INSERT INTO demo_orders (amount) VALUES (?1)", [amount]).map_err(sql)?;
            let order = tx.last_insert_rowid();
            let charge = Intent::new(CHARGE, format!("order-{order}"))
                .args(json!({ "order": order, "amount": amount, "currency": "eur" }));
            ids.push(outbox.enqueue(tx, &charge)?.id());
            if place == ORDERS {
                for (operation, word) in [(MAIL, "mail"), (TEXT, "text")] {
                    let message = Intent::new(operation, format!("{word}-{order}"))
                        .args(json!({ "order": order }));
                    ids.push(outbox.enqueue(tx, &message)?.id());
                }
            }
        }
        Ok(ids)
    })
}

fn relay(outbox: &Outbox, service: &PaymentService) -> Result<Relay> {
    let http = |ms| {
        let moment = Duration::from_millis(ms);
        let timeouts = Timeouts::default().resolve(moment).connect(moment);
        let timeouts = timeouts.send(moment).response(moment).body(moment);
        Http::new().endpoint(&service.endpoint()).timeouts(timeouts)
    };
    let backoff = Backoff::Exponential {
        base: Duration::from_millis(80),
        cap: Duration::from_millis(400),
        jitter: Jitter::Equal,
    };
    let window = Duration::from_secs(24 * 3600);
    let relay = Relay::builder(outbox)
        .operation(
            CHARGE,
            Operation::new(Downstream::DeduplicatesByKey { window }, http(2000)).backoff(backoff),
        )
        .operation(
            MAIL,
            Operation::new(Downstream::Unprotected, http(300).reconcile_by_get(&service.list()))
                // Minutes in production: longer than the provider's record may lag behind.
                .lookup_delay(Duration::from_millis(1600)),
        )
        .operation(TEXT, Operation::new(Downstream::Unprotected, http(2000)))
        .build()?;
    Ok(relay)
}

/// Waits until the relay has nothing left to do about any of these intents.
fn wait_until_decided(outbox: &Outbox, ids: &[i64]) -> Result<Vec<Entry>> {
    let deadline = Instant::now() + PATIENCE;
    let wait = |id: &i64| outbox.wait(*id, deadline.saturating_duration_since(Instant::now()));
    let entries = ids.iter().map(wait).collect::<sqlite_outbox::Result<Vec<Entry>>>()?;
    let is_open = |e: &&Entry| !e.status.is_settled() && !e.status.waits_for_a_person();
    let open = entries.iter().filter(is_open).count();
    if open > 0 {
        let text = format!("{} are not decided after {PATIENCE:?}", count(open, "intent"));
        return Err(Failure::failed(format!("{text}, in {}", outbox.path().display())));
    }
    Ok(entries)
}

fn conclude(out: Out, lines: &[Line], file: Option<&Path>) -> Result<()> {
    let succeeded = || lines.iter().filter(|line| line.status == Status::Succeeded);
    let in_doubt = || lines.iter().filter(|line| line.status == Status::NeedsReview);
    let wrong: Vec<&Line> = succeeded()
        .filter(|line| line.ledger.effects != 1)
        .chain(in_doubt().filter(|line| line.ledger.effects > 1))
        .collect();
    let sum = |of: fn(&Line) -> usize| lines.iter().map(of).sum::<usize>();
    let requests = sum(|line| line.ledger.requests);
    let repeats = sum(|line| line.ledger.repeats);
    if out.is_json {
        lines.iter().try_for_each(|line| out.json(line))?;
        out.json(&json!({
            "intents": lines.len(),
            "succeeded": succeeded().count(),
            "needs_review": in_doubt().count(),
            "requests": requests,
            "effects": sum(|line| line.ledger.effects),
            "repeats": repeats,
            "one_effect_per_intent": wrong.is_empty(),
        }))?;
    } else {
        out.line(as_table(lines))?;
        out.line(format_args!(
            "\n{requests} requests were sent for {} intents, each intent always under its own \
             key.\n{repeats} of them asked again for a charge that had been made, and were \
             recognised.",
            lines.len()
        ))?;
        if wrong.is_empty() {
            out.line(format_args!(
                "One effect per intent: {} succeeded, each with one effect, none twice.",
                succeeded().count()
            ))?;
        }
        if let Some(dead) = lines.iter().find(|line| line.status == Status::Dead) {
            out.line(format_args!(
                "The refused one is dead: intent {} was not applied and waits for a person.",
                dead.id
            ))?;
        }
        if lines.iter().any(|line| line.entity_id.starts_with("mail-")) {
            out.line(
                "The mail's answer was lost, too; a lookup found that the mail had been sent.",
            )?;
        }
        if let Some(text) = in_doubt().next() {
            out.line(format_args!(
                "The text message may have been sent, and there is no lookup for it: intent {0}\n\
                 needs review. It is not sent again and not called failed; a person asks the\n\
                 service, and records with `outbox resolve {0}` what became of it.",
                text.id
            ))?;
        }
        if let Some(file) = file {
            out.line(look_further(file, lines))?;
        }
    }
    for line in &wrong {
        note(format_args!("error: intent {} has {} effects", line.id, line.ledger.effects));
    }
    if wrong.is_empty() { Ok(()) } else { Err(Failure::quiet(FAILED)) }
}

fn as_table(lines: &[Line]) -> String {
    let mut table = table(&["ID", "ENTITY", "THE SERVICE", "REQUESTS", "EFFECTS", "STATUS"]);
    for line in lines {
        table.add_row([
            line.id.to_string(),
            escape(&line.entity_id),
            line.service.to_owned(),
            line.ledger.requests.to_string(),
            line.ledger.effects.to_string(),
            line.status.to_string(),
        ]);
    }
    table.trim_fmt().lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

fn look_further(file: &Path, lines: &[Line]) -> String {
    let file = escape(&file.display().to_string());
    let most = lines.iter().max_by_key(|line| line.ledger.requests).map_or(1, |line| line.id);
    format!(
        "\nLook further:\n  outbox --db {file} list\n  outbox --db {file} show {most}\n  \
         outbox --db {file} stats\n  outbox --db {file} events\n  \
         outbox --db {file} replay --status dead --dry-run"
    )
}
