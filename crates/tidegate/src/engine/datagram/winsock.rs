//! `iocp` and `overlapped` for datagrams: several receives posted at once (`WSARecvFrom`), and a send for each reply
//! (`WSASendTo`).
//!
//! # How it waits
//! As for connections: for a batch of completions (`GetQueuedCompletionStatusEx`), or for events, of which each receive
//! has one and all sends share another.
//!
//! # What it bounds
//! Receive buffers: the policy's `batch`, of which at most 32 are posted. Replies: while half of what the policy allows
//! is with the kernel, what was received is held back.
//!
//! # What it costs
//! A call for each receive and each send, and an operation of about 200 bytes for each that is in flight, in
//! pages that are used again.
//!
//! # Where it differs
//! Receives are filled in the order in which they were posted, and may complete in another one: they are shown in the
//! first. A datagram that is longer than its buffer completes as truncated. At a stop the receives are cancelled; when
//! all have come back, what still waits in the socket is received without waiting.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate_os::datagram::Arrival;
use tidegate_os::overlapped::{Datagram, DatagramDone, DatagramQueue, is_aborted};
use tidegate_os::waker::Waker;

use super::operations::OverlappedNotifier;
use crate::engine::datagram::completion::{DatagramCompletion, DatagramDriver};
use crate::engine::datagram::{DatagramWorker, StopOrder};
use crate::policy::sends::MOST_POSTED;
use crate::proto::datagram::ReplyRun;
use crate::proto::{InOrder, Sequence};

/// Completions of one wait.
const EVENTS: usize = 256;

/// A thread's operations.
pub(crate) struct PostedDatagrams<N: OverlappedNotifier> {
    queue: DatagramQueue<N>,
    /// The receives that are posted, and what has completed before an earlier one.
    receives: InOrder<io::Result<Datagram>>,
    /// Receives are to be posted up to so many.
    most: usize,
    stopped: Option<StopOrder>,
    /// Datagrams that may be received without being waited for until the next wait.
    at_once: usize,
}

impl<N: OverlappedNotifier> DatagramDriver for PostedDatagrams<N> {
    type Buffer = Datagram;

    fn open(worker: &DatagramWorker, waker: &Arc<Waker>) -> io::Result<Self> {
        let (buffers, bytes) = (worker.policy.batch, worker.policy.buffer_bytes(worker.path));
        let notify = N::open(EVENTS)?;
        waker.wake_with(notify.wake_event());
        Ok(Self {
            queue: DatagramQueue::new(notify, &worker.socket, buffers, bytes)?,
            receives: InOrder::default(),
            most: buffers.min(MOST_POSTED),
            stopped: None,
            at_once: 0,
        })
    }

    fn receive(&mut self) {
        while self.stopped.is_none() && self.receives.pending() < self.most && self.queue.has_room() {
            let sequence = self.receives.begin();
            self.queue.receive(sequence.to_bits());
        }
    }

    fn stop(&mut self, order: StopOrder) {
        self.stopped = Some(order);
        self.queue.stop_receiving();
    }

    fn is_ending(&self) -> bool {
        self.stopped.is_some() && self.receives.pending() > 0
    }

    fn shows_all(&self) -> bool {
        self.stopped.is_some() && self.receives.pending() == 0
    }

    fn send(&mut self, bytes: Bytes, run: &ReplyRun, key: u64) {
        self.queue.send(bytes, run.to, key);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.at_once = self.most;
        self.queue.wait(timeout)
    }

    fn next(&mut self) -> io::Result<Option<DatagramCompletion<Datagram>>> {
        if let Some(outcome) = self.receives.take_due() {
            return Ok(Some(received(outcome)));
        }
        loop {
            return Ok(match self.queue.next() {
                Some(DatagramDone::Woken) => Some(DatagramCompletion::Woken),
                Some(DatagramDone::Sent(key, outcome)) => Some(DatagramCompletion::Sent(key, outcome)),
                Some(DatagramDone::Received(key, outcome)) => {
                    match self.receives.complete(Some(Sequence::from_bits(key)), outcome) {
                        Some(outcome) => Some(received(outcome)),
                        None => continue, // one before it is still to come
                    }
                }
                None => self.receive_at_once(),
            });
        }
    }

    fn arrival<'a>(&'a self, datagram: &'a Datagram) -> Option<Arrival<'a>> {
        Some(self.queue.arrival(datagram))
    }

    fn recycle(&mut self, datagram: Datagram) {
        self.queue.recycle(datagram);
    }
}

impl<N: OverlappedNotifier> PostedDatagrams<N> {
    /// After a stop: what waits in the socket and no receive has taken.
    fn receive_at_once(&mut self) -> Option<DatagramCompletion<Datagram>> {
        if self.stopped != Some(StopOrder::Serve) || self.receives.pending() > 0 || self.at_once == 0 {
            return None;
        }
        self.at_once -= 1;
        self.queue.receive_now().transpose().map(DatagramCompletion::Received)
    }
}

fn received(outcome: io::Result<Datagram>) -> DatagramCompletion<Datagram> {
    match outcome {
        Err(e) if is_aborted(&e) => DatagramCompletion::Ended,
        outcome => DatagramCompletion::Received(outcome),
    }
}
