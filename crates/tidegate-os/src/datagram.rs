//! Datagram sockets: one datagram a call, several a call (`recvmmsg(2)`, `sendmmsg(2)`), and several in one
//! (`UDP_SEGMENT`, `UDP_GRO`; `udp(7)`). What joins or batches them is for Unix, or Linux. Here is what does not differ
//! between systems.

use std::io;
use std::net::SocketAddr;

use socket2::Socket;

#[cfg(not(target_os = "linux"))]
use crate::socket::unsupported;
pub use crate::system::datagram::*;
use crate::terms::Blocking;
pub use crate::terms::{DatagramOptions, Joining, LARGEST_JOINED, LARGEST_PAYLOAD, PortSharing};

impl DatagramSocket {
    /// The address it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()?.as_socket().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
    }

    /// Bytes of kernel memory that may wait to be received (`SO_RCVBUF`).
    pub fn receive_buffer(&self) -> io::Result<usize> {
        self.socket.recv_buffer_size()
    }

    /// A second handle to it, for a library that brings its own loop.
    pub fn to_std(&self) -> io::Result<std::net::UdpSocket> {
        Ok(self.socket.try_clone()?.into())
    }
}

pub(crate) fn prepare(socket: &Socket, options: &DatagramOptions) -> io::Result<()> {
    set_joining(socket, options.joining)?;
    if let Some(bytes) = options.receive_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.send_buffer {
        socket.set_send_buffer_size(bytes)?;
    }
    socket.set_write_timeout(options.send_timeout)?;
    socket.set_nonblocking(options.blocking == Blocking::Never)
}

#[cfg(not(target_os = "linux"))]
fn set_joining(_: &Socket, joining: Joining) -> io::Result<()> {
    match joining {
        Joining::Off => Ok(()),
        Joining::On => probe_segments(),
    }
}

/// Whether several datagrams are sent and received as one: not here.
#[cfg(not(target_os = "linux"))]
pub fn probe_segments() -> io::Result<()> {
    Err(unsupported("datagrams are joined and cut on Linux only"))
}

/// What one receive brought: one datagram, or several joined ones of one peer.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Who sent it; `None` after [`DatagramSocket::wake_receivers`], when nothing is queued.
    pub from: Option<SocketAddr>,
    /// What was received.
    pub bytes: &'a [u8],
    /// Bytes of each of the joined datagrams but the last, which may be shorter; of a single one its length.
    pub segment: usize,
    /// It was longer than the room for it; the rest is lost.
    pub truncated: bool,
}

/// One thing to send: a datagram, or several of one size for one peer.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingDatagram<'a> {
    /// For whom; `None` on a connected socket.
    pub to: Option<SocketAddr>,
    /// All bytes.
    pub bytes: &'a [u8],
    /// Bytes of each datagram if there are several; the last may be shorter. Refused on Windows.
    pub segment: Option<u16>,
}
