//! Moves datagrams between a socket and a service: receive, show, send. For every family but the ring.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use tidegate_sys::datagram::{DatagramSocket, Inbox, Message, Outgoing};

use super::desk::{Desk, Drain};
use super::{Halt, Lane, Order};
use crate::core::datagram::Run;
use crate::service::DatagramService;

/// What a step left to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// There may be more at once; others first.
    Again,
    /// Nothing to receive: wait until there is.
    Idle,
    /// The socket takes nothing: wait until it does. Nothing is received meanwhile; what waits in the kernel costs nothing here.
    Full,
    /// Stopped, and nothing is left to be done.
    Ended,
}

pub(super) struct Pump {
    desk: Desk,
    socket: Arc<DatagramSocket>,
    halt: Arc<Halt>,
    inbox: Inbox,
    /// The next arrival in the inbox that was not shown yet.
    next: usize,
    outgoing: Outgoing,
    /// Datagrams of one system call.
    per_call: usize,
    drain: Option<Drain>,
    /// Nothing more is received: the receivers were woken and nothing is queued, or what is queued is for somebody else.
    drained: bool,
}

impl Pump {
    pub(super) fn new(service: Box<dyn DatagramService>, lane: Lane) -> Self {
        let per_call = lane.policy.per_call(lane.path);
        Self {
            desk: Desk::new(service, &lane),
            inbox: Inbox::new(per_call, lane.policy.buffer_bytes(lane.path)),
            next: 0,
            outgoing: Outgoing::default(),
            per_call,
            socket: lane.socket,
            halt: lane.halt,
            drain: None,
            drained: false,
        }
    }

    /// A thread woke up.
    pub(super) fn woke(&self) {
        self.desk.counters.wake_ups.add(1);
    }

    /// When a stop is over at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.drain.as_ref().map(|drain| drain.deadline)
    }

    /// Receives and answers, for as long as there is something and it is fair.
    pub(super) fn step(&mut self) -> Step {
        if self.drain.is_none()
            && let Some(order) = self.halt.order()
        {
            let queued = self.socket.receive_buffer().unwrap_or(0);
            self.drain = Some(Drain::begin(&self.desk.policy, queued, Instant::now()));
            self.drained |= order == Order::Leave;
        }
        let step = self.work();
        let Some(drain) = &self.drain else { return step };
        match step {
            Step::Full | Step::Again if Instant::now() >= drain.deadline => {
                self.desk.abandon();
                Step::Ended
            }
            Step::Idle => Step::Ended,
            step => step,
        }
    }

    fn work(&mut self) -> Step {
        for _ in 0..self.desk.policy.burst {
            if self.answer() == Step::Full {
                return Step::Full;
            }
            if self.drained || self.drain.as_ref().is_some_and(Drain::is_over) {
                return Step::Ended;
            }
            match self.socket.receive(&mut self.inbox, self.per_call) {
                Ok(arrivals) => {
                    self.next = 0;
                    self.desk.counters.receives.add(1);
                    if let Some(drain) = &mut self.drain {
                        drain.count(arrivals);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Step::Idle,
                // Such as a report by ICMP that a peer has gone: taking it has cleared it.
                Err(_) => self.desk.counters.receive_errors.add(1),
            }
        }
        match self.answer() {
            Step::Full => Step::Full,
            _ => Step::Again,
        }
    }

    /// Shows what was received and sends what comes of it. Nothing is shown while replies wait for the socket.
    fn answer(&mut self) -> Step {
        loop {
            if !self.flush() {
                return Step::Full;
            }
            let before = self.next;
            while !self.desk.replies.wants_out() {
                let Some(arrival) = self.inbox.get(self.next) else { break };
                self.next += 1;
                match arrival.from {
                    Some(from) => self.desk.show(from, &arrival),
                    None if self.halt.is_asked() => self.drained = true,
                    None => self.desk.counters.receive_errors.add(1),
                }
            }
            if self.next == before {
                return Step::Idle;
            }
        }
    }

    /// Sends what waits; whether all of it is gone.
    fn flush(&mut self) -> bool {
        while !self.desk.replies.is_empty() {
            let waiting = self.desk.replies.iter().take(self.per_call);
            let messages =
                waiting.map(|(run, bytes)| Message { to: Some(run.to), bytes, segment: run.cut() });
            match self.socket.send(&mut self.outgoing, messages) {
                Ok(taken) => {
                    self.desk.counters.sends.add(1);
                    for _ in 0..taken.max(1) {
                        self.done(|desk, run| desk.sent(run));
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(e) => self.done(|desk, run| desk.refused(run, &e)),
            }
        }
        true
    }

    fn done(&mut self, count: impl FnOnce(&Desk, &Run)) {
        if let Some(run) = self.desk.replies.pop() {
            count(&self.desk, &run);
        }
    }
}
