//! Unix sockets and shared memory as the library has them.

use std::io;
use std::task::{Context as TaskContext, Poll};

use ::tokio::io::Interest;
use ::tokio::net::{UnixListener, UnixStream};
use tidegate_os::descriptor::OwnedFd;
use tidegate_os::socket::{Blocking, Listener, Stream};

use crate::engine::tokio::{AcceptResult, AsyncListener, Socket};
use crate::service::Dial;

mod shared;

pub(in crate::engine) use shared::{answered, claim, over};

pub(in crate::engine) type LocalListener = UnixListener;

/// A listener for the library's loop.
pub(in crate::engine) fn listen(listener: &Listener) -> io::Result<LocalListener> {
    UnixListener::from_std(listener.share()?.into())
}

impl AsyncListener for UnixListener {
    type Stream = UnixStream;

    fn poll_accept(&self, task: &mut TaskContext<'_>) -> Poll<AcceptResult<UnixStream>> {
        self.poll_accept(task).map_ok(|(stream, _)| (stream, None))
    }
}

impl Socket for UnixStream {
    fn adopt(stream: Stream) -> io::Result<Self> {
        Self::from_std(OwnedFd::from(stream).into())
    }

    fn poll_write_ready(&self, task: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        self.poll_write_ready(task)
    }

    fn try_write_io<R>(&self, f: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        self.try_io(Interest::WRITABLE, f)
    }
}

/// At once: there is nothing to wait for.
pub(in crate::engine) fn connect(dial: &Dial) -> io::Result<UnixStream> {
    UnixStream::adopt(Stream::dial(&dial.to, dial.source, Blocking::Never)?)
}
