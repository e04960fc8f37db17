//! One binary for all integration tests.

mod clients;
#[cfg(feature = "http")]
mod crash;
mod downstream;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "http")]
mod process;
mod record;
mod world;
