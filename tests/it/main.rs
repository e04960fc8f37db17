//! One binary for all integration tests.

mod record;
mod world;
