//! One binary for all integration tests.

#[cfg(feature = "http")]
mod answers;
mod cases;
#[cfg(feature = "http")]
mod checklist;
#[cfg(feature = "http")]
mod child;
#[cfg(feature = "cli")]
mod cli;
mod clients;
mod contention;
#[cfg(feature = "http")]
mod crash;
mod downstream;
#[cfg(feature = "http")]
mod flow;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "http")]
mod limits;
#[cfg(feature = "http")]
mod process;
mod record;
#[cfg(feature = "http")]
mod retries;
#[cfg(feature = "http")]
mod secrets;
#[cfg(feature = "http")]
mod transport;
#[cfg(feature = "http")]
mod wire;
mod world;
