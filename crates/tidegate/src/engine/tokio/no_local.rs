//! A system on which the library has no Unix sockets: making one is an error.

use std::io;

use ::tokio::net::{TcpListener, TcpStream};
use tidegate_os::socket::{Blocking, Listener, Stream};

use crate::engine::tokio::Socket;
use crate::service::Dial;

pub(in crate::engine) type LocalListener = TcpListener;

/// Refuses: such a listener cannot have been made.
pub(in crate::engine) fn listen(_: &Listener) -> io::Result<LocalListener> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Refuses.
pub(in crate::engine) fn connect(dial: &Dial) -> io::Result<TcpStream> {
    TcpStream::adopt(Stream::dial(&dial.to, dial.from, Blocking::Never)?)
}
