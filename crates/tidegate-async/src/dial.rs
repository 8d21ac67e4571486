//! Dials of async code: the connection is there from the beginning, and its user gets it when it is established.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_channel::oneshot;
use tidegate::{Dial, DialError, Dialled, MailboxError, Outbox};

use crate::shared::Shared;
use crate::{AsyncSession, Connection};

/// A connection that is being dialled; created by [`ConnectionHandle::dial`](crate::ConnectionHandle::dial).
///
/// Dropping it gives the dial up: a connection that is established nevertheless is closed. Once begun, the connect goes
/// on until its time is over: until then it has its place of [`dials`](crate::AsyncService::dials), and a stop waits.
#[derive(Debug)]
#[must_use = "a dial that is dropped is given up"]
pub struct Dialling {
    upstream: Option<Connection>,
    outcome: oneshot::Receiver<io::Result<()>>,
}

impl Dialling {
    /// One that fails when it is polled.
    pub(crate) fn not_begun(why: DialError) -> Self {
        let (answer, outcome) = oneshot::channel();
        let _ = answer.send(Err(not_begun(why))); // its receiver is here
        Self { upstream: None, outcome }
    }
}

impl Future for Dialling {
    type Output = io::Result<Connection>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<Connection>> {
        let outcome = ready!(Pin::new(&mut self.outcome).poll(task));
        let upstream = self.upstream.take();
        Poll::Ready(match outcome {
            Ok(Ok(())) => upstream.ok_or_else(ended),
            Ok(Err(why)) => Err(why),
            Err(oneshot::Canceled) => Err(ended()),
        })
    }
}

/// The error of a dial that nobody carries out.
fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "not dialled: the connection that asked for it has ended")
}

/// A dial that the session is to begin.
pub(crate) struct DialOrder {
    dial: Dial,
    within: Duration,
    upstream: Arc<Shared>,
    answer: oneshot::Sender<io::Result<()>>,
}

/// A dial of the connection `by`: what its session is to do, and what its code waits for.
pub(crate) fn order(by: &Arc<Shared>, dial: Dial, within: Duration) -> (DialOrder, Dialling) {
    let (answer, outcome) = oneshot::channel();
    let upstream = Arc::new(Shared::dialled(&dial, by));
    let dialling = Dialling { upstream: Some(Connection::new(upstream.clone())), outcome };
    (DialOrder { dial, within, upstream, answer }, dialling)
}

/// The dials of a session whose outcome is not known yet, under the tags that they have meanwhile.
#[derive(Default)]
pub(crate) struct PendingDials(BTreeMap<u64, oneshot::Sender<io::Result<()>>>);

impl PendingDials {
    /// Begins a dial, unless it was given up. `enter` makes the session ready to poll futures.
    pub(crate) fn begin(
        &mut self,
        order: DialOrder,
        enter: impl FnOnce(AsyncSession) -> AsyncSession,
        out: &mut Outbox<'_>,
    ) {
        let DialOrder { dial, within, upstream, answer } = order;
        if answer.is_canceled() {
            return;
        }
        let tag = self.0.last_key_value().map_or(0, |(last, _)| last + 1);
        match out.dial(dial.tag(tag), within, enter(AsyncSession::of_dialled(upstream))) {
            Ok(()) => _ = self.0.insert(tag, answer),
            Err(why) => _ = answer.send(Err(not_begun(why))), // who asked may be gone
        }
    }

    /// The outcome of one of them is known.
    pub(crate) fn ended(&mut self, Dialled { tag, result, .. }: Dialled) {
        if let Some(answer) = self.0.remove(&tag) {
            let _ = answer.send(result); // who asked may be gone
        }
    }
}

fn not_begun(why: DialError) -> io::Error {
    let kind = match why {
        DialError::Address(_) => io::ErrorKind::InvalidInput,
        DialError::Queue(MailboxError::Full) => io::ErrorKind::ResourceBusy,
        _ => io::ErrorKind::NotConnected,
    };
    io::Error::new(kind, why)
}
