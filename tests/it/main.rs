//! One binary for all integration tests.
#![allow(clippy::similar_names, clippy::items_after_statements)]
mod again;
#[cfg(feature = "http")]
mod agent;
#[cfg(feature = "http")]
mod answers;
mod audit;
mod binding;
mod breaker;
mod budget;
mod cancel;
mod cases;
#[cfg(feature = "http")]
mod checklist;
#[cfg(feature = "http")]
mod child;
mod claim;
#[cfg(feature = "cli")]
mod cli;
mod clients;
mod confirm;
mod conflict;
mod contention;
#[cfg(feature = "http")]
mod crash;
mod downstream;
mod enqueue;
#[cfg(feature = "http")]
mod flow;
mod guard;
#[cfg(feature = "http")]
mod http;
mod inbox;
mod isolation;
mod late;
#[cfg(feature = "http")]
mod limits;
#[cfg(feature = "http")]
mod lookup;
mod node;
mod order;
#[cfg(feature = "http")]
mod overload;
mod poison;
#[cfg(feature = "http")]
mod process;
#[cfg(feature = "http")]
mod race;
mod reconcile;
mod record;
mod regressions;
mod relay;
mod replay;
mod reserve;
#[cfg(feature = "http")]
mod retries;
mod revise;
mod schema;
#[cfg(feature = "http")]
mod secrets;
mod share;
mod skip;
mod standing;
mod tidy;
mod transaction;
#[cfg(feature = "http")]
mod transport;
mod wait;
#[cfg(feature = "http")]
mod wire;
mod world;
