//! No service manager here passes sockets, or waits to be told.

use tidegate::system::descriptor::OwnedFd;

use crate::Failure;

/// The socket that the service manager passed: none does.
pub fn passed() -> Result<Option<OwnedFd>, Failure> {
    Ok(None)
}

/// The server accepts.
pub fn tell_ready() {}

/// The server has begun to stop.
pub fn tell_stopping() {}
