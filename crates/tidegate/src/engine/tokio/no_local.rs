//! A system on which the library has neither Unix sockets nor shared memory: making one is an error.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ::tokio::net::{TcpListener, TcpStream};
use tidegate_os::socket::{Blocking, Listener, Stream};

use crate::engine::tokio::Socket;
use crate::fastpath::{Handshake, MemoryLink, Rendezvous};
use crate::service::Dial;

pub(in crate::engine) type LocalListener = TcpListener;

/// Refuses: such a listener cannot have been made.
pub(in crate::engine) fn listen(_: &Listener) -> io::Result<LocalListener> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Refuses: there are no links.
pub(in crate::engine) fn over(_: MemoryLink) -> io::Result<TcpStream> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Nothing: there are no offers.
pub(in crate::engine) fn claim(
    stream: TcpStream,
    _: &Rendezvous,
    _: SocketAddr,
) -> io::Result<Result<TcpStream, TcpStream>> {
    Ok(Err(stream))
}

/// Nothing, too.
pub(in crate::engine) async fn answered(_: &Handshake, _: Duration) -> io::Result<()> {
    Ok(())
}

/// Refuses.
pub(in crate::engine) fn connect(dial: &Dial) -> io::Result<TcpStream> {
    TcpStream::adopt(Stream::dial(&dial.to, dial.source, Blocking::Never)?)
}
