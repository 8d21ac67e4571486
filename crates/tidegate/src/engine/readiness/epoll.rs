//! `epoll`: the kernel keeps the set, and reports only what changed.
//!
//! # How it waits
//! Each thread has an epoll instance. Connections are added once, edge-triggered, for both directions; after that no
//! `epoll_ctl` is needed until they are closed, which removes them. The listener is level-triggered with
//! `EPOLLEXCLUSIVE`, so that a new connection wakes about one thread.
//!
//! # What it bounds
//! Nothing but descriptors: the cost of a wait does not grow with the number of idle connections.
//!
//! # What it costs
//! About 160 bytes of kernel memory for each connection (`epoll(7)`). One wait for a batch of events, one receive
//! and one send for each request: a receive that fills less than the buffer is known to be the last one, except
//! when the report said that the peer has finished.
//!
//! # Where it differs
//! With several threads the kernel prefers the thread that slept last, so connections may be unevenly shared when the
//! load is low. Timeouts are exact to the nanosecond where the kernel has `epoll_pwait2` (Linux 5.11).

use std::io;
use std::time::Duration;
use tidegate_os::descriptor::BorrowedFd;

use tidegate_os::epoll::{Epoll as Instance, EpollEvent};
use tidegate_os::poll::Readiness;
use tidegate_os::waker::Waker;

use super::{PollEvent, Poller, Source};
use crate::engine::worker::transport::Acceptor;
use crate::engine::{Availability, EngineConfig, EngineHandle, Model};
use crate::policy::Policy;
use crate::proto::Token;

/// Whether it works here.
pub(in crate::engine) fn probe() -> Availability {
    match Instance::new() {
        Ok(_) => Availability::Available("edge-triggered, EPOLLEXCLUSIVE listener".into()),
        Err(e) => Availability::Unavailable(format!("epoll_create1: {e}")),
    }
}

/// Starts its threads.
pub(in crate::engine) fn start(config: EngineConfig) -> io::Result<EngineHandle> {
    crate::engine::readiness::start::<Epoll>(config, Model::Epoll)
}

const WAKER: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;

/// An epoll instance and room for its reports.
pub(crate) struct Epoll {
    instance: Instance,
    raw: Vec<EpollEvent>,
}

impl Poller for Epoll {
    type Listener = Acceptor;

    fn new(policy: &Policy) -> io::Result<Self> {
        let instance = Instance::new()?;
        policy.busy_poll.map_or(Ok(()), |time| instance.set_busy_poll(time))?;
        Ok(Self { instance, raw: vec![EpollEvent::EMPTY; policy.events_per_wait] })
    }

    fn watch_waker(&mut self, waker: &Waker) -> io::Result<()> {
        self.instance.add_level(waker, WAKER)
    }

    fn watch_listener(&mut self, acceptor: &Acceptor) -> io::Result<()> {
        self.instance.add_listener(&*acceptor.listener, LISTENER)
    }

    fn unwatch_listener(&mut self, acceptor: &Acceptor) {
        // It was added; nothing else can fail, and a report too many does no harm.
        let _ = self.instance.remove(&*acceptor.listener);
    }

    fn watch(&mut self, token: Token, fd: BorrowedFd<'_>, _wanted: Readiness) -> io::Result<()> {
        self.instance.add_stream(fd, token.to_u64())
    }

    fn change(&mut self, _: Token, _: BorrowedFd<'_>, _: Readiness) {
        // Edge-triggered for both directions from the start.
    }

    fn unwatch(&mut self, _: Token, _: BorrowedFd<'_>) {
        // Closing the descriptor takes it out.
    }

    fn wait(&mut self, timeout: Option<Duration>, into: &mut Vec<PollEvent>) -> io::Result<()> {
        let n = self.instance.wait(&mut self.raw, timeout)?;
        into.extend(self.raw[..n].iter().map(|raw| PollEvent {
            source: match raw.key() {
                WAKER => Source::Waker,
                LISTENER => Source::Listener,
                key => Source::Connection(Token::from_u64(key)),
            },
            ready: Readiness { readable: raw.readable(), writable: raw.writable() },
            ended: raw.ended(),
        }));
        Ok(())
    }
}
