//! One binary for all integration tests.

#[cfg(feature = "http")]
mod answers;
mod downstream;
#[cfg(feature = "http")]
mod http;
mod record;
#[cfg(feature = "http")]
mod transport;
#[cfg(feature = "http")]
mod wire;
mod world;
