//! Signals that ask the command to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::failure::{Failure, Result};

/// Hears of the first signal that asks to stop; a second one ends the process at once.
pub struct StopSignal {
    arrived: Arc<AtomicBool>,
    told: Receiver<()>,
}

impl StopSignal {
    pub fn watch() -> Result<Self> {
        let fail = |error| Failure::failed(format!("signals cannot be watched: {error}"));
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(fail)?;
        let (sender, told) = mpsc::channel();
        let arrived = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&arrived);
        let watch = move || {
            for (place, signal) in signals.forever().enumerate() {
                if place > 0 {
                    std::process::exit(128 + signal);
                }
                flag.store(true, Ordering::Release);
                let _ = sender.send(());
            }
        };
        std::thread::Builder::new().name("outbox-signals".into()).spawn(watch).map_err(fail)?;
        Ok(Self { arrived, told })
    }

    pub fn has_arrived(&self) -> bool {
        self.arrived.load(Ordering::Acquire)
    }

    /// Waits for the signal, but no longer than `time`. True once: when it arrives.
    pub fn wait(&self, time: Duration) -> bool {
        self.told.recv_timeout(time).is_ok()
    }

    /// The flag that the signal sets, for observers on other threads.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.arrived)
    }
}
