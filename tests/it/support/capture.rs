//! A logger that keeps what this crate logs. A process has one, so its test takes a process of its
//! own.

use std::fmt::Write;
use std::sync::{Mutex, MutexGuard};

struct Capture(Mutex<String>);

impl log::Log for Capture {
    fn enabled(&self, _: &log::Metadata) -> bool {
        true
    }

    fn log(&self, record: &log::Record) {
        if record.target().starts_with("sqlite_outbox") {
            writeln!(self.0.lock().unwrap(), "{}", record.args()).unwrap();
        }
    }

    fn flush(&self) {}
}

static CAPTURE: Capture = Capture(Mutex::new(String::new()));

/// Keeps everything from now on, at every level.
pub fn begin() {
    log::set_logger(&CAPTURE).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
}

/// All lines that were logged so far.
pub fn logged() -> MutexGuard<'static, String> {
    CAPTURE.0.lock().unwrap()
}
