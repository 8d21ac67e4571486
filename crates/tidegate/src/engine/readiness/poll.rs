//! `poll`: the program passes the whole set with every wait.
//!
//! # How it waits
//! One array of all descriptors of the thread, kept between calls; the kernel looks at each of them.
//!
//! # What it bounds
//! Nothing but descriptors.
//!
//! # What it costs
//! A wait costs time in proportion to the number of connections, idle ones included, in the
//! kernel and again in the scan of the answer. Eight bytes and a token of user memory for each connection.
//!
//! # Where it differs
//! Portable to every Unix. All threads wait on the one listener, so a new connection wakes all of them and
//! one gets it. Timeouts have a resolution of one millisecond, rounded up.

use std::io;
use std::time::Duration;
use tidegate_os::descriptor::{BorrowedFd, borrowed};

use tidegate_os::poll::{PollSet, REMARK, Readiness};
use tidegate_os::waker::Waker;

use super::{PollEvent, Poller, Source};
use crate::engine::worker::transport::Acceptor;
use crate::engine::{Availability, EngineConfig, EngineHandle, Model};
use crate::policy::Policy;
use crate::proto::Token;

/// Whether it works here.
pub(in crate::engine) fn probe() -> Availability {
    Availability::Available(REMARK.into())
}

/// Starts its threads.
pub(in crate::engine) fn start(config: EngineConfig) -> io::Result<EngineHandle> {
    crate::engine::readiness::start::<Poll>(config, Model::Poll)
}

/// The array, who each entry is, and where each connection is.
pub(crate) struct Poll {
    set: PollSet,
    sources: Vec<Source>,
    /// Position in the set by index of the token.
    positions: Vec<usize>,
}

impl Poll {
    fn push(&mut self, source: Source, fd: BorrowedFd<'_>, wanted: Readiness) -> usize {
        self.sources.push(source);
        self.set.push(fd, wanted)
    }

    fn remove(&mut self, at: usize) {
        self.set.swap_remove(at);
        self.sources.swap_remove(at);
        if let Some(Source::Connection(moved)) = self.sources.get(at) {
            self.positions[moved.index as usize] = at;
        }
    }
}

impl Poller for Poll {
    type Listener = Acceptor;

    fn new(_: &Policy) -> io::Result<Self> {
        Ok(Self { set: PollSet::default(), sources: Vec::new(), positions: Vec::new() })
    }

    fn watch_waker(&mut self, waker: &Waker) -> io::Result<()> {
        self.push(Source::Waker, borrowed(waker), Readiness::READ);
        Ok(())
    }

    fn watch_listener(&mut self, acceptor: &Acceptor) -> io::Result<()> {
        self.push(Source::Listener, borrowed(&*acceptor.listener), Readiness::READ);
        Ok(())
    }

    fn unwatch_listener(&mut self, _: &Acceptor) {
        if let Some(at) = self.sources.iter().position(|&s| s == Source::Listener) {
            self.remove(at);
        }
    }

    fn watch(&mut self, token: Token, fd: BorrowedFd<'_>, wanted: Readiness) -> io::Result<()> {
        let at = self.push(Source::Connection(token), fd, wanted);
        let index = token.index as usize;
        if self.positions.len() <= index {
            self.positions.resize(index + 1, usize::MAX);
        }
        self.positions[index] = at;
        Ok(())
    }

    fn change(&mut self, token: Token, _: BorrowedFd<'_>, wanted: Readiness) {
        self.set.set(self.positions[token.index as usize], wanted);
    }

    fn unwatch(&mut self, token: Token, _: BorrowedFd<'_>) {
        self.remove(self.positions[token.index as usize]);
    }

    fn wait(&mut self, timeout: Option<Duration>, into: &mut Vec<PollEvent>) -> io::Result<()> {
        let mut left = self.set.wait(timeout)?;
        for (at, &source) in self.sources.iter().enumerate() {
            if left == 0 {
                break;
            }
            let ready = self.set.ready(at);
            if ready.readable || ready.writable {
                left -= 1;
                into.push(PollEvent { source, ready, ended: false });
            }
        }
        Ok(())
    }
}
