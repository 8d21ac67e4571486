//! Which models only this system has, besides those that every system has. Nothing else in the library asks which
//! system it is.

#[cfg_attr(target_os = "linux", path = "linux.rs")]
#[cfg_attr(windows, path = "windows.rs")]
#[cfg_attr(not(any(target_os = "linux", windows)), path = "other.rs")]
mod system;

/// Unix sockets as the library of `tokio` has them, if it does.
#[cfg(feature = "tokio")]
#[cfg_attr(unix, path = "../tokio/local.rs")]
#[cfg_attr(not(unix), path = "../tokio/no_local.rs")]
pub(super) mod local;

pub(super) use system::{BEST, EFFECTS, OTHERS, leaf, start_datagrams};

use std::io;

use super::Model;

/// A model was asked for that was found to be unavailable.
pub(super) fn not_here(model: Model) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("{model} does not exist on this system"))
}
