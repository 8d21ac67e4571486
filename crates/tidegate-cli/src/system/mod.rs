//! System-dependent parts: signals, the service manager, hand-over, file permissions. The only place of this program
//! that depends on the system.

#[cfg_attr(has_signals, path = "unix/mod.rs")]
#[cfg_attr(not(has_signals), path = "windows/mod.rs")]
mod here;

pub use here::{PINS_THREADS, create_private, handover, manager, signals};
