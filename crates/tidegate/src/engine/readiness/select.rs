//! `select`: the program passes sets of bits, and finds the answer in the same bits.
//!
//! # How it waits
//! Two bit sets, one for reading and one for writing, are copied for each wait, because the kernel overwrites them.
//!
//! # What it bounds
//! The C library's `fd_set` ends at 1,024 descriptors; the system call does not. The sets here grow, so the bound is
//! RLIMIT_NOFILE.
//!
//! # What it costs
//! A wait costs time in proportion to the *highest descriptor*, in the kernel and in the scan of the answer, and three
//! bits of copying for each.
//!
//! # Where it differs
//! The oldest and most portable of all. All threads wait on the one listener, so a new connection wakes all of
//! them. Descriptors, not tokens, name the sockets: a table leads back from each.

use std::io;
use std::time::Duration;
use tidegate_os::descriptor::{BorrowedFd, DescriptorMap, RawFd, borrowed};

use tidegate_os::poll::Readiness;
use tidegate_os::select::{REMARK, SelectSet};
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
    crate::engine::readiness::start::<Select>(config, Model::Select)
}

/// The sets, and who each descriptor is.
pub(crate) struct Select {
    set: SelectSet,
    sources: DescriptorMap<Source>,
}

impl Select {
    fn put(&mut self, source: Source, fd: BorrowedFd<'_>, wanted: Readiness) {
        self.sources.insert(fd, source);
        self.set.set(fd, wanted);
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) {
        self.sources.remove(fd);
        self.set.set(fd, Readiness::default());
    }

    fn report(&self, fd: RawFd, ready: Readiness, into: &mut Vec<PollEvent>) {
        if let Some(&source) = self.sources.get(fd) {
            into.push(PollEvent { source, ready, ended: false });
        }
    }
}

impl Poller for Select {
    type Listener = Acceptor;

    fn new(_: &Policy) -> io::Result<Self> {
        Ok(Self { set: SelectSet::default(), sources: DescriptorMap::default() })
    }

    fn watch_waker(&mut self, waker: &Waker) -> io::Result<()> {
        self.put(Source::Waker, borrowed(waker), Readiness::READ);
        Ok(())
    }

    fn watch_listener(&mut self, acceptor: &Acceptor) -> io::Result<()> {
        self.put(Source::Listener, borrowed(&*acceptor.listener), Readiness::READ);
        Ok(())
    }

    fn unwatch_listener(&mut self, acceptor: &Acceptor) {
        self.remove(borrowed(&*acceptor.listener));
    }

    fn watch(&mut self, token: Token, fd: BorrowedFd<'_>, wanted: Readiness) -> io::Result<()> {
        self.put(Source::Connection(token), fd, wanted);
        Ok(())
    }

    fn change(&mut self, _: Token, fd: BorrowedFd<'_>, wanted: Readiness) {
        self.set.set(fd, wanted);
    }

    fn unwatch(&mut self, _: Token, fd: BorrowedFd<'_>) {
        self.remove(fd);
    }

    fn wait(&mut self, timeout: Option<Duration>, into: &mut Vec<PollEvent>) -> io::Result<()> {
        if self.set.wait(timeout)? == 0 {
            return Ok(());
        }
        for fd in self.set.readable.iter() {
            self.report(fd, Readiness::READ, into);
        }
        for fd in self.set.writable.iter() {
            self.report(fd, Readiness::WRITE, into);
        }
        Ok(())
    }
}
