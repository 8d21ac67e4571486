//! `uring` for datagrams: one receive that never ends, into provided buffers, and a send for each run of replies.
//!
//! # How it waits
//! For completions. `recvmsg` is armed once (multishot, Linux 6.0) and completes for every datagram; many sends are
//! handed over with the call that waits.
//!
//! # What it bounds
//! Receive buffers: when all are out the receive ends by itself (`ENOBUFS`) and is armed again when they are back.
//! Replies: while half of what the policy allows is with the kernel, what was received is held back.
//!
//! # What it costs
//! One system call for as many datagrams as there are; an allocation for each send.
//!
//! # Where it differs
//! The path batched does not exist: every path is. Sends are carried out in order, but not waited for.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate_os::datagram::{Arrival, DatagramSocket};
use tidegate_os::pages::Residence;
use tidegate_os::ring::{self, Buffer, DATAGRAM_HEAD, Purpose, Ring, RingSetup, Slots, Tells};
use tidegate_os::socket::is_out_of_buffers;
use tidegate_os::waker::Waker;

use super::completion::{DatagramCompletion, DatagramDriver};
use super::{DatagramWorker, StopOrder};
use crate::proto::datagram::ReplyRun;

const RECEIVE: u64 = 1 << 58;
const WAKER: u64 = 1 << 59;
/// Only a failure to cancel the receive completes with this: it had ended already.
const CANCEL: u64 = 1 << 60;

/// A thread's ring.
pub(in crate::engine) struct DatagramRing {
    ring: Ring,
    socket: Arc<DatagramSocket>,
    waker: Arc<Waker>,
    receiving: bool,
    /// Buffers that were received into and have not come back.
    out: usize,
    /// The receive was cancelled, and is not armed again.
    cancelled: bool,
}

impl DatagramDriver for DatagramRing {
    type Buffer = Buffer;

    fn open(worker: &DatagramWorker, waker: &Arc<Waker>) -> io::Result<Self> {
        let mut ring = ring(worker)?;
        ring.poll_multi(waker, WAKER);
        let (socket, waker) = (worker.socket.clone(), waker.clone());
        Ok(Self { ring, socket, waker, receiving: false, out: 0, cancelled: false })
    }

    fn receive(&mut self) {
        if !self.receiving && !self.cancelled && self.out == 0 {
            self.ring.receive_datagrams(&self.socket, RECEIVE);
            self.receiving = true;
        }
    }

    fn stop(&mut self, order: StopOrder) {
        // What has arrived completes as long as the receive is armed.
        if order == StopOrder::Leave {
            self.cancelled = true;
            self.ring.cancel(RECEIVE, CANCEL, Tells::Failure);
        }
    }

    fn is_ending(&self) -> bool {
        self.cancelled && self.receiving
    }

    fn shows_all(&self) -> bool {
        self.receiving
    }

    fn send(&mut self, bytes: Bytes, run: &ReplyRun, key: u64) {
        self.ring.send_datagrams(&self.socket, bytes, run.to, run.cut(), key);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.ring.enter(timeout)
    }

    fn next(&mut self) -> io::Result<Option<DatagramCompletion<Buffer>>> {
        let Some(completion) = self.ring.next_completion() else { return Ok(None) };
        match completion.key {
            RECEIVE => self.received(completion).map(Some),
            WAKER => {
                self.waker.clear();
                if !completion.more {
                    self.ring.poll_multi(&self.waker, WAKER);
                }
                Ok(Some(DatagramCompletion::Woken))
            }
            key => Ok(Some(DatagramCompletion::Sent(key, completion.result.map(drop)))),
        }
    }

    fn arrival<'a>(&'a self, buffer: &'a Buffer) -> Option<Arrival<'a>> {
        self.ring.arrival(buffer)
    }

    fn recycle(&mut self, buffer: Buffer) {
        self.out -= 1;
        self.ring.recycle(buffer);
    }
}

impl DatagramRing {
    /// What the endless receive brought.
    fn received(&mut self, completion: ring::Completion) -> io::Result<DatagramCompletion<Buffer>> {
        self.receiving &= completion.more;
        match (completion.result, completion.buffer) {
            (Ok(_), Some(buffer)) => {
                self.out += 1;
                Ok(DatagramCompletion::Received(Ok(buffer)))
            }
            (Ok(_), None) => Ok(DatagramCompletion::Ended),
            (Err(_), _) if self.cancelled => Ok(DatagramCompletion::Ended),
            (Err(e), _) if is_out_of_buffers(&e) => Ok(DatagramCompletion::Ended), // armed again when they are back
            (Err(e), _) if e.kind() == io::ErrorKind::InvalidInput => {
                Err(io::Error::new(e.kind(), "an endless recvmsg needs Linux 6.0: use epoll"))
            }
            (Err(e), _) => Ok(DatagramCompletion::Received(Err(e))),
        }
    }
}

fn ring(worker: &DatagramWorker) -> io::Result<Ring> {
    let buffers = worker.policy.batch.next_power_of_two();
    let bytes = (worker.policy.buffer_bytes(worker.path) + DATAGRAM_HEAD).next_multiple_of(64);
    Ring::new(&RingSetup {
        purpose: Purpose::Datagrams,
        entries: (buffers as u32 * 2).clamp(64, 4096),
        completions: (buffers as u32 * 8).clamp(1024, 65_536),
        buffers: buffers as u16,
        buffer_bytes: bytes as u32,
        residence: Residence::Pageable,
        table: 0,
        slots: Slots::Accepted,
        busy_poll: None,
    })
}
