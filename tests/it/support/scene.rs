//! A file at the machine's time and a downstream at the end of a real connection, for tests in
//! which other processes take part. Each test file adds the methods it needs.

use std::path::PathBuf;

use sqlite_outbox::Outbox;
use sqlite_outbox::rusqlite::Connection;
use tempfile::TempDir;

use crate::support::downstream::Downstream;
use crate::support::folder::folder;
use crate::support::process::Process;
use crate::support::world::pay;

pub struct Scene {
    _dir: TempDir,
    pub path: PathBuf,
    pub outbox: Outbox,
    pub downstream: Downstream,
}

impl Scene {
    pub fn new() -> Self {
        let dir = folder();
        let path = dir.path().join("app.db");
        let outbox = Outbox::open(&path).unwrap();
        Self { _dir: dir, path, outbox, downstream: Downstream::start() }
    }

    /// A single number from the file.
    pub fn number(&self, sql: &str) -> i64 {
        Connection::open(&self.path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
    }

    pub fn enqueue(&self, entity: &str) -> i64 {
        self.outbox.transact(|tx| self.outbox.enqueue(tx, &pay(entity))).unwrap().id()
    }

    /// A relay in a process of its own that sends to this path.
    pub fn relay_process(&self, path: &str, downstream: &str) -> Process {
        let mut relay = Process::relay(&self.path, &self.downstream.url(path), downstream);
        relay.waits_until_it_says("started");
        relay
    }

    /// Kills a relay whose request the downstream holds.
    pub fn kill_in_flight(&self, relay: &mut Process) {
        relay.kill();
        self.downstream.release();
    }
}
