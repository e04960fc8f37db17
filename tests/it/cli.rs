//! The command, as processes.
