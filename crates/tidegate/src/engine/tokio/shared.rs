//! Connections through shared memory as the library's streams: its reactor watches the TCP connection, over which the
//! peer wakes the task.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use ::tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use ::tokio::net::{TcpStream, UnixStream};
use ::tokio::time::timeout;
use tidegate_os::descriptor::{AsFd, BorrowedFd, OwnedFd};
use tidegate_os::poll::Readiness;
use tidegate_os::socket::Stream;

use crate::engine::tokio::Socket;
use crate::fastpath::{Handshake, MemoryLink, Rendezvous};

/// A connection through shared memory.
#[derive(Debug)]
pub(in crate::engine) struct LinkStream {
    link: MemoryLink,
    /// Its TCP connection once more, for the reactor, which owns what it watches.
    notify: TcpStream,
    /// What the task waits for.
    waits: Readiness,
}

impl LinkStream {
    /// Does what would wait, or has the peer wake the task once it would not.
    fn poll_io(
        &mut self,
        task: &mut TaskContext<'_>,
        wants: Readiness,
        mut attempt: impl FnMut(&MemoryLink) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        self.waits.readable &= !wants.readable;
        self.waits.writable &= !wants.writable;
        loop {
            match attempt(&self.link) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
            if self.link.prepare_sleep(wants) != Readiness::default() {
                continue;
            }
            let Poll::Ready(woken) = self.notify.poll_read_ready(task) else {
                self.waits = self.waits.or(wants);
                return Poll::Pending;
            };
            woken?;
            // One wake-up is for both directions, and only this one is looked at now.
            let heed = || {
                if self.link.heed(self.waits) != Readiness::default() {
                    task.waker().wake_by_ref();
                }
                Err::<(), _>(io::ErrorKind::WouldBlock.into()) // there was one, and is no more
            };
            let _ = self.notify.try_io(Interest::READABLE, heed);
        }
    }
}

impl AsFd for LinkStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.borrowed()
    }
}

impl AsyncRead for LinkStream {
    fn poll_read(
        self: Pin<&mut Self>,
        task: &mut TaskContext<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = into.initialize_unfilled();
        let n = ready!(self.get_mut().poll_io(task, Readiness::READ, |link| link.receive(room)))?;
        into.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for LinkStream {
    fn poll_write(self: Pin<&mut Self>, task: &mut TaskContext<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(task, &[IoSlice::new(from)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        task: &mut TaskContext<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_io(task, Readiness::WRITE, |link| link.send_vectored(from))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.link.shutdown_send())
    }
}

impl Socket for LinkStream {
    const IS_SHARED: bool = true;

    /// There is none over a socket alone.
    fn adopt(_: Stream) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn poll_write_ready(&self, _: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn try_write_io<R>(&self, f: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        f()
    }

    fn reset_on_close(&self) -> io::Result<()> {
        self.link.reset_on_close()
    }
}

/// An established connection that has agreed on shared memory.
pub(in crate::engine) fn over(link: MemoryLink) -> io::Result<LinkStream> {
    let again = link.borrowed().try_clone_to_owned()?;
    watched(link, again)
}

fn watched(link: MemoryLink, again: OwnedFd) -> io::Result<LinkStream> {
    Ok(LinkStream { link, notify: TcpStream::adopt(again.into())?, waits: Readiness::default() })
}

/// An accepted connection: through shared memory if it has left an offer, and there is a descriptor for the reactor.
pub(in crate::engine) fn claim(
    stream: TcpStream,
    rendezvous: &Rendezvous,
    peer: SocketAddr,
) -> io::Result<Result<LinkStream, TcpStream>> {
    let stream = Stream::from(OwnedFd::from(stream.into_std()?));
    let Ok(again) = stream.as_fd().try_clone_to_owned() else {
        rendezvous.refuse(peer);
        return TcpStream::adopt(stream).map(Err);
    };
    match rendezvous.claim(stream, peer) {
        Ok(link) => watched(link, again).map(Ok),
        Err(stream) => TcpStream::adopt(stream).map(Err),
    }
}

/// Waits until an offer was answered, but not for ever.
pub(in crate::engine) async fn answered(handshake: &Handshake, at_most: Duration) -> io::Result<()> {
    let control: std::os::unix::net::UnixStream = handshake.borrowed().try_clone_to_owned()?.into();
    control.set_nonblocking(true)?;
    let control = UnixStream::from_std(control)?;
    let _ = timeout(at_most, control.readable()).await;
    Ok(())
}
