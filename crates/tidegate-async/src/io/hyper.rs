//! `Read`, `Write`, `Timer` and `Executor` of hyper.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{self, Read, ReadBufCursor, Write};

use crate::{Connection, ConnectionHandle, ReadHalf, Sleep, WriteHalf};

macro_rules! reads {
    ($($name:ty),*) => {$(
        impl Read for $name {
            fn poll_read(
                self: Pin<&mut Self>,
                task: &mut Context<'_>,
                mut buffer: ReadBufCursor<'_>,
            ) -> Poll<io::Result<()>> {
                let most = buffer.remaining();
                self.handle.shared.poll_read(task, most, |bytes| buffer.put_slice(bytes)).map_ok(drop)
            }
        }
    )*};
}

macro_rules! writes {
    ($($name:ty),*) => {$(
        impl Write for $name {
            write_methods!(poll_shutdown);

            fn is_write_vectored(&self) -> bool {
                true
            }
        }
    )*};
}

reads!(Connection, ReadHalf);
writes!(Connection, WriteHalf);

/// hyper's timer over the timers of a connection; created by [`ConnectionHandle::timer`].
#[derive(Clone, Debug)]
pub struct Timer {
    handle: ConnectionHandle,
}

/// hyper's executor over the futures of a connection, for HTTP/2; created by [`ConnectionHandle::executor`].
#[derive(Clone, Debug)]
pub struct Executor {
    handle: ConnectionHandle,
}

impl ConnectionHandle {
    /// A timer for hyper's builders.
    #[must_use]
    pub fn timer(&self) -> Timer {
        Timer { handle: self.clone() }
    }

    /// An executor for hyper's HTTP/2 builders.
    #[must_use]
    pub fn executor(&self) -> Executor {
        Executor { handle: self.clone() }
    }
}

impl Connection {
    /// See [`ConnectionHandle::timer`].
    #[must_use]
    pub fn timer(&self) -> Timer {
        self.handle.timer()
    }

    /// See [`ConnectionHandle::executor`].
    #[must_use]
    pub fn executor(&self) -> Executor {
        self.handle.executor()
    }
}

impl rt::Sleep for Sleep {}

impl rt::Timer for Timer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(self.handle.sleep(duration))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(self.handle.sleep_until(deadline))
    }

    /// The time that the sleeps count from: under test it is ahead of the clock.
    fn now(&self) -> Instant {
        self.handle.shared.now()
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn rt::Sleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<Sleep>() {
            Some(own) => own.get_mut().reset(new_deadline),
            None => *sleep = self.sleep_until(new_deadline),
        }
    }
}

impl<F> rt::Executor<F> for Executor
where
    F: Future + Send + 'static,
{
    fn execute(&self, future: F) {
        let future = async move { _ = future.await };
        self.handle.shared.spawn(Box::pin(future)); // without a handle
    }
}
