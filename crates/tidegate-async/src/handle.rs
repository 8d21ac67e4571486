//! The handle of a connection: timers, futures, jobs and the drain, beside its reader and its writer.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use tidegate::Peer;

use crate::offload::{self, OffloadFailed};
use crate::shared::{DrainPlace, Shared};
use crate::time::{Sleep, Timeout};

/// Everything of a connection but its bytes. Borrows nothing, so it is usable while the connection is read or written,
/// and after it was split.
///
/// ```
/// # use std::time::Duration;
/// # use tidegate::testing::TestConnection;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// let service = tidegate_async::service(async |mut conn| {
///     let handle = conn.handle();
///     let mut word = [0; 4];
///     let answer = match handle.timeout(Duration::from_secs(5), conn.read_exact(&mut word)).await {
///         Ok(read) => read.map(|_| "good\n"),
///         Err(_) => Ok("too slow\n"),
///     };
///     conn.write_all(answer?.as_bytes()).await
/// });
/// # let mut conn = TestConnection::open(&service).unwrap();
/// # conn.receive(b"wo");
/// # conn.advance(Duration::from_secs(6));
/// # assert_eq!(conn.output(), b"too slow\n");
/// ```
#[derive(Clone, Debug)]
pub struct ConnectionHandle {
    pub(crate) shared: Arc<Shared>,
}

impl ConnectionHandle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The peer, and the I/O thread that the connection is on.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.shared.peer
    }

    /// Sleeps, on the timers of the connection's I/O thread. Never early while the connection lives; late by at most a
    /// millisecond if that thread is not busy. Returns immediately when the connection has ended: a loop on another
    /// thread that sleeps should end when a read or a write fails.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::after(self.shared.clone(), duration)
    }

    /// Sleeps until `at`; see [`sleep`](Self::sleep).
    pub fn sleep_until(&self, at: Instant) -> Sleep {
        Sleep::until(self.shared.clone(), at)
    }

    /// Runs `future` for at most `limit`.
    pub fn timeout<F: Future>(&self, limit: Duration, future: F) -> Timeout<F> {
        Timeout::new(self.sleep(limit), future)
    }

    /// Runs a future on the connection's I/O thread. It is dropped when the connection ends, and does not keep it open.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.shared.spawn(Box::pin(future));
    }

    /// Runs a long or blocking job on a worker thread; bounded by [`Policy::offload`](tidegate::Policy::offload).
    ///
    /// # Errors
    /// [`OffloadFailed`] when the job was not run, or panicked.
    pub fn offload<T: Send + 'static, J: FnOnce() -> T + Send + 'static>(
        &self,
        job: J,
    ) -> impl Future<Output = Result<T, OffloadFailed>> + Send + use<T, J> {
        let (job, outcome) = offload::job(job);
        self.shared.offload(job);
        outcome
    }

    /// Resets the connection in place of a clean end, and drops the output that was not sent: for an answer that breaks
    /// off, which the peer must not take for a whole one. Its future is dropped when it next waits.
    pub fn abort(&self) {
        self.shared.abort();
    }

    /// Waits until the server drains. Code that calls this decides itself when its connection ends, within
    /// [`Policy::drain_timeout`](tidegate::Policy::drain_timeout); otherwise a connection that waits for input is
    /// closed immediately.
    ///
    /// Code that reads ahead while it works, as hyper does, must call this: otherwise a connection that reads counts as
    /// idle.
    pub fn draining(&self) -> Draining {
        Draining { shared: self.shared.clone(), place: DrainPlace::default() }
    }

    /// Runs `future`, such as a connection of hyper, to its end. When the server drains, `shut_down` begins to end it.
    ///
    /// ```
    /// use hyper::server::conn::http1;
    /// # use hyper::{Request, Response, body::Incoming, service::service_fn};
    /// # async fn answer(request: Request<Incoming>) -> hyper::Result<Response<Incoming>> {
    /// #     Ok(Response::new(request.into_body()))
    /// # }
    /// let service = tidegate_async::service(async |conn| {
    ///     let handle = conn.handle();
    ///     let served = http1::Builder::new().timer(conn.timer()).serve_connection(conn, service_fn(answer));
    ///     handle.with_graceful_shutdown(served, |served| served.graceful_shutdown()).await
    /// });
    /// # tidegate::testing::TestConnection::open(&service).unwrap();
    /// ```
    pub fn with_graceful_shutdown<F: Future, S: FnOnce(Pin<&mut F>)>(
        &self,
        future: F,
        shut_down: S,
    ) -> impl Future<Output = F::Output> + use<F, S> {
        let draining = self.draining();
        async move {
            let mut future = pin!(future);
            if let Either::Left((output, _)) = select(future.as_mut(), draining).await {
                return output;
            }
            shut_down(future.as_mut());
            future.await
        }
    }
}

/// A future that waits until the server drains; created by [`ConnectionHandle::draining`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Draining {
    shared: Arc<Shared>,
    place: DrainPlace,
}

impl Future for Draining {
    type Output = ();

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        let Self { shared, place } = self.get_mut();
        shared.poll_draining(task, place)
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        self.shared.cancel_draining(&self.place);
    }
}
