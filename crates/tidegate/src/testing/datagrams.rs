//! A datagram service without a socket.

use std::net::SocketAddr;

use crate::policy::{DatagramPath, DatagramPolicy};
use crate::proto::datagram::Replies;
use crate::service::{DatagramService, Joined};

/// A [`DatagramService`] without a socket: takes datagrams and returns its replies.
///
/// ```
/// use tidegate::testing::TestDatagrams;
/// use tidegate::{DatagramService, Replies};
///
/// struct Echo;
///
/// impl DatagramService for Echo {
///     fn on_datagram(&mut self, from: std::net::SocketAddr, bytes: &[u8], out: &mut Replies) {
///         out.send(from, bytes);
///     }
/// }
///
/// let peer = "192.0.2.1:7".parse()?;
/// let mut echo = TestDatagrams::new(Echo);
/// assert_eq!(echo.receive(peer, b"hello"), [(peer, b"hello".to_vec())]);
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Debug)]
pub struct TestDatagrams<S> {
    service: S,
    replies: Replies,
}

impl<S: DatagramService> TestDatagrams<S> {
    /// Uses the default limits.
    pub fn new(service: S) -> Self {
        Self::with_policy(service, &DatagramPolicy::default())
    }

    /// Sets the limits of the reply queue.
    pub fn with_policy(service: S, policy: &DatagramPolicy) -> Self {
        Self { service, replies: Replies::new(policy.reply_limits(DatagramPath::Segments)) }
    }

    /// Delivers one datagram; returns the replies.
    pub fn receive(&mut self, from: SocketAddr, bytes: &[u8]) -> Vec<(SocketAddr, Vec<u8>)> {
        self.service.on_datagram(from, bytes, &mut self.replies);
        self.sent()
    }

    /// Delivers several datagrams of one peer together, each of `segment` bytes except the last, which may be shorter.
    ///
    /// # Panics
    /// `segment` is 0.
    pub fn receive_joined(
        &mut self,
        from: SocketAddr,
        bytes: &[u8],
        segment: usize,
    ) -> Vec<(SocketAddr, Vec<u8>)> {
        assert!(segment > 0, "the segment size must not be 0");
        self.service.on_datagrams(&Joined { from, bytes, segment }, &mut self.replies);
        self.sent()
    }

    /// The service.
    pub fn service(&mut self) -> &mut S {
        &mut self.service
    }

    fn sent(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        let (bytes, runs) = self.replies.take();
        let mut sent = Vec::new();
        for run in runs {
            let all = &bytes[run.range()];
            match run.cut() {
                Some(size) => sent.extend(all.chunks(size.into()).map(|one| (run.to, one.to_vec()))),
                None => sent.push((run.to, all.to_vec())),
            }
        }
        sent
    }
}
