//! Connections between two processes of one host through shared memory.

use std::time::Duration;

/// How a connection to another tidegate on the same host leaves TCP for shared memory; see `docs/fastpath.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastPath {
    /// Bytes of the ring for each direction; a power of two from 4 KiB to 1 GiB. Default 256 KiB. The dialler's counts; a listener
    /// takes none that are larger than its own. Pages cost memory once they are touched, on both sides together once.
    pub ring_bytes: usize,
    /// A user, besides the one this process runs as, whose processes may be at the other end. Default `None`.
    pub also_user: Option<u32>,
    /// How long a dialler waits for the listener to take the offer before the connection stays with TCP. Default 1 s; a listener
    /// answers when it accepts, and hangs up on offers whose connection has not come for as long.
    pub patience: Duration,
}

impl Default for FastPath {
    fn default() -> Self {
        Self { ring_bytes: 256 * 1024, also_user: None, patience: Duration::from_secs(1) }
    }
}
