//! Detached threads: the twin of `unix/thread.rs`. Here a thread of the standard library that cannot start is an error.

use std::io;
use std::thread::Builder;

/// Starts a detached thread. A panic of `run` ends that thread only.
///
/// # Errors
/// The system refuses one more.
pub fn start(name: &str, stack_bytes: usize, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    Builder::new().name(name.into()).stack_size(stack_bytes).spawn(run).map(drop)
}

/// Address space promised to somebody who is about to use it: nothing is known here that has to be asked first.
#[derive(Debug)]
pub struct Headroom(());

impl Headroom {
    /// Promises `bytes`.
    ///
    /// # Errors
    /// None here.
    pub fn promise(_bytes: usize, _reserve: usize) -> io::Result<Self> {
        Ok(Self(()))
    }
}

/// Nothing to take back, but code that ends a promise early does so on both systems.
impl Drop for Headroom {
    fn drop(&mut self) {}
}

/// Nothing: threads have the same heap here.
pub fn share_a_limited_heap() {}

/// Threads that the process may have at once: this system has no such limit.
pub fn most_threads() -> Option<usize> {
    None
}
