//! Deliveries against real sockets: what each failure proves, and what is sent where.

mod answers;
mod failures;
mod security;
mod tls;
mod wire;

#[path = "../../tests/it/support/capture.rs"]
mod capture;
#[path = "../../tests/it/support/child.rs"]
mod child;
#[path = "../../tests/it/support/downstream.rs"]
mod downstream;

use std::sync::Arc;
use std::time::Duration;

use self::downstream::Downstream as Server;
use super::{Http, Timeouts};
use crate::Finding;
use crate::clock::SystemClock;
use crate::core::{Downstream, Facts, Outcome};
use crate::handler::{Delivery, Handler, StoredIntent};
use crate::lease::Lease;
use crate::testing::ManualClock;

/// A first attempt of an intent without an endpoint.
fn delivery(key: &str) -> Delivery {
    delivery_of(intent(key))
}

fn delivery_to(key: &str, endpoint: impl Into<String>) -> Delivery {
    delivery_of(StoredIntent { endpoint: Some(endpoint.into()), ..intent(key) })
}

fn delivery_of(intent: StoredIntent) -> Delivery {
    Delivery {
        id: 7,
        operation: "charge".into(),
        other_key: intent.other_key("charge"),
        intent,
        downstream: Downstream::DeduplicatesByKey { window: Duration::from_secs(86_400) },
        repeat_rules: Arc::default(),
        facts: Facts { attempts: 1, tries: 1, ..Facts::default() },
        token: 1,
        downstream_id: None,
        lease: Arc::new(Lease::new(i64::MAX, Arc::new(SystemClock))),
    }
}

fn intent(key: &str) -> StoredIntent {
    StoredIntent {
        tenant_id: String::new(),
        entity_id: "order-1".into(),
        intent_version: 1,
        idempotency_key: key.into(),
        args_hash: None,
        endpoint: None,
        method: "POST".into(),
        content_type: "application/json".into(),
        payload: r#"{"amount":1}"#.into(),
        headers: Vec::new(),
        ordering_key: None,
        created_at: 1_700_000_000_000,
        cost: 0,
    }
}

/// Phases that are short where the test waits for them to end.
fn short() -> Timeouts {
    let short = Duration::from_millis(200);
    let long = Duration::from_secs(10);
    Timeouts { resolve: long, connect: long, send: long, response: short, body: short }
}

fn http(endpoint: &str) -> Http {
    Http::new().endpoint(endpoint).timeouts(short())
}

/// Delivers once to a path of a fresh server.
fn deliver(path: &str) -> (Outcome, Server) {
    let server = Server::start();
    let outcome = http(&server.url(path)).deliver(&delivery("k"));
    (outcome, server)
}

/// The kind of an outcome with its class.
fn kind(outcome: &Outcome) -> (&'static str, &str) {
    let class = outcome.failure().map_or("", |failure| failure.class.as_ref());
    let kind = match outcome {
        Outcome::Succeeded(_) => "succeeded",
        Outcome::NotSent(_) => "not_sent",
        Outcome::MaybeSent(_) => "maybe_sent",
        Outcome::Transient(_) => "transient",
        Outcome::Limited(_) => "limited",
        Outcome::Unauthorized(_) => "unauthorized",
        Outcome::Rejected(_) => "rejected",
        Outcome::NeedsReview(_) => "needs_review",
    };
    (kind, class)
}
