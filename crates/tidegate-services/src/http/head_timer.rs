//! The time limit of a head for hyper. Hyper's own begins when it begins to wait for a head, so it would close a
//! connection that only rests; this one begins with the first byte.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::{Read, ReadBufCursor, Sleep, Timer, Write};

/// The timer of hyper's HTTP/1.1 for one connection: all that hyper uses it for is the limit of a head.
pub(super) struct HeadTimer<T> {
    timer: T,
    /// Whether something was received since hyper began to wait for a head.
    received: Arc<AtomicBool>,
    is_first: AtomicBool,
}

/// A connection that notes for its timer that something was received.
pub(super) struct NotingInput<C> {
    connection: C,
    received: Arc<AtomicBool>,
}

/// A connection, and the timer for its heads.
pub(super) fn with_head_timer<C, T>(connection: C, timer: T) -> (NotingInput<C>, HeadTimer<T>) {
    let received: Arc<AtomicBool> = Arc::default();
    let timer = HeadTimer { timer, received: received.clone(), is_first: AtomicBool::new(true) };
    (NotingInput { connection, received }, timer)
}

impl<T: Timer + Clone + Send + Sync + Unpin + 'static> Timer for HeadTimer<T> {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.timer.sleep(duration)
    }

    /// Called when hyper begins to wait for a head: its deadline counts from then.
    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        // The beginning of the first head was received already, to detect the protocol.
        if !self.is_first.swap(false, Relaxed) {
            self.received.store(false, Relaxed);
        }
        let limit = deadline.saturating_duration_since(self.now());
        let (timer, received) = (self.timer.clone(), self.received.clone());
        Box::pin(HeadSleep { timer, limit, received, begun: None })
    }

    fn now(&self) -> Instant {
        self.timer.now()
    }
}

struct HeadSleep<T> {
    timer: T,
    limit: Duration,
    received: Arc<AtomicBool>,
    begun: Option<Pin<Box<dyn Sleep>>>,
}

impl<T: Timer + Unpin> Future for HeadSleep<T> {
    type Output = ();

    /// Until something is received nothing wakes the task: hyper polls this whenever it has read a part of a head.
    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        let Self { timer, limit, received, begun } = self.get_mut();
        if begun.is_none() && !received.load(Relaxed) {
            return Poll::Pending;
        }
        begun.get_or_insert_with(|| timer.sleep(*limit)).as_mut().poll(task)
    }
}

impl<T: Timer + Send + Sync + Unpin> Sleep for HeadSleep<T> {}

impl<C: Read + Unpin> Read for NotingInput<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.connection).poll_read(task, buffer))?;
        self.received.store(true, Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<C: Write + Unpin> Write for NotingInput<C> {
    fn poll_write(mut self: Pin<&mut Self>, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(task, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(task)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(task)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(task, pieces)
    }
}
