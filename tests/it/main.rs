//! One binary for all integration tests.

#[cfg(feature = "cli")]
mod cli;
mod clients;
mod downstream;
#[cfg(feature = "http")]
mod http;
mod record;
mod world;
