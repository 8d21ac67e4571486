//! Starting threads: what cannot start is an error and never the end of the process, and an engine has all its threads
//! or none.

use std::io;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use tidegate_os::thread::Headroom;

/// Stack of a thread where the policy does not say: what the standard library has.
pub(in crate::engine) const STACK_BYTES: usize = 2 << 20;

/// What the standard library maps for a thread after its start, when it can no longer report an error.
const AFTER_START_BYTES: usize = 256 * 1024;

/// Address space that is left to the rest of the process in any case.
pub(in crate::engine) const LEAST_RESERVE: usize = 1 << 20;

/// How long a loop rests that cannot wait.
const FAILED_WAIT_PAUSE: Duration = Duration::from_millis(10);

/// The least time between two lines about loops that cannot wait, of all threads: there may be hundreds.
const FAILED_WAIT_LOG: Duration = Duration::from_secs(1);

/// Logs that a loop cannot wait, and rests. Only a broken poller or set of descriptors gets here: the loop goes on slowly
/// rather than spin or give up.
pub(in crate::engine) fn rest_after_failed_wait(what: &str, e: &io::Error) {
    static LOGGED: Mutex<Option<Instant>> = Mutex::new(None);
    if is_due(&mut LOGGED.lock().unwrap_or_else(PoisonError::into_inner), Instant::now()) {
        tracing::error!(error = %e, "waiting for {what} failed");
    }
    std::thread::sleep(FAILED_WAIT_PAUSE);
}

/// Whether the last line is old enough for another one, which then is the last.
fn is_due(logged: &mut Option<Instant>, now: Instant) -> bool {
    let due = logged.is_none_or(|last| now.saturating_duration_since(last) >= FAILED_WAIT_LOG);
    if due {
        *logged = Some(now);
    }
    due
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

/// Starts threads, all of them or none: `start` lists each that it has started. If it fails, `stop` has these end, and
/// they are joined.
pub(in crate::engine) fn all_or_none(
    start: impl FnOnce(&mut Vec<JoinHandle<()>>) -> io::Result<()>,
    stop: impl FnOnce(),
) -> io::Result<Vec<JoinHandle<()>>> {
    let mut started = Vec::new();
    let outcome = start(&mut started);
    if outcome.is_err() {
        stop();
        started.drain(..).for_each(|thread| _ = thread.join());
    }
    outcome.map(|()| started)
}

/// The same for threads that say whether they can serve: waits until all of them have.
pub(in crate::engine) fn start_all(
    threads: impl IntoIterator<Item = io::Result<Starting>>,
    stop: impl FnOnce(),
) -> io::Result<Vec<JoinHandle<()>>> {
    let start = |started: &mut Vec<_>| {
        let waits = threads.into_iter().map(|thread| {
            let Starting { handle, ready } = thread?;
            started.push(handle);
            Ok(ready)
        });
        let waits: Vec<_> = waits.collect::<io::Result<_>>()?;
        let ended = |_| io::Error::other("an I/O thread ended at its start");
        waits.iter().try_for_each(|ready| ready.recv().map_err(ended)?)
    };
    all_or_none(start, stop)
}

/// A thread that was started, and says once whether it can serve.
pub(in crate::engine) struct Starting {
    handle: JoinHandle<()>,
    ready: mpsc::Receiver<io::Result<()>>,
}

impl Starting {
    /// Starts a thread that is to report through the `Ready` it is given.
    pub(in crate::engine) fn spawn(
        name: String,
        stack_bytes: usize,
        run: impl FnOnce(Ready) + Send + 'static,
    ) -> io::Result<Self> {
        let (answer, ready) = mpsc::channel();
        Ok(Self { handle: spawn(name, stack_bytes, move || run(Ready(answer)))?, ready })
    }
}

/// Says once whether a thread can serve.
pub(crate) struct Ready(mpsc::Sender<io::Result<()>>);

impl Ready {
    /// Reports the outcome of the set-up; passes it on.
    pub(crate) fn report<T>(self, outcome: io::Result<T>) -> Option<T> {
        let (value, outcome) = match outcome {
            Ok(value) => (Some(value), Ok(())),
            Err(e) => (None, Err(e)),
        };
        let _ = self.0.send(outcome);
        value
    }
}

/// Makes sure that so many threads can be started, by having them all at once for a moment.
///
/// # Errors
/// One of them could not be started.
#[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "the others start their threads one by one"))]
pub(in crate::engine) fn try_out(threads: usize, stack_bytes: usize) -> io::Result<()> {
    let (go, command_queue) = mpsc::channel::<()>();
    let command_queue = std::sync::Arc::new(std::sync::Mutex::new(command_queue));
    let mut started = Vec::new();
    let outcome = (0..threads).try_for_each(|_| {
        let command_queue = command_queue.clone();
        let wait = move || _ = command_queue.lock().map(|command_queue| command_queue.recv());
        started.push(spawn("tidegate-probe".into(), stack_bytes, wait)?);
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

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::{Arc, Barrier};

    use super::*;

    #[test]
    fn a_thread_that_cannot_serve_or_does_not_say_so_ends_the_others() {
        type Run = fn(Ready);
        let failing: [Run; 2] =
            [|ready| _ = ready.report(Err::<(), _>(io::ErrorKind::OutOfMemory.into())), drop];
        for run in failing {
            let (order, ended) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
            let (ordered, ends) = (order.clone(), ended.clone());
            let serves = move |ready: Ready| {
                let _ = ready.report(Ok(()));
                ordered.wait();
                ends.store(true, SeqCst);
            };
            let name = || "tidegate-test".to_owned();
            let threads =
                [Starting::spawn(name(), STACK_BYTES, serves), Starting::spawn(name(), STACK_BYTES, run)];
            assert!(start_all(threads, || _ = order.wait()).is_err());
            assert!(ended.load(SeqCst), "it was not waited for");
        }
    }
}
