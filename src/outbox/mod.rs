//! The facade for callers: enqueue in a transaction, look at what became of it, act on it.

mod operator;
mod wait;

use std::cell::RefCell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::{Receiver, Sender, bounded};
use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::clock::{Clock, SystemClock};
use crate::core::actor::Actor;
use crate::core::entry::{Entry, Filter};
use crate::core::header::check_name;
use crate::core::intent::{Intent, Prepared, check_operation};
use crate::core::outcome::Receipt;
use crate::core::status::Status;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::store::query::read;
use crate::store::tables::audit;
use crate::store::verbs::revise::{self, Revised};
use crate::store::verbs::{enqueue, resolve, withdraw};
use crate::store::{self, Enqueued, Store, savepoint};

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
    migrate: bool,
    clock: Arc<dyn Clock>,
    operations: Option<Vec<String>>,
    audit_headers: Option<(String, String)>,
}

impl OutboxBuilder {
    /// Whether a file that does not exist is created, and the tables in a file that has none.
    /// Defaults to yes.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Whether the tables of an earlier build are migrated to this one's. Relays of the earlier build
    /// stop then, and opening waits up to 75 s for what they have in flight. Defaults to yes; where
    /// it is no, an older file is refused, so that merely looking at a file never changes it.
    #[must_use]
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
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

    /// Which headers of an intent say which run of an agent, and which version of a tool, asked for
    /// it. Their values are the only ones that go into the audit trail. Stored in the file, for
    /// everybody who writes to it. Defaults to what is stored, else to `x-agent-run` and
    /// `x-tool-version`.
    #[must_use]
    pub fn audit_headers(mut self, agent_run: &str, tool_version: &str) -> Self {
        self.audit_headers = Some((agent_run.to_owned(), tool_version.to_owned()));
        self
    }

    /// Opens the outbox in this file, and creates its tables or migrates those of an earlier build.
    ///
    /// # Errors
    /// The file cannot be opened, is not a database, is read-only, has a newer schema, or uses one
    /// of the outbox's table names for something else; [`Busy`](crate::ErrorKind::Busy) where it must
    /// be migrated and a living relay of the earlier build still has intents in flight; or the name of
    /// an operation or a header is not valid.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Outbox> {
        self.operations.iter().flatten().try_for_each(|name| check_operation(name))?;
        if let Some((agent_run, tool_version)) = &self.audit_headers {
            check_name(agent_run)
                .and_then(|()| check_name(tool_version))
                .map_err(|error| error.context("audit_headers"))?;
        }
        let store = Store::open(path.as_ref(), self.create, self.migrate)?;
        if let Some((agent_run, tool_version)) = &self.audit_headers {
            audit::name_headers(&*store.connection()?, agent_run, tool_version)?;
        }
        let (clock, operations) = (self.clock, self.operations);
        let inner = Inner { store, clock, wakers: Mutex::default(), operations };
        Ok(Outbox { inner: Arc::new(inner) })
    }
}

thread_local! {
    /// The files on which this thread is inside [`Outbox::transact`], innermost last.
    static IN_TRANSACT: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

impl Outbox {
    /// The version of the outbox tables that this build reads and writes.
    pub const SCHEMA_VERSION: i64 = store::SCHEMA_VERSION;

    /// Opens the outbox in the application's file; creates the file and the tables as needed.
    ///
    /// # Errors
    /// See [`OutboxBuilder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder().open(path)
    }

    /// Options for opening.
    pub fn builder() -> OutboxBuilder {
        OutboxBuilder {
            create: true,
            migrate: true,
            clock: Arc::new(SystemClock),
            operations: None,
            audit_headers: None,
        }
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
    /// # Errors
    /// What `f` returns, after a rollback; or that the transaction cannot begin or commit.
    /// [`Busy`](crate::ErrorKind::Busy) at once where this thread is inside `transact` on this file
    /// already: use the transaction that `f` was given.
    pub fn transact<T, E: From<Error>>(
        &self,
        f: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        if IN_TRANSACT.with_borrow(|files| files.iter().any(|file| file == self.path())) {
            let text = "transact was called inside transact: this thread holds the write lock already; \
                        use the transaction that the outer call was given";
            return Err(Error::new(ErrorKind::Busy, text).into());
        }
        let mut conn = self.inner.store.connection()?;
        let tx = conn
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|error| Error::from(error).context("the transaction cannot begin"))?;
        IN_TRANSACT.with_borrow_mut(|files| files.push(self.path().to_owned()));
        let mark = TransactMark;
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
        read::entry(&*self.inner.store.reader()?, id)
    }

    /// One intent with its receipt, by its tenant (empty for none) and its stored key.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn entry_by_key(&self, tenant: &str, key: &str) -> Result<Option<Entry>> {
        read::entry_by_key(&*self.inner.store.reader()?, tenant, key)
    }

    /// The intents that match, by rising id. Payloads and receipts are not read.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn list(&self, filter: &Filter) -> Result<Vec<Entry>> {
        read::list(&*self.inner.store.reader()?, filter)
    }

    /// The audit trail of one intent, oldest first.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn audit(&self, id: i64) -> Result<Vec<Event>> {
        audit::audit(&*self.inner.store.reader()?, id)
    }

    /// Events of all intents in the order of commits: those behind a position and not before a time
    /// in UTC milliseconds, at most so many. Asking again behind the last one follows the stream.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn events(&self, after: i64, since: i64, limit: usize) -> Result<Vec<Event>> {
        audit::stream(&*self.inner.store.reader()?, after, since, limit)
    }

    /// Withdraws an intent in the caller's open transaction, if it surely was not applied.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound); [`TooLate`](crate::ErrorKind::TooLate) where it is
    /// being sent, may have been applied, or is settled; [`Refused`](crate::ErrorKind::Refused) where
    /// a person must resolve it first; and as [`enqueue`](Self::enqueue) for the connection.
    pub fn cancel(&self, conn: &Connection, id: i64, actor: impl Into<Actor>) -> Result<()> {
        self.check(conn)?;
        withdraw::cancel(conn, id, &actor.into(), self.now())
    }

    /// Withdraws an intent as [`cancel`](Self::cancel) does; or, where it is too late for that, sees
    /// to it that it is not tried again. An attempt on the way is not stopped: if it succeeds, the
    /// intent is succeeded; if it was surely not applied, cancelled; if nobody knows, unknown.
    /// Returns where it stands now: `Cancelled` if it was withdrawn.
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

    /// Replaces an intent by its next version in the caller's open transaction, if it surely was not
    /// applied and is still the version the caller believes it to be. The new version has its own
    /// key and the old one's place in the order; the old one is cancelled. The version of `intent` is
    /// set to `expected_version + 1`, and an ordering key that it leaves out is taken over.
    ///
    /// The same revision again returns [`Enqueued::Existing`].
    ///
    /// # Errors
    /// [`TooLate`](crate::ErrorKind::TooLate) where the intent is being sent, may have been applied, is
    /// settled, or was revised otherwise: nothing is changed then.
    /// [`Refused`](crate::ErrorKind::Refused) where it is another version, or a person must resolve it
    /// first. [`Invalid`](crate::ErrorKind::Invalid) where tenant, operation, entity or ordering key
    /// differ. Otherwise as [`enqueue`](Self::enqueue).
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

    /// Settles an intent as succeeded in the caller's open transaction, in whatever unsettled status it
    /// is, because the provider's own record says that it was applied: in a webhook, or in an import.
    /// `key` is the stored key. An attempt on the way cannot overwrite it.
    ///
    /// Returns what this put on record, or `None` where it was known. A second id of an intent is a
    /// [`DuplicateEffect`](crate::EventKind::DuplicateEffect): it was carried out twice. Where the
    /// operation [binds ids](crate::Operation::binds_ids), one that belongs to another intent leaves
    /// this one for review.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) where no intent has this key;
    /// [`Invalid`](crate::ErrorKind::Invalid) where the id is empty or longer than 1024 bytes; and as
    /// [`enqueue`](Self::enqueue) for the connection.
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
    /// client chooses the id. A look-up can ask for it, and no other intent can have it.
    ///
    /// # Errors
    /// [`Conflict`](crate::ErrorKind::Conflict) where another intent has the id, or this one has
    /// another; [`TooLate`](crate::ErrorKind::TooLate) where it is settled; otherwise as
    /// [`confirm`](Self::confirm).
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

    /// The file, as SQLite resolves its name.
    pub fn path(&self) -> &str {
        self.inner.store.path()
    }

    /// The id that was given to this database when its outbox was created.
    pub fn database_id(&self) -> &str {
        self.inner.store.database_id()
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
        IN_TRANSACT.with_borrow(|files| !files.is_empty())
    }

    fn now(&self) -> i64 {
        self.inner.clock.now()
    }

    /// Refuses a connection on which what is written would not be atomic with the caller's writes,
    /// or not durable.
    pub(crate) fn check(&self, conn: &Connection) -> Result<()> {
        static WARNED: AtomicBool = AtomicBool::new(false);
        store::check_transaction(conn, self.inner.store.path())?;
        if store::check_durability(conn)? && !WARNED.swap(true, Ordering::Relaxed) {
            log::warn!(
                "a connection that writes here runs below synchronous=FULL: a power cut can undo its \
                 last commits, the business writes and what was written with them"
            );
        }
        Ok(())
    }

    fn enqueue_checked(&self, conn: &Connection, intent: &Intent, now: i64) -> Result<Enqueued> {
        enqueue::enqueue(conn, &self.prepare(intent, now)?)
    }

    fn prepare<'i>(&self, intent: &'i Intent, now: i64) -> Result<Prepared<'i>> {
        let prepared = intent.prepare(now, self.inner.store.payload_max())?;
        if let Some(known) = &self.inner.operations
            && !known.iter().any(|name| name == prepared.operation())
        {
            let (name, known) = (prepared.operation(), known.join(", "));
            let why = format!("{name:?} is none of those this outbox was opened for: {known}");
            return Err(Error::invalid("operation", why));
        }
        Ok(prepared)
    }
}

/// Takes the thread's innermost file off again, also when the closure panics.
struct TransactMark;

impl Drop for TransactMark {
    fn drop(&mut self) {
        IN_TRANSACT.with_borrow_mut(Vec::pop);
    }
}
