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

mod buffers;
mod datagram;
mod door;
mod partners;
mod restrictions;
mod setup;

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use io_uring::{IoUring, cqueue, squeue, types};
use slab::Slab;
use socket2::SockAddr;

use crate::datagram::Control;
use crate::socket::More;

pub use crate::payload::Payload;
pub use buffers::Buffer;
use buffers::Buffers;
pub use datagram::DATAGRAM_HEAD;
use door::Door;
pub use partners::{Address, can_hand_on};
use restrictions::opcode;
pub use restrictions::{MOST_WORKERS, Purpose};
pub use setup::{Features, Refusal, RingSetup, Slots};

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

/// Which ring a slot or a buffer belongs to: a number of its own for each ring of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingId(u32);

impl RingId {
    fn next() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

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

/// An operation whose memory the kernel may read. `header` and `slices` point into `payload`.
struct InFlight {
    key: u64,
    /// Its result is a descriptor that nobody has yet.
    makes: bool,
    payload: Option<Payload>,
    _address: Option<Box<SockAddr>>,
    _message: Option<Box<Message>>,
    /// The ring it is about: open until the kernel has looked it up.
    _to: Option<Address>,
    /// The slot that is to be left.
    slot: Option<Slot>,
    /// The slot that is free when it has succeeded, and whether anybody is told of that.
    frees: Option<(u32, Tells)>,
}

struct Message {
    header: libc::msghdr,
    slices: Vec<libc::iovec>,
    control: Control,
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
/// ring.receive_multi(&7, 1);
/// # }
/// ```
///
/// A slot or a buffer of another ring is a mistake of the caller, and a panic.
pub struct Ring {
    // Dropped first: the kernel's side ends before the memory below is freed (see `Drop`).
    ring: IoUring,
    id: RingId,
    door: Door,
    buffers: Buffers,
    in_flight: Slab<InFlight>,
    features: Features,
    /// Submissions that did not fit when they were made, in order.
    overflow: VecDeque<squeue::Entry>,
    /// What descriptors belong to that are named in submissions which were not handed over yet.
    held: Vec<Arc<dyn Any + Send + Sync>>,
    /// Descriptors to close as soon as those submissions were.
    late: Vec<Arc<OwnedFd>>,
    /// Who gives out the slots of the table, and which are free if that is the ring.
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
        setup.busy_poll.map_or(Ok(()), |time| setup::busy_poll(&ring, time))?;
        let door = Door::new(&ring);
        features.registered_ring = door.is_registered();
        let buffers = Buffers::register(&ring, setup, GROUP, id)?;
        restrictions::enable(&ring, setup.purpose)?; // what is registered after this has to be listed there
        let registers = features.direct && setup.slots == Slots::Registered;
        Ok(Self {
            ring,
            id,
            door,
            buffers,
            in_flight: Slab::new(),
            features,
            overflow: VecDeque::new(),
            held: Vec::new(),
            late: Vec::new(),
            slots: setup.slots,
            free: if registers { (0..setup.table).rev().collect() } else { Vec::new() },
        })
    }

    /// What this ring uses of what the kernel may have.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Accepts until told otherwise: each completion has [made](Completion::made) one connection, with `direct` in a
    /// slot of the table, if the kernel [gives these out](Slots::Accepted).
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
    /// the ring does not [give them out](Slots::Registered).
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

    /// Receives into provided buffers until told otherwise. A result of 0 is the end of the
    /// stream; `ENOBUFS` ends it when all buffers are out.
    pub fn receive_multi(&mut self, socket: &Handle, key: u64) {
        let entry = entry_on!(self, socket, |fd| opcode::RecvMulti::new(fd, GROUP).build());
        self.push_on(socket, entry.user_data(key & KEY));
    }

    /// Connects; the result is 0 when the connection stands. `to` comes from
    /// [`raw_address`](crate::socket::raw_address).
    pub fn connect(&mut self, socket: &Handle, to: SockAddr, key: u64) {
        let address = Box::new(to);
        let (pointer, length) = (address.as_ptr().cast::<libc::sockaddr>(), address.len());
        let entry = entry_on!(self, socket, |fd| opcode::Connect::new(fd, pointer, length).build());
        let op = InFlight { _address: Some(address), ..InFlight::new(key) };
        let at = self.in_flight.insert(op) as u64;
        self.push_on(socket, entry.user_data(OWNED | at));
    }

    /// Receives once, into a provided buffer. For a connection that has data and may not stay.
    pub fn receive_once(&mut self, socket: &Handle, key: u64) {
        let nowhere = std::ptr::null_mut();
        let entry = entry_on!(self, socket, |fd| opcode::Recv::new(fd, nowhere, 0).buf_group(GROUP).build());
        self.push_on(socket, entry.flags(squeue::Flags::BUFFER_SELECT).user_data(key & KEY));
    }

    /// Most bytes that the kernel sends until all of them are, in as many steps as that takes (`MSG_WAITALL`); of more
    /// it sends what it can at once. A send that takes 128 steps goes to a worker thread and keeps it until the peer
    /// has read enough (`APOLL_MAX_RETRY` in the kernel's `io_uring/poll.c`); a step is a third of a send buffer, and
    /// at least a segment.
    pub const MOST_AT_ONCE: usize = 128 * 1024;

    /// Sends `payload` in order: all of it, or if it is [more than that](Self::MOST_AT_ONCE) as much as the socket
    /// takes. Of a file it sends what was read.
    pub fn send(&mut self, socket: &Handle, payload: Payload, more: More, key: u64) {
        let hold = if more == More::No { 0 } else { libc::MSG_MORE };
        let all = if bytes_in(&payload) <= Self::MOST_AT_ONCE { libc::MSG_WAITALL } else { 0 };
        let entry = self.send_entry(socket, payload, all | hold, key);
        self.push_on(socket, entry);
    }

    /// Sends all of `payload` and then closes the table's slot, in one chain: the last bytes leave in one
    /// segment with the end of the stream (`MSG_MORE`). Gives the payload back, nothing done, if it is
    /// [more than the kernel sends in one go](Self::MOST_AT_ONCE): what is chained to it would begin too early.
    ///
    /// If the send completes with all bytes, the slot is free once the close has completed under `close_key`, which may
    /// be several calls later. If it does not, the chain is broken: the close completes with `ECANCELED`, and the slot
    /// is still open. What is left of `socket` after a success is only to be dropped: the slot may be the next
    /// connection's.
    pub fn send_and_close(
        &mut self,
        socket: &Handle,
        payload: Payload,
        key: u64,
        close_key: u64,
    ) -> Result<(), Payload> {
        let Handle::Direct(slot) = socket else { return Err(payload) };
        if bytes_in(&payload) > Self::MOST_AT_ONCE {
            return Err(payload);
        }
        let close = self.close_entry(slot, close_key, Tells::Always);
        let send = self.send_entry(socket, payload, libc::MSG_WAITALL | libc::MSG_MORE, key);
        self.push_pair(send.flags(squeue::Flags::IO_LINK), close);
        Ok(())
    }

    fn send_entry(&mut self, socket: &Handle, payload: Payload, flags: i32, key: u64) -> squeue::Entry {
        let flags = flags | libc::MSG_NOSIGNAL;
        let (entry, message) = match &payload {
            Payload::One(bytes) | Payload::File { read: bytes, .. } => {
                let (pointer, length) = (bytes.as_ptr(), u32::try_from(bytes.len()).unwrap_or(u32::MAX));
                (
                    entry_on!(self, socket, |fd| opcode::Send::new(fd, pointer, length).flags(flags).build()),
                    None,
                )
            }
            Payload::Many(pieces) => {
                let message = Message::new(pieces);
                let (header, flags) = (&raw const message.header, flags as u32);
                let entry =
                    entry_on!(self, socket, |fd| opcode::SendMsg::new(fd, header).flags(flags).build());
                (entry, Some(message))
            }
        };
        let op = InFlight { payload: Some(payload), _message: message, ..InFlight::new(key) };
        entry.user_data(OWNED | self.in_flight.insert(op) as u64)
    }

    /// Completes when the socket can take more, and gives the payload back: what is to be sent by other means than the
    /// ring.
    pub fn poll_writable(&mut self, socket: &Handle, payload: Payload, key: u64) {
        let wanted = libc::POLLOUT as u32;
        let entry = entry_on!(self, socket, |fd| opcode::PollAdd::new(fd, wanted).build());
        let op = InFlight { payload: Some(payload), ..InFlight::new(key) };
        let at = self.in_flight.insert(op) as u64;
        self.push_on(socket, entry.user_data(OWNED | at));
    }

    /// [Makes](Completion::made) an ordinary descriptor of the socket in a slot, besides it, and gives the payload
    /// back. `EINVAL` before Linux 6.8.
    pub fn install(&mut self, slot: &Slot, payload: Payload, key: u64) {
        let entry = opcode::FixedFdInstall::new(self.fixed(slot), 0).build();
        let op = InFlight { payload: Some(payload), makes: true, ..InFlight::new(key) };
        let at = self.in_flight.insert(op) as u64;
        self.push(entry.user_data(OWNED | at));
    }

    /// Ends one direction or both ([`std::net::Shutdown`]). A thread of the kernel does it, and looks the slot or the
    /// descriptor up only then: until it has completed, the socket must not be [closed](Self::close).
    pub fn shutdown(&mut self, socket: &Handle, how: std::net::Shutdown, key: u64) {
        let how = match how {
            std::net::Shutdown::Read => libc::SHUT_RD,
            std::net::Shutdown::Write => libc::SHUT_WR,
            std::net::Shutdown::Both => libc::SHUT_RDWR,
        };
        let entry = entry_on!(self, socket, |fd| opcode::Shutdown::new(fd, how).build());
        self.push_on(socket, entry.user_data(key & KEY));
    }

    /// Closes. What is still in flight on the socket keeps it open, and may even be looked up after the close: it must
    /// have come back before. Under `key` a slot's close completes when the number is free, if it `tells`.
    pub fn close(&mut self, socket: Handle, key: u64, tells: Tells) {
        let entry = match socket {
            Handle::Direct(slot) => self.close_entry(&slot, key, tells),
            Handle::Plain(fd) => match Arc::try_unwrap(fd) {
                // The descriptor leaves our hands here; the kernel closes it through this entry.
                Ok(fd) => {
                    let entry = opcode::Close::new(types::Fd(fd.into_raw_fd())).build();
                    entry.flags(tells.flags()).user_data(key & KEY)
                }
                Err(shared) => return self.late.push(shared),
            },
        };
        self.push(entry);
    }

    /// Closes a slot. If it is the ring who gives it out again, the ring is told in any case.
    fn close_entry(&mut self, slot: &Slot, key: u64, tells: Tells) -> squeue::Entry {
        let entry = opcode::Close::new(self.fixed(slot)).build();
        if self.slots == Slots::Accepted {
            return entry.flags(tells.flags()).user_data(key & KEY);
        }
        let op = InFlight { frees: Some((slot.index, tells)), ..InFlight::new(key) };
        entry.user_data(OWNED | self.in_flight.insert(op) as u64)
    }

    /// Makes the coming close of the socket send a reset (`SO_LINGER` 0). Whether something will complete with `key`,
    /// if all goes well.
    ///
    /// On a direct descriptor this needs Linux 6.7; before that the close is an ordinary one.
    pub fn reset_on_close(&mut self, socket: &Handle, key: u64, tells: Tells) -> bool {
        static AT_ONCE: libc::linger = libc::linger { l_onoff: 1, l_linger: 0 };
        match socket {
            Handle::Plain(fd) => {
                // The close that follows ends the connection either way.
                let _ = crate::socket::reset_on_close(fd);
                false
            }
            Handle::Direct(slot) => {
                let (level, option) = (libc::SOL_SOCKET as u32, libc::SO_LINGER as u32);
                let (value, length) = ((&raw const AT_ONCE).cast(), size_of::<libc::linger>() as u32);
                let entry = opcode::SetSockOpt::new(self.fixed(slot), level, option, value, length);
                self.push(entry.build().flags(tells.flags()).user_data(key & KEY));
                tells == Tells::Always
            }
        }
    }

    /// Asks everything in flight on the socket to end; each operation still completes. One that is just being worked on
    /// is not found, and goes on; so is one that waits for a thread of the kernel ([`shutdown`](Self::shutdown)).
    pub fn cancel_all(&mut self, socket: &Handle, key: u64, tells: Tells) {
        let what = entry_on!(self, socket, |fd| types::CancelBuilder::fd(fd));
        let entry = opcode::AsyncCancel2::new(what.all()).build();
        self.push_on(socket, entry.flags(tells.flags()).user_data(key & KEY));
    }

    /// Asks the operations submitted with key `target` (that own no memory, and make nothing) to end; each of them
    /// still completes.
    pub fn cancel(&mut self, target: u64, key: u64, tells: Tells) {
        self.cancel_data(target & KEY, key, tells);
    }

    /// The same, for accepts.
    pub fn cancel_accepts(&mut self, target: u64, direct: bool, key: u64, tells: Tells) {
        self.cancel_data(accept_data(target, direct), key, tells);
    }

    /// The same, for an operation that owns memory, as sends do. Looks through all that do.
    pub fn cancel_owner(&mut self, target: u64, key: u64, tells: Tells) {
        let found = self.in_flight.iter().find(|(_, op)| op.key == target & KEY).map(|(at, _)| at as u64);
        if let Some(at) = found {
            self.cancel_data(OWNED | at, key, tells);
        }
    }

    fn cancel_data(&mut self, target: u64, key: u64, tells: Tells) {
        let entry = opcode::AsyncCancel2::new(types::CancelBuilder::user_data(target).all()).build();
        self.push(entry.flags(tells.flags()).user_data(key & KEY));
    }

    /// Reports each time the descriptor becomes readable, until told otherwise.
    pub fn poll_multi<T: AsFd + Send + Sync + 'static>(&mut self, watched: &Arc<T>, key: u64) {
        let entry = opcode::PollAdd::new(self.watch(watched), libc::POLLIN as u32).multi(true).build();
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

    fn push(&mut self, entry: squeue::Entry) {
        if self.overflow.is_empty() {
            if self.try_push(&entry) {
                return;
            }
            // Full: hand it over and try once more. An error shows again in `enter`.
            if self.ring.submit().is_ok() && self.try_push(&entry) {
                return;
            }
        }
        self.overflow.push_back(entry);
    }

    /// Pushes two entries that belong together: a chain may not be cut by handing over its first half alone.
    fn push_pair(&mut self, first: squeue::Entry, second: squeue::Entry) {
        if self.overflow.is_empty() {
            let mut queue = self.ring.submission();
            let room = queue.capacity() - queue.len();
            queue.sync();
            drop(queue);
            if room < 2 && self.ring.submit().is_err() {
                self.overflow.push_back(first);
                return self.overflow.push_back(second);
            }
        }
        self.push(first);
        self.push(second);
    }

    fn try_push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: every pointer in `entry` leads into memory that `in_flight` owns until the completion, is static,
        // or is absent; the kernel keeps descriptors open once they are handed over, and `held` does until then.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    /// Submits all that was asked for and waits until something completed, or the timeout.
    pub fn enter(&mut self, wait: Option<Duration>) -> io::Result<()> {
        if !self.late.is_empty() {
            self.hand_over()?;
            self.ring.submit().or_else(passed)?;
            self.let_go();
        }
        self.hand_over()?;
        self.door.enter(&mut self.ring, wait).or_else(passed)?;
        self.let_go();
        Ok(())
    }

    /// Moves what did not fit into the queue.
    fn hand_over(&mut self) -> io::Result<()> {
        while let Some(entry) = self.overflow.pop_front() {
            if !self.try_push(&entry) {
                self.overflow.push_front(entry);
                self.ring.submit().or_else(passed)?;
            }
        }
        Ok(())
    }

    /// Lets go of what was held until the kernel has looked it up.
    fn let_go(&mut self) {
        let is_held = !self.held.is_empty() || !self.late.is_empty();
        if is_held && self.overflow.is_empty() && self.ring.submission().is_empty() {
            self.held.clear();
            self.late.clear();
        }
    }

    /// The next completion that is there.
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion> {
        loop {
            let raw = self.ring.completion().next()?;
            if let Some(completion) = self.completion(&raw) {
                return Some(completion);
            }
        }
    }

    /// What the kernel says, unless nobody is to be told.
    #[inline]
    fn completion(&mut self, raw: &cqueue::Entry) -> Option<Completion> {
        let (data, more) = (raw.user_data(), cqueue::more(raw.flags()));
        let result = match u32::try_from(raw.result()) {
            Ok(n) => Ok(n),
            Err(_) => Err(io::Error::from_raw_os_error(-raw.result())),
        };
        let buffer = cqueue::buffer_select(raw.flags())
            .map(|id| Buffer::new(id, *result.as_ref().unwrap_or(&0), self.id));
        let mut op = (data & OWNED != 0).then(|| self.in_flight.remove((data & !OWNED) as usize));
        if let (Ok(_), Some((slot, tells))) = (&result, op.as_ref().and_then(|op| op.frees)) {
            self.free.push(slot);
            if tells == Tells::Failure {
                return None;
            }
        }
        let made = match (&result, op.as_mut()) {
            (&Ok(slot), None) if data & MAKES_SLOT != 0 => {
                Some(Handle::Direct(Slot { index: slot, ring: self.id }))
            }
            (&Ok(fd), op) if op.as_ref().map_or(data & MAKES_DESCRIPTOR != 0, |op| op.makes) => {
                // SAFETY: the kernel made this descriptor for the operation that completes here: callers cannot give
                // their keys these bits, so it is an accept or an install. A completion is read once.
                Some(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }.into())
            }
            (Err(_), Some(op)) => op.slot.take().map(Handle::Direct),
            _ => None,
        };
        let (key, payload) = op.map_or((data & KEY, None), |op| (op.key, op.payload));
        Some(Completion { key, result, made, more, buffer, payload })
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

fn bytes_in(payload: &Payload) -> usize {
    payload.pieces().iter().map(Bytes::len).sum()
}

/// The user data of an accept.
fn accept_data(key: u64, direct: bool) -> u64 {
    key & KEY | if direct { MAKES_SLOT } else { MAKES_DESCRIPTOR }
}

impl InFlight {
    fn new(key: u64) -> Self {
        Self {
            key: key & KEY,
            makes: false,
            payload: None,
            _address: None,
            _message: None,
            _to: None,
            slot: None,
            frees: None,
        }
    }
}

/// Waits that end by timeout or signal, and a full completion queue, are answers and no errors.
fn passed(e: io::Error) -> io::Result<usize> {
    match e.raw_os_error() {
        Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(0),
        _ => Err(e),
    }
}

impl Message {
    fn new(pieces: &[Bytes]) -> Box<Self> {
        let slices = pieces
            .iter()
            .map(|p| libc::iovec { iov_base: p.as_ptr().cast_mut().cast(), iov_len: p.len() })
            .collect::<Vec<_>>();
        // SAFETY: msghdr is plain old data, for which all zero bytes are a valid value.
        let header = unsafe { std::mem::zeroed::<libc::msghdr>() };
        let mut message = Box::new(Self { header, slices, control: Control::EMPTY });
        message.header.msg_iov = message.slices.as_mut_ptr();
        message.header.msg_iovlen = message.slices.len() as _;
        message
    }
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
        self.door.close();
        // Shut the ring down before its memory is freed: cancel what is armed and wait for it.
        // Whatever does not come back in time is leaked rather than freed under the kernel's pen.
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
