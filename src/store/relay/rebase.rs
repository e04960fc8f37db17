//! The times that the product has written itself, after the wall clock was set or the machine was
//! started anew.
//!
//! The file keeps how far the wall clock is ahead of the clock that nobody sets, so that a step is
//! noticed by whoever comes next. Never moved: when an intent was made, first sent, put in doubt,
//! when it expires, and when its caller wants it sent, but for one made while the clock was ahead.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, named_params};

use crate::clock::Boot;
use crate::core::{CLOCK_SLACK_MS, length, utc};
use crate::error::Result;
use crate::store::relay::due::operations_with_due;
use crate::store::statement::{execute, query_row};

/// How far the two clocks may drift apart before the wall clock counts as set.
pub(crate) const STEP_MIN_MS: i64 = 5000;

/// The longest waits that the product makes, for times that cannot be measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Longest {
    pub lease_ms: i64,
    /// Of an intent, a hold, or a throttle.
    pub wait_ms: i64,
}

/// The difference between the clocks now and as the file has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Noticed {
    Nothing,
    /// The wall clock was set by so much.
    Stepped(i64),
    /// Nobody knows how much time has passed: the machine was started anew, or has no such clock.
    Unmeasured,
}

/// Moves the product's own times where the wall clock was set since the file was last written.
/// After a new start of the machine only with `longest`, which a relay brings: a verb leaves that
/// to the next relay. `is_watched` says that this process saw the clock being set. Where none did,
/// a step forward may also be time that passed while the whole machine stood still.
pub(crate) fn mind_clock(
    conn: &mut Connection,
    now: i64,
    boot: Option<&Boot>,
    longest: Option<Longest>,
    is_watched: bool,
) -> Result<()> {
    let is_ahead =
        longest.is_some() && (has_ahead(conn, now)? || newest_ahead(conn, now)?.is_some());
    if !is_ahead && !concerns(noticed(conn, now, boot)?, longest) {
        return Ok(());
    }
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let noticed = noticed(&tx, now, boot)?;
    if concerns(noticed, longest) {
        match (noticed, longest) {
            (Noticed::Stepped(by), _) => step(&tx, by, now, by > 0 && !is_watched)?,
            (Noticed::Unmeasured, Some(longest)) => cap(&tx, boot.is_some(), longest, now)?,
            _ => {}
        }
        save(&tx, now, boot)?;
    }
    if longest.is_some() {
        bring_back(&tx, now)?;
    }
    Ok(tx.commit()?)
}

/// Moves the product's own times, in a transaction that is open, where the clock was set since.
pub(crate) fn mind_step(conn: &Connection, now: i64, boot: Option<&Boot>) -> Result<()> {
    let Noticed::Stepped(by) = noticed(conn, now, boot)? else { return Ok(()) };
    step(conn, by, now, false)?;
    save(conn, now, boot)
}

fn concerns(noticed: Noticed, longest: Option<Longest>) -> bool {
    match noticed {
        Noticed::Nothing => false,
        Noticed::Stepped(_) => true,
        Noticed::Unmeasured => longest.is_some(),
    }
}

fn noticed(conn: &Connection, now: i64, boot: Option<&Boot>) -> Result<Noticed> {
    let sql = "SELECT boot_id, wall_ahead FROM main.outbox_meta WHERE id = 1";
    let known: Option<(Option<String>, Option<i64>)> =
        query_row(conn, sql, [], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let (id, ahead) = known.unwrap_or_default();
    Ok(match (boot, id.as_deref(), ahead) {
        (Some(boot), Some(id), Some(ahead)) if *boot.id == *id => {
            let by = now.saturating_sub(boot.ms).saturating_sub(ahead);
            if by.abs() > STEP_MIN_MS { Noticed::Stepped(by) } else { Noticed::Nothing }
        }
        _ => Noticed::Unmeasured,
    })
}

fn save(conn: &Connection, now: i64, boot: Option<&Boot>) -> Result<()> {
    let sql = "UPDATE main.outbox_meta SET boot_id = ?1, wall_ahead = ?2 WHERE id = 1";
    let values = (boot.map(|boot| &*boot.id), boot.map(|boot| now.saturating_sub(boot.ms)));
    execute(conn, sql, values).map(drop)
}

/// The times that move with the wall clock, but for those of rows; and which of them also where the
/// time may have passed: what is only waited for comes early then, and at worst waits once more.
const TIMES: [(&str, &[&str], &str); 5] = [
    ("outbox_hold", &["since", "until"], "cause IS NOT 'throttled'"),
    ("outbox_operation", &["paused_until", "paused_since", "resumed_at", "bucket_at"], "true"),
    ("outbox_operation", &["throttled_since", "throttled_until"], "false"),
    ("outbox_spend", &["at"], "true"),
    ("outbox_unrecorded", &["since", "retry_at"], "false"),
];

/// A row's time is the product's own, and not the one that the caller has asked for.
macro_rules! is_own {
    () => {
        "(state <> 'pending'
          OR coalesce(due_at, resume_at) IS NOT (SELECT o.available_at + coalesce(shift, 0)
                                                 FROM main.outbox o WHERE o.id = outbox_lease.id))"
    };
}

fn step(conn: &Connection, by: i64, now: i64, may_have_passed: bool) -> Result<()> {
    let sql = concat!(
        "UPDATE main.outbox_lease SET due_at = due_at + :by, resume_at = resume_at + :by
         WHERE coalesce(due_at, resume_at) > :from AND (state <> 'pending' OR NOT :may_have_passed)
           AND ",
        is_own!()
    );
    // What was due before the step is due now, whatever its time.
    let from = now.min(now.saturating_sub(by));
    execute(
        conn,
        sql,
        named_params! {
            ":by": by, ":from": from, ":may_have_passed": may_have_passed,
        },
    )?;
    // Those that were moved, because the clock was ahead, go back as far as their caller asked.
    let sql = "UPDATE main.outbox_lease
               SET due_at = due_at + CASE WHEN shift < 0 THEN min(?1, -shift) ELSE ?1 END,
                   resume_at = resume_at + CASE WHEN shift < 0 THEN min(?1, -shift) ELSE ?1 END,
                   shift = shift + CASE WHEN shift < 0 THEN min(?1, -shift) ELSE ?1 END
               WHERE state = 'pending' AND shift IS NOT NULL
                 AND coalesce(due_at, resume_at) =
                     (SELECT available_at FROM main.outbox o WHERE o.id = outbox_lease.id) + shift";
    execute(conn, sql, [by])?;
    for (table, columns, always) in TIMES {
        let moved: Vec<String> =
            columns.iter().map(|name| format!("{name} = {name} + ?1")).collect();
        let moved = moved.join(", ");
        let sql = format!("UPDATE main.{table} SET {moved} WHERE NOT ?2 OR {always}");
        conn.execute(&sql, (by, may_have_passed))?;
    }
    // Whatever they have counted, the next claims count once more.
    execute(conn, "DELETE FROM main.outbox_total", [])?;
    let way = if by > 0 { "forward" } else { "back" };
    let by_how_much = Duration::from_millis(by.unsigned_abs());
    log::warn!(
        "the clock was set {way} by {}, to {}: leases, waits, holds, pauses and budgets keep the \
         rest of their time",
        length(by_how_much),
        utc(now)
    );
    Ok(())
}

/// Pulls what lies further ahead than any wait can to the longest wait, and marks doubts of which
/// nobody knows the age any more.
fn cap(conn: &Connection, is_restart: bool, longest: Longest, now: i64) -> Result<()> {
    let lease = now.saturating_add(longest.lease_ms);
    let wait = now.saturating_add(longest.wait_ms);
    let mut moved = 0;
    for (sql, most) in [
        ("UPDATE main.outbox_lease SET due_at = ?1 WHERE due_at > ?1 AND owner IS NOT NULL", lease),
        (
            concat!(
                "UPDATE main.outbox_lease SET due_at = min(due_at, ?1),
                        resume_at = min(resume_at, ?1)
                 WHERE coalesce(due_at, resume_at) > ?1 AND owner IS NULL AND ",
                is_own!()
            ),
            wait,
        ),
        (
            "UPDATE main.outbox_hold SET until = ?1 WHERE until > ?1 AND cause IS NOT 'operator'",
            wait,
        ),
        ("UPDATE main.outbox_unrecorded SET retry_at = ?1 WHERE retry_at > ?1", wait),
        ("UPDATE main.outbox_hold SET since = ?1 WHERE since > ?1", now),
        (
            "UPDATE main.outbox_operation SET paused_until = ?1
             WHERE paused_until > ?1 AND paused_kind <> 'operator'",
            wait,
        ),
        ("UPDATE main.outbox_operation SET throttled_until = ?1 WHERE throttled_until > ?1", wait),
        ("UPDATE main.outbox_operation SET resumed_at = ?1 WHERE resumed_at > ?1", now),
        ("UPDATE main.outbox_operation SET bucket_at = ?1 WHERE bucket_at > ?1", now),
        // Claims of other processes may have read their clock a little earlier or later.
        (
            "UPDATE main.outbox_spend SET at = ?1 - 60000
             WHERE at > ?1
               AND NOT EXISTS (SELECT 1 FROM main.outbox_lease l
                               WHERE l.id = outbox_spend.id AND l.state = 'in_flight')",
            now.saturating_add(CLOCK_SLACK_MS),
        ),
    ] {
        moved += execute(conn, sql, [most])?;
    }
    if is_restart {
        let sql = "UPDATE main.outbox_lease SET doubt_boot = -1
                   WHERE (in_doubt_since IS NOT NULL OR state = 'in_flight')
                     AND (SELECT boot_id IS NOT NULL FROM main.outbox_meta WHERE id = 1)";
        execute(conn, sql, [])?;
    }
    if moved > 0 {
        log::warn!(
            "the clock was ahead before this start, which cannot be measured: {moved} waits end \
             after the longest that there is"
        );
    }
    Ok(())
}

/// Whether intents wait that were made while the clock was ahead of `now`.
fn has_ahead(conn: &Connection, now: i64) -> Result<bool> {
    Ok(query_row(conn, HAS_AHEAD, [now.saturating_add(CLOCK_SLACK_MS)], |row| row.get(0))?)
}

macro_rules! is_ahead {
    () => {
        "shift IS NULL
         AND (SELECT o.created_at > ?1 AND o.available_at = coalesce(due_at, resume_at)
              FROM main.outbox o WHERE o.id = outbox_lease.id)"
    };
}

/// Reads only rows that are not due yet, or wait behind others.
pub(crate) const HAS_AHEAD: &str = concat!(
    "WITH ",
    operations_with_due!(),
    " SELECT EXISTS (SELECT 1 FROM found f CROSS JOIN main.outbox_lease INDEXED BY outbox_lease_due
                     WHERE outbox_lease.operation = f.operation AND state = 'pending'
                       AND due_at > ?1 AND ",
    is_ahead!(),
    ") OR EXISTS (SELECT 1 FROM main.outbox_lease INDEXED BY outbox_lease_parked
                  WHERE state = 'pending' AND due_at IS NULL AND resume_at > ?1 AND ",
    is_ahead!(),
    ")"
);

/// Moves intents that were made while the clock was ahead to now, each with the delay that its
/// caller has asked for.
fn bring_back(conn: &Connection, now: i64) -> Result<()> {
    let sql = concat!(
        "UPDATE main.outbox_lease
         SET shift = ?2 - (SELECT created_at FROM main.outbox WHERE id = outbox_lease.id), ",
        "    due_at = due_at + ?2 - (SELECT created_at FROM main.outbox WHERE id = outbox_lease.id),
             resume_at =
                 resume_at + ?2 - (SELECT created_at FROM main.outbox WHERE id = outbox_lease.id) ",
        "WHERE state = 'pending' AND coalesce(due_at, resume_at) > ?1 AND ",
        is_ahead!()
    );
    let moved = execute(conn, sql, (now.saturating_add(CLOCK_SLACK_MS), now))?;
    if moved > 0 || newest_ahead(conn, now)?.is_some() {
        // Those that are queued behind others of their ordering key have no time yet.
        let sql = "UPDATE main.outbox_meta
                   SET ahead_from = ?1, ahead_id = (SELECT max(id) FROM main.outbox) WHERE id = 1";
        execute(conn, sql, [now])?;
    }
    if moved > 0 {
        log::warn!("{moved} intents were made while the clock was ahead: they count from now");
    }
    Ok(())
}

/// Lets a row that was made before the clock was known count from now. Returns whether it was one.
pub(crate) fn count_from_now(
    conn: &Connection,
    id: i64,
    created_at: i64,
    now: i64,
) -> Result<bool> {
    if created_at >= KNOWN_FROM_MS || now < KNOWN_FROM_MS {
        return Ok(false);
    }
    let sql = "UPDATE main.outbox_lease
               SET shift = ?2, due_at = CASE WHEN due_at = (SELECT available_at FROM main.outbox o
                                                            WHERE o.id = outbox_lease.id)
                                        THEN due_at + ?2 ELSE due_at END
               WHERE id = ?1 AND shift IS NULL AND due_at IS NOT NULL";
    Ok(execute(conn, sql, (id, now.saturating_sub(created_at)))? > 0)
}

/// Times before are those of a machine that does not know the time yet, as in schema.sql.
const KNOWN_FROM_MS: i64 = 1_000_000_000_000;

/// Whether the newest intent was made while the clock was ahead: its id.
pub(crate) fn newest_ahead(conn: &Connection, now: i64) -> Result<Option<i64>> {
    let sql = "SELECT id FROM (SELECT id, created_at FROM main.outbox ORDER BY id DESC LIMIT 1)
               WHERE created_at > ?1";
    let value = now.saturating_add(CLOCK_SLACK_MS);
    Ok(query_row(conn, sql, [value], |row| row.get(0)).optional()?)
}
