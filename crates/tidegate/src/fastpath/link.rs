//! A connection over shared memory: two rings, and the TCP connection they stand for.
//!
//! The TCP connection stays open. Bytes do not go through it; it wakes a side that sleeps (one byte, a *doorbell*), and
//! when a process ends, in whatever way, its kernel closes it and the other side knows at once. So nothing has to be
//! found out by asking, a connection costs no more descriptors than before, and what looks at TCP connections (`ss`,
//! limits, firewalls) still sees it.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use tidegate_os::poll::Readiness;
use tidegate_os::socket::Stream;

use super::layout::{End, Lane, Rings};
use super::ring::{Corrupt, Ended, Reader, Writer};

/// Bytes that ring a bell: their value means nothing.
const BELL: [u8; 1] = [0];
/// A side is rung for at most twice before it looks: more than this at once is no bell.
const MOST_BELLS: usize = 64;

/// A connection over shared memory. Owned by one thread at a time.
#[derive(Debug)]
pub(crate) struct Link {
    tcp: Stream,
    reader: RefCell<Reader<Lane>>,
    writer: RefCell<Writer<Lane>>,
    /// The TCP connection has ended: the other process has closed it, or is gone.
    cut: Cell<bool>,
    /// The other side has done what it must not.
    corrupt: Cell<bool>,
    /// How this side ends the stream when it is dropped.
    leaves: Cell<Ended>,
}

impl Link {
    pub(super) fn new(tcp: Stream, rings: &Rings, end: End) -> Self {
        let (reader, writer) = rings.sides(end);
        Self {
            tcp,
            reader: RefCell::new(reader),
            writer: RefCell::new(writer),
            cut: Cell::new(false),
            corrupt: Cell::new(false),
            leaves: Cell::new(Ended::Gone),
        }
    }

    /// Receives; 0 means that the peer finished sending.
    #[inline]
    pub(crate) fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut reader = self.reader.borrow_mut();
        let moved = self.believed(reader.read(into))?;
        if moved.ring {
            self.ring_bell();
        }
        if moved.bytes > 0 {
            return Ok(moved.bytes);
        }
        let ended = self.believed(reader.ended())?;
        if ended != Ended::No && self.believed(reader.available())? > 0 {
            return self.believed(reader.read(into)).map(|moved| moved.bytes); // written between the two looks
        }
        match ended {
            // Whoever finished and is cut off without having let go was killed.
            Ended::Finished if self.cut.get() => Err(io::ErrorKind::ConnectionReset.into()),
            Ended::Finished | Ended::Gone => Ok(0),
            Ended::Reset => Err(io::ErrorKind::ConnectionReset.into()),
            Ended::No if self.cut.get() => Err(io::ErrorKind::ConnectionReset.into()),
            Ended::No => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Sends; may take less than all.
    #[inline]
    pub(crate) fn send_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.is_deaf()? {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let moved = self.believed(self.writer.borrow_mut().write(slices))?;
        if moved.ring {
            self.ring_bell();
        }
        if moved.bytes == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(moved.bytes) }
    }

    /// Whether nobody reads any more what is sent.
    fn is_deaf(&self) -> io::Result<bool> {
        let ended = self.believed(self.reader.borrow().ended())?;
        Ok(self.cut.get() || matches!(ended, Ended::Gone | Ended::Reset))
    }

    /// Ends the sending side.
    pub(crate) fn shutdown_send(&self) -> io::Result<()> {
        if self.writer.borrow_mut().end(Ended::Finished) {
            self.ring_bell();
        }
        Ok(())
    }

    /// Makes the coming close a reset.
    pub(crate) fn reset_on_close(&self) -> io::Result<()> {
        self.leaves.set(Ended::Reset);
        self.tcp.reset_on_close()
    }

    /// What of `wanted` can be done without waiting. No system call.
    #[inline]
    pub(crate) fn look(&self, wanted: Readiness) -> Readiness {
        let over = self.cut.get() || self.corrupt.get();
        let reader = self.reader.borrow();
        let readable = || over || reader.available() != Ok(0) || reader.ended() != Ok(Ended::No);
        let writable = || over || self.writer.borrow_mut().room() != Ok(0) || self.is_deaf().unwrap_or(true);
        Readiness { readable: wanted.readable && readable(), writable: wanted.writable && writable() }
    }

    /// Says that this side is about to sleep. What of `wanted` can be done already: then do not sleep.
    pub(crate) fn prepare_sleep(&self, wanted: Readiness) -> Readiness {
        // A word that cannot be says the same as bytes: there is something to look at.
        if wanted.readable {
            let _ = self.reader.borrow_mut().prepare_sleep();
        }
        if wanted.writable {
            let _ = self.writer.borrow_mut().prepare_sleep();
        }
        self.look(wanted)
    }

    /// The poller has reported the TCP connection: takes the bells off it. Returns what of `wanted` can be done.
    pub(crate) fn heed(&self, wanted: Readiness) -> Readiness {
        let mut bells = [0; MOST_BELLS];
        while !self.cut.get() {
            match self.tcp.receive(&mut bells) {
                Ok(0) => self.cut.set(true),
                Ok(MOST_BELLS) => {
                    self.corrupt.set(true);
                    self.cut.set(true);
                }
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.cut.set(true),
            }
        }
        self.look(wanted)
    }

    /// Rings the other side's bell.
    fn ring_bell(&self) {
        match self.tcp.send(&BELL) {
            // Full of bells that it has not heard yet: it will.
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.cut.set(true),
            Ok(_) => {}
        }
    }

    /// What the ring says, or the end of the connection.
    #[inline]
    fn believed<T>(&self, outcome: Result<T, Corrupt>) -> io::Result<T> {
        match outcome {
            Ok(value) if !self.corrupt.get() => Ok(value),
            _ => {
                self.corrupt.set(true);
                self.leaves.set(Ended::Reset);
                Err(io::Error::new(io::ErrorKind::InvalidData, "the peer has spoilt the shared memory"))
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // No bell: the end of the TCP connection, which follows, is heard as one.
        let _ = self.writer.borrow_mut().end(self.leaves.get());
    }
}

impl Link {
    /// The TCP connection, on which its end is heard.
    pub(crate) fn borrowed(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}
