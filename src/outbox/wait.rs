//! Waiting for an intent to come to rest.

use std::time::{Duration, Instant};

use super::Outbox;
use crate::core::entry::Entry;
use crate::error::{Error, Result};

/// How often a relay, or a waiting caller, asks whether the file has changed.
pub(crate) const POLL_MIN: Duration = Duration::from_millis(1);
pub(crate) const POLL_MAX: Duration = Duration::from_millis(20);
/// However idle the file seems, its rows are looked through this often.
pub(crate) const SAFETY_POLL: Duration = Duration::from_millis(250);

impl Outbox {
    /// Waits until an intent has come to rest: settled, dead, or a person's matter. Returns it as
    /// it stands then, or when `timeout` is over. A relay may be in another process: the file is
    /// read no more often than a relay does, once in 1 to 20 ms.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sqlite_outbox::{Intent, Outbox, Status};
    ///
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let outbox = Outbox::open(folder.path().join("app.db"))?;
    /// # let id = outbox.transact(|tx| outbox.enqueue(tx, &Intent::new("mail", "order-1")))?.id();
    /// # outbox.transact(|tx| outbox.cancel(tx, id, "ada"))?;
    /// let entry = outbox.wait(id, Duration::from_secs(10))?;
    /// match entry.status {
    ///     Status::Succeeded => println!("sent as {:?}", entry.downstream_id),
    ///     status => println!("not yet, or a person must look: {status}"),
    /// }
    /// # Ok::<(), sqlite_outbox::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`; `Busy` where this thread is inside [`transact`](Self::transact), so that the
    /// intent could not come to rest; or the file cannot be read.
    pub fn wait(&self, id: i64, timeout: Duration) -> Result<Entry> {
        Self::refuse_in_transact("wait")?;
        let deadline = Instant::now().checked_add(timeout);
        let mut watch = self.inner.store.watch()?;
        let (mut pause, mut look_again_at) = (POLL_MIN, Instant::now());
        loop {
            let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if watch.has_changed()? || is_late || Instant::now() >= look_again_at {
                let entry = watch.entry(id)?.ok_or_else(|| Error::no_intent(id))?;
                if is_late || entry.status.is_settled() || entry.status.waits_for_a_person() {
                    return Ok(entry);
                }
                look_again_at = Instant::now() + SAFETY_POLL;
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            std::thread::sleep(left.map_or(pause, |left| left.min(pause)));
            pause = (pause * 2).min(POLL_MAX);
        }
    }

    /// [Waits](Self::wait) for the intent of a tenant (empty for none) with this key, as it is
    /// stored or as it was sent.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_by_key(&self, tenant: &str, key: &str, timeout: Duration) -> Result<Entry> {
        let none = || Error::no_intent(format_args!("with the key {key:?}"));
        self.wait(self.entry_by_key(tenant, key)?.ok_or_else(none)?.id, timeout)
    }
}
