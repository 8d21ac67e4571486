//! A socket that talks to one datagram server, driven by the caller's thread.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tidegate_os::datagram::{
    DatagramBuffer, DatagramOptions, DatagramSocket, Joining, Outgoing, OutgoingDatagram,
};
use tidegate_os::endpoint::Endpoint;
use tidegate_os::poll::Readiness;
use tidegate_os::socket::Blocking;

use crate::engine::Availability;
use crate::policy::datagram::ReplyLimits;
use crate::policy::{DatagramPath, DatagramPolicy};
use crate::server::{StartError, datagram_address};

/// A datagram socket for one peer. It has no thread and no model: each call acts on the socket directly, and only
/// [`receive`](Self::receive) and [`wait_to_send`](Self::wait_to_send) block.
pub struct DatagramClient {
    socket: DatagramSocket,
    inbox: DatagramBuffer,
    outgoing: Outgoing,
    limits: ReplyLimits,
    per_call: usize,
    largest: usize,
}

impl std::fmt::Debug for DatagramClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatagramClient").finish_non_exhaustive()
    }
}

impl DatagramClient {
    /// Creates a socket for this peer, with the path, batch, segment, buffer and `largest_datagram` limits of the
    /// policy; its other limits apply to servers only. The path is plain unless the policy names one. The address is
    /// one as for [`DatagramServer::bind`](crate::DatagramServer::bind).
    ///
    /// # Errors
    /// An invalid policy, an unavailable path, an address without a route, or a Unix socket.
    pub fn connect(
        to: impl TryInto<Endpoint, Error: Into<StartError>>,
        policy: &DatagramPolicy,
    ) -> Result<Self, StartError> {
        policy.check()?;
        let to = datagram_address(to.try_into().map_err(Into::into)?)?;
        let path = policy.path.unwrap_or(DatagramPath::Plain);
        if let Availability::Unavailable(why) = path.availability() {
            return Err(StartError::PathUnavailable { path, why });
        }
        let options = DatagramOptions {
            blocking: Blocking::Never,
            joining: if path == DatagramPath::Segments { Joining::On } else { Joining::Off },
            receive_buffer: policy.socket_receive_buffer,
            send_buffer: policy.socket_send_buffer,
            send_timeout: None,
        };
        let socket = DatagramSocket::connect(to, &options);
        let socket = socket.map_err(|error| StartError::Connect { addr: to, error })?;
        let per_call = policy.per_call(path);
        Ok(Self {
            socket,
            inbox: DatagramBuffer::new(per_call, policy.buffer_bytes(path)),
            outgoing: Outgoing::default(),
            limits: policy.reply_limits(path),
            per_call,
            largest: policy.largest_datagram,
        })
    }

    /// The local address.
    ///
    /// # Errors
    /// The system does not report it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The largest number of datagrams of `size` bytes that one call of [`send`](Self::send) can take.
    #[must_use]
    pub fn most_per_send(&self, size: usize) -> usize {
        self.per_call * self.limits.joined(size)
    }

    /// Sends datagrams of `size` bytes each (the last may be shorter) with one system call; returns how many the kernel
    /// took, from the front. More than [`most_per_send`](Self::most_per_send) are never taken.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if the socket cannot take anything now;
    /// [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) if an earlier datagram reached a closed port.
    pub fn send(&mut self, bytes: &[u8], size: usize) -> io::Result<usize> {
        let size = size.max(1);
        let joined = self.limits.joined(size);
        let message = |bytes: &'_ [u8]| -> Option<u16> {
            if bytes.len() > size { u16::try_from(size).ok() } else { None }
        };
        let parts = bytes.chunks(size * joined).take(self.per_call);
        let messages = parts.map(|bytes| OutgoingDatagram { to: None, bytes, segment: message(bytes) });
        let taken = self.socket.send(&mut self.outgoing, messages)?;
        let taken_bytes = bytes.len().min(taken * size * joined);
        Ok(taken_bytes.div_ceil(size))
    }

    /// Waits until the socket is writable, for at most `limit`.
    ///
    /// # Errors
    /// The system cannot wait.
    pub fn wait_to_send(&self, limit: Duration) -> io::Result<bool> {
        self.socket.wait(Readiness::WRITE, Some(limit))
    }

    /// Waits for at most `limit`, receives with one system call and passes each datagram to the closure; returns the
    /// number of datagrams. One longer than `largest_datagram` is dropped and not counted: 0 may also mean that only
    /// such have arrived.
    ///
    /// # Errors
    /// [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) if the peer's port is closed. A timeout without data is
    /// not an error.
    pub fn receive(&mut self, limit: Duration, mut show: impl FnMut(&[u8])) -> io::Result<usize> {
        if !limit.is_zero() && !self.socket.wait(Readiness::READ, Some(limit))? {
            return Ok(0);
        }
        let arrivals = match self.socket.receive(&mut self.inbox, self.per_call) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            outcome => outcome?,
        };
        let mut datagrams = 0;
        let mut show = |bytes: &[u8]| {
            if bytes.len() <= self.largest {
                show(bytes);
                datagrams += 1;
            }
        };
        for arrival in (0..arrivals).filter_map(|at| self.inbox.get(at)).filter(|arrival| !arrival.truncated)
        {
            match arrival.bytes.len() <= arrival.segment.max(1) {
                true => show(arrival.bytes),
                false => arrival.bytes.chunks(arrival.segment).for_each(&mut show),
            }
        }
        Ok(datagrams)
    }
}
