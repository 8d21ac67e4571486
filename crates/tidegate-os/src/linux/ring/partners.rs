//! Rings that hand each other sockets: `IORING_OP_MSG_RING` with `IORING_MSG_SEND_FD`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use io_uring::{squeue, types};

use super::restrictions::{Purpose, opcode};
use super::{Handle, KEY, MAKES_SLOT, Owns, Ring, RingSetup, Slot, Slots, Tells};

/// How other rings reach a ring. Keeps what the kernel has of it as long as it is kept.
#[derive(Clone, Debug)]
pub struct RingAddress(Arc<OwnedFd>);

impl Ring {
    /// How other rings [reach](Self::hand_on) this one; a descriptor more.
    ///
    /// # Errors
    /// The process has no descriptor left. `Unsupported` if it is the ring that gives out [its slots](super::Slots), as
    /// the kernel would find one for what other rings send; or if the kernel [does not tell](can_hand_on) which one
    /// that is.
    pub fn address(&self) -> io::Result<RingAddress> {
        if self.slots == Slots::Registered || !can_hand_on() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.any_address()
    }

    fn any_address(&self) -> io::Result<RingAddress> {
        // SAFETY: the descriptor is the ring's own, which is open as long as `self` is borrowed.
        let ring = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
        Ok(RingAddress(Arc::new(ring.try_clone_to_owned()?)))
    }

    /// Sends the socket in a slot of the table to a free slot of another ring's table, and then closes it here, in
    /// one chain.
    ///
    /// The other ring completes with `there` and what that has [made](super::Completion::made). This one completes with
    /// `key`; only if that is a success, the slot is free here once the close has completed with `close_key`. Otherwise
    /// the completion gives the socket back, and the close completes with `ECANCELED`. The other thread is interrupted
    /// as by a signal, and does the work when it next is in the kernel or leaves it.
    pub fn hand_on(&mut self, slot: Slot, to: &RingAddress, key: u64, close_key: u64, there: u64) {
        let ring = types::Fd(to.0.as_raw_fd());
        let target = types::DestinationSlot::auto_target();
        // A key of the other ring is never taken for the name of something that ring has in flight.
        let there = there & KEY | MAKES_SLOT;
        let send = opcode::MsgRingSendFd::new(ring, self.fixed(&slot), target, there).build();
        let close = self.close_entry(&slot, close_key, Tells::Always);
        let data = self.own(key, None, Owns::Leaves(slot, to.clone()));
        let send = send.flags(squeue::Flags::IO_LINK).user_data(data);
        self.push_pair(send, close);
    }
}

/// Whether rings can hand each other sockets, and the other one gets to know the slot: since Linux 6.3, and in some
/// before. Tried once, on a separate thread, since the kernel may interrupt the thread that made a ring after it
/// was closed.
pub fn can_hand_on() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let thread = std::thread::Builder::new().name("tidegate-probe".into()).spawn(try_it);
        thread.is_ok_and(|thread| matches!(thread.join(), Ok(Ok(true))))
    })
}

fn try_it() -> io::Result<bool> {
    const KEY: u64 = 1;
    const THERE: u64 = 2;
    const IGNORED: u64 = 3;
    let mut from = Ring::new(&RingSetup::trial(Purpose::Streams, Slots::Registered))?;
    let mut to = Ring::new(&RingSetup::trial(Purpose::Streams, Slots::Accepted))?;
    let (one, other) = UnixStream::pair()?;
    let mut reported = Vec::new();
    for socket in [one, other] {
        let Handle::Direct(slot) = from.register(socket.into()) else { return Ok(false) };
        from.hand_on(slot, &to.any_address()?, KEY, IGNORED, THERE);
        from.enter(Some(Duration::ZERO))?;
        to.enter(Some(Duration::from_millis(100)))?;
        from.enter(Some(Duration::from_millis(100)))?;
        let come = std::iter::from_fn(|| to.next_completion()).find(|done| done.key == THERE);
        let gone = std::iter::from_fn(|| from.next_completion()).find(|done| done.key == KEY);
        let is_gone = gone.is_some_and(|done| done.result.is_ok());
        reported.extend(come.and_then(|done| done.made).filter(|_| is_gone));
    }
    // A kernel that does not tell the slot says 0 each time.
    let Ok([Handle::Direct(first), Handle::Direct(second)]) = <[Handle; 2]>::try_from(reported) else {
        return Ok(false);
    };
    Ok(first != second)
}
