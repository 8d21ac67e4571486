//! Starting threads: what cannot start is an error and never the end of the process.

use std::io;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tidegate_os::thread::Headroom;

/// Stack of a thread where the policy does not say: what the standard library has.
pub(in crate::engine) const STACK_BYTES: usize = 2 << 20;

/// What the standard library maps for a thread after its start, when it can no longer report an error.
const AFTER_START_BYTES: usize = 256 * 1024;

/// Address space that is left to the rest of the process in any case.
pub(in crate::engine) const LEAST_RESERVE: usize = 1 << 20;

/// How long a loop rests that cannot wait.
const FAILED_WAIT_PAUSE: Duration = Duration::from_millis(10);

/// Logs that a loop cannot wait, and rests. Only a broken poller or set of descriptors gets here: the loop goes on slowly
/// rather than spin or give up.
pub(in crate::engine) fn rest_after_failed_wait(what: &str, e: &io::Error) {
    tracing::error!(error = %e, "waiting for {what} failed");
    std::thread::sleep(FAILED_WAIT_PAUSE);
}

/// Starts a thread that can be joined.
///
/// # Errors
/// There is no memory for it, or the system refuses one more thread.
pub(in crate::engine) fn spawn(
    name: String,
    stack_bytes: usize,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let bytes = stack_bytes.saturating_add(AFTER_START_BYTES);
    let headroom = Headroom::promise(bytes, LEAST_RESERVE).map_err(explain)?;
    let run = move || {
        drop(headroom); // from here on it is mapped
        run();
    };
    Builder::new().name(name).stack_size(stack_bytes).spawn(run).map_err(explain)
}

/// Makes sure that so many threads can be started, by having them all at once for a moment.
///
/// # Errors
/// One of them could not be started.
#[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "the others start their threads one by one"))]
pub(in crate::engine) fn try_out(threads: usize) -> io::Result<()> {
    let (go, command_queue) = mpsc::channel::<()>();
    let command_queue = std::sync::Arc::new(std::sync::Mutex::new(command_queue));
    let mut started = Vec::new();
    let outcome = (0..threads).try_for_each(|_| {
        let command_queue = command_queue.clone();
        let wait = move || _ = command_queue.lock().map(|command_queue| command_queue.recv());
        started.push(spawn("tidegate-probe".into(), STACK_BYTES, wait)?);
        Ok(())
    });
    drop(go);
    started.into_iter().for_each(|thread| _ = thread.join());
    outcome
}

fn explain(e: io::Error) -> io::Error {
    io::Error::new(
        e.kind(),
        format!(
            "a thread cannot be started: {e}; use fewer threads, or raise what limits them or their memory \
             (ulimit -u, TasksMax=, pids.max; ulimit -v)"
        ),
    )
}
