//! A connection over shared memory: two rings, and the TCP connection that they replace.
//!
//! The TCP connection stays open but carries no data. One byte over it (a *doorbell*) wakes a side that sleeps, and
//! when a process ends for any reason, the kernel closes it and the other side is notified. So no polling of the peer
//! is needed, a connection uses no additional descriptors (on `tokio` one, for its reactor), and tools that list TCP
//! connections (`ss`, limits, firewalls) still see it.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use tidegate_os::poll::Readiness;
use tidegate_os::socket::Stream;

use super::layout::{LinkEnd, RingMemory, Rings};
use super::ring::{Corrupt, Ended, Reader, Writer};

/// Doorbell bytes; their value is ignored.
const BELL: [u8; 1] = [0];
/// A side receives at most two doorbells before it checks the ring; more than this at once is a protocol error.
const MOST_BELLS: usize = 64;

/// A connection over shared memory. Owned by one thread at a time.
#[derive(Debug)]
pub(crate) struct MemoryLink {
    tcp: Arc<Stream>,
    reader: RefCell<Reader<RingMemory>>,
    writer: RefCell<Writer<RingMemory>>,
    /// The TCP connection has ended: the other process closed it or exited.
    cut: Cell<bool>,
    /// The other side violated the protocol.
    corrupt: Cell<bool>,
    /// How this side ends the stream when dropped.
    leaves: Cell<Ended>,
}

impl MemoryLink {
    pub(crate) fn new(tcp: Stream, rings: &Rings, end: LinkEnd) -> Self {
        let (reader, writer) = rings.sides(end);
        Self {
            tcp: Arc::new(tcp),
            reader: RefCell::new(reader),
            writer: RefCell::new(writer),
            cut: Cell::new(false),
            corrupt: Cell::new(false),
            leaves: Cell::new(Ended::Gone),
        }
    }

    /// Receives; 0 means that the peer has finished sending.
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
            // A peer that finished sending and was cut off without a close was killed.
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

    /// Whether the peer no longer reads.
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

    /// Turns the coming close into a reset.
    pub(crate) fn reset_on_close(&self) -> io::Result<()> {
        self.leaves.set(Ended::Reset);
        self.tcp.reset_on_close()
    }

    /// The part of `wanted` that is ready now. No system call.
    #[inline]
    pub(crate) fn look(&self, wanted: Readiness) -> Readiness {
        let over = self.cut.get() || self.corrupt.get();
        let reader = self.reader.borrow();
        let readable = || over || reader.available() != Ok(0) || reader.ended() != Ok(Ended::No);
        let writable = || over || self.writer.borrow_mut().room() != Ok(0) || self.is_deaf().unwrap_or(true);
        Readiness { readable: wanted.readable && readable(), writable: wanted.writable && writable() }
    }

    /// Announces that this side is about to sleep. If it returns any readiness, do not sleep.
    pub(crate) fn prepare_sleep(&self, wanted: Readiness) -> Readiness {
        // An invalid word counts as readiness: the next read reports it.
        if wanted.readable {
            let _ = self.reader.borrow_mut().prepare_sleep();
        }
        if wanted.writable {
            let _ = self.writer.borrow_mut().prepare_sleep();
        }
        self.look(wanted)
    }

    /// Handles readiness of the TCP connection: drains doorbells. Returns the part of `wanted` that is ready.
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

    /// Wakes the other side.
    fn ring_bell(&self) {
        match self.tcp.send(&BELL) {
            // The socket buffer is full of unread doorbells: the peer will wake up anyway.
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.cut.set(true),
            Ok(_) => {}
        }
    }

    /// The ring's result, or the end of the connection.
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

impl Drop for MemoryLink {
    fn drop(&mut self) {
        // Not a wake-up but the end of the TCP connection; the read that follows reports it.
        let _ = self.writer.borrow_mut().end(self.leaves.get());
    }
}

impl MemoryLink {
    /// The TCP connection, which reports the end of the connection.
    pub(crate) fn borrowed(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }

    /// The same, for who shares it with the kernel.
    pub(crate) fn watched(&self) -> &Arc<Stream> {
        &self.tcp
    }

    /// Whether the TCP connection has ended: there will be no more wake-ups.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut.get()
    }
}
