//! The one error of this crate.

use std::error::Error as StdError;

/// A failure as one opaque value: a [kind](Error::kind) to branch on, a text that names what is
/// wrong and how to fix it, and the cause underneath.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    #[source]
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kinds of [`Error`] that callers tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A value is not acceptable; the text begins with the field's name.
    Invalid,
    /// The connection is not inside a transaction, so what is written could not be atomic with
    /// anything. Also when SQLite has rolled the transaction back automatically.
    NoTransaction,
    /// The connection is on another file than the outbox.
    WrongFile,
    /// The connection runs `synchronous=OFF`, so a commit may be lost or corrupt the file.
    NotDurable,
    /// The key or the version is taken by an intent with other content.
    Conflict,
    /// There is no such row.
    NotFound,
    /// The row is not in a status that allows this.
    Refused,
    /// The intent cannot be withdrawn or changed any more: it is being sent, may have been applied,
    /// or is settled.
    TooLate,
    /// The file stayed locked for longer than the busy timeout.
    Busy,
    /// The transaction read before another connection committed, so that it cannot write any more.
    /// Waiting does not help: roll back and begin again, with `BEGIN IMMEDIATE`.
    StaleSnapshot,
    /// The disk, or the database's page limit, is full.
    Full,
    /// The file's tables are newer, incomplete, or not ours.
    Schema,
    /// Any other failure of SQLite or of the file under it.
    Database,
}

impl Error {
    /// The kind of this failure.
    ///
    /// ```
    /// use sqlite_outbox::{ErrorKind, Outbox};
    ///
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let outbox = Outbox::open(folder.path().join("app.db"))?;
    /// match outbox.wait(42, std::time::Duration::ZERO) {
    ///     Ok(entry) => println!("{}", entry.status),
    ///     Err(error) if error.kind() == ErrorKind::NotFound => println!("never enqueued"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok::<(), sqlite_outbox::Error>(())
    /// ```
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// A value that cannot be accepted: which field, and what would be accepted instead.
    pub(crate) fn invalid(field: &str, reason: impl std::fmt::Display) -> Self {
        Self::new(ErrorKind::Invalid, format!("{field}: {reason}"))
    }

    /// The file has no intent with this id, or `with the key …`.
    pub(crate) fn no_intent(which: impl std::fmt::Display) -> Self {
        Self::new(ErrorKind::NotFound, format!("there is no intent {which}"))
    }

    /// Whether the cause is one row, or an object of the application that is attached to it, and
    /// not the file: a constraint, a trigger, a value that does not fit.
    pub(crate) fn is_of_row(&self) -> bool {
        use rusqlite::ErrorCode as Code;
        let source = self.source.as_ref().and_then(|s| s.downcast_ref::<rusqlite::Error>());
        let code = source.and_then(rusqlite::Error::sqlite_error_code);
        self.kind == ErrorKind::Database
            && matches!(
                code,
                None | Some(
                    Code::ConstraintViolation
                        | Code::Unknown
                        | Code::TypeMismatch
                        | Code::TooBig
                        | Code::ParameterOutOfRange
                )
            )
    }

    /// A row that was read under the write lock did not change: only a trigger can have done that.
    pub(crate) fn kept_by_trigger() -> Self {
        let text = "a trigger of the application kept the row from being changed";
        Self::new(ErrorKind::Database, text)
    }

    pub(crate) fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// Says what was being done when this happened; kind and cause stay.
    pub(crate) fn context(mut self, doing: impl std::fmt::Display) -> Self {
        self.message = format!("{doing}: {}", self.message);
        self
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::{ErrorCode, ffi};
        let code = error.sqlite_error().map(|e| e.extended_code);
        let kind = match error.sqlite_error_code() {
            _ if code == Some(ffi::SQLITE_BUSY_SNAPSHOT) => ErrorKind::StaleSnapshot,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => ErrorKind::Busy,
            Some(ErrorCode::DiskFull) => ErrorKind::Full,
            _ => ErrorKind::Database,
        };
        let mut message = match code {
            Some(code) => format!("SQLite: {error} (code {code})"),
            None => format!("SQLite: {error}"),
        };
        if kind == ErrorKind::StaleSnapshot {
            message.push_str(
                ": another connection has committed since this transaction began to read; roll \
                 back and begin again (BEGIN IMMEDIATE)",
            );
        }
        Self::new(kind, message).with_source(error)
    }
}
