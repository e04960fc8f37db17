//! Tables, a file for each or for a pair that change together: the statements that read and write
//! them, and nothing about who asks. `gates` puts them together: whether an operation may send.

pub(crate) mod answer;
pub(crate) mod audit;
pub(crate) mod binding;
pub(crate) mod budget;
pub(crate) mod candidate;
pub(crate) mod contract;
pub(crate) mod gates;
pub(crate) mod hold;
pub(crate) mod ledger;
pub(crate) mod lost_lease;
pub(crate) mod ordering;
pub(crate) mod pause;
pub(crate) mod settled;
pub(crate) mod shard;
pub(crate) mod unrecorded;
pub(crate) mod wire_key;
