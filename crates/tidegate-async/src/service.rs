//! Turns an async function into a service.

use std::future::Future;
use std::marker::PhantomData;

use tidegate::{Peer, Refusal, Service, ServiceOptions};

use crate::{AsyncSession, Connection};

/// Stack that the code may use unless it [says](AsyncService::stack_bytes) how much it needs: enough for hyper in a
/// build without optimisation.
const STACK_BYTES: usize = 1 << 20;

/// Creates a [`Service`] from an async function that serves one connection; see the [crate].
///
/// The future must be [`Send`]: `pool` and `tokio` move connections between threads. Its result is ignored.
///
/// The future owns what it uses: `async move |conn| …` with a captured value does not compile, because that would be
/// borrowed from the function. State that connections share is cloned for each, here or by [`service_with`]:
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use tidegate_async::Connection;
/// use tokio::io::AsyncWriteExt;
///
/// let visits = Arc::new(AtomicUsize::new(0));
/// let service = tidegate_async::service(move |mut conn: Connection| {
///     let visits = visits.clone();
///     async move {
///         let number = visits.fetch_add(1, Ordering::Relaxed) + 1;
///         conn.write_all(format!("visit {number}\n").as_bytes()).await
///     }
/// });
/// # let conn = tidegate::testing::TestConnection::open(&service).unwrap();
/// # assert_eq!(conn.output(), b"visit 1\n");
/// ```
pub fn service<F, T>(serve: F) -> AsyncService<F, T>
where
    F: Fn(Connection) -> T + Send + Sync + 'static,
    T: Future + Send + 'static,
{
    AsyncService {
        serve,
        options: ServiceOptions::default().stack_bytes(STACK_BYTES),
        #[cfg(feature = "tokio")]
        runtime: None,
        future: PhantomData,
    }
}

/// The same with state that is cloned for each connection.
///
/// ```
/// use std::sync::Arc;
/// use tokio::io::AsyncWriteExt;
///
/// let greeting = Arc::<str>::from("hello\n");
/// let service = tidegate_async::service_with(greeting, async |mut conn, greeting| {
///     conn.write_all(greeting.as_bytes()).await
/// });
/// # let conn = tidegate::testing::TestConnection::open(&service).unwrap();
/// # assert_eq!(conn.output(), b"hello\n");
/// ```
pub fn service_with<S, F, T>(
    state: S,
    serve: F,
) -> AsyncService<impl Fn(Connection) -> T + Send + Sync + 'static, T>
where
    S: Clone + Send + Sync + 'static,
    F: Fn(Connection, S) -> T + Send + Sync + 'static,
    T: Future + Send + 'static,
{
    service(move |conn| serve(conn, state.clone()))
}

/// A service whose sessions are futures; created by [`service`].
pub struct AsyncService<F, T> {
    serve: F,
    options: ServiceOptions,
    #[cfg(feature = "tokio")]
    runtime: Option<tokio::runtime::Handle>,
    future: PhantomData<fn() -> T>,
}

impl<F, T> std::fmt::Debug for AsyncService<F, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AsyncService").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<F, T> AsyncService<F, T> {
    /// Declares that the code writes before it has read; see [`ServiceOptions::speaks_first`].
    #[must_use]
    pub fn speaks_first(self) -> Self {
        Self { options: self.options.speaks_first(true), ..self }
    }

    /// Fills in the address of [`Connection::peer`]; see [`ServiceOptions::peer_addr`] for its cost.
    #[must_use]
    pub fn peer_addr(self) -> Self {
        Self { options: self.options.peer_addr(true), ..self }
    }

    /// Fills the local address of [`Connection::peer`]; see [`ServiceOptions::local_addr`] for what that costs.
    #[must_use]
    pub fn local_addr(self) -> Self {
        Self { options: self.options.local_addr(true), ..self }
    }

    /// Declares how many connections each one may have [dialled](Connection::dial) at once; see
    /// [`ServiceOptions::dials`], which sets places aside for them.
    #[must_use]
    pub fn dials(self, dials: usize) -> Self {
        Self { options: self.options.dials(dials), ..self }
    }

    /// Sets the stack the code needs, in bytes, in place of 1 MiB; see [`ServiceOptions::stack_bytes`]. Less allows
    /// a lower [`Policy::thread_stack_bytes`](tidegate::Policy::thread_stack_bytes) on `blocking` and `pool`.
    #[must_use]
    pub fn stack_bytes(self, bytes: usize) -> Self {
        Self { options: self.options.stack_bytes(bytes), ..self }
    }

    /// Enters this tokio runtime while the code runs, for code that calls `tokio::spawn` or uses tokio's timers and
    /// sockets.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn enter(self, runtime: tokio::runtime::Handle) -> Self {
        Self { runtime: Some(runtime), ..self }
    }
}

impl<F, T> Service for AsyncService<F, T>
where
    F: Fn(Connection) -> T + Send + Sync + 'static,
    T: Future + Send + 'static,
{
    type Session = AsyncSession;

    fn open(&self, peer: &Peer) -> Result<AsyncSession, Refusal> {
        let start = |connection| {
            let future = (self.serve)(connection);
            Box::pin(async move {
                future.await;
            }) as _
        };
        #[cfg(feature = "tokio")]
        let entered = self.runtime.as_ref().map(tokio::runtime::Handle::enter);
        let session = AsyncSession::new(peer, start);
        #[cfg(feature = "tokio")]
        let session = {
            drop(entered);
            session.entering(self.runtime.clone())
        };
        Ok(session)
    }

    fn options(&self) -> ServiceOptions {
        self.options
    }
}
