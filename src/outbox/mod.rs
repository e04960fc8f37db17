//! The facade for callers: enqueue in a transaction, look at what became of it, act on it.

mod builder;
mod verbs;
mod wait;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::{Receiver, Sender, bounded};
use rusqlite::{Connection, Transaction, TransactionBehavior};

pub use self::builder::OutboxBuilder;
pub(crate) use self::wait::{POLL_MAX, POLL_MIN, SAFETY_POLL};
use crate::clock::Clock;
use crate::core::{Entry, Filter, Intent, OperationStats, Prepared, Shard, StoredContract};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::store::query::{operations, read, why};
use crate::store::tables::audit;
use crate::store::verbs::enqueue;
use crate::store::{self, Enqueued, PooledConnection, Store, savepoint};

/// The outbox in one SQLite file. Cheap to clone; clones share their connections.
///
/// An application begins with [`open`](Self::open) and [`enqueue`](Self::enqueue) or
/// [`transact`](Self::transact). Under *Errors*, methods name the [`ErrorKind`](crate::ErrorKind).
#[derive(Debug, Clone)]
pub struct Outbox {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    clock: Arc<dyn Clock>,
    wakers: Mutex<Vec<Sender<()>>>,
    /// The only operations that are enqueued here, where `OutboxBuilder::operations` names some.
    operations: Option<Vec<String>>,
}

thread_local! {
    /// The files on which this thread is inside [`Outbox::transact`], innermost last.
    static IN_TRANSACT: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
}

impl Outbox {
    /// The version of the outbox tables that this build reads and writes.
    pub const SCHEMA_VERSION: i64 = store::SCHEMA_VERSION;

    /// Opens the outbox in the application's file; creates the file and the tables as needed.
    ///
    /// ```
    /// use sqlite_outbox::Outbox;
    ///
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let file = folder.path().join("app.db");
    /// let outbox = Outbox::open(&file)?;
    /// assert!(outbox.stats()?.is_empty());
    /// // Or with options:
    /// let outbox = Outbox::builder().operations(["mail.send", "stripe.charge"]).open(&file)?;
    /// # drop(outbox);
    /// # Ok::<(), sqlite_outbox::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`OutboxBuilder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder().open(path)
    }

    /// Writes an intent in the caller's open transaction or savepoint: it exists exactly when
    /// the caller's own writes do.
    ///
    /// Asking again for the same action returns [`Enqueued::Existing`] with its status and
    /// receipt and writes nothing. Begin the transaction with `IMMEDIATE` where it reads before
    /// it writes, or SQLite may refuse the first write as busy without waiting.
    ///
    /// ```
    /// use sqlite_outbox::rusqlite::{Connection, TransactionBehavior::Immediate};
    /// use sqlite_outbox::{Intent, Outbox};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let file = folder.path().join("app.db");
    /// let outbox = Outbox::open(&file)?;
    /// let mut conn = Connection::open(&file)?;
    /// let tx = conn.transaction_with_behavior(Immediate)?;
    /// // … the business write, on `tx` …
    /// let mail = Intent::new("mail.send", "order-42").args(serde_json::json!({"to": "ada"}));
    /// let first = outbox.enqueue(&tx, &mail)?;
    /// let again = outbox.enqueue(&tx, &mail)?;
    /// tx.commit()?;
    /// assert!(first.is_new() && !again.is_new());
    /// assert_eq!(first.id(), again.id(), "the same action is one intent");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Invalid` names the field. `Conflict`: the key or the version is taken by other content.
    /// `NoTransaction`, `WrongFile`, `NotDurable`: the connection could not keep the promise. The
    /// caller's transaction and savepoints stay as they are.
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
        savepoint::all_or_nothing(conn, || {
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
    /// ```
    /// use sqlite_outbox::{Error, Intent, Outbox};
    ///
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let outbox = Outbox::open(folder.path().join("app.db"))?;
    /// let id = outbox.transact(|tx| {
    ///     tx.execute_batch("CREATE TABLE orders (id TEXT); INSERT INTO orders VALUES ('1')")?;
    ///     Ok::<_, Error>(outbox.enqueue(tx, &Intent::new("mail.send", "order-1"))?.id())
    /// })?;
    /// # assert_eq!(id, 1);
    /// # Ok::<(), sqlite_outbox::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of `f`, after a rollback; or the transaction cannot begin or commit. `Busy` at
    /// once where this thread is inside `transact` on this file already: use the transaction that
    /// `f` was given.
    pub fn transact<T, E: From<Error>>(
        &self,
        f: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut conn = self.connection("transact")?;
        let tx = conn
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|error| Error::from(error).context("the transaction cannot begin"))?;
        IN_TRANSACT.with_borrow_mut(|files| files.push(self.path().to_owned()));
        let value = {
            let _mark = TransactMark;
            f(&tx)?
        };
        tx.commit().map_err(|error| Error::from(error).context("the transaction cannot commit"))?;
        self.wake();
        Ok(value)
    }

    /// Tells the relays of this process that something was committed. Without this call, they
    /// notice within milliseconds by polling.
    pub fn wake(&self) {
        // A full channel means that the relay has been told already, a closed one that it ended.
        let mut wakers = self.inner.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        wakers.retain(|waker| !matches!(waker.try_send(()), Err(e) if e.is_disconnected()));
    }

    /// The file, as SQLite resolves its name.
    pub fn path(&self) -> &Path {
        &self.inner.store.path
    }

    /// The id that was given to this database when its outbox was created.
    pub fn database_id(&self) -> &str {
        &self.inner.store.database_id
    }

    /// A connection for a transaction of the outbox's own, which this thread could only wait for in
    /// vain while it is inside [`transact`](Self::transact) on this file.
    pub(crate) fn connection(&self, verb: &str) -> Result<PooledConnection> {
        if IN_TRANSACT.with_borrow(|files| files.iter().any(|file| file == self.path())) {
            let text = format!(
                "{verb} was called inside transact: this thread holds the write lock already; use \
                 the transaction that the outer call was given, or call {verb} after it"
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        self.inner.store.connection()
    }

    /// A connection for a verb that writes times, after a wall clock that was set is seen to.
    fn clocked(&self, verb: &str) -> Result<PooledConnection> {
        let mut conn = self.connection(verb)?;
        store::mind_clock(&mut conn, self.now(), self.clock().boot().as_ref(), None, false)?;
        Ok(conn)
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

    /// Refuses `verb`, which needs a relay's work, while the calling thread is inside
    /// [`transact`](Self::transact).
    pub(crate) fn refuse_in_transact(verb: &str) -> Result<()> {
        if IN_TRANSACT.with_borrow(Vec::is_empty) {
            return Ok(());
        }
        let text = format!(
            "{verb} was called inside Outbox::transact: this thread holds the write lock that the \
             relay needs; {verb} after the transaction"
        );
        Err(Error::new(ErrorKind::Busy, text))
    }

    fn now(&self) -> i64 {
        self.inner.clock.now()
    }

    /// Refuses a connection on which what is written would not be atomic with the caller's writes,
    /// or not durable.
    pub(crate) fn check(&self, conn: &Connection) -> Result<()> {
        static WARNED: AtomicBool = AtomicBool::new(false);
        store::check_transaction(conn, &self.inner.store.path)?;
        if store::check_durability(conn)? && !WARNED.swap(true, Ordering::Relaxed) {
            log::warn!(
                "a connection that writes here runs below synchronous=FULL: a power cut can undo \
                 its last commits, the business writes and what was written with them"
            );
        }
        Ok(())
    }

    fn enqueue_checked(&self, conn: &Connection, intent: &Intent, now: i64) -> Result<Enqueued> {
        enqueue::enqueue(conn, &self.prepare(intent, now)?)
    }

    fn prepare<'i>(&self, intent: &'i Intent, now: i64) -> Result<Prepared<'i>> {
        let prepared = intent.prepare(now, self.inner.store.payload_max)?;
        if let Some(known) = &self.inner.operations
            && !known.contains(&intent.operation)
        {
            let (name, known) = (&intent.operation, known.join(", "));
            let why = format!("{name:?} is not one of those this outbox was opened for: {known}");
            return Err(Error::invalid("operation", why));
        }
        Ok(prepared)
    }
}

/// # Reading
///
/// Each of these methods fails where the file cannot be read.
#[expect(clippy::missing_errors_doc, reason = "said once, above the methods")]
impl Outbox {
    /// An intent with its receipt, by row id.
    ///
    /// ```
    /// use sqlite_outbox::{Intent, Outbox, Status};
    ///
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let outbox = Outbox::open(folder.path().join("app.db"))?;
    /// # let id = outbox.transact(|tx| outbox.enqueue(tx, &Intent::new("mail", "order-1")))?.id();
    /// let entry = outbox.entry(id)?.expect("it was enqueued");
    /// assert_eq!((entry.status, entry.attempts), (Status::Pending, 0));
    /// assert_eq!(outbox.entry(999)?, None);
    /// # Ok::<(), sqlite_outbox::Error>(())
    /// ```
    pub fn entry(&self, id: i64) -> Result<Option<Entry>> {
        read::entry(&*self.inner.store.reader()?, id)
    }

    /// An intent with its receipt, by its tenant (empty for none) and its key, as it is stored or
    /// as it was sent.
    pub fn entry_by_key(&self, tenant: &str, key: &str) -> Result<Option<Entry>> {
        read::entry_by_key(&*self.inner.store.reader()?, tenant, key)
    }

    /// An intent with its receipt, by the provider's id of its effect: an id that is bound to it,
    /// or in its receipt. `provider` is that of the stored contract, or the operation where the
    /// contract names none; `None` means any.
    ///
    /// # Errors
    /// `Conflict` where the id is that of several intents.
    pub fn entry_by_downstream_id(
        &self,
        provider: Option<&str>,
        downstream_id: &str,
    ) -> Result<Option<Entry>> {
        read::entry_by_downstream_id(&*self.inner.store.reader()?, provider, downstream_id)
    }

    /// The intents that match, by rising id. Payloads and receipts are not read.
    pub fn list(&self, filter: &Filter) -> Result<Vec<Entry>> {
        read::list(&*self.inner.store.reader()?, filter)
    }

    /// The audit trail of one intent, oldest first.
    pub fn audit(&self, id: i64) -> Result<Vec<Event>> {
        audit::audit(&*self.inner.store.reader()?, id)
    }

    /// Events of all intents in the order of commits: at most `limit`, behind the position `after`,
    /// and not before `since` in UTC milliseconds. Asking again behind the last one follows the
    /// stream.
    ///
    /// ```
    /// use sqlite_outbox::Outbox;
    ///
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let outbox = Outbox::open(folder.path().join("app.db"))?;
    /// let mut after = 0;
    /// loop {
    ///     let page = outbox.events(after, 0, 100)?;
    ///     let Some(last) = page.last() else { break };
    ///     after = last.position;
    ///     for event in &page {
    ///         println!("intent {}: {} -> {}", event.outbox_id, event.from_status, event.status);
    ///     }
    /// }
    /// # Ok::<(), sqlite_outbox::Error>(())
    /// ```
    pub fn events(&self, after: i64, since: i64, limit: usize) -> Result<Vec<Event>> {
        audit::stream(&*self.inner.store.reader()?, after, since, limit)
    }

    /// Counts by operation and status. Does not read the settled intents.
    pub fn stats(&self) -> Result<Vec<OperationStats>> {
        read::stats(&*self.inner.store.reader()?, self.now())
    }

    /// The operations that relays have registered: their contracts, and why they stand still.
    pub fn operations(&self) -> Result<Vec<StoredContract>> {
        operations::operations(&*self.inner.store.reader()?, self.now())
    }

    /// Whether the file takes only intents of operations that a relay has registered, as
    /// [`only_registered`](Self::only_registered) switches it.
    pub fn takes_only_registered(&self) -> Result<bool> {
        operations::takes_only_registered(&*self.inner.store.reader()?)
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
    /// `NotFound`.
    pub fn why(&self, id: i64, shard: Option<Shard>) -> Result<(&'static str, String)> {
        let why = why::why(&*self.inner.store.reader()?, id, shard, self.now())?;
        Ok((why.rule.as_str(), why.text))
    }
}

/// Takes the thread's innermost file off again, also when the closure panics.
struct TransactMark;

impl Drop for TransactMark {
    fn drop(&mut self) {
        IN_TRANSACT.with_borrow_mut(Vec::pop);
    }
}
