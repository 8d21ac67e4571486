//! Moves datagrams between a socket and a service: receive, show, send. For every family but the completion models.
//!
//! After a receive that failed its thread sleeps for a moment: it has nothing else to do.

use std::io;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Instant;

use tidegate_os::datagram::{DatagramBuffer, DatagramSocket, Outgoing, OutgoingDatagram, is_report};

use super::state::{DatagramState, Drain};
use super::{DatagramWorker, FAILED_RECEIVE_PAUSE, StopOrder, StopSignal};
use crate::proto::datagram::ReplyRun;
use crate::service::DatagramService;

/// What a step left to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// There may be more at once; others first.
    Again,
    /// Nothing to receive: wait until there is.
    Idle,
    /// The socket takes nothing: wait until it does. Nothing is received meanwhile; what waits in the kernel costs
    /// nothing here.
    Full,
    /// Stopped, and nothing is left to be done.
    Ended,
}

pub(super) struct Pump {
    loop_state: DatagramState,
    socket: Arc<DatagramSocket>,
    stop_signal: Arc<StopSignal>,
    inbox: DatagramBuffer,
    /// The next arrival in the inbox that was not shown yet.
    next: usize,
    outgoing: Outgoing,
    /// Datagrams of one system call.
    per_call: usize,
    drain: Option<Drain>,
    /// Nothing more is received: the receivers were woken and nothing is queued, or what is queued is for somebody
    /// else.
    drained: bool,
    /// A receive has failed, and the next one may at once: there is a pause between them.
    failed: bool,
}

impl Pump {
    pub(super) fn new(service: Box<dyn DatagramService>, worker: DatagramWorker) -> Self {
        let per_call = worker.policy.per_call(worker.path);
        Self {
            loop_state: DatagramState::new(service, &worker),
            inbox: DatagramBuffer::new(per_call, worker.policy.buffer_bytes(worker.path)),
            next: 0,
            outgoing: Outgoing::default(),
            per_call,
            socket: worker.socket,
            stop_signal: worker.stop_signal,
            drain: None,
            drained: false,
            failed: false,
        }
    }

    /// A thread woke up.
    pub(super) fn woke(&self) {
        self.loop_state.counters.wake_ups.add(1);
    }

    /// When a stop is over at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.drain.as_ref().map(|drain| drain.deadline)
    }

    /// Receives and answers, for as long as there is something and it is fair.
    pub(super) fn step(&mut self) -> Step {
        if self.drain.is_none()
            && let Some(order) = self.stop_signal.order()
        {
            let queued = self.socket.receive_buffer().unwrap_or(0);
            self.drain = Some(Drain::begin(&self.loop_state.policy, queued, Instant::now()));
            self.drained |= order == StopOrder::Leave;
        }
        let step = self.work();
        let Some(drain) = &self.drain else { return step };
        match step {
            Step::Full | Step::Again if Instant::now() >= drain.deadline => {
                self.loop_state.abandon();
                Step::Ended
            }
            Step::Idle => Step::Ended,
            step => step,
        }
    }

    fn work(&mut self) -> Step {
        for _ in 0..self.loop_state.policy.burst {
            if self.answer() == Step::Full {
                return Step::Full;
            }
            if self.drained || self.drain.as_ref().is_some_and(Drain::is_over) {
                return Step::Ended;
            }
            if std::mem::take(&mut self.failed) {
                sleep(FAILED_RECEIVE_PAUSE);
                return Step::Again;
            }
            match self.socket.receive(&mut self.inbox, self.per_call) {
                Ok(arrivals) => {
                    self.next = 0;
                    self.loop_state.counters.receives.add(1);
                    if let Some(drain) = &mut self.drain {
                        drain.count(arrivals);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Step::Idle,
                Err(e) => self.receive_failed(&e),
            }
        }
        match self.answer() {
            Step::Full => Step::Full,
            _ => Step::Again,
        }
    }

    fn receive_failed(&mut self, e: &io::Error) {
        self.loop_state.counters.receive_errors.add(1);
        self.failed |= !is_report(e); // taking a report about a peer has cleared it
    }

    /// Shows what was received and sends the replies. Nothing is shown while replies wait for the socket.
    fn answer(&mut self) -> Step {
        loop {
            if !self.flush() {
                return Step::Full;
            }
            let before = self.next;
            while !self.loop_state.replies.wants_out() {
                let Some(arrival) = self.inbox.get(self.next) else { break };
                self.next += 1;
                match arrival.from {
                    Some(from) => self.loop_state.show(from, &arrival),
                    None if self.stop_signal.order().is_some() => self.drained = true,
                    None => {
                        self.loop_state.counters.receive_errors.add(1);
                        self.failed = true;
                    }
                }
            }
            if self.next == before {
                return Step::Idle;
            }
        }
    }

    /// Sends what waits; whether all of it is gone.
    fn flush(&mut self) -> bool {
        while !self.loop_state.replies.is_empty() {
            let waiting = self.loop_state.replies.iter().take(self.per_call);
            let messages =
                waiting.map(|(run, bytes)| OutgoingDatagram { to: Some(run.to), bytes, segment: run.cut() });
            match self.socket.send(&mut self.outgoing, messages) {
                Ok(taken) => {
                    self.loop_state.counters.sends.add(1);
                    for _ in 0..taken.max(1) {
                        self.done(|loop_state, run| loop_state.sent(run));
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(e) => self.done(|loop_state, run| loop_state.refused(run, &e)),
            }
        }
        true
    }

    fn done(&mut self, count: impl FnOnce(&DatagramState, &ReplyRun)) {
        if let Some(run) = self.loop_state.replies.pop() {
            count(&self.loop_state, &run);
        }
    }
}

#[cfg(all(test, unix, not(tidegate_loom)))]
mod tests {
    use std::time::Duration;

    use super::super::kit::{Deaf, worker};
    use super::*;
    use crate::policy::DatagramPolicy;

    #[test]
    fn it_rests_after_a_failed_receive_unless_that_brought_a_report_about_a_peer() {
        let mut pump = Pump::new(Box::new(Deaf), worker(DatagramPolicy::default()));
        let cases = [
            (io::ErrorKind::ConnectionRefused, Duration::ZERO, Step::Idle),
            (io::ErrorKind::OutOfMemory, FAILED_RECEIVE_PAUSE, Step::Again),
        ];
        for (kind, rests, step) in cases {
            pump.receive_failed(&kind.into());
            let start = Instant::now();
            assert_eq!(pump.step(), step, "{kind}");
            assert!(start.elapsed() >= rests, "{kind}: {:?}", start.elapsed());
            assert_eq!(pump.step(), Step::Idle, "{kind}: it receives again");
        }
        assert_eq!(pump.loop_state.counters.receive_errors.get(), 2);
    }
}
