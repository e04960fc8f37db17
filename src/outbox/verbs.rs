//! Verbs: an application's on an intent of its own, in its own transaction; and an operator's on
//! operations and intents.

use std::time::Duration;

use rusqlite::Connection;

use super::Outbox;
use crate::core::hold::Part;
use crate::core::limit::Limit;
use crate::core::{Actor, Filter, Intent, Receipt, Resolution, Status, millis};
use crate::error::Result;
use crate::event::Event;
use crate::liveness;
use crate::store::Enqueued;
use crate::store::tables::pause;
use crate::store::verbs::replay::{self, Again};
use crate::store::verbs::revise::{self, Revised};
use crate::store::verbs::{limit, part, resolve, withdraw};

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
    /// in an import. `key` is the key as it is stored or as it was sent; where the record has only
    /// the provider's id, [`entry_by_downstream_id`](Self::entry_by_downstream_id) finds the
    /// intent. An attempt on the way cannot overwrite it.
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

    /// Pauses an operation for a time, or until [`resume`](Self::resume). Its intents wait and use
    /// up nothing; what is on the way is finished. Holds for every relay on the file, over
    /// restarts.
    ///
    /// # Errors
    /// `NotFound` where no relay has registered the operation.
    pub fn pause(
        &self,
        operation: &str,
        length: Option<Duration>,
        actor: impl Into<Actor>,
    ) -> Result<()> {
        let now = self.now();
        let until = length.map(|length| now.saturating_add(millis(length)));
        pause::pause(&mut *self.clocked("pause")?, operation, until, &actor.into(), now)
    }

    /// Ends a pause of any kind: by a person, by refused credentials, or by the circuit breaker.
    /// Returns whether there was one.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub fn resume(&self, operation: &str, actor: impl Into<Actor>) -> Result<bool> {
        let mut conn = self.clocked("resume")?;
        let was_paused = pause::resume(&mut conn, operation, &actor.into(), self.now())?;
        self.wake();
        Ok(was_paused)
    }

    /// Pauses the intents of one tenant or agent run, of one operation or of all that are
    /// registered, for a time or until [`resume_part`](Self::resume_part). Those of others go on.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub fn pause_part(
        &self,
        part: &Part,
        operation: Option<&str>,
        length: Option<Duration>,
        actor: impl Into<Actor>,
    ) -> Result<()> {
        let (actor, now) = (actor.into(), self.now());
        let until = length.map(|length| now.saturating_add(millis(length)));
        let mut conn = self.connection("pause_part")?;
        part::pause(&mut conn, part, operation, until, &actor, now)
    }

    /// Ends the pause of a tenant's or a run's intents: they are let through one, then two, then
    /// four at a time. Returns whether there was one.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub fn resume_part(
        &self,
        part: &Part,
        operation: Option<&str>,
        actor: impl Into<Actor>,
    ) -> Result<bool> {
        let mut conn = self.connection("resume_part")?;
        let was_paused = part::resume(&mut conn, part, operation, &actor.into(), self.now())?;
        self.wake();
        Ok(was_paused)
    }

    /// Cancels everything that matches and is pending or in flight, or in the status that the
    /// filter names, as [`request_cancel`](Self::request_cancel) does, in transactions of 500.
    /// Returns each intent that matched, and its status then or why it may not be.
    ///
    /// # Errors
    /// The file cannot be written. Intents that were cancelled before stay so.
    pub fn cancel_all(
        &self,
        filter: &Filter,
        actor: impl Into<Actor>,
    ) -> Result<Vec<(i64, Result<Status>)>> {
        let mut conn = self.connection("cancel_all")?;
        withdraw::cancel_all(&mut conn, filter, &actor.into(), self.now())
    }

    /// Whether the file takes only intents of operations that a relay has registered; an enqueue of
    /// another one is refused then, also a plain INSERT. Off by default.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn only_registered(&self, is_on: bool, actor: impl Into<Actor>) -> Result<()> {
        let mut conn = self.connection("only_registered")?;
        limit::only_registered(&mut conn, is_on, &actor.into(), self.now())
    }

    /// Sets limits of an operation in place of those that are stored, for every relay on the file:
    /// also higher ones, which a relay's configuration cannot. An event of the operation names the
    /// actor. Where a relay is configured with a smaller number, that holds from its next start on.
    ///
    /// # Errors
    /// `NotFound` where no relay has registered the operation; `Invalid` names a limit that lets
    /// nothing through.
    pub fn limit(&self, operation: &str, limits: &[Limit], actor: impl Into<Actor>) -> Result<()> {
        let mut conn = self.connection("limit")?;
        limit::limit(&mut conn, operation, limits, &actor.into(), self.now())?;
        self.wake();
        Ok(())
    }

    /// Gives one dead intent, or one that needs review and is safe to repeat, another round: the
    /// same row, the same key, a fresh budget. `actor` goes into its audit trail, with its reason.
    ///
    /// ```
    /// use sqlite_outbox::{Intent, Outbox, Status};
    /// # use sqlite_outbox::{Delivery, Downstream, Failure, Operation, Outcome, Relay};
    ///
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let outbox = Outbox::open(folder.path().join("app.db"))?;
    /// # let id = outbox.transact(|tx| outbox.enqueue(tx, &Intent::new("mail", "order-1")))?.id();
    /// # let send = |_: &Delivery| Outcome::Rejected(Failure::new("permanent", "no"));
    /// # let operation = Operation::new(Downstream::Unprotected, send);
    /// # Relay::builder(&outbox).operation("mail", operation).build()?.drain()?;
    /// assert_eq!(outbox.entry(id)?.expect("it was enqueued").status, Status::Dead);
    /// outbox.replay(id, "ada")?;
    /// assert_eq!(outbox.entry(id)?.expect("it was enqueued").status, Status::Pending);
    /// # Ok::<(), sqlite_outbox::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`, or `Refused` where the status or the downstream's contract does not allow it.
    pub fn replay(&self, id: i64, actor: impl Into<Actor>) -> Result<()> {
        let now = self.now();
        replay::one(&mut *self.clocked("replay")?, Again::Replay, id, &actor.into(), now)?;
        self.wake();
        Ok(())
    }

    /// Replays everything that matches, in transactions of 500. Returns each intent that matched,
    /// and whether it is pending again or why it may not be. With `dry_run` nothing changes.
    ///
    /// # Errors
    /// The file cannot be written. Intents that were replayed before stay so.
    pub fn replay_all(
        &self,
        filter: &Filter,
        actor: impl Into<Actor>,
        dry_run: bool,
    ) -> Result<Vec<(i64, Result<()>)>> {
        let (actor, now) = (actor.into(), self.now());
        let mut conn = self.clocked("replay_all")?;
        let report = replay::all(&mut conn, Again::Replay, filter, &actor, now, dry_run)?;
        self.wake();
        Ok(report)
    }

    /// Makes one pending intent due now, whatever time it waits for: a retry, a delay, or a hold,
    /// which it tries. What stops its operation stops it still.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sqlite_outbox::{Intent, Outbox};
    ///
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let outbox = Outbox::open(folder.path().join("app.db"))?;
    /// let mail = Intent::new("mail", "order-1").delay(Duration::from_secs(3600));
    /// let id = outbox.transact(|tx| outbox.enqueue(tx, &mail))?.id();
    /// outbox.retry(id, "ada")?;
    /// # Ok::<(), sqlite_outbox::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`, or `Refused` where it is not pending or is queued behind another.
    pub fn retry(&self, id: i64, actor: impl Into<Actor>) -> Result<()> {
        let now = self.now();
        replay::one(&mut *self.clocked("retry")?, Again::Retry, id, &actor.into(), now)?;
        self.wake();
        Ok(())
    }

    /// Makes everything pending that matches due now, as [`replay_all`](Self::replay_all) replays.
    ///
    /// # Errors
    /// The file cannot be written. Intents that were made due before stay so.
    pub fn retry_all(
        &self,
        filter: &Filter,
        actor: impl Into<Actor>,
        dry_run: bool,
    ) -> Result<Vec<(i64, Result<()>)>> {
        let (actor, now) = (actor.into(), self.now());
        let mut conn = self.clocked("retry_all")?;
        let report = replay::all(&mut conn, Again::Retry, filter, &actor, now, dry_run)?;
        self.wake();
        Ok(report)
    }

    /// Records what a person found out about an intent that is unknown or needs review: it was
    /// applied, it was not and is sent again, or it is given up. A dead intent can be resolved as
    /// applied, and one that was given up in doubt also as not applied. Returns its status then.
    ///
    /// ```
    /// use sqlite_outbox::{Intent, Outbox, Resolution, Status};
    /// # use sqlite_outbox::{Delivery, Downstream, Failure, Operation, Outcome, Relay};
    ///
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let outbox = Outbox::open(folder.path().join("app.db"))?;
    /// # let id = outbox.transact(|tx| outbox.enqueue(tx, &Intent::new("mail", "order-1")))?.id();
    /// # let send = |_: &Delivery| Outcome::MaybeSent(Failure::new("timeout", "no"));
    /// # let operation = Operation::new(Downstream::Unprotected, send);
    /// # Relay::builder(&outbox).operation("mail", operation).build()?.drain()?;
    /// assert_eq!(outbox.entry(id)?.expect("it was enqueued").status, Status::NeedsReview);
    /// let applied = Resolution::Applied { downstream_id: Some("msg_1".into()) };
    /// assert_eq!(outbox.resolve(id, &applied, "ada")?, Status::Succeeded);
    /// # Ok::<(), sqlite_outbox::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`. `Refused` where the status does not allow it, or where `resolution` is "not
    /// applied" and a relay that lost its lease may still be sending the intent. `Conflict` where
    /// the id belongs to another intent.
    pub fn resolve(
        &self,
        id: i64,
        resolution: &Resolution,
        actor: impl Into<Actor>,
    ) -> Result<Status> {
        let is_alive = |owner: &str| liveness::is_alive(self.path(), owner);
        let (actor, now) = (actor.into(), self.now());
        let mut conn = self.clocked("resolve")?;
        let status = resolve::resolve(&mut conn, id, resolution, &actor, &is_alive, now)?;
        self.wake();
        Ok(status)
    }

    /// Lets later intents of an ordering key go on without this one, which is dead, unknown or
    /// needs review, in the caller's open transaction. The intent stays as it is and can be dealt
    /// with later; if it is sent again then, it waits until what is on the way has come back.
    ///
    /// # Errors
    /// `NotFound`, or `Refused` where the intent blocks nothing; and as [`enqueue`](Self::enqueue)
    /// for the connection.
    pub fn skip(&self, conn: &Connection, id: i64, actor: impl Into<Actor>) -> Result<()> {
        self.check(conn)?;
        withdraw::skip(conn, id, &actor.into(), self.now())
    }
}
