//! Suspects: rows that were in flight when their process died, more than once.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlite_outbox::Downstream::Unprotected;
use sqlite_outbox::{
    Delivery, Downstream, Filter, Handler, Intent, Operation, Outcome, Receipt, Relay, RelayHandle,
    Status,
};

use crate::support::world::{DEDUPLICATES, LONG, World, pay, succeeded, transient};

/// A handler that says which row it was given, and waits until it may go on.
struct Gate {
    began: Mutex<Sender<i64>>,
    leaves: Mutex<Receiver<()>>,
    time_limit: Duration,
    runs_in_process: bool,
}

impl Gate {
    fn new() -> (Self, Receiver<i64>, Sender<()>) {
        let ((began, begins), (leave, leaves)) = (channel(), channel());
        let (began, leaves) = (Mutex::new(began), Mutex::new(leaves));
        let time_limit = Duration::from_secs(60);
        (Self { began, leaves, time_limit, runs_in_process: true }, begins, leave)
    }
}

impl Handler for Gate {
    fn deliver(&self, delivery: &Delivery) -> Outcome {
        let _ = self.began.lock().unwrap().send(delivery.id());
        let _ = self.leaves.lock().unwrap().recv();
        succeeded("ok")
    }

    fn time_limit(&self) -> Duration {
        self.time_limit
    }

    fn runs_in_process(&self) -> bool {
        self.runs_in_process
    }
}

/// A running relay with three operations: `pay`, of which there are suspects; `mail`, which is
/// unprotected; and `note`, whose rows show by coming through that a step was made.
struct Scene {
    world: World,
    pays: Receiver<i64>,
    pay_may_end: Sender<()>,
    mails: Receiver<i64>,
    mail_may_end: Sender<()>,
    notes: Receiver<i64>,
    relay: RelayHandle,
}

impl Scene {
    fn new(pay: Downstream, with: impl FnOnce(&mut Gate)) -> Self {
        let world = World::new();
        let (mut pay_gate, pays, pay_may_end) = Gate::new();
        with(&mut pay_gate);
        let (mail_gate, mails, mail_may_end) = Gate::new();
        let (note_gate, notes, _) = Gate::new();
        let relay = Relay::builder(&world.outbox)
            .operation("pay", Operation::new(pay, pay_gate))
            .operation("mail", Operation::new(Unprotected, mail_gate))
            .operation("note", Operation::new(DEDUPLICATES, note_gate))
            .workers(6)
            .build()
            .unwrap();
        let relay = relay.start().unwrap();
        Self { world, pays, pay_may_end, mails, mail_may_end, notes, relay }
    }

    fn enqueue(&self, operation: &str, entity: &str) -> i64 {
        self.world.enqueue(&Intent::new(operation, entity))
    }

    /// Enqueues intents of `pay` that were lost twice before.
    fn enqueue_suspects(&self, entities: &[&str]) -> Vec<i64> {
        let intents: Vec<Intent> = entities.iter().map(|entity| pay(entity)).collect();
        let outbox = &self.world.outbox;
        let enqueued: sqlite_outbox::Result<Vec<_>> = outbox.transact(|tx| {
            let enqueued = outbox.enqueue_all(tx, &intents)?;
            for enqueued in &enqueued {
                let sql = "UPDATE outbox_lease SET lost = 2, tries = 2 WHERE id = ?1";
                tx.execute(sql, [enqueued.id()]).unwrap();
            }
            Ok(enqueued)
        });
        enqueued.unwrap().iter().map(sqlite_outbox::Enqueued::id).collect()
    }

    /// Returns once the relay has claimed from all operations again.
    fn makes_a_step(&self, entity: &str) {
        let id = self.enqueue("note", entity);
        assert_eq!(self.notes.recv_timeout(LONG), Ok(id));
    }

    fn is_pending(&self, id: i64) -> bool {
        self.world.entry(id).status == Status::Pending
    }

    fn ends(self) {
        drop((self.pay_may_end, self.mail_may_end));
        self.relay.shutdown(LONG).unwrap();
    }
}

/// A row that kills its process would put unprotected rows in doubt that are on their way: none
/// is claimed while it is tried by code of this process. Rows that deduplicate go on.
#[test]
fn suspect_in_this_process_takes_no_unprotected_row_along() {
    let scene = Scene::new(DEDUPLICATES, |_| ());
    let first = scene.enqueue("mail", "on its way");
    assert_eq!(scene.mails.recv_timeout(LONG), Ok(first));
    let suspect = scene.enqueue_suspects(&["suspect"])[0];
    scene.makes_a_step("suspect was seen");
    assert!(scene.is_pending(suspect), "an unprotected row is on its way");
    let second = scene.enqueue("mail", "meanwhile");
    scene.makes_a_step("mail was seen");
    assert!(scene.is_pending(second), "or the suspect would have no turn");

    scene.mail_may_end.send(()).unwrap();
    assert_eq!(scene.pays.recv_timeout(LONG), Ok(suspect));
    scene.makes_a_step("while it is tried");
    assert!(scene.is_pending(second));
    scene.pay_may_end.send(()).unwrap();
    assert_eq!(scene.mails.recv_timeout(LONG), Ok(second));
    scene.ends();
}

/// A request over HTTP does not end this process, and unprotected rows need not wait for it.
#[test]
fn suspect_over_http_keeps_no_row_back() {
    let scene = Scene::new(DEDUPLICATES, |gate| gate.runs_in_process = false);
    let first = scene.enqueue("mail", "on its way");
    assert_eq!(scene.mails.recv_timeout(LONG), Ok(first));
    let suspects = scene.enqueue_suspects(&["a", "b"]);
    assert_eq!(scene.pays.recv_timeout(LONG), Ok(suspects[0]));
    let second = scene.enqueue("mail", "beside it");
    assert_eq!(scene.mails.recv_timeout(LONG), Ok(second));
    assert!(scene.is_pending(suspects[1]), "one at a time");
    scene.pay_may_end.send(()).unwrap();
    assert_eq!(scene.pays.recv_timeout(LONG), Ok(suspects[1]));
    scene.ends();
}

/// A suspect whose handler hangs keeps unprotected rows back no longer than its time limit.
#[test]
fn suspect_past_its_time_limit_keeps_no_row_back() {
    let scene = Scene::new(DEDUPLICATES, |gate| gate.time_limit = Duration::from_millis(300));
    let suspect = scene.enqueue_suspects(&["hangs"])[0];
    assert_eq!(scene.pays.recv_timeout(LONG), Ok(suspect));
    let mail = scene.enqueue("mail", "waits");
    assert_eq!(scene.mails.recv_timeout(LONG), Ok(mail));
    assert_eq!(scene.world.entry(suspect).status, Status::InFlight);
    scene.ends();
}

/// A suspect of an unprotected downstream, which a lookup has shown not to be applied, is claimed
/// without others of its own operation.
#[test]
fn unprotected_suspect_takes_none_of_its_own_along() {
    let scene = Scene::new(Unprotected, |_| ());
    let healthy = scene.enqueue("pay", "on its way");
    assert_eq!(scene.pays.recv_timeout(LONG), Ok(healthy));
    let suspect = scene.enqueue_suspects(&["suspect"])[0];
    let next = scene.enqueue("pay", "next");
    scene.makes_a_step("both were seen");
    assert!(scene.is_pending(suspect));
    scene.pay_may_end.send(()).unwrap();
    let mut order = Vec::new();
    while order.len() < 2 {
        let id = scene.pays.recv_timeout(LONG).unwrap();
        let in_flight = Filter::default().status(Status::InFlight).operation("pay");
        if id == suspect {
            assert_eq!(scene.world.outbox.list(&in_flight).unwrap().len(), 1);
        }
        order.push(id);
        scene.pay_may_end.send(()).unwrap();
    }
    order.sort_unstable();
    assert_eq!(order, [suspect, next]);
    scene.ends();
}

/// A drain has one worker: it ends with the unprotected rows first, and then tries the suspect.
#[test]
fn drain_leaves_no_suspect_behind() {
    let world = World::new();
    let outbox = &world.outbox;
    let operation = || Operation::new(Unprotected, |_: &Delivery| succeeded("ok"));
    let pays = Operation::new(DEDUPLICATES, |_: &Delivery| succeeded("ok"));
    let relay = Relay::builder(outbox).operation("pay", pays).operation("mail", operation());
    for n in ["a", "b", "c"] {
        world.enqueue(&pay(n));
        world.enqueue(&Intent::new("mail", n));
    }
    world.sql("UPDATE outbox_lease SET lost = 2, tries = 2 WHERE operation = 'pay'");
    assert_eq!(relay.workers(1).build().unwrap().drain().unwrap().succeeded, 6);
    assert_eq!(world.number("SELECT count(*) FROM outbox_hold"), 0);
}

/// Suspects take turns over all relays on the file, and a relay that dies of one leaves the turn to
/// the next.
#[test]
fn suspects_take_turns_over_all_relays() {
    let scene = Scene::new(DEDUPLICATES, |_| ());
    let suspects = scene.enqueue_suspects(&["a", "b"]);
    assert_eq!(scene.pays.recv_timeout(LONG), Ok(suspects[0]));
    let healthy = scene.enqueue("pay", "healthy");
    assert_eq!(scene.pays.recv_timeout(LONG), Ok(healthy), "beside the suspect");
    let other = scene.world.other_relay(DEDUPLICATES, |_: &Delivery| succeeded("ok"));
    assert_eq!(other.drain().unwrap().succeeded, 0);
    assert!(scene.is_pending(suspects[1]));
    // As if the first relay had lost it.
    let dead = scene.world.dir.path().join("app.db-outbox").join("relay-dead");
    std::fs::write(dead, "").unwrap();
    let sql = format!("UPDATE outbox_lease SET owner = 'relay-dead' WHERE id = {}", suspects[0]);
    assert_eq!(scene.world.sql(&sql), 1);
    assert_eq!(other.drain().unwrap().succeeded, 2);
    assert_eq!(scene.world.story(suspects[0])[0], "lease_lost:in_flight>pending");
    scene.ends();
}

/// Rows whose processes died more than once are tried one at a time, beside all others: each lost
/// row used to be claimed alone, and everything else stood still for as long as each took.
#[test]
fn suspects_are_tried_one_at_a_time_beside_healthy_rows() {
    let world = World::new();
    let suspects: Vec<i64> = (0..4).map(|n| world.enqueue(&pay(&format!("s{n}")))).collect();
    world.sql("UPDATE outbox_lease SET lost = 2, attempts = 2, tries = 2");
    let healthy: Vec<i64> = (0..6).map(|n| world.enqueue(&pay(&n.to_string()))).collect();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (notes, outbox) = (Arc::clone(&seen), world.second());
    let relay = world.other_relay(DEDUPLICATES, move |delivery: &Delivery| {
        let in_flight = outbox.list(&Filter::default().status(Status::InFlight)).unwrap();
        notes.lock().unwrap().push((delivery.id(), in_flight.len()));
        let suspects = in_flight.iter().filter(|entry| entry.id <= 4).count();
        assert!(suspects <= 1, "{in_flight:?}");
        if delivery.id() == 2 { transient() } else { succeeded("ok") }
    });
    assert_eq!(relay.drain().unwrap().succeeded, 9);
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen[0], (suspects[0], 2), "a healthy row is claimed with the first");
    let order: Vec<i64> = seen.iter().map(|(id, _)| *id).collect();
    assert_eq!(order[1], healthy[0], "none waits behind the other suspects");
    let tried: Vec<i64> = order.into_iter().filter(|id| suspects.contains(id)).collect();
    assert_eq!(tried, suspects, "in their order");
    assert_eq!(world.number("SELECT count(*) FROM outbox_hold"), 0, "none is left");
    // Its process outlived the attempt: it is a suspect no longer.
    assert_eq!(world.number("SELECT lost FROM outbox_lease WHERE id = 2"), 0);
    world.advance(10);
    assert_eq!(relay.drain().unwrap().retried, 1);
}

/// The next suspect comes through also where the one that was tried, or the next, is gone in
/// another way.
#[test]
fn suspect_that_vanishes_holds_no_other_back() {
    let world = World::new();
    for n in 0..3 {
        world.enqueue(&pay(&n.to_string()));
    }
    world.sql("UPDATE outbox_lease SET lost = 2, attempts = 2, tries = 2");
    let (inside, notes) = (world.second(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&notes);
    let relay = world.other_relay(DEDUPLICATES, move |delivery: &Delivery| {
        seen.lock().unwrap().push(delivery.id());
        let settle = |id: i64| {
            let key = inside.entry(id).unwrap().unwrap().idempotency_key;
            inside.transact(|tx| inside.confirm(tx, ("", &key), &Receipt::new(), "webhook"))
        };
        if delivery.id() == 1 {
            settle(1).unwrap();
            settle(2).unwrap();
        }
        succeeded("ok")
    });
    relay.drain().unwrap();
    assert_eq!(*notes.lock().unwrap(), [1, 3]);
    assert_eq!(world.number("SELECT count(*) FROM outbox_lease"), 0);
    assert_eq!(world.number("SELECT count(*) FROM outbox_hold"), 0);
}
