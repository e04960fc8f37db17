//! Reading: what became of intents, and why one waits.

pub(crate) mod operations;
pub(crate) mod read;
pub(crate) mod watch;
pub(crate) mod why;
