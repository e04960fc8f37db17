//! Connections: how they are opened, how they wait for the lock, how they come back.

use std::cell::Cell;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use file_id::FileId;
use r2d2_sqlite::SqliteConnectionManager;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::error::{Error, ErrorKind, Result};

pub(crate) type Pool = r2d2::Pool<Manager>;
pub(crate) type PooledConnection = r2d2::PooledConnection<Manager>;

/// How long a connection of ours waits for another writer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections kept for callers and relays of one process.
const POOL_SIZE: u32 = 8;

/// Opens the first connection, so that a wrong path is reported at once and not after the pool's
/// timeout. Returns the file's name as SQLite resolves it.
pub(crate) fn open_first(path: &Path, create: bool) -> Result<(Connection, PathBuf)> {
    let shown = path.display();
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if create {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let doing = |error: rusqlite::Error| explain_open(path, create, error);
    let conn = Connection::open_with_flags(path, flags).map_err(doing)?;
    let Some(resolved) = file_of(&conn) else {
        return Err(Error::invalid("path", "an outbox lives in a file, not in memory"));
    };
    if conn.is_readonly("main").map_err(doing)? {
        let text = format!("{shown}: the file is read-only, but an outbox is written to");
        return Err(Error::new(ErrorKind::Database, text));
    }
    conn.busy_handler(Some(wait_for_lock)).map_err(doing)?;
    let pages: i64 =
        conn.query_row("PRAGMA main.page_count", [], |row| row.get(0)).map_err(doing)?;
    if pages == 0 {
        // Only possible before the first table: deleted rows give their pages back a few at a time.
        conn.execute_batch("PRAGMA main.auto_vacuum = INCREMENTAL").map_err(doing)?;
    }
    switch_to_wal(&conn).map_err(|e| e.context(shown))?;
    configure(&conn).map_err(doing)?;
    Ok((conn, resolved))
}

/// How the connections after the first are opened: the file is there and in WAL mode.
const LATER: OpenFlags = OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);

pub(crate) fn pool(path: &Path) -> Result<Pool> {
    let manager =
        SqliteConnectionManager::file(path).with_flags(LATER).with_init(|conn| configure(conn));
    r2d2::Pool::builder()
        .max_size(POOL_SIZE)
        .min_idle(Some(1))
        // SQLite connections do not go stale, and closing them would checkpoint.
        .test_on_check_out(false)
        .max_lifetime(None)
        .idle_timeout(None)
        .connection_timeout(BUSY_TIMEOUT * 2)
        .build(Manager(manager))
        .map_err(|error| pool_error(&error))
}

pub(crate) fn check_out(pool: &Pool) -> Result<PooledConnection> {
    pool.get().map_err(|error| pool_error(&error))
}

/// A connection outside the pool, for a relay or a watch that keeps it for long.
pub(crate) fn open_own(path: &Path) -> Result<Connection> {
    let conn = Connection::open_with_flags(path, LATER)?;
    configure(&conn)?;
    Ok(conn)
}

/// A connection for a moment's reading: of the pool, or its own.
pub(crate) type Reader = Box<dyn Deref<Target = Connection>>;

/// A reader never waits for the pool: the threads that hold its connections may be waiting for the
/// write lock, and the holder of that lock may be the thread that reads.
pub(crate) fn reader(pool: &Pool, path: &Path) -> Result<Reader> {
    match pool.try_get() {
        Some(conn) => Ok(Box::new(conn)),
        None => Ok(Box::new(Box::new(open_own(path)?))),
    }
}

fn pool_error(error: &r2d2::Error) -> Error {
    Error::new(ErrorKind::Database, format!("no connection to the outbox's file: {error}"))
}

/// The file of a connection, as SQLite resolves its name; `None` for a database in memory.
pub(crate) fn file_of(conn: &Connection) -> Option<PathBuf> {
    if let Some(path) = conn.path() {
        return (!path.is_empty()).then(|| path.into());
    }
    // A name that is not UTF-8, which only the database itself gives out.
    let sql = "SELECT file FROM pragma_database_list WHERE name = 'main'";
    let read = |row: &rusqlite::Row<'_>| Ok(row.get_ref(0)?.as_bytes()?.to_vec());
    path_from(conn.query_row(sql, [], read).ok()?)
}

#[cfg(unix)]
fn path_from(bytes: Vec<u8>) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    (!bytes.is_empty()).then(|| std::ffi::OsString::from_vec(bytes).into())
}

#[cfg(not(unix))]
fn path_from(bytes: Vec<u8>) -> Option<PathBuf> {
    String::from_utf8(bytes).ok().filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Whether a connection is on this file, given both names as SQLite resolves them. The same name
/// in the same folder, whatever the folder is called: a hard link of another name would have
/// another WAL, and writing through both would corrupt the file.
pub(crate) fn is_same_file(ours: &Path, theirs: &Path) -> bool {
    if ours == theirs {
        return true;
    }
    let (Some(our_folder), Some(their_folder)) = (ours.parent(), theirs.parent()) else {
        return false;
    };
    let folder = identity(our_folder);
    ours.file_name() == theirs.file_name() && folder.is_some() && folder == identity(their_folder)
}

/// The identity of a file or folder, which another of the same name has not; `None` where there
/// is no such file.
/// On Unix nothing is opened for it, so no POSIX lock of SQLite's is dropped.
pub(crate) fn identity(path: impl AsRef<Path>) -> Option<FileId> {
    file_id::get_file_id(path).ok()
}

/// A connection manager whose connections never come back holding a transaction: with a panic
/// in between, the next user would inherit the write lock.
#[derive(Debug)]
pub(crate) struct Manager(SqliteConnectionManager);

impl r2d2::ManageConnection for Manager {
    type Connection = Connection;
    type Error = rusqlite::Error;

    fn connect(&self) -> Result<Connection, rusqlite::Error> {
        self.0.connect()
    }

    fn is_valid(&self, _: &mut Connection) -> Result<(), rusqlite::Error> {
        Ok(())
    }

    fn has_broken(&self, conn: &mut Connection) -> bool {
        !conn.is_autocommit() && conn.execute_batch("ROLLBACK").is_err()
    }
}

/// Sets what a connection of ours needs. Never used on a caller's connection.
fn configure(conn: &Connection) -> Result<(), rusqlite::Error> {
    conn.busy_handler(Some(wait_for_lock))?;
    conn.set_prepared_statement_cache_capacity(128);
    // Or a statement is prepared again whenever a bound value could change its plan.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.execute_batch(
        "PRAGMA synchronous = FULL;
         PRAGMA fullfsync = ON;
         PRAGMA checkpoint_fullfsync = ON;
         PRAGMA wal_autocheckpoint = 2000;
         PRAGMA journal_size_limit = 67108864;
         PRAGMA trusted_schema = OFF;
         PRAGMA cell_size_check = ON;
         PRAGMA mmap_size = 0;
         PRAGMA temp_store = MEMORY;",
    )
}

/// Several processes that open a new file at once race for the switch, and SQLite does not call
/// the busy handler for it.
fn switch_to_wal(conn: &Connection) -> Result<()> {
    let deadline = Instant::now() + BUSY_TIMEOUT;
    loop {
        let mode = conn
            .query_row("PRAGMA main.journal_mode", [], |row| row.get::<_, String>(0))
            .and_then(|mode| {
                if mode == "wal" {
                    return Ok(mode);
                }
                conn.query_row("PRAGMA main.journal_mode = WAL", [], |row| row.get(0))
            });
        match mode {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(mode) => {
                let text =
                    format!("the file stays in journal mode {mode}, but an outbox needs WAL");
                return Err(Error::new(ErrorKind::Database, text));
            }
            Err(error) => {
                let error = Error::from(error);
                if error.kind() != ErrorKind::Busy || Instant::now() >= deadline {
                    return Err(error);
                }
                std::thread::sleep(pause());
            }
        }
    }
}

thread_local! {
    static WAITING_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
    static WAIT_AT_MOST: Cell<Duration> = const { Cell::new(BUSY_TIMEOUT) };
}

/// The busy handler: short sleeps with jitter up to a deadline. SQLite's own sleeps grow, so
/// that under load one of two processes hardly ever gets the lock.
fn wait_for_lock(calls: i32) -> bool {
    if calls == 0 {
        WAITING_SINCE.set(Some(Instant::now()));
    }
    let waited = WAITING_SINCE.get().map_or(Duration::ZERO, |since| since.elapsed());
    if waited >= WAIT_AT_MOST.get() {
        return false;
    }
    std::thread::sleep(pause());
    true
}

/// Runs `f` with another limit on how long this thread waits for a lock.
pub(crate) fn give_up_waiting<T>(after: Duration, f: impl FnOnce() -> T) -> T {
    let before = WAIT_AT_MOST.replace(after);
    let result = f();
    WAIT_AT_MOST.set(before);
    result
}

fn pause() -> Duration {
    Duration::from_micros(fastrand::u64(300..1000))
}

fn explain_open(path: &Path, create: bool, error: rusqlite::Error) -> Error {
    use rusqlite::ErrorCode;
    let shown = path.display();
    let text = match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => format!("{shown}: not an SQLite database"),
        Some(ErrorCode::CannotOpen) => match path.parent().filter(|p| !p.as_os_str().is_empty()) {
            Some(folder) if !folder.is_dir() => {
                format!("{shown}: the folder {} does not exist", folder.display())
            }
            _ if path.is_dir() => format!("{shown}: is a folder, not a file"),
            _ if !create && !path.exists() => format!("{shown}: no such file"),
            _ => format!("{shown}: cannot be opened"),
        },
        Some(ErrorCode::ReadOnly) => format!("{shown}: the file or its folder is read-only"),
        Some(ErrorCode::PermissionDenied) => format!("{shown}: permission denied"),
        _ => return Error::from(error).context(shown),
    };
    Error::new(ErrorKind::Database, text).with_source(error)
}
