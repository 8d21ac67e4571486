//! Windows: Ctrl-C, no successor, no service manager that wants to be told.

pub mod handover;
pub mod manager;
pub mod signals;

/// Whether threads can be kept to processors, and not only the whole process.
pub const PINS_THREADS: bool = false;
