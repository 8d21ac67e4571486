//! What a datagram application implements: [`DatagramService`].

use std::net::SocketAddr;

pub use crate::proto::datagram::Replies;

/// Answers datagrams. A state machine without I/O: it receives datagrams and puts replies into [`Replies`].
///
/// Each I/O thread has its own instance, created by the function that
/// [`DatagramServer::new`](crate::DatagramServer::new) takes, so it needs no lock. It runs on that thread and must not
/// block. After a panic the datagram it was handling is lost (and, where the kernel had joined several, the others of
/// that batch), the panic is counted, and the service continues with its state as it is.
///
/// ```
/// use std::net::SocketAddr;
/// use tidegate::{DatagramService, Replies};
///
/// struct Echo;
///
/// impl DatagramService for Echo {
///     fn on_datagram(&mut self, from: SocketAddr, bytes: &[u8], out: &mut Replies) {
///         out.send(from, bytes);
///     }
/// }
/// ```
pub trait DatagramService: Send + 'static {
    /// A complete datagram has arrived; truncated ones are counted and dropped.
    fn on_datagram(&mut self, from: SocketAddr, bytes: &[u8], out: &mut Replies);

    /// Several datagrams of one peer and one size have arrived together; only the last may be shorter. Happens on
    /// [`DatagramPath::Segments`](crate::policy::DatagramPath::Segments), where handling each of them separately may
    /// dominate the cost.
    ///
    /// The default passes them to `on_datagram` one by one.
    fn on_datagrams(&mut self, joined: &Joined<'_>, out: &mut Replies) {
        for bytes in joined.datagrams() {
            self.on_datagram(joined.from, bytes, out);
        }
    }
}

/// Datagrams of one peer that arrived together.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Joined<'a> {
    /// Their sender.
    pub from: SocketAddr,
    /// Their bytes, concatenated.
    pub bytes: &'a [u8],
    /// Size of each except the last, which may be shorter. Not 0.
    pub segment: usize,
}

impl<'a> Joined<'a> {
    /// Their number.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bytes.len().div_ceil(self.segment)
    }

    /// Iterates over the datagrams.
    pub fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.bytes.chunks(self.segment)
    }
}
