//! The guard of each case: a case that hangs ends the whole run with its name, rather than hanging CI.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// A time that is long for a machine of its own, times `TIDEGATE_PATIENCE` where the system is not real.
pub fn slow(time: Duration) -> Duration {
    let factor = std::env::var("TIDEGATE_PATIENCE").ok().and_then(|text| text.parse().ok());
    time * factor.unwrap_or(1)
}

/// Generous, because continuous integration is slow and shared.
fn limit() -> Duration {
    slow(Duration::from_secs(60))
}

/// While it lives, the time of a case runs. Past the limit the process is aborted.
pub struct Deadline {
    _ended: Sender<()>,
}

impl Deadline {
    /// Starts the time of the case with this name.
    pub fn new(case: String) -> Self {
        let (ended, over) = channel();
        let limit = limit();
        let watch = move || {
            if over.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                // Not `eprintln!`: the test harness would keep the line to itself.
                let line = format!("\n{case} has not ended after {limit:?}: the run is aborted\n");
                let _ = std::io::stderr().write_all(line.as_bytes());
                std::process::abort();
            }
        };
        std::thread::Builder::new().name("deadline".into()).spawn(watch).expect("a thread");
        Self { _ended: ended }
    }
}
