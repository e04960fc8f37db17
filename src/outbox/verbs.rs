//! An application's verbs on an intent of its own, in its own transaction.

use rusqlite::Connection;

use super::Outbox;
use crate::core::actor::Actor;
use crate::core::intent::Intent;
use crate::core::outcome::Receipt;
use crate::core::status::Status;
use crate::error::Result;
use crate::event::Event;
use crate::store::Enqueued;
use crate::store::verbs::revise::{self, Revised};
use crate::store::verbs::{resolve, withdraw};

impl Outbox {
    /// Withdraws an intent in the caller's open transaction, if it definitely was not applied.
    ///
    /// ```
    /// use sqlite_outbox::{Actor, Intent, Outbox, Status};
    ///
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let outbox = Outbox::open(folder.path().join("app.db"))?;
    /// # let id = outbox.transact(|tx| outbox.enqueue(tx, &Intent::new("mail", "order-1")))?.id();
    /// let actor = Actor::new("support desk").reason("ordered twice");
    /// outbox.transact(|tx| outbox.cancel(tx, id, actor))?;
    /// assert_eq!(outbox.entry(id)?.expect("it was enqueued").status, Status::Cancelled);
    /// # Ok::<(), sqlite_outbox::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`. `TooLate` where the intent is being sent, may have been applied, or is settled.
    /// `Refused` where a person must resolve it first. For the connection as
    /// [`enqueue`](Self::enqueue).
    pub fn cancel(&self, conn: &Connection, id: i64, actor: impl Into<Actor>) -> Result<()> {
        self.check(conn)?;
        withdraw::cancel(conn, id, &actor.into(), self.now())
    }

    /// Withdraws an intent as [`cancel`](Self::cancel) does; or, where it is too late for that,
    /// sees to it that it is not tried again. An attempt on the way is not stopped: if it succeeds,
    /// the intent is succeeded; if it definitely was not applied, cancelled; if that is not known,
    /// unknown. Returns the intent's status now: `Cancelled` if it was withdrawn.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel), but for an intent that is being sent or in doubt.
    pub fn request_cancel(
        &self,
        conn: &Connection,
        id: i64,
        actor: impl Into<Actor>,
    ) -> Result<Status> {
        self.check(conn)?;
        withdraw::request_cancel(conn, id, &actor.into(), self.now())
    }

    /// Replaces an intent by its next version in the caller's open transaction, if it definitely
    /// was not applied and is still at `expected_version`. The new version has its own key and the
    /// old one's place in the order; the old one is cancelled. The version of `intent` is set to
    /// `expected_version + 1`, and an ordering key that it leaves out is taken over.
    ///
    /// The same revision again returns [`Enqueued::Existing`].
    ///
    /// ```
    /// use sqlite_outbox::{Intent, Outbox};
    ///
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let outbox = Outbox::open(folder.path().join("app.db"))?;
    /// # let id = outbox.transact(|tx| outbox.enqueue(tx, &Intent::new("mail", "order-1")))?.id();
    /// let other = Intent::new("mail", "order-1").args(serde_json::json!({"to": "grace"}));
    /// let next = outbox.transact(|tx| outbox.revise(tx, id, 1, &other, "support desk"))?;
    /// let next = outbox.entry(next.id())?.expect("it was enqueued");
    /// assert_eq!((next.intent_version, next.revises), (2, Some(id)));
    /// # Ok::<(), sqlite_outbox::Error>(())
    /// ```
    ///
    /// # Errors
    /// `TooLate` where the intent is being sent, may have been applied, is settled, or was revised
    /// otherwise: nothing is changed then. `Refused` where it is another version, or a person must
    /// resolve it first. `Invalid` where tenant, operation, entity or ordering key differ.
    /// Otherwise as [`enqueue`](Self::enqueue).
    pub fn revise(
        &self,
        conn: &Connection,
        id: i64,
        expected_version: i64,
        intent: &Intent,
        actor: impl Into<Actor>,
    ) -> Result<Enqueued> {
        self.check(conn)?;
        let now = self.now();
        let revised = Revised::find(conn, id, expected_version, now)?;
        let next = revised.next(intent);
        let prepared = self.prepare(&next, now)?;
        revise::revise(conn, &revised, &prepared, &actor.into(), now)
    }

    /// Settles an intent as succeeded in the caller's open transaction, in whatever unsettled
    /// status it is, because the provider's own record says that it was applied: in a webhook, or
    /// in an import. `key` is the stored key. An attempt on the way cannot overwrite it.
    ///
    /// Returns the event that was recorded, or `None` where all of it was known. A second id of an
    /// intent is a [`DuplicateEffect`](crate::EventKind::DuplicateEffect): it was carried out
    /// twice. Where the operation [binds ids](crate::Operation::binds_ids), an id that belongs to
    /// another intent leaves this one for review.
    ///
    /// ```
    /// use sqlite_outbox::{Intent, Outbox, Receipt, Status};
    ///
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let outbox = Outbox::open(folder.path().join("app.db"))?;
    /// # let id = outbox.transact(|tx| outbox.enqueue(tx, &Intent::new("mail", "order-1")))?.id();
    /// # let key = outbox.entry(id)?.expect("it was enqueued").idempotency_key;
    /// let receipt = Receipt::new().downstream_id("msg_1");
    /// outbox.transact(|tx| outbox.confirm(tx, ("", &key), &receipt, "webhook"))?;
    /// assert_eq!(outbox.entry(id)?.expect("it was enqueued").status, Status::Succeeded);
    /// # Ok::<(), sqlite_outbox::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` where no intent has this key. `Invalid` where the id is empty or longer than 1024
    /// bytes. For the connection as [`enqueue`](Self::enqueue).
    pub fn confirm(
        &self,
        conn: &Connection,
        (tenant, key): (&str, &str),
        receipt: &Receipt,
        actor: impl Into<Actor>,
    ) -> Result<Option<Event>> {
        self.check(conn)?;
        resolve::confirm(conn, (tenant, key), receipt, &actor.into(), self.now())
    }

    /// Gives an intent the id of its effect up front, in the caller's open transaction: where the
    /// client chooses the id. A lookup can ask for it, and no other intent can have it.
    ///
    /// # Errors
    /// `Conflict` where another intent has the id, or this one has another; `TooLate` where it is
    /// settled; otherwise as [`confirm`](Self::confirm).
    pub fn bind(
        &self,
        conn: &Connection,
        id: i64,
        downstream_id: &str,
        actor: impl Into<Actor>,
    ) -> Result<()> {
        self.check(conn)?;
        resolve::bind(conn, id, downstream_id, &actor.into(), self.now())
    }
}
