//! What Winsock reports of a socket, through an event (`WSAEventSelect`) or a message (`WSAAsyncSelect`).

use std::io;
use std::os::windows::io::AsRawSocket;
use std::time::Duration;

use windows_sys::Win32::Networking::WinSock::{
    FD_ACCEPT, FD_CLOSE, FD_CONNECT, FD_READ, FD_WRITE, WSAEnumNetworkEvents, WSAEventSelect,
    WSANETWORKEVENTS,
};

use super::descriptor::{BorrowedFd, RawFd};
use super::event::EventObject;
use super::poll::{PollSet, Readiness};
use super::winsock::{check, handle};

/// What is notified of a connection. Each kind is reported once, and again after a call that found no more of it
/// (`WSAEventSelect`, *Remarks*).
pub(super) const OF_CONNECTION: u32 = FD_READ | FD_WRITE | FD_CONNECT | FD_CLOSE;

/// What is notified of a listener.
pub(super) const OF_LISTENER: u32 = FD_ACCEPT;

/// What a socket was reported to be ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// For what.
    pub ready: Readiness,
    /// The peer has finished or broken off.
    pub ended: bool,
}

impl News {
    /// From the bits of Winsock's network events.
    pub(super) fn from_bits(bits: u32) -> Self {
        let ended = bits & FD_CLOSE != 0;
        let ready = Readiness {
            readable: ended || bits & (FD_READ | FD_ACCEPT) != 0,
            writable: ended || bits & (FD_WRITE | FD_CONNECT) != 0,
        };
        Self { ready, ended }
    }

    /// Whether there is any.
    pub(super) fn is_any(self) -> bool {
        self.ready.readable || self.ready.writable
    }
}

/// Has `event` set whenever one of `kinds` is news of a socket; what is so already counts. Forgets what was set up
/// before.
pub(super) fn signal_by_event(socket: BorrowedFd<'_>, event: &EventObject, kinds: u32) -> io::Result<()> {
    // SAFETY: the socket and the event are open for the call, and Winsock keeps its own reference to the event.
    check(unsafe { WSAEventSelect(handle(socket.as_raw_socket()), event.handle() as isize, kinds as i32) })
}

/// The news of the socket with this handle; resets the event.
///
/// # Safety
/// The handle is that of the socket that the event was set up for ([`signal_by_event`]), or of none. A socket that has
/// its number by now would lose its news to an event that is not its own.
pub(super) unsafe fn take_news(socket: RawFd, event: &EventObject) -> io::Result<News> {
    let mut news = WSANETWORKEVENTS::default();
    // SAFETY: the event is open for the call, and the caller answers for the socket; one that is closed is an error. It
    // writes one WSANETWORKEVENTS.
    check(unsafe { WSAEnumNetworkEvents(handle(socket), event.handle() as isize, &raw mut news) })?;
    Ok(News::from_bits(news.lNetworkEvents as u32))
}

/// News of a connection attempt that ended before reports were asked for: only an attempt that ends later is news.
pub(super) fn settled_before(socket: BorrowedFd<'_>, wanted: Readiness) -> News {
    let mut attempt = PollSet::default();
    attempt.push(socket, wanted);
    let ended =
        wanted.writable && !wanted.readable && attempt.wait(Some(Duration::ZERO)).is_ok_and(|n| n > 0);
    News { ready: Readiness { readable: false, writable: ended }, ended: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_reported_to_reader_and_writer() {
        let news = News::from_bits(FD_CLOSE);
        assert!(news.ended && news.ready.readable && news.ready.writable);
        let news = News::from_bits(FD_READ);
        assert!(!news.ended && news.ready.readable && !news.ready.writable);
        assert!(News::from_bits(FD_CONNECT).ready.writable && News::from_bits(FD_ACCEPT).ready.readable);
        assert!(!News::from_bits(0).is_any());
    }
}
