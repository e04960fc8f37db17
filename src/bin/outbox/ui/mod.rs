//! What the commands share: how values are read, and how results and failures are shown.

pub mod failure;
pub mod input;
pub mod logging;
pub mod output;
pub mod stop;
pub mod trail;
