//! Waking a loop that sleeps in a wait for sockets from another thread.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::windows::io::{AsSocket, BorrowedSocket};
use std::sync::OnceLock;

/// A socket that becomes readable when [`wake`](Self::wake) was called, or another way to wake.
///
/// A datagram socket that is connected to itself: whatever waits for sockets can wait for it, and no other program can
/// send to it. Wake-ups that were not yet seen may merge into one.
pub struct Waker {
    socket: UdpSocket,
    /// Where the loop waits for something else than sockets.
    wake_event: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Waker {
    /// A new one, not woken.
    pub fn new() -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(socket.local_addr()?)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, wake_event: OnceLock::new() })
    }

    /// From now on `wake_event` is called in place of making the socket readable. The first call counts.
    pub fn wake_with(&self, wake_event: impl Fn() + Send + Sync + 'static) {
        let _ = self.wake_event.set(Box::new(wake_event)); // a loop has one way of waiting
    }

    /// Makes it readable, or calls that.
    pub fn wake(&self) {
        match self.wake_event.get() {
            Some(wake_event) => wake_event(),
            // A full buffer means that it is readable already.
            None => _ = self.socket.send(&[1]),
        }
    }

    /// Makes it unreadable until the next wake.
    pub fn clear(&self) {
        let mut sink = [0; 8];
        while self.socket.recv(&mut sink).is_ok() {}
    }
}

impl AsSocket for Waker {
    fn as_socket(&self) -> BorrowedSocket<'_> {
        self.socket.as_socket()
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waker").field("socket", &self.socket).finish_non_exhaustive()
    }
}
