//! One connection of a readiness loop: the socket, and carrying out what the core wants.

use std::io::{self, IoSlice};
use std::sync::Arc;

use tidegate_os::file::FileRange;
use tidegate_os::poll::Readiness;
use tidegate_os::socket::{More, SHORT_SEND_MEANS_FULL};
use tidegate_os::splice::{SplicePipe, cannot_splice};

use crate::engine::worker::transport::{SocketTransport, Transport};

use crate::engine::worker::admission::{Quota, failure};
use crate::engine::worker::loop_driver::{LoopEntry, Phase};
use crate::engine::worker::permits::ConnectionPermits;
use crate::engine::worker::queue_writer::{Write, write_next};
use crate::engine::worker::rings::Look;
use crate::policy::sends::SPLICE_LEAST;
use crate::proto::spliced::PipePool;
use crate::proto::{Action, Connection, Context, Direction, Event, NextStep, Receive};

/// A connection and what is known of its socket.
pub(in crate::engine) struct ReadinessEntry<W = SocketTransport> {
    pub(in crate::engine) stream: W,
    pub(in crate::engine) phase: Phase,
    /// What it counts for.
    pub(in crate::engine) quota: Quota,
    /// What the poller was last asked to wait for.
    pub(in crate::engine) wanted: Readiness,
    /// The socket took less than all: wait until it is writable.
    blocked: bool,
    /// The last receive took all it could: what follows may be received into a pipe.
    bulk: bool,
    /// The peer is known to have finished, or to have sent an urgent byte: a short read is not the last one.
    pub(in crate::engine) ended: bool,
    /// The poller knows it.
    pub(in crate::engine) watched: bool,
    /// It is in the loop's list of those to look at again.
    pub(in crate::engine) listed: bool,
    /// It is in the loop's list of those whose shared memory is looked at.
    pub(in crate::engine) looked_at: bool,
    /// Its permits of the thread, and what they allow.
    pub(in crate::engine) permits: ConnectionPermits,
    pub(in crate::engine) may_send: bool,
    /// It is not in the queue for a permit to receive: it has one, or asks for one when its socket is ready.
    pub(in crate::engine) may_receive: bool,
}

// See `Connection`.
#[cfg(all(unix, target_pointer_width = "64"))]
const _: () = assert!(size_of::<ReadinessEntry>() <= 112);

impl<W> LoopEntry for ReadinessEntry<W> {
    #[inline]
    fn phase(&mut self) -> &mut Phase {
        &mut self.phase
    }

    #[inline]
    fn permits(&mut self) -> &mut ConnectionPermits {
        &mut self.permits
    }
}

/// How a turn at a connection ended; the more urgent is the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) enum Progress {
    /// Idle for the poller.
    Idle,
    /// Has more to do but used up its budget: look at it again.
    Yield,
    /// Close it.
    Closed,
}

impl<W: Transport> ReadinessEntry<W> {
    pub(in crate::engine) fn new(stream: W, phase: Phase) -> Self {
        let dialling = matches!(phase, Phase::Dialling(_));
        let wanted = stream.interest(Readiness { readable: !dialling, writable: dialling });
        Self {
            stream,
            quota: phase.quota(),
            phase,
            wanted,
            blocked: false,
            bulk: false,
            ended: false,
            watched: false,
            listed: false,
            looked_at: false,
            permits: ConnectionPermits::default(),
            may_send: true,
            may_receive: true,
        }
    }

    /// A send has been begun that the kernel has not finished with.
    pub(in crate::engine) fn is_sending(&self) -> bool {
        self.blocked
    }

    /// There is something to send, and no permission to.
    pub(in crate::engine) fn waits_to_send(&self) -> bool {
        matches!(&self.phase, Phase::Open(connection) if connection.action().send) && !self.may_send
    }

    /// What the poller has to wait for now.
    pub(in crate::engine) fn interest(&self) -> Readiness {
        self.stream.interest(self.wants())
    }

    /// What it waits for now.
    #[inline]
    pub(in crate::engine) fn wants(&self) -> Readiness {
        match &self.phase {
            Phase::Dialling(_) => Readiness::WRITE,
            Phase::Open(connection) => {
                let action = connection.action();
                let readable = action.receive == Receive::Post && self.may_receive;
                Readiness { readable, writable: self.blocked && action.send }
            }
        }
    }

    /// Looks at its shared memory: what is ready of what it waits for.
    #[inline]
    pub(super) fn look(&mut self, how: Look) -> Readiness {
        let (wants, sleeps) = (self.wants(), how == Look::BeforeSleep);
        let sees = if sleeps { self.stream.prepare_sleep(wants) } else { self.stream.look(wants) };
        self.looked_at = how.keeps_awake(sees);
        sees
    }

    /// Tells the connection something that is not about its socket, and does what follows.
    pub(in crate::engine) fn dispatch(&mut self, event: Event<'_>, context: &Context<'_>) -> Progress {
        let Phase::Open(connection) = &mut self.phase else { return Progress::Idle };
        let was = connection.action().receive;
        let action = connection.handle(event, context);
        self.carry_out(action, was, context)
    }

    /// The poller's report: sends if it was blocked, then receives.
    pub(in crate::engine) fn ready(
        &mut self,
        ready: Readiness,
        into: &mut ReceiveBuffers<'_>,
        context: &Context<'_>,
    ) -> Progress {
        let Phase::Open(connection) = &mut self.phase else { return Progress::Idle };
        let action = connection.action();
        let mut turn = Progress::Idle;
        if ready.writable && self.blocked {
            self.blocked = false;
            turn = self.carry_out(action, action.receive, context);
        }
        match turn {
            Progress::Closed => Progress::Closed,
            _ if ready.readable => self.receive(into, context).max(turn),
            _ => turn,
        }
    }

    /// Receives until there is nothing more, the connection wants no more, or its budget is used up.
    fn receive(&mut self, into: &mut ReceiveBuffers<'_>, context: &Context<'_>) -> Progress {
        self.permits.due = false;
        for _ in 0..context.policy.drain_budget {
            let Phase::Open(connection) = &mut self.phase else { return Progress::Idle };
            if connection.action().receive == Receive::Pause || !self.may_receive {
                return Progress::Idle;
            }
            let received = match receive_bulk(&self.stream, connection, &mut self.bulk, into.pipes) {
                Some(outcome) => outcome,
                None => receive_into(&self.stream, into.memory, &mut self.bulk),
            };
            let event = match received {
                Ok(event) => event,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Progress::Idle,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => failure(&e, Direction::Receive),
            };
            // A stream that gave less than was asked for is empty (`epoll(7)`, *Questions and answers*, 9).
            let emptied = matches!(event, Event::Received(_)) && !self.bulk && !self.ended;
            let action = connection.handle(event, context);
            match self.carry_out(action, action.receive, context) {
                Progress::Idle if emptied => return Progress::Idle,
                Progress::Idle => {}
                turn => return turn,
            }
        }
        Progress::Yield
    }

    /// Does what the connection wants until it wants nothing, has to wait, or its budget is used up.
    ///
    /// `was` is whether it listened before: if it did not and does now, what came meanwhile must be looked for,
    /// because an edge-triggered poller has reported it already.
    fn carry_out(&mut self, mut action: Action, was: Receive, context: &Context<'_>) -> Progress {
        let Phase::Open(connection) = &mut self.phase else { return Progress::Idle };
        let mut budget = context.policy.drain_budget;
        loop {
            match action.then {
                NextStep::Close => return Progress::Closed,
                NextStep::Reset => {
                    // The close that follows ends the connection either way.
                    let _ = self.stream.reset_on_close();
                    return Progress::Closed;
                }
                NextStep::FinishSending => {
                    action = match self.stream.shutdown_send() {
                        Ok(()) => connection.handle(Event::SendFinished, context),
                        Err(e) => connection.handle(failure(&e, Direction::Send), context),
                    };
                    continue;
                }
                NextStep::Nothing | NextStep::CloseAfterSend => {}
            }
            if !action.send || self.blocked || !self.may_send {
                let resumed = was == Receive::Pause && action.receive == Receive::Post;
                return if resumed { Progress::Yield } else { Progress::Idle };
            }
            if budget == 0 {
                return Progress::Yield;
            }
            budget -= 1;
            let event = match write_next(&self.stream, connection.queue_mut(), action.then) {
                Ok(written) => {
                    self.blocked = written.short && SHORT_SEND_MEANS_FULL;
                    Event::Sent(written.bytes)
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => failure(&e, Direction::Send),
            };
            action = connection.handle(event, context);
        }
    }

    /// Goes on where a turn was cut short: carries out what the connection wants, then receives.
    pub(in crate::engine) fn resume(
        &mut self,
        into: &mut ReceiveBuffers<'_>,
        context: &Context<'_>,
    ) -> Progress {
        let Phase::Open(connection) = &mut self.phase else { return Progress::Idle };
        let action = connection.action();
        match self.carry_out(action, action.receive, context) {
            Progress::Closed => Progress::Closed,
            turn => self.receive(into, context).max(turn),
        }
    }
}

/// What a turn receives into: memory, or pipes if there are any.
pub(in crate::engine) struct ReceiveBuffers<'a> {
    pub(in crate::engine) memory: &'a mut [u8],
    pub(in crate::engine) pipes: &'a Arc<PipePool>,
}

#[inline]
fn receive_into<'a>(stream: &impl Transport, memory: &'a mut [u8], bulk: &mut bool) -> io::Result<Event<'a>> {
    let n = stream.receive(memory)?;
    *bulk = n == memory.len();
    Ok(if n == 0 { Event::PeerEnded } else { Event::Received(&memory[..n]) })
}

/// Receives into a pipe, if more bytes than memory took are coming, the session wants them so, and there is a pipe.
#[inline]
fn receive_bulk<'a>(
    stream: &impl Transport,
    connection: &mut Connection,
    bulk: &mut bool,
    pipes: &Arc<PipePool>,
) -> Option<io::Result<Event<'a>>> {
    let most = if *bulk { connection.splice_room() } else { 0 };
    let mut spliced = if most > 0 { pipes.take()? } else { return None };
    match spliced.fill(|pipe| stream.receive_spliced(pipe, most)) {
        // A splice stops in front of an urgent byte as it does at the end: the ordinary receive knows which it is.
        Ok(0) => None,
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => None,
        Ok(n) => {
            *bulk = n >= SPLICE_LEAST;
            Some(Ok(Event::Spliced(spliced)))
        }
        Err(e) if cannot_splice(&e) => {
            connection.receive_no_pipes();
            None
        }
        Err(e) => Some(Err(e)),
    }
}

impl<T: Transport> Write for &T {
    #[inline]
    fn sends_files(&self) -> bool {
        Transport::sends_files(*self)
    }

    #[inline]
    fn write_vectored(&mut self, slices: &[IoSlice<'_>], more: More) -> io::Result<usize> {
        self.send_vectored(slices, more)
    }

    fn write_file(&mut self, range: &FileRange, more: More) -> io::Result<usize> {
        self.send_file(range, more)
    }

    fn write_spliced(&mut self, pipe: &mut SplicePipe, more: More) -> io::Result<usize> {
        self.send_spliced(pipe, more)
    }
}
