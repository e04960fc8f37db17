//! Tests that take long: crowds of killed processes, limits over several processes, tools that are
//! built or installed first, and a ratio of times.
//!
//! `cargo test --features cli,serde,slow-tests --test slow` runs them and nothing else.
#![allow(clippy::similar_names, clippy::items_after_statements)]

#[path = "../it/support/mod.rs"]
#[allow(dead_code, reason = "the quick tests use the rest")]
mod support;

mod agent;
mod clients;
mod crash_crowd;
mod isolation;
mod node;
mod origins;
mod overload;
mod race;
