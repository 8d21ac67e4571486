//! System-dependent parts: signals, the service manager, hand-over, file permissions. The only place of this program
//! that depends on the system.

#[cfg_attr(has_signals, path = "unix/mod.rs")]
#[cfg_attr(not(has_signals), path = "windows/mod.rs")]
mod here;

pub use here::{PINS_THREADS, create_private, handover, manager, signals};

/// What SIGHUP does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangup {
    /// It ends the process, the default action.
    Ends,
    /// Files are read again.
    Reloads,
}

/// An inherited socket.
pub struct Passed<T> {
    /// Its name (`LISTEN_FDNAMES`), if it has one.
    pub name: Option<String>,
    /// The socket.
    pub socket: T,
}
