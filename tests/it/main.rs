//! One binary for all integration tests.
mod downstream;
