//! The facade for operators: where intents stand, and a person's verbs.

use std::time::Duration;

use rusqlite::Connection;

use super::Outbox;
use crate::core::actor::Actor;
use crate::core::contract::StoredContract;
use crate::core::entry::{Filter, OperationStats};
use crate::core::millis;
use crate::core::outcome::Resolution;
use crate::core::shard::Shard;
use crate::core::status::Status;
use crate::error::Result;
use crate::liveness;
use crate::store::query::{operations, read, why};
use crate::store::tables::pause;
use crate::store::verbs::{replay, resolve, withdraw};

impl Outbox {
    /// Counts by operation and status. Does not read the settled intents.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn stats(&self) -> Result<Vec<OperationStats>> {
        read::stats(&*self.inner.store.reader()?, self.now())
    }

    /// The operations that relays have registered: their contracts, and why they stand still.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn operations(&self) -> Result<Vec<StoredContract>> {
        operations::operations(&*self.inner.store.reader()?)
    }

    /// The reason why an intent is not sent now: a short word for the first rule that keeps it, and
    /// a sentence for people. The word is `next` where nothing does, and the next claim of a relay
    /// sends it. With `shard` as a relay has it, also whether that relay would pass it over.
    ///
    /// The claim asks the same questions of the same figures; whether a relay runs at all, and how
    /// busy its workers are, is not in the file.
    ///
    /// ```
    /// use sqlite_outbox::{Intent, Outbox};
    ///
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let outbox = Outbox::open(folder.path().join("app.db"))?;
    /// # let id = outbox.transact(|tx| outbox.enqueue(tx, &Intent::new("mail", "order-1")))?.id();
    /// let (rule, text) = outbox.why(id, None)?;
    /// assert_eq!(rule, "not_registered");
    /// println!("{text}");
    /// # Ok::<(), sqlite_outbox::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`, or the file cannot be read.
    pub fn why(&self, id: i64, shard: Option<Shard>) -> Result<(&'static str, String)> {
        let why = why::why(&*self.inner.store.reader()?, id, shard, self.now())?;
        Ok((why.rule.as_str(), why.text))
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
        pause::pause(&mut *self.connection("pause")?, operation, until, &actor.into(), now)
    }

    /// Ends a pause of any kind: by a person, by refused credentials, or by the circuit breaker.
    /// Returns whether there was one.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub fn resume(&self, operation: &str, actor: impl Into<Actor>) -> Result<bool> {
        let mut conn = self.connection("resume")?;
        let was_paused = pause::resume(&mut conn, operation, &actor.into(), self.now())?;
        self.wake();
        Ok(was_paused)
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
        replay::replay_one(&mut *self.connection("replay")?, id, &actor.into(), self.now())?;
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
        let mut conn = self.connection("replay_all")?;
        let report = replay::replay(&mut conn, filter, &actor, now, dry_run)?;
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
        let mut conn = self.connection("resolve")?;
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
