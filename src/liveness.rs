//! Whether a relay is alive. Each holds the lock of a file of its own beside the database; the
//! kernel frees it with the process, however that ends. The locked file stays empty, because on
//! Windows no other process can read it: facts about a relay belong in a file beside it,
//! `<owner>.json`.
//!
//! The database itself is never opened here: closing a descriptor of it drops SQLite's locks.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind as Io};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use file_id::{FileId, get_file_id};

use crate::error::{Error, ErrorKind, Result};

/// A relay as its lock file shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// The file is locked; or it cannot be told, and is taken to be so.
    Alive,
    /// The file is there and unlocked: no thread of the relay works any more.
    Dead,
    /// There is no file. A relay that ended in order has removed it, and a living one may have lost
    /// it for a moment.
    Unknown,
}

/// The sign of life of one relay, for as long as it is not dropped.
#[derive(Debug)]
pub(crate) struct Lifeline {
    path: PathBuf,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    /// The file in force.
    id: Option<FileId>,
    /// Open for their locks alone. Files that were lost stay locked, because another process may
    /// have opened one just before.
    locked: Vec<File>,
}

impl Lifeline {
    /// Takes the lock of the relay that signs as `owner`, a name that no other relay ever has.
    pub fn hold(database: &Path, owner: &str) -> Result<Self> {
        let path = folder(database).join(owner);
        let (file, id) = place(&path).map_err(|error| {
            let text = format!(
                "{}: a relay shows there that it is alive, and cannot: {error}",
                folder(database).display()
            );
            Error::new(ErrorKind::Database, text).with_source(error)
        })?;
        Ok(Self { path, held: Mutex::new(Held { id, locked: vec![file] }) })
    }

    /// Puts the file back where it was removed or replaced.
    pub fn restore(&self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if get_file_id(&self.path).is_ok_and(|there| Some(there) == held.id) {
            return;
        }
        match place(&self.path) {
            Ok((file, id)) => {
                log::warn!("{}: the relay's lock file was gone, and is back", self.path.display());
                held.id = id;
                held.locked.push(file);
            }
            Err(error) => log::debug!("{}: {error}", self.path.display()),
        }
    }
}

/// Creates a locked file. Under its own name it must never be seen without the lock.
fn place(path: &Path) -> io::Result<(File, Option<FileId>)> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let unlocked = path.with_extension("new");
    let file = File::create(&unlocked)?;
    file.lock()?;
    fs::rename(&unlocked, path)?;
    Ok((file, get_file_id(path).ok()))
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        // A file that is left over is swept by the next relay.
        let _ = fs::remove_file(&self.path);
    }
}

/// How the relay that signs as `owner` appears.
pub(crate) fn look(database: &Path, owner: &str) -> Life {
    // A name that was edited into a path, or on Windows into a drive, leads nowhere.
    if owner.contains(['/', '\\', ':']) {
        return Life::Unknown;
    }
    let file = match File::open(folder(database).join(owner)) {
        Ok(file) => file,
        Err(error) if error.kind() == Io::NotFound => return Life::Unknown,
        Err(_) => return Life::Alive,
    };
    // Shared, so that two who look at the same time do not take one another for the relay.
    match file.try_lock_shared() {
        Ok(()) => Life::Dead,
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => Life::Alive,
    }
}

/// Whether the relay that signs as `owner` is alive: a relay without a file is not, because no
/// request of it may be waited for without end.
pub(crate) fn is_alive(database: &Path, owner: &str) -> bool {
    look(database, owner) == Life::Alive
}

/// The relays that died and whose files are not swept yet.
pub(crate) fn dead(database: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder(database)) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    // A name with an extension is not a lock that is in force.
    let owners = names.filter(|name| Path::new(name).extension().is_none());
    owners.filter(|owner| look(database, owner) == Life::Dead).collect()
}

/// Removes the file of a dead relay, once nothing is leased to it any more.
pub(crate) fn sweep(database: &Path, owner: &str) {
    let _ = fs::remove_file(folder(database).join(owner));
}

fn folder(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-outbox");
    name.into()
}

#[cfg(test)]
mod tests;
