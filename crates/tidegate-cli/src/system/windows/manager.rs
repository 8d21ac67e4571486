//! No service manager here waits to be told.

/// The server accepts.
pub fn tell_ready() {}

/// The server has begun to stop.
pub fn tell_stopping() {}
