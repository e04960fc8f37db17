//! The inbox: a message that is delivered again is not handled again.

use std::time::Duration;

use rusqlite::Connection;

use crate::core::key::check_text;
use crate::core::millis;
use crate::error::{Error, Result};
use crate::outbox::Outbox;
use crate::store::verbs::inbox;

/// The consumer's ledger in the outbox's file: which messages were handled, with the first result
/// of each. Cheap to clone.
///
/// Queues, webhooks and agents deliver a message at least once: again, when they are not sure that
/// it arrived. The consumer's own writes, and the row that says so, are committed together or not
/// at all.
///
/// # Examples
///
/// ```
/// use sqlite_outbox::{Inbox, Intent, Outbox, Result};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("app.db");
/// let outbox = Outbox::open(&file)?;
/// let inbox = Inbox::new(&outbox);
///
/// let handle = || -> Result<String> {
///     outbox.transact(|tx| {
///         inbox.once(tx, "stripe", "evt_1", |tx| {
///             // … the consumer's own writes, on `tx` …
///             Ok(outbox.enqueue(tx, &Intent::new("mail.send", "order-42"))?.key().to_owned())
///         })
///     })
/// };
/// assert_eq!(inbox.seen("stripe", "evt_1")?, None);
/// let first = handle()?;
/// assert_eq!(handle()?, first, "delivered again, the message is not handled again");
/// assert_eq!(inbox.seen("stripe", "evt_1")?, Some(first));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Inbox {
    outbox: Outbox,
}

impl Inbox {
    /// For how long to remember a message where nothing better is known, for
    /// [`prune`](Self::prune): 14 days.
    pub const RETENTION: Duration = Duration::from_secs(14 * 24 * 3600);

    /// The inbox in the file of this outbox, on its clock.
    pub fn new(outbox: &Outbox) -> Self {
        Self { outbox: outbox.clone() }
    }

    /// Handles a message once: runs `f` in the caller's open transaction and stores the text that
    /// it returns. Where this message of this source was handled before, `f` is not run, and that
    /// first result is returned.
    ///
    /// Of two consumers that race for a message the second waits for the first one's commit. Begin
    /// the transaction with `IMMEDIATE` where it reads before, or SQLite may refuse the second as
    /// busy without waiting. `f` leaves `COMMIT` and `ROLLBACK` to the caller. The source has 1 to
    /// 255 characters, the message's id 1 to 1024; it need only be unique within its source.
    ///
    /// # Errors
    /// The error of `f`: its own writes are undone, the message counts as not handled, and the
    /// caller's earlier writes stay; so too where `f` panics. `Invalid` names the field. `Refused`:
    /// `f` asked for the message that it is handling. As [`Outbox::enqueue`] for the connection,
    /// also where `f` ended the transaction.
    pub fn once<E: From<Error>>(
        &self,
        conn: &Connection,
        source: &str,
        message_id: &str,
        f: impl FnOnce(&Connection) -> Result<String, E>,
    ) -> Result<String, E> {
        self.outbox.check(conn)?;
        check(source, message_id)?;
        inbox::once(conn, source, message_id, self.outbox.clock().now(), f)
    }

    /// The first result of a message whose handling is committed.
    ///
    /// # Errors
    /// `Invalid` names the field; or the file cannot be read.
    pub fn seen(&self, source: &str, message_id: &str) -> Result<Option<String>> {
        check(source, message_id)?;
        inbox::seen(&*self.outbox.store().reader()?, source, message_id)
    }

    /// Forgets the messages that were handled longer ago than `older_than`, in transactions of 500,
    /// and returns how many. A message that is delivered after it was forgotten is handled once
    /// more, so remember it for longer than its source delivers again.
    ///
    /// Call it outside of a transaction of your own, whose lock it would wait for.
    ///
    /// # Errors
    /// The file cannot be written. Messages that were forgotten before stay so.
    pub fn prune(&self, older_than: Duration) -> Result<u64> {
        let before = self.outbox.clock().now().saturating_sub(millis(older_than));
        inbox::prune(&*self.outbox.connection("prune")?, before)
    }
}

fn check(source: &str, message_id: &str) -> Result<()> {
    check_text("source", source, 1, 255)?;
    check_text("message_id", message_id, 1, 1024)
}
