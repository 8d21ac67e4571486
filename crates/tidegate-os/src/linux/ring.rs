//! `io_uring(7)`: one ring with its provided buffers, its table of direct descriptors and the
//! memory the kernel may still read.
//!
//! The safety of the whole module rests on one rule: **what the kernel may touch is owned here
//! until the completion came back**. Bytes to send are moved into the ring and returned with the
//! completion; received bytes lie in buffers that the ring owns and are lent out by reference.
//!
//! What a ring can be asked for is bounded, too: it is restricted to the operations of its [`Purpose`] and to
//! [`MOST_WORKERS`] threads of the kernel before it is enabled.
//!
//! Descriptors follow the first rule. An entry of the queue names one by its number, and the kernel looks the number up
//! when the entry is handed over: until then the ring holds what it belongs to. A socket that the kernel made is owned
//! by the completion that says so ([`Completion::made`]) and can be taken from there once; no number that a caller has
//! becomes a descriptor here.

/// Builds an entry for a socket, however the ring knows it.
macro_rules! entry_on {
    ($ring:expr, $socket:expr, |$fd:ident| $entry:expr) => {
        match $socket {
            Handle::Direct(slot) => {
                let $fd = $ring.fixed(slot);
                $entry
            }
            Handle::Plain(fd) => {
                let $fd = types::Fd(fd.as_raw_fd());
                $entry
            }
        }
    };
}

mod buffers;
mod closing;
mod datagram;
mod enter;
mod partners;
mod receiving;
mod restrictions;
mod sending;
mod setup;
mod submission;

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use io_uring::{IoUring, cqueue, squeue, types};
use slab::Slab;
use socket2::SockAddr;

pub use crate::payload::Payload;
pub use buffers::Buffer;
use buffers::Buffers;
pub use datagram::DATAGRAM_HEAD;
use enter::Enter;
pub use partners::{RingAddress, can_hand_on};
use restrictions::opcode;
pub use restrictions::{MOST_WORKERS, Purpose};
use sending::SendMessage;
pub use setup::{Features, RingSetup, SetupError, Slots};

/// A socket as the ring knows it. Give it back with [`Ring::close`].
#[derive(Debug)]
pub enum Handle {
    /// A slot of the ring's own table; costs no descriptor of the process.
    Direct(Slot),
    /// An ordinary descriptor. The ring shares it while it is named in something that was not handed over yet.
    Plain(Arc<OwnedFd>),
}

impl From<OwnedFd> for Handle {
    fn from(fd: OwnedFd) -> Self {
        Self::Plain(Arc::new(fd))
    }
}

/// A place in a ring's own table that a socket has. Only a ring makes one, once for each socket; other rings refuse it.
#[derive(Debug, PartialEq, Eq)]
pub struct Slot {
    index: u32,
    ring: RingId,
}

impl Slot {
    /// Its number, to keep something for it. After it was closed, another socket may have the number.
    pub fn index(&self) -> u32 {
        self.index
    }
}

/// Which ring a slot or a buffer belongs to: unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingId(u32);

impl RingId {
    fn next() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Whether a request completes that does something about a socket or about other requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tells {
    /// In any case.
    Always,
    /// Only if it fails.
    Failure,
}

impl Tells {
    fn flags(self) -> squeue::Flags {
        match self {
            Self::Always => squeue::Flags::empty(),
            Self::Failure => squeue::Flags::SKIP_SUCCESS,
        }
    }
}

/// What came back from the kernel.
#[derive(Debug)]
pub struct Completion {
    /// The number the operation was submitted with.
    pub key: u64,
    /// What the operation returned: bytes, for most.
    pub result: io::Result<u32>,
    /// The socket that an accept or an [`install`](Ring::install) made, that another ring has sent, or that could not
    /// be [sent to one](Ring::hand_on).
    pub made: Option<Handle>,
    /// The operation stays armed and will complete again.
    pub more: bool,
    /// Where received bytes lie; give it back with [`Ring::recycle`].
    pub buffer: Option<Buffer>,
    /// What a send was given, to send the rest of it or to drop it.
    pub payload: Option<Payload>,
}

/// Marks user data that names an entry of `in_flight` rather than being a key itself.
const OWNED: u64 = 1 << 63;
/// Marks user data of operations whose result is a slot of the table, or a descriptor, that nobody has yet.
const MAKES_SLOT: u64 = 1 << 62;
const MAKES_DESCRIPTOR: u64 = 1 << 61;
/// What a caller's key may use.
const KEY: u64 = MAKES_DESCRIPTOR - 1;

/// An operation that owns what the kernel may read.
struct SubmittedOperation {
    key: u64,
    payload: Option<Payload>,
    owns: Owns,
}

/// What an operation owns besides its payload, or is about.
enum Owns {
    Nothing,
    /// Where it connects to.
    Address(#[expect(dead_code, reason = "the kernel reads it")] Box<SockAddr>),
    /// Points into the payload.
    Message(#[expect(dead_code, reason = "the kernel reads it")] Box<SendMessage>),
    /// Its result is a descriptor that nobody has yet.
    Made,
    /// The slot that is to be left, and the ring that is to have its socket: open until the kernel has looked it up.
    Leaves(Slot, #[expect(dead_code, reason = "the kernel looks it up")] RingAddress),
    /// The slot that is free when it has succeeded, and whether anybody is notified of that.
    Frees(u32, Tells),
}

/// One io_uring instance. It belongs to the thread that made it, and stays there:
///
/// ```compile_fail,E0277
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<tidegate_os::ring::Ring>();
/// ```
///
/// A socket that an accept made is in the completion, once ([`Completion::made`]); a number is none:
///
/// ```compile_fail,E0308
/// # fn f(ring: &mut tidegate_os::ring::Ring) {
/// ring.receive_multi(&7, None, 1);
/// # }
/// ```
///
/// A slot or a buffer of another ring is a mistake of the caller, and a panic.
pub struct Ring {
    // Dropped first: the kernel's side ends before the memory below is freed (see `Drop`).
    ring: IoUring,
    id: RingId,
    enter: Enter,
    buffers: Buffers,
    in_flight: Slab<SubmittedOperation>,
    features: Features,
    /// Submissions that did not fit when they were made, in order; those of a chain together.
    overflow: VecDeque<Box<[squeue::Entry]>>,
    /// What descriptors belong to that are named in submissions which were not handed over yet.
    held: Vec<Arc<dyn Any + Send + Sync>>,
    /// Descriptors to close as soon as those submissions were.
    late: Vec<Arc<OwnedFd>>,
    /// What allocates the slots of the table, and which are free if that is the ring.
    slots: Slots,
    free: Vec<u32>,
}

/// Group number of the one buffer ring each ring has.
const GROUP: u16 = 0;

impl Ring {
    /// Makes a ring for the calling thread. Features this kernel lacks are left out one by one;
    /// [`features`](Self::features) says which are in use. Some time after a ring was closed, the kernel interrupts the
    /// thread that made it, as a signal would: a `recv` with a time limit fails with EINTR then.
    ///
    /// # Errors
    /// `EPERM` or `ENOSYS` where io_uring is forbidden or missing, `ENOMEM` under a small
    /// RLIMIT_MEMLOCK on old kernels, `EINVAL` where the kernel has no provided buffer rings (before 5.19), and
    /// [`io::ErrorKind::Unsupported`] where it refuses to restrict the ring to its [`Purpose`].
    pub fn new(setup: &RingSetup) -> io::Result<Self> {
        let (ring, mut features) = setup::build(setup)?;
        let id = RingId::next();
        features.direct = setup.table > 0 && ring.submitter().register_files_sparse(setup.table).is_ok();
        features.min_wait = ring.params().is_feature_min_timeout();
        setup.busy_poll.map_or(Ok(()), |time| setup::busy_poll(&ring, time))?;
        let enter = Enter::new(&ring);
        features.registered_ring = enter.is_registered();
        let buffers = Buffers::register(&ring, setup, GROUP, id)?;
        restrictions::enable(&ring, setup.purpose)?; // what is registered after this has to be listed there
        let registers = features.direct && setup.slots == Slots::Registered;
        let mut new = Self {
            ring,
            id,
            enter,
            buffers,
            in_flight: Slab::new(),
            features,
            overflow: VecDeque::new(),
            held: Vec::new(),
            late: Vec::new(),
            slots: setup.slots,
            free: if registers { (0..setup.table).rev().collect() } else { Vec::new() },
        };
        new.features.receive_limit = setup.purpose == Purpose::Streams && new.can_limit_receives()?;
        Ok(new)
    }

    /// What this ring uses of what the kernel may have.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Accepts until cancelled: each completion has [made](Completion::made) one connection, with `direct` in a
    /// slot of the table, if the kernel [allocates these](Slots::Accepted).
    pub fn accept_multi<L: AsFd + Send + Sync + 'static>(
        &mut self,
        listener: &Arc<L>,
        key: u64,
        direct: bool,
    ) {
        let direct = direct && self.slots == Slots::Accepted;
        let entry = opcode::AcceptMulti::new(self.watch(listener));
        let entry = match direct {
            true => entry.allocate_file_index(true),
            false => entry.flags(libc::SOCK_CLOEXEC),
        };
        self.push(entry.build().user_data(accept_data(key, direct)));
    }

    /// Accepts one connection; else as [`accept_multi`](Self::accept_multi).
    pub fn accept_one<L: AsFd + Send + Sync + 'static>(&mut self, listener: &Arc<L>, key: u64, direct: bool) {
        let direct = direct && self.slots == Slots::Accepted;
        let (none, no_length) = (std::ptr::null_mut(), std::ptr::null_mut());
        let entry = opcode::Accept::new(self.watch(listener), none, no_length);
        let entry = match direct {
            true => entry.file_index(Some(types::DestinationSlot::auto_target())),
            false => entry.flags(libc::SOCK_CLOEXEC),
        };
        self.push(entry.build().user_data(accept_data(key, direct)));
    }

    /// Puts a socket into a free slot of the table, so that it costs no descriptor; gives it back if there is none, or
    /// the ring does not [allocate them](Slots::Registered).
    pub fn register(&mut self, socket: OwnedFd) -> Handle {
        let Some(slot) = self.free.pop() else { return socket.into() };
        match self.ring.submitter().register_files_update(slot, &[socket.as_raw_fd()]) {
            Ok(1) => Handle::Direct(Slot { index: slot, ring: self.id }), // the table keeps the socket open
            _ => {
                self.free.push(slot);
                socket.into()
            }
        }
    }

    /// Connects; the result is 0 when the connection is established. `to` comes from
    /// [`raw_address`](crate::socket::raw_address).
    pub fn connect(&mut self, socket: &Handle, to: SockAddr, key: u64) {
        let address = Box::new(to);
        let (pointer, length) = (address.as_ptr().cast::<libc::sockaddr>(), address.len());
        let entry = entry_on!(self, socket, |fd| opcode::Connect::new(fd, pointer, length).build());
        let data = self.own(key, None, Owns::Address(address));
        self.push_on(socket, entry.user_data(data));
    }

    /// The user data of an operation that owns something until it has completed.
    #[inline]
    fn own(&mut self, key: u64, payload: Option<Payload>, owns: Owns) -> u64 {
        OWNED | self.in_flight.insert(SubmittedOperation { key: key & KEY, payload, owns }) as u64
    }

    /// Reports each time the descriptor becomes readable, until cancelled.
    pub fn poll_multi<T: AsFd + Send + Sync + 'static>(&mut self, watched: &Arc<T>, key: u64) {
        self.poll(watched, true, key);
    }

    /// Reports once that the descriptor is readable.
    pub fn poll_once<T: AsFd + Send + Sync + 'static>(&mut self, watched: &Arc<T>, key: u64) {
        self.poll(watched, false, key);
    }

    fn poll<T: AsFd + Send + Sync + 'static>(&mut self, watched: &Arc<T>, multi: bool, key: u64) {
        let entry = opcode::PollAdd::new(self.watch(watched), libc::POLLIN as u32).multi(multi).build();
        self.push(entry.user_data(key & KEY));
    }

    /// The place of a socket in the table.
    ///
    /// # Panics
    /// It is one in the table of another ring: a mistake of the caller, who would reach a stranger's socket.
    #[inline]
    fn fixed(&self, slot: &Slot) -> types::Fixed {
        assert!(slot.ring == self.id, "a slot of another ring");
        types::Fixed(slot.index)
    }

    /// The number of a descriptor that is going to be named; what it belongs to is held until the kernel has looked it
    /// up.
    fn watch<T: AsFd + Send + Sync + 'static>(&mut self, what: &Arc<T>) -> types::Fd {
        self.held.push(what.clone());
        types::Fd(what.as_fd().as_raw_fd())
    }

    /// Pushes an entry that names a socket.
    #[inline]
    fn push_on(&mut self, socket: &Handle, entry: squeue::Entry) {
        if let Handle::Plain(fd) = socket {
            self.held.push(fd.clone());
        }
        self.push(entry);
    }

    /// The next completion that is there.
    #[inline(always)] // its result is taken apart at once, and would be copied in pieces
    pub fn next_completion(&mut self) -> Option<Completion> {
        loop {
            let raw = self.ring.completion().next()?;
            if let Some(completion) = self.completion(&raw) {
                return Some(completion);
            }
        }
    }

    /// What the kernel says, unless it concerns only the ring.
    #[inline(always)]
    fn completion(&mut self, raw: &cqueue::Entry) -> Option<Completion> {
        let (data, more) = (raw.user_data(), cqueue::more(raw.flags()));
        let result = match u32::try_from(raw.result()) {
            Ok(n) => Ok(n),
            Err(_) => Err(io::Error::from_raw_os_error(-raw.result())),
        };
        if data & OWNED != 0 {
            let SubmittedOperation { key, payload, owns } = self.in_flight.remove((data & !OWNED) as usize);
            let made = if let Owns::Nothing = owns { None } else { self.give_up(owns, &result)? };
            return Some(Completion { key, result, made, more, buffer: None, payload });
        }
        let buffer = cqueue::buffer_select(raw.flags())
            .map(|id| Buffer::new(id, *result.as_ref().unwrap_or(&0), self.id));
        let made = match &result {
            Ok(made) if data & (MAKES_SLOT | MAKES_DESCRIPTOR) != 0 => Some(self.made(data, *made)),
            _ => None,
        };
        Some(Completion { key: data & KEY, result, made, more, buffer, payload: None })
    }

    /// What an operation has made of what it owned, if its completion concerns more than the ring.
    fn give_up(&mut self, owns: Owns, result: &io::Result<u32>) -> Option<Option<Handle>> {
        Some(match (owns, result) {
            (Owns::Frees(slot, tells), Ok(_)) => {
                self.free.push(slot);
                if tells == Tells::Failure {
                    return None;
                }
                None
            }
            (Owns::Made, &Ok(fd)) => Some(self.made(MAKES_DESCRIPTOR, fd)),
            (Owns::Leaves(slot, _), Err(_)) => Some(Handle::Direct(slot)),
            _ => None,
        })
    }

    /// What the kernel made for an operation whose user data says so.
    fn made(&self, data: u64, made: u32) -> Handle {
        if data & MAKES_SLOT != 0 {
            return Handle::Direct(Slot { index: made, ring: self.id });
        }
        // SAFETY: the kernel made this descriptor for the operation that completes here: callers cannot give their keys
        // these bits, so it is an accept or an install. A completion is read once.
        unsafe { OwnedFd::from_raw_fd(made as RawFd) }.into()
    }

    /// The bytes in a received buffer.
    #[inline]
    pub fn received(&self, buffer: &Buffer) -> &[u8] {
        self.buffers.bytes(buffer)
    }

    /// Gives a buffer back to the kernel.
    #[inline]
    pub fn recycle(&mut self, buffer: Buffer) {
        self.buffers.give_back(buffer);
    }
}

/// The user data of an accept.
fn accept_data(key: u64, direct: bool) -> u64 {
    key & KEY | if direct { MAKES_SLOT } else { MAKES_DESCRIPTOR }
}

impl Ring {
    /// Hands over what was asked for and takes what has completed, until nothing comes any more.
    fn reap(&mut self) {
        for _ in 0..1000 {
            let _ = self.enter(Some(Duration::ZERO));
            let mut quiet = true;
            while self.next_completion().is_some() {
                quiet = false;
            }
            if quiet {
                return;
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // What was asked for last, closes above all, comes first: it would begin after the cancelling below, which
        // looks through the whole ring for each operation that is left.
        self.reap();
        self.enter.close(&self.ring);
        // Shut the ring down before its memory is freed: cancel what is armed and wait for it.
        // What does not come back in time is leaked: the kernel may still write to it.
        let any = types::CancelBuilder::any();
        let limit = types::Timespec::new().sec(1);
        let cancelled = match self.ring.submitter().register_sync_cancel(Some(limit), any) {
            Ok(()) => true,
            Err(e) => e.raw_os_error() == Some(libc::ENOENT),
        };
        for _ in 0..100 {
            self.reap();
            if self.in_flight.is_empty() {
                break;
            }
            let _ = self.enter(Some(Duration::from_millis(1)));
        }
        if !cancelled || !self.in_flight.is_empty() {
            std::mem::forget(std::mem::take(&mut self.in_flight));
            self.buffers.leak();
        }
    }
}
