//! The log on standard error.

use log::{LevelFilter, Log, Metadata, Record};

/// Crates whose finer levels print whole requests, credentials included.
const CAPPED: [&str; 3] = ["ureq", "ureq_proto", "rustls"];

/// Starts logging: warnings, or what `RUST_LOG` says, or more with `-v`.
pub fn start(verbose: u8) {
    let mut builder = env_logger::Builder::new();
    // The pool logs errors that the command prints anyway.
    builder.filter_level(LevelFilter::Warn).filter_module("r2d2", LevelFilter::Off);
    let logger = match verbose {
        0 => builder.parse_env("RUST_LOG"),
        1 => builder.filter_level(LevelFilter::Info),
        _ => builder.filter_level(LevelFilter::Debug),
    }
    .build();
    let level = logger.filter();
    if log::set_boxed_logger(Box::new(Capped(logger))).is_ok() {
        log::set_max_level(level);
    }
}

/// Drops the details of the capped crates, whatever a filter asks for.
struct Capped(env_logger::Logger);

fn is_allowed(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    let root = target.split("::").next().unwrap_or(target);
    !CAPPED.contains(&root) || metadata.level() <= log::Level::Info
}

impl Log for Capped {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_allowed(metadata) && self.0.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if is_allowed(record.metadata()) {
            self.0.log(record);
        }
    }

    fn flush(&self) {
        self.0.flush();
    }
}
