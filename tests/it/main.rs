//! One binary for all integration tests.

mod clients;
mod downstream;
#[cfg(feature = "http")]
mod http;
mod record;
mod world;
