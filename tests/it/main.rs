//! Quick integration tests, in one binary; `tests/slow` has those that take long.
#![allow(clippy::similar_names, clippy::items_after_statements)]

mod support;

/// Intents on their way into the file: by the library, by plain SQL and by other languages.
mod enqueue {
    mod again;
    mod clients;
    mod conflict;
    mod fixture;
    mod guards;
    mod intent;
    mod migration;
    mod plain_sql;
    mod schema;
    mod transaction;
}

/// Claims, attempts and outcomes.
mod relay {
    #[cfg(feature = "http")]
    mod batch;
    mod claim;
    mod contention;
    mod crowd;
    mod late_report;
    mod ordering;
    mod parking;
    mod poison;
    mod record;
    mod recovery;
    #[cfg(feature = "http")]
    mod retries;
    mod suspects;
    mod threads;
}

/// Pauses, the circuit breaker, rates and budgets.
mod policy {
    mod breaker;
    mod budget;
    mod holds;
    mod origins;
    mod parts;
    mod refund;
    mod turn;
}

/// Intents in doubt, and how a relay finds out about them.
mod lookup {
    #[cfg(feature = "http")]
    mod over_http;
    mod reconcile;
    mod sharing;
}

/// Verbs of persons, webhooks and applications.
mod verbs {
    mod audit;
    mod binding;
    mod cancel;
    mod confirm;
    mod replay;
    mod retry;
    mod revise;
    mod skip;
    mod wait;
}

/// Real connections, from the wire to the file.
#[cfg(feature = "http")]
mod http {
    mod answers;
    mod checklist;
    mod delivery;
    mod echo;
    mod judged;
    mod kept;
    mod secrets;
    mod sizes;
    mod transport;
}

#[cfg(feature = "cli")]
mod cli;

#[cfg(feature = "cli")]
mod clock;

#[cfg(feature = "http")]
mod crash;
mod docs;
mod inbox;
mod regressions;
mod tidy;
