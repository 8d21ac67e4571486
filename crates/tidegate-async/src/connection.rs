//! A connection as async code sees it, whole and split.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::{Dial, DialError, Peer};

use crate::shared::Shared;
use crate::{ConnectionHandle, Dialling, Draining, JoinHandle, OffloadFailed, Sleep, Timeout};

/// One connection as async code sees it. Implements the read and write traits of the enabled features.
///
/// Can be moved to another thread: then each read and write wakes the connection's I/O thread. The connection lives
/// until the future that [`service`](crate::service()) created for it has returned, even if handles remain; one that
/// was [dialled](ConnectionHandle::dial) lives until it, or both of its halves, are dropped.
#[derive(Debug)]
pub struct Connection {
    pub(crate) handle: Owner,
}

/// The read half of a [`Connection`].
#[derive(Debug)]
pub struct ReadHalf {
    pub(crate) handle: Owner,
}

/// The write half of a [`Connection`]. Dropping it shuts the sending side down.
#[derive(Debug)]
pub struct WriteHalf {
    pub(crate) handle: Owner,
    when_dropped: WhenDropped,
}

/// What the end of a write half means.
#[derive(Debug)]
enum WhenDropped {
    ShutDown,
    /// It has become a part of the whole again.
    Nothing,
}

/// Halves of two connections; see [`ReadHalf::reunite`].
#[derive(Debug)]
pub struct ReuniteError(pub ReadHalf, pub WriteHalf);

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves are not of one connection")
    }
}

impl Error for ReuniteError {}

/// The handle in a connection, or in a half of one: a dialled connection ends with the last of them.
#[derive(Debug)]
pub(crate) struct Owner(ConnectionHandle);

impl Owner {
    fn of(handle: ConnectionHandle) -> Self {
        handle.shared.own();
        Self(handle)
    }
}

impl Deref for Owner {
    type Target = ConnectionHandle;

    fn deref(&self) -> &ConnectionHandle {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.shared.disown();
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        if let WhenDropped::ShutDown = self.when_dropped {
            let _ = self.handle.shared.finish();
        }
    }
}

impl Connection {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { handle: Owner::of(ConnectionHandle::new(shared)) }
    }

    /// The handle of the connection, for what it does beside reading and writing: it borrows nothing.
    #[must_use]
    pub fn handle(&self) -> ConnectionHandle {
        self.handle.0.clone()
    }

    /// The peer, and the I/O thread that the connection is on.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        self.handle.peer()
    }

    /// The peer's address, if the service [asks for it](crate::AsyncService::peer_addr).
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer().addr
    }

    /// The address of this end, where the service [asked for it](crate::AsyncService::local_addr).
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.peer().local_addr
    }

    /// Splits it into halves that can be used side by side.
    #[must_use]
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        let reader = ReadHalf { handle: Owner::of(self.handle()) };
        (reader, WriteHalf { handle: self.handle, when_dropped: WhenDropped::ShutDown })
    }

    /// See [`ConnectionHandle::sleep`].
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.handle.sleep(duration)
    }

    /// See [`ConnectionHandle::sleep_until`].
    pub fn sleep_until(&self, at: Instant) -> Sleep {
        self.handle.sleep_until(at)
    }

    /// See [`ConnectionHandle::timeout`]. For a read or a write take the method of the [handle](Self::handle): the
    /// future borrows the connection.
    pub fn timeout<F: Future>(&self, limit: Duration, future: F) -> Timeout<F> {
        self.handle.timeout(limit, future)
    }

    /// See [`ConnectionHandle::spawn`].
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.handle.spawn(future)
    }

    /// See [`ConnectionHandle::offload`].
    ///
    /// # Errors
    /// [`OffloadFailed`] when the job was not run, or panicked.
    pub fn offload<T: Send + 'static, J: FnOnce() -> T + Send + 'static>(
        &self,
        job: J,
    ) -> impl Future<Output = Result<T, OffloadFailed>> + Send + use<T, J> {
        self.handle.offload(job)
    }

    /// See [`ConnectionHandle::dial`].
    ///
    /// # Errors
    /// Those of the method of the handle.
    pub fn dial(&self, to: impl TryInto<Dial, Error: Into<DialError>>, within: Duration) -> Dialling {
        self.handle.dial(to, within)
    }

    /// See [`ConnectionHandle::abort`].
    pub fn abort(&self) {
        self.handle.abort();
    }

    /// See [`ConnectionHandle::draining`].
    pub fn draining(&self) -> Draining {
        self.handle.draining()
    }
}

impl ReadHalf {
    /// Puts both halves of a connection together again.
    ///
    /// # Errors
    /// The halves are not of one connection: both are given back.
    pub fn reunite(self, mut writer: WriteHalf) -> Result<Connection, ReuniteError> {
        if !Arc::ptr_eq(&self.handle.shared, &writer.handle.shared) {
            return Err(ReuniteError(self, writer));
        }
        writer.when_dropped = WhenDropped::Nothing;
        Ok(Connection { handle: self.handle })
    }

    /// The handle of the connection.
    #[must_use]
    pub fn handle(&self) -> ConnectionHandle {
        self.handle.0.clone()
    }
}

impl WriteHalf {
    /// The handle of the connection.
    #[must_use]
    pub fn handle(&self) -> ConnectionHandle {
        self.handle.0.clone()
    }
}
