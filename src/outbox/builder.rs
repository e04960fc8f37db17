//! Opening an outbox.

use std::path::Path;
use std::sync::{Arc, Mutex};

use super::{Inner, Outbox};
use crate::clock::{Clock, SystemClock};
use crate::core::header::check_name;
use crate::core::intent::check_operation;
use crate::core::setters::setters;
use crate::error::Result;
use crate::store::Store;
use crate::store::tables::audit;

/// Options for opening an [`Outbox`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it opens a file"]
pub struct OutboxBuilder {
    create: bool,
    migrate: bool,
    clock: Arc<dyn Clock>,
    operations: Option<Vec<String>>,
    audit_headers: Option<(String, String)>,
}

impl Outbox {
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
}

impl OutboxBuilder {
    /// Opens the outbox in this file, and creates its tables or migrates those of an earlier build.
    ///
    /// # Errors
    /// The file cannot be opened, is not a database, is read-only, has a newer schema, or uses one
    /// of the outbox's table names for something else; `Busy` where it must be migrated and a
    /// living relay of the earlier build still has intents in flight; or the name of an operation
    /// or a header is not valid.
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

setters! {
    OutboxBuilder:

    /// Whether a file that does not exist is created, and the tables in a file that has none.
    /// Defaults to yes.
    pub fn create(create: bool) => create = create;

    /// Whether the tables of an earlier build are migrated to this one's. Relays of the earlier
    /// build stop then, and opening waits up to 75 s for what they have in flight. Defaults to yes;
    /// where it is no, an older file is refused, so that merely looking at a file never changes it.
    pub fn migrate(migrate: bool) => migrate = migrate;

    /// The clock that stamps intents and times relays. Defaults to [`SystemClock`].
    pub fn clock(clock: impl Clock + 'static) => clock = Arc::new(clock);

    /// The only operations that may be enqueued through this outbox, so that a misspelt name is
    /// refused instead of waiting for a relay that never comes. Defaults to any.
    pub fn operations(names: impl IntoIterator<Item = impl Into<String>>) =>
        operations = Some(names.into_iter().map(Into::into).collect());

    /// The headers of an intent that say which run of an agent, and which version of a tool, asked
    /// for it. Their values are the only ones that go into the audit trail. Stored in the file, for
    /// all who write to it. Defaults to what is stored, else to `x-agent-run` and `x-tool-version`.
    pub fn audit_headers(agent_run: &str, tool_version: &str) =>
        audit_headers = Some((agent_run.to_owned(), tool_version.to_owned()));
}
