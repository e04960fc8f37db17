//! Building blocks of the tests.

#[cfg(feature = "http")]
pub mod child;
pub mod downstream;
pub mod node;
#[cfg(feature = "http")]
pub mod process;
pub mod standing;
#[cfg(feature = "http")]
pub mod wire;
pub mod world;
