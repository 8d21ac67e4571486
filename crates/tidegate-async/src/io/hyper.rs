//! `Read`, `Write`, `Timer` and `Executor` of hyper.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{self, Read, ReadBufCursor, Write};

use crate::shared::Shared;
use crate::time::Sleep;
use crate::{Connection, Spawner};

impl Read for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let most = buffer.remaining();
        self.shared.poll_read(task, most, |bytes| buffer.put_slice(bytes)).map_ok(drop)
    }
}

impl Write for Connection {
    fn poll_write(self: Pin<&mut Self>, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.shared.poll_write(task, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.poll_flush()
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.finish()
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.shared.poll_write_vectored(task, pieces)
    }
}

/// hyper's timer over the timers of a connection; created by [`Connection::timer`].
#[derive(Clone, Debug)]
pub struct Timer {
    shared: Arc<Shared>,
}

/// hyper's executor over the spawner of a connection, for HTTP/2; created by [`Connection::executor`].
#[derive(Clone, Debug)]
pub struct Executor {
    spawner: Spawner,
}

impl Connection {
    /// A timer for hyper's builders.
    #[must_use]
    pub fn timer(&self) -> Timer {
        Timer { shared: self.spawner().shared().clone() }
    }

    /// An executor for hyper's HTTP/2 builders.
    #[must_use]
    pub fn executor(&self) -> Executor {
        Executor { spawner: self.spawner() }
    }
}

impl rt::Sleep for Sleep {}

impl rt::Timer for Timer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(Sleep::after(self.shared.clone(), duration))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(Sleep::until(self.shared.clone(), deadline))
    }

    /// The time that the sleeps count from: under test it is ahead of the clock.
    fn now(&self) -> Instant {
        self.shared.now()
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
        self.spawner.spawn(async move {
            future.await;
        });
    }
}
