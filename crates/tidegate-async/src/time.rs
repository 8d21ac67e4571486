//! Sleeps and timeouts on the timers of a connection's I/O thread.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;

use crate::shared::Shared;

/// Waits until a time; created by [`Connection::sleep`](crate::Connection::sleep).
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Sleep {
    shared: Arc<Shared>,
    at: Instant,
    /// Its number among the timers of the connection, from the first poll on.
    id: Option<u64>,
}

impl Sleep {
    pub(crate) fn after(shared: Arc<Shared>, duration: Duration) -> Self {
        let now = shared.now();
        // A time that cannot be represented is treated as never.
        let at = now.checked_add(duration).unwrap_or_else(|| now + Duration::from_secs(1 << 32));
        Self { shared, at, id: None }
    }

    pub(crate) fn until(shared: Arc<Shared>, at: Instant) -> Self {
        Self { shared, at, id: None }
    }

    /// When it is due.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.at
    }

    /// Changes the time. A task that waits for it has to poll it again.
    pub fn reset(&mut self, deadline: Instant) {
        self.cancel();
        self.at = deadline;
    }

    fn cancel(&mut self) {
        if let Some(id) = self.id.take() {
            self.shared.cancel_timer(self.at, id);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        let Self { shared, at, id } = self.get_mut();
        shared.poll_timer(task, *at, id)
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// The error of a [`Timeout`] that expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time limit has passed")
    }
}

impl std::error::Error for Elapsed {}

impl From<Elapsed> for io::Error {
    fn from(elapsed: Elapsed) -> Self {
        Self::new(io::ErrorKind::TimedOut, elapsed)
    }
}

pin_project! {
    /// A future with a time limit; created by [`Connection::timeout`](crate::Connection::timeout).
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Timeout<F> {
        sleep: Sleep,
        #[pin]
        future: F,
    }
}

impl<F: Future> Timeout<F> {
    pub(crate) fn new(sleep: Sleep, future: F) -> Self {
        Self { sleep, future }
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(task) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(this.sleep).poll(task).map(|()| Err(Elapsed))
    }
}
