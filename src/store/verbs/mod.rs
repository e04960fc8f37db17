//! The verbs of applications, webhooks and persons, in the caller's transaction or their own.

pub(crate) mod enqueue;
pub(crate) mod inbox;
pub(crate) mod limit;
pub(crate) mod matching;
pub(crate) mod part;
pub(crate) mod replay;
pub(crate) mod resolve;
pub(crate) mod revise;
pub(crate) mod withdraw;
