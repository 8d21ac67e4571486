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

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use slab::Slab;
use tidegate_os::datagram::DatagramSocket;
use tidegate_os::pages::Residence;
use tidegate_os::ring::{Buffer, Completion, DATAGRAM_HEAD, Purpose, Ring, RingSetup, Slots, Tells};
use tidegate_os::socket::is_out_of_buffers;
use tidegate_os::waker::Waker;

use super::state::{DatagramState, Drain};
use super::{DatagramWorker, Order, StopSignal};
use crate::engine::worker::Ready;
use crate::policy::datagram::ReplyLimits;
use crate::policy::wait::spins;
use crate::proto::datagram::Run;
use crate::service::DatagramService;

const RECEIVE: u64 = 1 << 58;
const WAKER: u64 = 1 << 59;
/// Only a failure to cancel the receive completes with this: it had ended already.
const CANCEL: u64 = 1 << 60;

/// After an error that is not about buffers, the receive rests for this long.
const PAUSE: Duration = Duration::from_millis(10);

struct Loop {
    ring: Ring,
    loop_state: DatagramState,
    limits: ReplyLimits,
    socket: Arc<DatagramSocket>,
    stop_signal: Arc<StopSignal>,
    /// Received and not shown yet.
    held: VecDeque<Buffer>,
    /// Runs that the kernel has, under the keys of their sends.
    in_flight: Slab<Run>,
    datagrams_in_flight: usize,
    bytes_in_flight: usize,
    receiving: bool,
    /// When to receive again, if it has to rest.
    rests: Option<Instant>,
    drain: Option<Drain>,
    /// What still waits in the socket is for another process.
    leaving: bool,
}

pub(in crate::engine) fn run(
    service: Box<dyn DatagramService>,
    worker: DatagramWorker,
    waker: Arc<Waker>,
    ready: Ready,
) {
    let Some(mut state) = ready.report(Loop::open(service, &worker, &waker)) else { return };
    if let Err(e) = state.serve(&worker, &waker) {
        tracing::error!("the ring failed, this thread ends: {e}");
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

impl Loop {
    /// Arms the receive, which fails at once where the kernel has none that never ends.
    fn open(
        service: Box<dyn DatagramService>,
        worker: &DatagramWorker,
        waker: &Arc<Waker>,
    ) -> io::Result<Self> {
        let mut state = Self {
            ring: ring(worker)?,
            loop_state: DatagramState::new(service, worker),
            limits: worker.policy.reply_limits(worker.path),
            socket: worker.socket.clone(),
            stop_signal: worker.stop_signal.clone(),
            held: VecDeque::new(),
            in_flight: Slab::new(),
            datagrams_in_flight: 0,
            bytes_in_flight: 0,
            receiving: false,
            rests: None,
            drain: None,
            leaving: false,
        };
        state.ring.poll_multi(waker, WAKER);
        state.receive_again();
        state.ring.enter(Some(Duration::ZERO))?;
        state.take(waker)?;
        Ok(state)
    }

    fn serve(&mut self, worker: &DatagramWorker, waker: &Arc<Waker>) -> io::Result<()> {
        let mut active = Instant::now();
        loop {
            self.answer();
            self.receive_again();
            let now = Instant::now();
            if self.drain.is_none()
                && let Some(order) = self.stop_signal.order()
            {
                let queued = worker.socket.receive_buffer().unwrap_or(0);
                self.drain = Some(Drain::begin(&worker.policy, queued, now));
                if order == Order::Leave {
                    self.leaving = true;
                    self.ring.cancel(RECEIVE, CANCEL, Tells::Failure);
                }
            }
            self.ring.enter(self.timeout(spins(worker.policy.wait, active, now), now))?;
            let (events, arrivals) = self.take(waker)?;
            if events > 0 {
                active = Instant::now();
                self.loop_state.counters.wake_ups.add(1);
            }
            if self.is_over(arrivals) {
                return Ok(());
            }
        }
    }

    /// Takes what has completed: how many completions, and how many of them arrivals.
    fn take(&mut self, waker: &Arc<Waker>) -> io::Result<(usize, usize)> {
        let (mut events, mut arrivals) = (0, 0);
        while let Some(completion) = self.ring.next_completion() {
            events += 1;
            match completion.key {
                RECEIVE => arrivals += self.received(completion)?,
                WAKER => self.woken(&completion, waker),
                _ => self.sent(completion),
            }
        }
        Ok((events, arrivals))
    }

    fn timeout(&self, spins: bool, now: Instant) -> Option<Duration> {
        let left = |at: Instant| at.saturating_duration_since(now);
        match (&self.drain, self.rests) {
            // What was queued before the stop comes without waiting; then only sends are waited for.
            (Some(drain), _) if self.in_flight.is_empty() || left(drain.deadline).is_zero() => {
                Some(Duration::ZERO)
            }
            (Some(drain), _) => Some(left(drain.deadline)),
            (None, Some(at)) => Some(left(at)),
            (None, None) => spins.then_some(Duration::ZERO),
        }
    }

    /// Takes what the endless receive brought; how many arrivals that were.
    fn received(&mut self, completion: Completion) -> io::Result<usize> {
        self.receiving &= completion.more;
        match (completion.result, completion.buffer) {
            // What comes after a stop, and more than was queued then, is too late.
            (Ok(_), Some(buffer)) if !self.leaving && self.drain.as_ref().is_some_and(Drain::is_over) => {
                self.ring.recycle(buffer);
                Ok(0)
            }
            (Ok(_), Some(buffer)) => {
                self.loop_state.counters.receives.add(1);
                self.held.push_back(buffer);
                Ok(1)
            }
            (Err(_), _) if self.leaving => Ok(0),          // cancelled
            (Err(e), _) if is_out_of_buffers(&e) => Ok(0), // all are held: armed again when they are back
            (Err(e), _) if e.kind() == io::ErrorKind::InvalidInput => {
                Err(io::Error::new(e.kind(), "an endless recvmsg needs Linux 6.0: use epoll"))
            }
            (Err(_), _) => {
                self.loop_state.counters.receive_errors.add(1);
                self.rests = Some(Instant::now() + PAUSE);
                Ok(0)
            }
            (Ok(_), None) => Ok(0),
        }
    }

    fn woken(&mut self, completion: &Completion, waker: &Arc<Waker>) {
        waker.clear();
        if !completion.more {
            self.ring.poll_multi(waker, WAKER);
        }
    }

    fn sent(&mut self, completion: Completion) {
        let Some(run) = self.in_flight.try_remove(completion.key as usize) else { return };
        self.datagrams_in_flight -= run.datagrams;
        self.bytes_in_flight -= run.length;
        match completion.result {
            Ok(_) => {
                self.loop_state.counters.sends.add(1);
                self.loop_state.sent(&run);
            }
            Err(e) => self.loop_state.refused(&run, &e),
        }
    }

    /// Shows what is held, as far as there is room for replies, and hands those over.
    fn answer(&mut self) {
        while !self.limits.wants_out(self.datagrams_in_flight, self.bytes_in_flight) {
            let Some(buffer) = self.held.pop_front() else { break };
            match self.ring.arrival(&buffer).map(|arrival| (arrival.from, arrival)) {
                Some((Some(from), arrival)) => self.loop_state.show(from, &arrival),
                _ => self.loop_state.counters.receive_errors.add(1),
            }
            self.ring.recycle(buffer);
            if self.loop_state.replies.wants_out() {
                self.hand_over();
            }
        }
        self.hand_over();
    }

    fn hand_over(&mut self) {
        if self.loop_state.replies.is_empty() {
            return;
        }
        let (block, runs) = self.loop_state.replies.take();
        let block = Bytes::from(block);
        for run in runs {
            self.datagrams_in_flight += run.datagrams;
            self.bytes_in_flight += run.length;
            let key = self.in_flight.insert(run) as u64;
            self.ring.send_datagrams(&self.socket, block.slice(run.range()), run.to, run.cut(), key);
        }
    }

    /// Arms the receive again if it has ended and may.
    fn receive_again(&mut self) {
        if self.rests.is_some_and(|at| Instant::now() >= at) {
            self.rests = None;
        }
        if !self.receiving && !self.leaving && self.rests.is_none() && self.held.is_empty() {
            self.ring.receive_datagrams(&self.socket, RECEIVE);
            self.receiving = true;
        }
    }

    /// Whether a stop has nothing left to do, or no time.
    fn is_over(&mut self, arrivals: usize) -> bool {
        let Some(drain) = &mut self.drain else { return false };
        drain.count(arrivals);
        if Instant::now() >= drain.deadline {
            self.loop_state.counters.abandoned.add(self.datagrams_in_flight as u64);
            return true;
        }
        // What the receive took before it was cancelled is still served: nobody else has it.
        let quiet = match self.leaving {
            true => !self.receiving,
            false => arrivals == 0 && self.receiving || drain.is_over(),
        };
        quiet && self.held.is_empty() && self.in_flight.is_empty()
    }
}
