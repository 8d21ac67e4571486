//! What `serve` asks of the system that is not the same everywhere: signals, the service manager, a successor. The one
//! place of this program that knows which system it is on.

#[cfg_attr(has_signals, path = "unix/mod.rs")]
#[cfg_attr(not(has_signals), path = "windows/mod.rs")]
mod here;

pub use here::{PINS_THREADS, handover, manager, signals};
