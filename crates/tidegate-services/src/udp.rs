//! Datagram services: echo (RFC 862) and discard (RFC 863).

use std::net::SocketAddr;

use tidegate::{DatagramService, Joined, Replies};

/// Sends each datagram back to where it came from.
///
/// Replies go to the source address, which may be forged; they have the same length, so there is no amplification. Two
/// echo services must not be pointed at each other.
#[derive(Clone, Copy, Debug, Default)]
pub struct UdpEcho;

impl DatagramService for UdpEcho {
    #[inline]
    fn on_datagram(&mut self, from: SocketAddr, bytes: &[u8], out: &mut Replies) {
        out.send(from, bytes);
    }

    #[inline]
    fn on_datagrams(&mut self, joined: &Joined<'_>, out: &mut Replies) {
        out.send_joined(joined.from, joined.bytes, joined.segment);
    }
}

/// Discards every datagram. The counters show what arrived.
#[derive(Clone, Copy, Debug, Default)]
pub struct UdpSink;

impl DatagramService for UdpSink {
    #[inline]
    fn on_datagram(&mut self, _: SocketAddr, _: &[u8], _: &mut Replies) {}

    #[inline]
    fn on_datagrams(&mut self, _: &Joined<'_>, _: &mut Replies) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::testing::TestDatagrams;

    #[test]
    fn joined_datagrams_come_back_as_they_came() {
        let from: SocketAddr = ([127, 0, 0, 1], 9).into();
        let mut echo = TestDatagrams::new(UdpEcho);
        let back = echo.receive_joined(from, &[7; 25], 10);
        assert_eq!(back, [(from, vec![7; 10]), (from, vec![7; 10]), (from, vec![7; 5])]);
        assert_eq!(echo.receive(from, b"alone"), [(from, b"alone".to_vec())]);
        assert!(TestDatagrams::new(UdpSink).receive_joined(from, &[7; 25], 10).is_empty());
    }
}
