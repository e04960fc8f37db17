//! Child processes for crash tests: this test binary again, in another role.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use sqlite_outbox::rusqlite::{Connection, TransactionBehavior};
use sqlite_outbox::{
    Backoff, Downstream, Error, Http, Intent, Jitter, Operation, Outbox, Relay, Timeouts,
};

use crate::support::world::{LONG, WINDOW};

/// A child that is killed with SIGKILL when it is dropped.
pub struct Process {
    child: Child,
    /// Lines it says, read all the time: a full pipe would stop it.
    said: Receiver<String>,
    /// Lines that were passed over while another was awaited.
    kept: VecDeque<String>,
}

impl Process {
    /// Starts a relay on this file that sends to `url` and tells of every status move.
    pub fn relay(path: &Path, url: &str, downstream: &str) -> Self {
        Self::start("relay", path, &[url, downstream])
    }

    /// A relay with a lease of 3 s, at most 3 requests at once and 100 a second.
    pub fn careful_relay(path: &Path, url: &str) -> Self {
        Self::start("careful-relay", path, &[url, "deduplicates"])
    }

    /// A relay that may send 40 in any second and spend 300 an hour.
    pub fn thrifty_relay(path: &Path) -> Self {
        Self::start("thrifty-relay", path, &[""])
    }

    /// A relay that tells of every delivery: `sent ID applied`, or `sent ID refused` for the first
    /// attempt of every fourth entity, which may be repeated.
    pub fn telling_relay(path: &Path) -> Self {
        Self::start("telling-relay", path, &[""])
    }

    /// Starts a process that enqueues entities `name-FROM` to `name-TO` and tells of each that it
    /// committed; one in ten is rolled back.
    pub fn enqueuer(path: &Path, name: &str, count: usize) -> Self {
        Self::start("enqueuer", path, &[name, &count.to_string()])
    }

    fn start(role: &str, path: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["support::process::child", "--exact", "--nocapture", "--test-threads=1"])
            .env("OUTBOX_TEST_ROLE", role)
            .env("OUTBOX_TEST_FILE", path)
            .env("OUTBOX_TEST_ARGUMENTS", arguments.join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = listen(child.stdout.take().unwrap());
        Self { child, said, kept: VecDeque::new() }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, without a chance to tidy up.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The next thing it says, or `None` when it has ended.
    pub fn says(&mut self) -> Option<String> {
        self.kept.pop_front().or_else(|| self.says_next())
    }

    fn says_next(&mut self) -> Option<String> {
        match self.said.recv_timeout(3 * LONG) {
            Ok(said) => Some(said),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the process lives, but says nothing"),
        }
    }

    /// Waits for a line, which may have been said before one that was awaited earlier: a relay's
    /// threads tell of rows before its main thread tells that it has started.
    pub fn waits_until_it_says(&mut self, what: &str) {
        if let Some(place) = self.kept.iter().position(|said| said == what) {
            self.kept.remove(place);
            return;
        }
        while let Some(said) = self.says_next() {
            if said == what {
                return;
            }
            self.kept.push_back(said);
        }
        panic!("the process ended without saying {what:?}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(out: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            // What the test harness prints around it is not meant.
            if let Some((_, said)) = line.split_once("@ ")
                && sender.send(said.to_owned()).is_err()
            {
                return;
            }
        }
    });
    receiver
}

fn say(what: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "@ {what}").unwrap();
    out.flush().unwrap();
}

/// The other end of the above. In an ordinary run of the tests it has no role.
#[test]
fn child() {
    let Ok(role) = std::env::var("OUTBOX_TEST_ROLE") else { return };
    let path = std::env::var("OUTBOX_TEST_FILE").unwrap();
    let arguments = std::env::var("OUTBOX_TEST_ARGUMENTS").unwrap();
    let arguments: Vec<&str> = arguments.split(' ').collect();
    match role.as_str() {
        "relay" => relay(Path::new(&path), arguments[0], arguments[1], false),
        "careful-relay" => relay(Path::new(&path), arguments[0], arguments[1], true),
        "telling-relay" => telling_relay(Path::new(&path)),
        "thrifty-relay" => thrifty_relay(Path::new(&path)),
        _ => enqueuer(Path::new(&path), arguments[0], arguments[1].parse().unwrap()),
    }
}

fn relay(path: &Path, url: &str, downstream: &str, careful: bool) {
    let outbox = Outbox::open(path).unwrap();
    let downstream = match downstream {
        "unprotected" => Downstream::Unprotected,
        _ => Downstream::DeduplicatesByKey { window: WINDOW },
    };
    let short = Duration::from_millis(400);
    let timeouts = Timeouts::default()
        .resolve(short)
        .connect(short)
        .send(short)
        .response(Duration::from_secs(if careful { 1 } else { 20 }))
        .body(short);
    let http = Http::new()
        .endpoint(url)
        .header("x-relay", &std::process::id().to_string())
        .timeouts(timeouts);
    // Longer than any attempt may take, as it must be; the tests move the clock of a lease by
    // writing its expiry.
    let backoff = Backoff::Exponential {
        base: Duration::from_millis(20),
        cap: Duration::from_millis(200),
        jitter: Jitter::Full,
    };
    let mut operation = Operation::new(downstream, http).backoff(backoff);
    if careful {
        operation = operation.max_in_flight(3).rate(100, Duration::from_secs(1));
    }
    let handle = Relay::builder(&outbox)
        .operation("pay", operation)
        .lease(Duration::from_secs(if careful { 3 } else { 30 }))
        .observe(|event| say(format_args!("{} {}", event.outbox_id, event.status)))
        .build()
        .unwrap()
        .start()
        .unwrap();
    say("started");
    // Ends with the parent.
    let _ = std::io::stdin().read_line(&mut String::new());
    drop(handle);
}

/// A relay without a downstream that may send 40 in any second, and spend 300 in all.
fn thrifty_relay(path: &Path) {
    let outbox = Outbox::open(path).unwrap();
    let handler = |delivery: &sqlite_outbox::Delivery| {
        say(format_args!("sent {}", delivery.id()));
        sqlite_outbox::Outcome::Succeeded(sqlite_outbox::Receipt::new())
    };
    let operation = Operation::new(Downstream::DeduplicatesByKey { window: WINDOW }, handler)
        .max_per(40, Duration::from_secs(1))
        .max_cost(300, Duration::from_secs(3600));
    let relay = Relay::builder(&outbox).operation("pay", operation).build().unwrap();
    let handle = relay.start().unwrap();
    say("started");
    let _ = std::io::stdin().read_line(&mut String::new());
    drop(handle);
}

/// A relay without a downstream that tells what it carried out and what it refused.
fn telling_relay(path: &Path) {
    use sqlite_outbox::{Delivery, Failure, Outcome, Receipt};
    let outbox = Outbox::open(path).unwrap();
    let handler = |delivery: &Delivery| {
        let number: u32 = delivery.entity().parse().unwrap();
        if number % 4 == 1 && delivery.attempt() == 1 {
            say(format_args!("sent {} refused", delivery.id()));
            return Outcome::Transient(Failure::new("transient", "answered 408"));
        }
        say(format_args!("sent {} applied", delivery.id()));
        Outcome::Succeeded(Receipt::new())
    };
    let backoff = Backoff::Exponential {
        base: Duration::from_millis(5),
        cap: Duration::from_millis(20),
        jitter: Jitter::Full,
    };
    let operation = Operation::new(Downstream::Unprotected, handler).backoff(backoff);
    let relay = Relay::builder(&outbox).operation("pay", operation).build().unwrap();
    let handle = relay.start().unwrap();
    say("started");
    let _ = std::io::stdin().read_line(&mut String::new());
    drop(handle);
}

fn enqueuer(path: &Path, name: &str, count: usize) {
    let outbox = Outbox::open(path).unwrap();
    let mut conn = Connection::open(path).unwrap();
    conn.busy_timeout(Duration::from_secs(30)).unwrap();
    let mut random = fastrand::Rng::with_seed(count as u64);
    for n in 0..count {
        let entity = format!("{name}-{n}");
        let mut intent =
            Intent::new("pay", &entity).tenant("acme").args(serde_json::json!({ "amount": n }));
        if n % 2 == 0 {
            intent = intent.ordering_key(format!("{name}-{}", n % 7));
        }
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        tx.execute("INSERT INTO orders (id, state) VALUES (?1, 'paying')", [&entity]).unwrap();
        outbox.enqueue(&tx, &intent).unwrap();
        if random.u32(0..10) == 0 {
            tx.rollback().unwrap();
            say(format_args!("rolled-back {entity}"));
        } else {
            tx.commit().unwrap();
            say(format_args!("committed {entity}"));
        }
    }
    let done: Result<(), Error> = outbox.transact(|_| Ok(()));
    done.unwrap();
}

/// Makes the leases of a dead process run out, which otherwise takes as long as the lease.
pub fn expire_leases(path: &Path, owner: u32) {
    let conn = Connection::open(path).unwrap();
    conn.busy_timeout(Duration::from_secs(30)).unwrap();
    conn.execute(
        "UPDATE outbox_lease SET due_at = 1700000000000
         WHERE state = 'in_flight' AND owner GLOB ?1",
        [format!("relay-{owner}-*")],
    )
    .unwrap();
}
