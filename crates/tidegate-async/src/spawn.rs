//! Futures that run beside the one of their connection, and handles to wait for their output.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_channel::oneshot;
use futures_util::future::{AbortHandle, BoxFuture, abortable};

/// Waits for the output of a future; created by [`ConnectionHandle::spawn`](crate::ConnectionHandle::spawn).
///
/// Dropping it changes nothing for the future.
#[derive(Debug)]
pub struct JoinHandle<T> {
    output: oneshot::Receiver<T>,
    abort: AbortHandle,
}

impl<T> JoinHandle<T> {
    /// Drops the future when it is next polled, which is soon: it has no output then.
    pub fn abort(&self) {
        self.abort.abort();
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.output).poll(task).map_err(|oneshot::Canceled| JoinError)
    }
}

/// The error of a [`JoinHandle`]: the future was dropped before it had an output.
///
/// It was [aborted](JoinHandle::abort), or its connection has ended; a panic of the future ends its connection, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinError;

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the future was dropped before it had an output: it was aborted, or its connection has ended",
        )
    }
}

impl Error for JoinError {}

impl From<JoinError> for io::Error {
    fn from(why: JoinError) -> Self {
        Self::other(why)
    }
}

/// The future that the connection polls, and the handle of it.
pub(crate) fn spawned<F: Future<Output: Send> + Send + 'static>(
    future: F,
) -> (BoxFuture<'static, ()>, JoinHandle<F::Output>) {
    let (done, output) = oneshot::channel();
    let (future, abort) = abortable(future);
    let future = Box::pin(async move {
        if let Ok(output) = future.await {
            let _ = done.send(output); // nobody may wait for it
        }
    });
    (future, JoinHandle { output, abort })
}
