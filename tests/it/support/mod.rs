//! Building blocks of the tests.

#[cfg(feature = "http")]
pub mod capture;
#[cfg(feature = "http")]
pub mod child;
pub mod clients;
pub mod downstream;
pub mod folder;
pub mod needs;
#[cfg(feature = "http")]
#[allow(dead_code, reason = "some roles are played in tests/slow alone")]
pub mod process;
#[cfg(feature = "http")]
#[allow(dead_code, reason = "some methods are for tests/slow alone")]
pub mod scene;
pub mod standing;
#[cfg(feature = "http")]
pub mod wire;
pub mod world;
