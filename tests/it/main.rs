//! One binary for all integration tests.

#[cfg(feature = "cli")]
mod cli;
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
