//! One binary for all integration tests.

#[cfg(feature = "cli")]
mod cli;
mod downstream;
mod record;
mod world;
