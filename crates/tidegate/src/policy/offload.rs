//! Long work away from the I/O threads.

/// The threads that run what sessions [offload](crate::Outbox::offload).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// Threads, started when they are needed. Default 4.
    pub threads: usize,
    /// Jobs that may wait for a thread; more are refused. Default 1,024.
    pub queue: usize,
}

impl Default for Offload {
    fn default() -> Self {
        Self { threads: 4, queue: 1024 }
    }
}
