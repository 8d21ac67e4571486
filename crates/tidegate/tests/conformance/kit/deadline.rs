//! The guard of each case: a case that hangs ends the whole run with its name, rather than hanging CI.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Generous, because continuous integration is slow and shared.
const LIMIT: Duration = Duration::from_secs(60);

/// While it lives, the time of a case runs. Past the limit the process is aborted.
pub struct Deadline {
    _ended: Sender<()>,
}

impl Deadline {
    /// Starts the time of the case with this name.
    pub fn new(case: String) -> Self {
        let (ended, over) = channel();
        let watch = move || {
            if over.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                // Not `eprintln!`: the test harness would keep the line to itself.
                let line = format!("\n{case} has not ended after {LIMIT:?}: the run is aborted\n");
                let _ = std::io::stderr().write_all(line.as_bytes());
                std::process::abort();
            }
        };
        std::thread::Builder::new().name("deadline".into()).spawn(watch).expect("a thread");
        Self { _ended: ended }
    }
}
