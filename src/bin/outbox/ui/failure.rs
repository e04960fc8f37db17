//! Failures, and the exit code of each.

use std::io;

use sqlite_outbox::ErrorKind;

pub type Result<T> = std::result::Result<T, Failure>;

/// Exit code: the command failed.
pub const FAILED: u8 = 1;
/// Exit code: the arguments are wrong.
pub const USAGE: u8 = 2;
/// Exit code: the state of the intent does not allow the action.
pub const REFUSED: u8 = 3;

/// The one line for standard error, and the exit code. Without a text the command ends quietly.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub text: String,
}

impl Failure {
    pub fn failed(text: impl Into<String>) -> Self {
        Self { code: FAILED, text: text.into() }
    }

    pub fn usage(text: impl Into<String>) -> Self {
        Self { code: USAGE, text: text.into() }
    }

    pub fn refused(text: impl Into<String>) -> Self {
        Self { code: REFUSED, text: text.into() }
    }

    /// A failure with this exit code whose reason is already printed.
    pub fn quiet(code: u8) -> Self {
        Self { code, text: String::new() }
    }
}

impl From<sqlite_outbox::Error> for Failure {
    fn from(error: sqlite_outbox::Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Invalid => USAGE,
            kind if is_of_this_intent(kind) => REFUSED,
            _ => FAILED,
        };
        Self { code, text: error.to_string() }
    }
}

/// Errors of standard output. Errors of reading are explained where they occur.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            // The reader has seen enough, as in `outbox list | head`.
            return Self::quiet(0);
        }
        Self::failed(format!("standard output: {error}"))
    }
}

/// Whether an error says something about one intent alone.
pub fn is_of_this_intent(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Refused | ErrorKind::TooLate | ErrorKind::Conflict | ErrorKind::NotFound
    )
}
