//! Passing sockets to another process needs a Unix socket that carries descriptors: Windows has none.

use std::io;

/// Whether sockets can be handed to a successor here.
pub const WHY_NOT: Option<&str> = Some(
    "Windows passes no sockets over a Unix socket; start the successor on another port behind a balancer",
);

/// The refusal as an error.
pub fn refuse<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::Unsupported, WHY_NOT.unwrap_or_default()))
}
