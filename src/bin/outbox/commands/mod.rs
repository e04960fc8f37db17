//! The commands, each under its name; a command with several parts has a folder.

pub mod confirm;
pub mod demo;
pub mod enqueue;
pub mod events;
pub mod init;
pub mod key;
pub mod limit;
pub mod list;
pub mod operations;
pub mod relay;
pub mod show;
pub mod stats;
pub mod verbs;
pub mod why;
