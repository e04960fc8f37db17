//! One binary for all integration tests.
#![allow(clippy::similar_names, clippy::items_after_statements)]

mod cancel;
mod claim;
mod conflict;
mod enqueue;
mod guard;
mod late;
mod order;
mod poison;
mod record;
mod relay;
mod replay;
mod schema;
mod tidy;
mod transaction;
mod world;
