//! Signals and console events that ask the command to stop.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use super::failure::{Failure, Result};

/// The first signal that asks to stop; a second one ends the process at once.
pub struct StopSignal {
    arrived: Arc<AtomicBool>,
    received: Receiver<()>,
}

impl StopSignal {
    pub fn watch() -> Result<Self> {
        let (sender, received) = mpsc::channel();
        let arrived = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&arrived);
        let hear = move |exit_code| {
            if flag.swap(true, Ordering::AcqRel) {
                std::process::exit(exit_code);
            }
            let _ = sender.send(());
        };
        let fail = |error| Failure::failed(format!("signals cannot be watched: {error}"));
        listen(hear).map_err(fail)?;
        Ok(Self { arrived, received })
    }

    pub fn has_arrived(&self) -> bool {
        self.arrived.load(Ordering::Acquire)
    }

    /// Waits for the signal, but no longer than `time`. True once: when it arrives.
    pub fn wait(&self, time: Duration) -> bool {
        self.received.recv_timeout(time).is_ok()
    }
}

/// Calls `hear` for each signal, with the exit code of a process that is ended by it.
#[cfg(unix)]
fn listen(mut hear: impl FnMut(i32) + Send + 'static) -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut watched = vec![SIGINT, SIGTERM];
    if !is_ignored(SIGHUP) {
        watched.push(SIGHUP);
    }
    let mut signals = signal_hook::iterator::Signals::new(watched)?;
    spawn(move || signals.forever().for_each(|signal| hear(128 + signal)))
}

/// Whether this process was started with a signal ignored, as `nohup` does with SIGHUP. Only Linux
/// tells; elsewhere the answer is no.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Calls `hear` for each console event, with the exit code of a process that Ctrl-C ends. Windows
/// ends a process whose handler of a closed console returns; tokio's handler never does, so that
/// the relay has the five seconds that the system grants.
#[cfg(windows)]
fn listen(mut hear: impl FnMut(i32) + Send + 'static) -> io::Result<()> {
    use std::task::Poll;
    use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown};
    let (mut c, mut r#break) = (ctrl_c()?, ctrl_break()?);
    let (mut close, mut shutdown) = (ctrl_close()?, ctrl_shutdown()?);
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    spawn(move || {
        runtime.block_on(std::future::poll_fn(|context| -> Poll<()> {
            while c.poll_recv(context).is_ready()
                || r#break.poll_recv(context).is_ready()
                || close.poll_recv(context).is_ready()
                || shutdown.poll_recv(context).is_ready()
            {
                hear(130);
            }
            Poll::Pending
        }));
    })
}

fn spawn(watch: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("outbox-signals".into()).spawn(watch).map(drop)
}
