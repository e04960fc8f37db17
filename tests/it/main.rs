//! One binary for all integration tests.

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
