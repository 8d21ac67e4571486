//! No service manager on Windows passes sockets or expects notifications.

use tidegate::system::descriptor::OwnedFd;

use crate::Failure;
use crate::system::Passed;

/// The inherited sockets: none.
pub fn passed() -> Result<Vec<Passed<OwnedFd>>, Failure> {
    Ok(Vec::new())
}

/// The server accepts.
pub fn notify_ready() {}

/// The server is stopping.
pub fn notify_stopping() {}
