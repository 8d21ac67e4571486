//! The handle of a connection: timers, futures, jobs and the drain, beside its reader and its writer.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use tidegate::{Dial, DialError, Peer};

use crate::dial::{self, Dialling};
use crate::offload::{self, OffloadFailed};
use crate::shared::{DrainPlace, SessionRequest, Shared};
use crate::spawn::{self, JoinHandle};
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
    /// Its output may be waited for, or the handle dropped. Four allocations.
    ///
    /// ```
    /// # use tidegate::testing::TestConnection;
    /// use tokio::io::AsyncWriteExt;
    ///
    /// let service = tidegate_async::service(async |mut conn: tidegate_async::Connection| {
    ///     let sum = conn.spawn(async { 40 + 2 });
    ///     conn.write_u8(sum.await?).await
    /// });
    /// # assert_eq!(TestConnection::open(&service).unwrap().output(), [42]);
    /// ```
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let (future, handle) = spawn::spawned(future);
        self.shared.spawn(future);
        handle
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
        self.shared.request(SessionRequest::Offload(job));
        outcome
    }

    /// Dials an address, text such as `"127.0.0.1:80"` (as `bind` takes it), or a [`Dial`], on the I/O thread of this
    /// connection, for at most `within`. The dial begins at once. The service must declare how many dialled
    /// connections each one may have at once ([`AsyncService::dials`](crate::AsyncService::dials)).
    ///
    /// The connection ends when it, or both of its halves, are dropped: what was written is sent, then it closes;
    /// [`abort`](Self::abort) resets it. Its reads and writes wait, and hold its peer back, as those of this connection
    /// do, but for 64 KiB that it receives ahead of its reader; the same limits apply to it. Its [`peer`](Self::peer)
    /// is the address that was dialled, with the [`tag`](Dial::tag) of the dial; [`Dial::thread`] is ignored.
    ///
    /// A stop waits for dials, and for the answer to what was written to a dialled connection last. Otherwise a
    /// connection that reads counts as idle, whatever it has dialled, and ends what it has dialled with itself; see
    /// [`draining`](Self::draining).
    ///
    /// A dialled connection belongs to the accepted one, also where a dialled one has dialled it. In a pool, or moved
    /// to another connection, it lets the first one wait for its answers. Once that has ended, a stop closes it if it
    /// owes none. While that lives, an idle one in a pool keeps a stop waiting for
    /// [`Policy::drain_timeout`](tidegate::Policy::drain_timeout). A future that uses it is spawned on the accepted
    /// connection's handle: on its own handle it would keep itself open.
    ///
    /// ```
    /// # use std::net::SocketAddr;
    /// # use std::time::Duration;
    /// # use tidegate::testing::TestConnection;
    /// # let upstream = SocketAddr::from(([127, 0, 0, 1], 9000));
    /// let proxy = tidegate_async::service(move |mut conn: tidegate_async::Connection| async move {
    ///     let mut upstream = conn.dial(upstream, Duration::from_secs(5)).await?;
    ///     tokio::io::copy_bidirectional(&mut conn, &mut upstream).await
    /// })
    /// .speaks_first()
    /// .dials(1);
    /// # let mut conn = TestConnection::open(&proxy).unwrap();
    /// # let mut upstream = conn.next_dial().unwrap().connect();
    /// # conn.receive(b"question");
    /// # upstream.settle();
    /// # assert_eq!(upstream.output(), b"question");
    /// # upstream.receive(b"answer");
    /// # conn.settle();
    /// # assert_eq!(conn.output(), b"answer");
    /// ```
    ///
    /// # Errors
    /// What the system says of the connect, such as [`io::ErrorKind::ConnectionRefused`](std::io::ErrorKind); and
    ///
    /// | kind | what has happened |
    /// |---|---|
    /// | `InvalidInput` | the text is not an address |
    /// | `TimedOut` | it was not established in time |
    /// | `QuotaExceeded` | all places for dials are taken at the moment |
    /// | `Unsupported` | the service declares no dials |
    /// | `ResourceBusy` | [`Policy::mail_queue`](tidegate::Policy::mail_queue) dials are pending on the I/O thread |
    /// | `NotConnected` | this connection has ended, or the server stops |
    ///
    /// # Costs
    /// The allocations of a session; a lock and a copy for each read and write; and mail from one connection to the
    /// other for each batch of bytes that has arrived or was written. The models without event loops have no I/O thread
    /// to share: `blocking` starts a thread, a worker of `pool` blocks until connected, and `tokio` starts a task.
    pub fn dial(&self, to: impl TryInto<Dial, Error: Into<DialError>>, within: Duration) -> Dialling {
        let dial = match to.try_into() {
            Ok(dial) => dial,
            Err(why) => return Dialling::not_begun(why.into()),
        };
        let (order, dialling) = dial::order(&self.shared, dial, within);
        self.shared.request(SessionRequest::Dial(Box::new(order)));
        dialling
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
