//! Unix: signals, a Unix socket for the successor, `sd_notify(3)`.

pub mod handover;
pub mod manager;
pub mod signals;

/// Whether threads can be kept to processors, and not only the whole process.
pub const PINS_THREADS: bool = true;
