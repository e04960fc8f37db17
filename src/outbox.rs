//! The facade for callers: enqueue in a transaction, look at what became of it, act on it.

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::clock::{Clock, SystemClock};
use crate::core::contract::StoredContract;
use crate::core::entry::{AuditEvent, Entry, Filter, OperationStats};
use crate::core::intent::{Intent, check_operation};
use crate::core::millis;
use crate::error::{Error, Result};
use crate::store::{self, Enqueued, ReplayReport, Store};

/// The outbox in one SQLite file. Cheap to clone; clones share their connections.
///
/// # Examples
///
/// In a transaction of the application's own connection:
///
/// ```
/// use sqlite_outbox::rusqlite::{Connection, TransactionBehavior::Immediate};
/// use sqlite_outbox::{Intent, Outbox, Status};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("app.db");
/// let mut conn = Connection::open(&file)?;
/// let outbox = Outbox::open(&file)?;
///
/// let tx = conn.transaction_with_behavior(Immediate)?;
/// // … the business write, on `tx` …
/// let mail = Intent::new("mail.send", "order-42").args(serde_json::json!({"to": "ada"}));
/// let id = outbox.enqueue(&tx, &mail)?.id();
/// tx.commit()?;
///
/// assert_eq!(outbox.entry(id)?.expect("it was committed").status, Status::Pending);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Outbox {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    clock: Arc<dyn Clock>,
    wakers: Mutex<Vec<Sender<()>>>,
    /// The only operations that are enqueued here, where that was said.
    operations: Option<Vec<String>>,
}

/// Options for opening an [`Outbox`].
#[derive(Debug)]
pub struct OutboxBuilder {
    create: bool,
    clock: Arc<dyn Clock>,
    operations: Option<Vec<String>>,
}

impl OutboxBuilder {
    /// Whether a file that does not exist is created, and the tables in a file that has none.
    /// Defaults to yes.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// The clock that stamps intents and times relays. Defaults to [`SystemClock`].
    #[must_use]
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// The only operations that may be enqueued through this outbox, so that a misspelt name is
    /// refused instead of waiting for a relay that never comes. Defaults to any.
    #[must_use]
    pub fn operations(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.operations = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Opens the outbox in this file and creates or migrates its tables.
    ///
    /// # Errors
    /// The file cannot be opened, is no database, is read-only, has a newer schema, or uses one
    /// of the outbox's table names for something else; or an operation's name is no name.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Outbox> {
        self.operations.iter().flatten().try_for_each(|name| check_operation(name))?;
        let store = Store::open(path.as_ref(), self.create)?;
        let (clock, operations) = (self.clock, self.operations);
        let inner = Inner { store, clock, wakers: Mutex::default(), operations };
        Ok(Outbox { inner: Arc::new(inner) })
    }
}

thread_local! {
    /// Whether this thread is inside [`Outbox::transact`].
    static IN_TRANSACT: Cell<bool> = const { Cell::new(false) };
}

impl Outbox {
    /// Opens the outbox in the application's file; creates the file and the tables as needed.
    ///
    /// # Errors
    /// See [`OutboxBuilder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder().open(path)
    }

    /// Options for opening.
    pub fn builder() -> OutboxBuilder {
        OutboxBuilder { create: true, clock: Arc::new(SystemClock), operations: None }
    }

    /// Writes an intent in the caller's open transaction or savepoint: it exists exactly when
    /// the caller's own writes do.
    ///
    /// Asking again for the same action returns [`Enqueued::Existing`] with its status and
    /// receipt and writes nothing. Begin the transaction with `IMMEDIATE` where it reads before
    /// it writes, or SQLite may refuse the first write as busy without waiting.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) names the field. [`Conflict`](crate::ErrorKind::Conflict): the key
    /// or the version is taken by other content. [`NoTransaction`](crate::ErrorKind::NoTransaction),
    /// [`WrongFile`](crate::ErrorKind::WrongFile), [`NotDurable`](crate::ErrorKind::NotDurable): the connection
    /// could not keep the promise. The caller's transaction and savepoints stay as they are.
    pub fn enqueue(&self, conn: &Connection, intent: &Intent) -> Result<Enqueued> {
        self.check(conn)?;
        self.enqueue_checked(conn, intent, self.now())
    }

    /// Writes many intents in the caller's open transaction; all of them or, on an error, none.
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue); the text names the place in the list, from 0.
    pub fn enqueue_all<'a>(
        &self,
        conn: &Connection,
        intents: impl IntoIterator<Item = &'a Intent>,
    ) -> Result<Vec<Enqueued>> {
        self.check(conn)?;
        let now = self.now();
        Store::all_or_nothing(conn, || {
            let places = intents.into_iter().enumerate();
            let enqueue = |(place, intent)| {
                self.enqueue_checked(conn, intent, now)
                    .map_err(|error| error.context(format_args!("intent [{place}]")))
            };
            places.map(enqueue).collect()
        })
    }

    /// Runs `f` in a transaction of its own on one of the outbox's connections, commits if it
    /// returns `Ok`, and wakes the relays of this process. The transaction is `IMMEDIATE` and
    /// durable once this returns.
    ///
    /// # Errors
    /// What `f` returns, after a rollback; or that the transaction cannot begin or commit.
    pub fn transact<T, E: From<Error>>(
        &self,
        f: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut conn = self.inner.store.connection()?;
        let tx = conn
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|error| Error::from(error).context("the transaction cannot begin"))?;
        let mark = TransactMark(IN_TRANSACT.replace(true));
        let result = f(&tx);
        drop(mark);
        let value = result?;
        tx.commit().map_err(|error| Error::from(error).context("the transaction cannot commit"))?;
        self.wake();
        Ok(value)
    }

    /// Tells the relays of this process that something was committed. Without it, they notice
    /// within milliseconds by polling.
    pub fn wake(&self) {
        // A full channel means that the relay has been told already, a closed one that it ended.
        let mut wakers = self.inner.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        wakers.retain(|waker| !matches!(waker.try_send(()), Err(e) if e.is_disconnected()));
    }

    /// One intent with its receipt, by row id.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn entry(&self, id: i64) -> Result<Option<Entry>> {
        self.inner.store.entry(id)
    }

    /// One intent with its receipt, by its tenant (empty for none) and its stored key.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn entry_by_key(&self, tenant: &str, key: &str) -> Result<Option<Entry>> {
        self.inner.store.entry_by_key(tenant, key)
    }

    /// The intents that match, by rising id. Payloads and receipts are not read.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn list(&self, filter: &Filter) -> Result<Vec<Entry>> {
        self.inner.store.list(filter)
    }

    /// The audit trail of one intent, oldest first.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn audit(&self, id: i64) -> Result<Vec<AuditEvent>> {
        self.inner.store.audit(id)
    }

    /// Counts by operation and status. Does not read the settled intents.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn stats(&self) -> Result<Vec<OperationStats>> {
        self.inner.store.stats(self.now())
    }

    /// The operations that relays have registered: their contracts, and why they stand still.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn operations(&self) -> Result<Vec<StoredContract>> {
        self.inner.store.operations()
    }

    /// Why an intent is not sent now: a short word for the first rule that keeps it, and a
    /// sentence for people. The word is `next` where nothing does, and the next claim of a relay
    /// sends it. With `shard` as a relay has it, also whether that relay would pass it over.
    ///
    /// The claim asks the same questions of the same figures; whether a relay runs at all, and how
    /// busy its workers are, is not in the file.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), or the file cannot be read.
    pub fn why(&self, id: i64, shard: Option<(u32, u32)>) -> Result<(&'static str, String)> {
        let why = self.inner.store.why(id, shard, self.now())?;
        Ok((why.rule.as_str(), why.text))
    }

    /// Whether [`replay`](Self::replay) would be accepted now. Changes nothing.
    ///
    /// # Errors
    /// As [`replay`](Self::replay).
    pub fn check_replay(&self, id: i64) -> Result<()> {
        self.inner.store.check_replay(id, self.now())
    }

    /// Pauses an operation for a time, or until it is resumed. Its intents wait and use up nothing;
    /// what is on the way is finished. Holds for every relay on the file, over restarts.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) where no relay has registered the operation.
    pub fn pause(
        &self,
        operation: &str,
        length: Option<Duration>,
        actor: &str,
        reason: Option<&str>,
    ) -> Result<()> {
        let now = self.now();
        let until = length.map(|length| now.saturating_add(millis(length)));
        self.inner.store.pause(operation, until, (actor, reason), now)
    }

    /// Ends a pause of any kind: by a person, by refused credentials, or by the breaker. Returns
    /// whether there was one.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) where no relay has registered the operation.
    pub fn resume(&self, operation: &str, actor: &str, reason: Option<&str>) -> Result<bool> {
        let stood = self.inner.store.resume(operation, (actor, reason), self.now())?;
        self.wake();
        Ok(stood)
    }

    /// Gives one dead intent, or one that needs review and is safe to repeat, another round: the
    /// same row, the same key, a fresh budget. `actor` and `reason` go into its audit trail.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), or [`Refused`](crate::ErrorKind::Refused) where the status or
    /// the downstream's contract does not allow it.
    pub fn replay(&self, id: i64, actor: &str, reason: Option<&str>) -> Result<()> {
        self.inner.store.replay_one(id, actor, reason, self.now())?;
        self.wake();
        Ok(())
    }

    /// Replays everything that matches, in transactions of 500. With `dry_run` nothing changes.
    ///
    /// # Errors
    /// The file cannot be written. What was replayed before stays replayed.
    pub fn replay_all(
        &self,
        filter: &Filter,
        actor: &str,
        reason: Option<&str>,
        dry_run: bool,
    ) -> Result<ReplayReport> {
        let report = self.inner.store.replay(filter, actor, reason, self.now(), dry_run)?;
        self.wake();
        Ok(report)
    }

    /// Withdraws an intent in the caller's open transaction.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), or [`Refused`](crate::ErrorKind::Refused) where it is being
    /// sent, may have been applied, or is settled; and as [`enqueue`](Self::enqueue) for the
    /// connection.
    pub fn cancel(
        &self,
        conn: &Connection,
        id: i64,
        actor: &str,
        reason: Option<&str>,
    ) -> Result<()> {
        self.check(conn)?;
        Store::cancel(conn, id, actor, reason, self.now())
    }

    /// The file, as SQLite resolves its name.
    pub fn path(&self) -> &str {
        self.inner.store.path()
    }

    /// The id that was given to this database when its outbox was created.
    pub fn database_id(&self) -> &str {
        self.inner.store.database_id()
    }

    /// The version of the file's outbox tables, which is the one this build reads and writes.
    pub fn schema_version(&self) -> i64 {
        store::SCHEMA_VERSION
    }

    pub(crate) fn store(&self) -> &Store {
        &self.inner.store
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    /// A channel that gets a signal whenever this outbox is woken.
    pub(crate) fn waker(&self) -> Receiver<()> {
        let (sender, receiver) = bounded(1);
        self.inner.wakers.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        receiver
    }

    /// Whether the calling thread is inside [`transact`](Self::transact).
    pub(crate) fn is_in_transact() -> bool {
        IN_TRANSACT.get()
    }

    fn now(&self) -> i64 {
        self.inner.clock.now()
    }

    fn check(&self, conn: &Connection) -> Result<()> {
        static WARNED: AtomicBool = AtomicBool::new(false);
        store::check_transaction(conn, self.inner.store.path())?;
        if store::check_durability(conn)? && !WARNED.swap(true, Ordering::Relaxed) {
            log::warn!(
                "a connection that enqueues runs below synchronous=FULL: a power cut can undo its \
                 last commits, and with them both the business write and the intent"
            );
        }
        Ok(())
    }

    fn enqueue_checked(&self, conn: &Connection, intent: &Intent, now: i64) -> Result<Enqueued> {
        let prepared = intent.prepare(now, self.inner.store.payload_max())?;
        if let Some(known) = &self.inner.operations
            && !known.iter().any(|name| name == prepared.operation())
        {
            let (name, known) = (prepared.operation(), known.join(", "));
            let why = format!("{name:?} is none of those this outbox was opened for: {known}");
            return Err(Error::invalid("operation", why));
        }
        Store::enqueue(conn, &prepared)
    }
}

/// Puts the thread's mark back, also when the closure panics.
struct TransactMark(bool);

impl Drop for TransactMark {
    fn drop(&mut self) {
        IN_TRANSACT.set(self.0);
    }
}
