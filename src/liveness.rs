//! Whether a relay is alive. Each holds the lock of a file of its own beside the database; the
//! kernel frees it with the process, however that ends. The locked file stays empty, because on
//! Windows no other process can read it: facts about a relay belong in a file beside it,
//! `<owner>.json`.
//!
//! The database itself is never opened here: closing a descriptor of it drops SQLite's locks.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind as Io;
use std::path::PathBuf;

use crate::error::{Error, ErrorKind, Result};

/// The sign of life of one relay, for as long as it is not dropped.
#[derive(Debug)]
pub(crate) struct Lifeline {
    /// Open for its lock alone.
    _locked: File,
    path: PathBuf,
}

impl Lifeline {
    /// Takes the lock of the relay that signs as `owner`, a name that nobody else ever has.
    pub fn hold(database: &str, owner: &str) -> Result<Self> {
        let folder = folder(database);
        let hold = || {
            fs::create_dir_all(&folder)?;
            for entry in fs::read_dir(&folder)? {
                // Removes what killed relays have left. A name with an extension is not a lock
                // that is in force.
                let entry = entry?.path();
                let name = entry.file_name().and_then(|name| name.to_str());
                if let (Some(name), None) = (name, entry.extension()) {
                    is_alive(database, name);
                }
            }
            // Under its own name it must never be seen without the lock.
            let unlocked = folder.join(format!("{owner}.new"));
            let file = File::create_new(&unlocked)?;
            file.lock()?;
            let path = folder.join(owner);
            fs::rename(&unlocked, &path)?;
            Ok(Self { _locked: file, path })
        };
        hold().map_err(|error: std::io::Error| {
            let text = format!(
                "{}: a relay shows there that it is alive, and cannot: {error}",
                folder.display()
            );
            Error::new(ErrorKind::Database, text).with_source(error)
        })
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        // Whoever finds it left over removes it.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether the relay that signs as `owner` is alive. Where that cannot be told it is taken to be.
pub(crate) fn is_alive(database: &str, owner: &str) -> bool {
    // A name that was edited into a path, or on Windows into a drive, leads nowhere.
    if owner.contains(['/', '\\', ':']) {
        return false;
    }
    let path = folder(database).join(owner);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) => return error.kind() != Io::NotFound,
    };
    match file.try_lock() {
        Ok(()) => {
            let _ = fs::remove_file(&path);
            false
        }
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => true,
    }
}

fn folder(database: &str) -> PathBuf {
    PathBuf::from(format!("{database}-outbox"))
}

#[cfg(test)]
mod tests;
