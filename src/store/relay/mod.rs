//! The relay's wing: claims, lookups and outcomes, each batch in one write transaction.

pub(crate) mod claim;
pub(crate) mod due;
mod gate;
mod holds;
pub(crate) mod keep;
pub(crate) mod leases;
pub(crate) mod lookup;
pub(crate) mod rebase;
pub(crate) mod record;
mod shares;
pub(crate) mod stops;
mod suspects;
pub(crate) mod tx;
pub(crate) mod writer;
