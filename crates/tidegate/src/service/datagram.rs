//! What an application of datagrams implements: [`DatagramService`].

use std::net::SocketAddr;

pub use crate::proto::datagram::Replies;

/// Answers datagrams. A state machine without I/O: it is shown what arrived and puts answers into [`Replies`].
///
/// Each I/O thread has one of its own, made by the function that [`DatagramServer::new`](crate::DatagramServer::new)
/// takes, so it needs no lock. It runs on that thread and must not block. One that panics loses the datagram it was
/// shown (and, where the kernel had joined several, those that came with it), is counted, and goes on as it then is.
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
    /// A datagram has arrived, whole: one that was cut short is counted and not shown.
    fn on_datagram(&mut self, from: SocketAddr, bytes: &[u8], out: &mut Replies);

    /// Several datagrams of one peer and one size have arrived together; only the last may be shorter. Happens on
    /// [`DatagramPath::Segments`](crate::policy::DatagramPath::Segments), where looking at each of them may be what
    /// costs most.
    ///
    /// The default shows them one by one.
    fn on_datagrams(&mut self, joined: &Joined<'_>, out: &mut Replies) {
        for bytes in joined.datagrams() {
            self.on_datagram(joined.from, bytes, out);
        }
    }
}

/// Datagrams of one peer that arrived together.
#[derive(Clone, Copy, Debug)]
pub struct Joined<'a> {
    /// Who sent them.
    pub from: SocketAddr,
    /// All of them, one after the other.
    pub bytes: &'a [u8],
    /// Bytes of each but the last, which may be shorter. Not 0.
    pub segment: usize,
}

impl<'a> Joined<'a> {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bytes.len().div_ceil(self.segment)
    }

    /// One by one.
    pub fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.bytes.chunks(self.segment)
    }
}
