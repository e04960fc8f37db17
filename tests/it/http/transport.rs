//! Failures of a connection, from the wire to the file: one test each, under three contracts.

use std::io::Read;
use std::net::TcpListener;
use std::time::Duration;

use sqlite_outbox::Status::{Dead, Pending, Succeeded, Unknown};
use sqlite_outbox::{Handler, Status};

use crate::support::downstream::Downstream as Server;
use crate::support::wire::{Contract, Wire, hasty, http};
use crate::support::world::{DEDUPLICATES, WINDOW, pay};

/// Proof that a failure gives.
#[derive(Clone, Copy)]
enum Proof {
    /// The request never left.
    NotSent,
    /// The request left, and nobody knows what became of it.
    InDoubt,
    /// A status came, whatever followed it.
    Answered,
    /// The request was refused.
    Refused,
}

use Proof::{Answered, InDoubt, NotSent, Refused};

impl Proof {
    /// Where the intent stands after the failure, and after a second look once the downstream is
    /// well again.
    fn course(self, contract: Contract) -> (Status, Status) {
        match (self, contract) {
            (NotSent, _) | (InDoubt, Contract::InsideWindow) => (Pending, Succeeded),
            (Answered, _) => (Succeeded, Succeeded),
            (Refused, _) => (Dead, Dead),
            (InDoubt, Contract::Unprotected) => (Unknown, Unknown),
            (InDoubt, Contract::OutsideWindow) => (Pending, Unknown),
        }
    }
}

/// Fails once at this path, then finds a downstream that works and applies every request where
/// nothing is deduplicated.
fn fails(path: &str, class: &str, proof: Proof) {
    fails_at(|server| server.url(path), class, proof);
}

fn fails_at(endpoint: impl Fn(&Server) -> String, class: &str, proof: Proof) {
    for contract in Contract::ALL {
        let wire = Wire::new();
        let id = wire.world.enqueue(&pay("order-1"));
        let failing = hasty().endpoint(&endpoint(&wire.server));
        let (first, last) = proof.course(contract);

        wire.relay(contract.downstream(), failing).drain().unwrap();
        let entry = wire.world.entry(id);
        let case = format!("{contract:?}: {entry:?}");
        assert_eq!(entry.status, first, "{case}");
        assert_eq!(wire.class(id).unwrap_or_default(), class, "{case}");
        let left = u32::from(!matches!(proof, NotSent));
        assert_eq!(entry.attempts, left, "{case}");
        let connections = wire.server.connections();
        assert!(connections <= 1 && wire.server.requests().len() <= connections, "{case}");
        if matches!(proof, NotSent) {
            assert_eq!(wire.server.requests().len(), 0, "{case}");
        }

        wire.world.advance(contract.seconds_between());
        let well = if contract == Contract::Unprotected { "/naive" } else { "/ok" };
        wire.drain(contract.downstream(), well);
        if contract == Contract::Unprotected {
            wire.provoke("/naive");
        }
        let entry = wire.world.entry(id);
        let case = format!("{contract:?}: {entry:?}");
        assert_eq!(entry.status, last, "{case}");
        let second = usize::from(first == Pending && last == Succeeded);
        assert_eq!(wire.server.connections(), connections + second, "{case}");
        assert!(wire.server.effects(&entry.idempotency_key) <= 1, "{case}");
        assert!(wire.server.distinct_keys().len() <= 1, "{case}");
    }
}

#[test]
fn connection_refused() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    fails_at(|_| format!("http://{free}/ok"), "connect", NotSent);
}

#[test]
fn dns_name_that_does_not_exist() {
    fails_at(|_| "http://nothing.invalid/ok".into(), "dns", NotSent);
}

#[test]
fn tls_to_a_port_without_tls() {
    fails_at(|server| server.url("/ok").replace("http:", "https:"), "tls", NotSent);
}

#[test]
fn connection_closed_before_the_request_was_read() {
    fails("/close", "reset", InDoubt);
}

#[test]
fn connection_closed_after_the_request_was_read() {
    fails("/cut/1", "reset", InDoubt);
}

#[test]
fn connection_closed_after_the_effect() {
    fails("/lost/1", "reset", InDoubt);
}

#[test]
fn connection_reset() {
    fails("/reset", "reset", InDoubt);
}

#[test]
fn status_line_that_stops_in_the_middle() {
    fails("/partial_status", "reset", InDoubt);
}

#[test]
fn headers_that_stop_in_the_middle() {
    fails("/partial_headers", "reset", InDoubt);
}

#[test]
fn head_that_drips_forever() {
    fails("/drip_head/20", "timeout", InDoubt);
}

#[test]
fn header_that_is_too_long() {
    fails("/bigheader/40000", "", Answered);
}

#[test]
fn garbage_that_is_not_http() {
    fails("/garbage", "protocol", InDoubt);
}

#[test]
fn answer_that_never_comes() {
    fails("/silent", "timeout", InDoubt);
}

#[test]
fn answer_that_comes_after_the_timeout() {
    fails("/hang/20", "timeout", InDoubt);
}

#[test]
fn body_that_is_cut() {
    fails("/truncated", "", Answered);
}

#[test]
fn body_that_drips_forever() {
    fails("/drip/20", "", Answered);
}

#[test]
fn body_that_is_too_long() {
    fails("/big/1000000", "", Answered);
}

#[test]
fn body_without_end() {
    fails("/endless", "", Answered);
}

#[test]
fn redirect_303_may_follow_the_effect() {
    fails("/redirect/303/naive", "redirect", InDoubt);
}

#[test]
fn redirect_307_repeats_the_request() {
    fails("/redirect/307/naive", "redirect", Refused);
}

/// The window is asked about where the outcome is written down, not where the attempt began.
#[test]
fn key_window_that_ends_before_the_record_prevents_a_retry() {
    let wire = Wire::new();
    let id = wire.world.enqueue(&pay("order-1"));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/ok", listener.local_addr().unwrap());
    let clock = wire.world.clock.clone();
    let serving = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        assert!(socket.read(&mut [0; 4096]).unwrap() > 0);
        clock.advance(WINDOW);
    });
    wire.relay(DEDUPLICATES, http().endpoint(&endpoint)).drain().unwrap();
    serving.join().unwrap();
    assert_eq!(wire.world.entry(id).status, Unknown);
    wire.drain(DEDUPLICATES, "/ok");
    assert_eq!(wire.server.connections(), 0);
}

/// The edge: the attempt must end before the downstream forgets the key.
#[test]
fn key_window_that_ends_within_an_attempt_prevents_it() {
    for (late, status, requests) in [(0, Succeeded, 2), (1, Unknown, 1)] {
        let wire = Wire::new();
        let id = wire.world.enqueue(&pay("order-1"));
        wire.drain(DEDUPLICATES, "/lostdedupe/1");
        let time_limit = wire.to("/ok").time_limit();
        wire.world.clock.advance(WINDOW.saturating_sub(time_limit) + Duration::from_millis(late));
        wire.drain(DEDUPLICATES, "/ok");
        assert_eq!(wire.world.entry(id).status, status);
        assert_eq!(wire.server.requests().len(), requests);
        assert_eq!(wire.server.effects(&wire.world.entry(id).idempotency_key), 1);
    }
}
