//! Parts that all commands share: reading values, and showing results and failures.

pub mod failure;
pub mod input;
pub mod logging;
pub mod output;
pub mod stop;
pub mod trail;
