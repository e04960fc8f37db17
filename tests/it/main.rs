//! One binary for all integration tests.

mod downstream;
mod record;
mod world;
