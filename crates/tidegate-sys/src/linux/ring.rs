//! `io_uring(7)`: one ring with its provided buffers, its table of direct descriptors and the
//! memory the kernel may still read.
//!
//! The safety of the whole module rests on one rule: **what the kernel may touch is owned here
//! until the completion came back**. Bytes to send are moved into the ring and returned with the
//! completion; received bytes lie in buffers that the ring owns and are lent out by reference.

mod buffers;
mod datagram;
mod door;
mod partners;
mod setup;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use bytes::Bytes;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
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
pub use setup::{Features, RingSetup};

/// A socket as the ring knows it.
#[derive(Debug)]
pub enum Handle {
    /// A slot of the ring's own table; costs no descriptor of the process.
    Direct(u32),
    /// An ordinary descriptor.
    Plain(OwnedFd),
}

/// What came back from the kernel.
#[derive(Debug)]
pub struct Completion {
    /// The number the operation was submitted with.
    pub key: u64,
    /// What the operation returned: bytes, a direct slot or a descriptor.
    pub result: io::Result<u32>,
    /// The operation stays armed and will complete again.
    pub more: bool,
    /// Where received bytes lie; give it back with [`Ring::recycle`].
    pub buffer: Option<Buffer>,
    /// What a send was given, to send the rest of it or to drop it.
    pub payload: Option<Payload>,
}

/// Marks user data that names an entry of `in_flight` rather than being a key itself.
const OWNED: u64 = 1 << 63;

/// An operation whose memory the kernel may read. `header` and `slices` point into `payload`.
struct InFlight {
    key: u64,
    payload: Option<Payload>,
    _address: Option<Box<SockAddr>>,
    _message: Option<Box<Message>>,
    /// The ring it is about: open until the kernel has looked it up.
    _to: Option<Address>,
}

impl InFlight {
    fn of(key: u64) -> Self {
        Self { key, payload: None, _address: None, _message: None, _to: None }
    }
}

struct Message {
    header: libc::msghdr,
    slices: Vec<libc::iovec>,
    control: Control,
}

/// One io_uring instance. It belongs to the thread that made it.
pub struct Ring {
    // Dropped first: the kernel's side ends before the memory below is freed (see `Drop`).
    ring: IoUring,
    door: Door,
    buffers: Buffers,
    in_flight: Slab<InFlight>,
    features: Features,
    /// Submissions that did not fit when they were made, in order.
    overflow: VecDeque<squeue::Entry>,
}

/// Group number of the one buffer ring each ring has.
const GROUP: u16 = 0;

impl Ring {
    /// Makes a ring for the calling thread. Features this kernel lacks are left out one by one;
    /// [`features`](Self::features) says which are in use. Some time after a ring was closed, the kernel interrupts the thread that made it,
    /// as a signal would: a `recv` with a time limit fails with EINTR then.
    ///
    /// # Errors
    /// `EPERM` or `ENOSYS` where io_uring is forbidden or missing, `ENOMEM` under a small
    /// RLIMIT_MEMLOCK on old kernels, `EINVAL` where the kernel has no provided buffer rings (before 5.19).
    pub fn new(setup: &RingSetup) -> io::Result<Self> {
        let (ring, mut features) = setup::build(setup)?;
        features.direct = setup.table > 0 && ring.submitter().register_files_sparse(setup.table).is_ok();
        setup.busy_poll.map_or(Ok(()), |time| setup::busy_poll(&ring, time))?;
        let door = Door::new(&ring);
        features.registered_ring = door.is_registered();
        let buffers = Buffers::register(&ring, setup.buffers, setup.buffer_bytes, GROUP, setup.residence)?;
        Ok(Self { ring, door, buffers, in_flight: Slab::new(), features, overflow: VecDeque::new() })
    }

    /// What this ring uses of what the kernel may have.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Accepts until told otherwise: each completion is one connection. With `direct` the result
    /// is a slot of the table, else a descriptor ([`Ring::adopt`]).
    pub fn accept_multi(&mut self, listener: RawFd, key: u64, direct: bool) {
        let entry = if direct {
            opcode::AcceptMulti::new(types::Fd(listener)).allocate_file_index(true).build()
        } else {
            opcode::AcceptMulti::new(types::Fd(listener)).flags(libc::SOCK_CLOEXEC).build()
        };
        self.push(entry.user_data(key));
    }

    /// Accepts one connection; the result is as for [`accept_multi`](Self::accept_multi).
    pub fn accept_one(&mut self, listener: RawFd, key: u64, direct: bool) {
        let (none, no_length) = (std::ptr::null_mut(), std::ptr::null_mut());
        let entry = opcode::Accept::new(types::Fd(listener), none, no_length);
        let entry = match direct {
            true => entry.file_index(Some(types::DestinationSlot::auto_target())),
            false => entry.flags(libc::SOCK_CLOEXEC),
        };
        self.push(entry.build().user_data(key));
    }

    /// The socket behind the result of an accept.
    pub fn adopt(result: u32, direct: bool) -> Handle {
        if direct {
            Handle::Direct(result)
        } else {
            // SAFETY: the kernel made this descriptor for the accept whose result it is, and the
            // result is handed out once.
            Handle::Plain(unsafe { OwnedFd::from_raw_fd(result as RawFd) })
        }
    }

    /// Puts a socket into a free slot of the table, so that it costs no descriptor; gives it back if that fails.
    ///
    /// The slot must not be the target of anything that was asked for and not yet [handed over](Self::enter).
    pub fn register(&mut self, socket: OwnedFd, slot: u32) -> Handle {
        match self.ring.submitter().register_files_update(slot, &[socket.as_raw_fd()]) {
            Ok(1) => Handle::Direct(slot), // the table keeps the socket open
            _ => Handle::Plain(socket),
        }
    }

    /// Receives into provided buffers until told otherwise. A result of 0 is the end of the
    /// stream; `ENOBUFS` ends it when all buffers are out.
    pub fn receive_multi(&mut self, socket: &Handle, key: u64) {
        let entry = match socket {
            Handle::Direct(slot) => opcode::RecvMulti::new(types::Fixed(*slot), GROUP).build(),
            Handle::Plain(fd) => opcode::RecvMulti::new(types::Fd(fd.as_raw_fd()), GROUP).build(),
        };
        self.push(entry.user_data(key));
    }

    /// Connects; the result is 0 when the connection stands. `to` comes from [`raw_address`](crate::socket::raw_address).
    pub fn connect(&mut self, socket: &Handle, to: SockAddr, key: u64) {
        let address = Box::new(to);
        let (pointer, length) = (address.as_ptr().cast::<libc::sockaddr>(), address.len());
        let entry = match socket {
            Handle::Direct(slot) => opcode::Connect::new(types::Fixed(*slot), pointer, length).build(),
            Handle::Plain(fd) => opcode::Connect::new(types::Fd(fd.as_raw_fd()), pointer, length).build(),
        };
        let at = self.in_flight.insert(InFlight { _address: Some(address), ..InFlight::of(key) });
        self.push(entry.user_data(OWNED | at as u64));
    }

    /// Receives once, into a provided buffer. For a connection that has data and may not stay.
    pub fn receive_once(&mut self, socket: &Handle, key: u64) {
        let entry = match socket {
            Handle::Direct(slot) => {
                opcode::Recv::new(types::Fixed(*slot), std::ptr::null_mut(), 0).buf_group(GROUP).build()
            }
            Handle::Plain(fd) => {
                opcode::Recv::new(types::Fd(fd.as_raw_fd()), std::ptr::null_mut(), 0).buf_group(GROUP).build()
            }
        };
        self.push(entry.flags(squeue::Flags::BUFFER_SELECT).user_data(key));
    }

    /// Sends all of `payload` in order; the kernel retries short sends itself (`MSG_WAITALL`). Of a file it sends what was read.
    pub fn send(&mut self, socket: &Handle, payload: Payload, more: More, key: u64) {
        let hold = if more == More::No { 0 } else { libc::MSG_MORE };
        let entry = self.send_entry(socket, payload, libc::MSG_WAITALL | hold, key);
        self.push(entry);
    }

    /// Sends all of `payload` and then closes the table's slot, in one chain: the last bytes leave in one
    /// segment with the end of the stream (`MSG_MORE`).
    ///
    /// If the send completes with all bytes, the slot is free once the close has completed under `close_key`, which may be
    /// several calls later. If it does not, the chain is broken: the close completes with `ECANCELED`, and the slot is still open.
    pub fn send_and_close(&mut self, slot: u32, payload: Payload, key: u64, close_key: u64) {
        let flags = libc::MSG_WAITALL | libc::MSG_MORE;
        let send = self.send_entry(&Handle::Direct(slot), payload, flags, key);
        let close = opcode::Close::new(types::Fixed(slot)).build();
        self.push_pair(send.flags(squeue::Flags::IO_LINK), close.user_data(close_key));
    }

    fn send_entry(&mut self, socket: &Handle, payload: Payload, flags: i32, key: u64) -> squeue::Entry {
        let flags = flags | libc::MSG_NOSIGNAL;
        let slot = self.in_flight.vacant_entry();
        let at = slot.key() as u64;
        let (entry, message) = match &payload {
            Payload::One(bytes) | Payload::File { read: bytes, .. } => {
                (one_piece(socket, bytes, flags), None)
            }
            Payload::Many(pieces) => {
                let message = Message::new(pieces);
                (many_pieces(socket, &message, flags as u32), Some(message))
            }
        };
        slot.insert(InFlight { payload: Some(payload), _message: message, ..InFlight::of(key) });
        entry.user_data(OWNED | at)
    }

    /// Completes when the socket can take more, and gives the payload back: what is to be sent by other means than the ring.
    pub fn poll_writable(&mut self, socket: &Handle, payload: Payload, key: u64) {
        let wanted = libc::POLLOUT as u32;
        let entry = match socket {
            Handle::Direct(slot) => opcode::PollAdd::new(types::Fixed(*slot), wanted).build(),
            Handle::Plain(fd) => opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), wanted).build(),
        };
        self.push_with(entry, payload, key);
    }

    /// Gives the socket in a slot of the table an ordinary descriptor besides ([`adopt`](Self::adopt) the result), and the payload
    /// back. `EINVAL` before Linux 6.8.
    pub fn install(&mut self, slot: u32, payload: Payload, key: u64) {
        self.push_with(opcode::FixedFdInstall::new(types::Fixed(slot), 0).build(), payload, key);
    }

    fn push_with(&mut self, entry: squeue::Entry, payload: Payload, key: u64) {
        let op = InFlight { payload: Some(payload), ..InFlight::of(key) };
        let at = self.in_flight.insert(op) as u64;
        self.push(entry.user_data(OWNED | at));
    }

    /// Ends one direction or both ([`std::net::Shutdown`]).
    pub fn shutdown(&mut self, socket: &Handle, how: std::net::Shutdown, key: u64) {
        let how = match how {
            std::net::Shutdown::Read => libc::SHUT_RD,
            std::net::Shutdown::Write => libc::SHUT_WR,
            std::net::Shutdown::Both => libc::SHUT_RDWR,
        };
        let entry = match socket {
            Handle::Direct(slot) => opcode::Shutdown::new(types::Fixed(*slot), how).build(),
            Handle::Plain(fd) => opcode::Shutdown::new(types::Fd(fd.as_raw_fd()), how).build(),
        };
        self.push(entry.user_data(key));
    }

    /// Closes. What is still in flight on the socket keeps it open: [cancel](Self::cancel_all) it first,
    /// in the same batch. Only a failure completes, with `key`.
    pub fn close(&mut self, socket: Handle, key: u64) {
        let entry = match socket {
            Handle::Direct(slot) => opcode::Close::new(types::Fixed(slot)).build(),
            // The descriptor leaves our hands here; the kernel closes it through this entry.
            Handle::Plain(fd) => opcode::Close::new(types::Fd(fd.into_raw_fd())).build(),
        };
        self.push(entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(key));
    }

    /// Makes the coming close of the socket send a reset (`SO_LINGER` 0). Only a failure completes, with `key`.
    ///
    /// On a direct descriptor this needs Linux 6.7; before that the close is an ordinary one.
    pub fn reset_on_close(&mut self, socket: &Handle, key: u64) {
        match socket {
            Handle::Plain(fd) => {
                // The close that follows ends the connection either way.
                let _ = crate::socket::reset_on_close(fd);
            }
            Handle::Direct(slot) => {
                static AT_ONCE: libc::linger = libc::linger { l_onoff: 1, l_linger: 0 };
                let entry = opcode::SetSockOpt::new(
                    types::Fixed(*slot),
                    libc::SOL_SOCKET as u32,
                    libc::SO_LINGER as u32,
                    (&raw const AT_ONCE).cast(),
                    size_of::<libc::linger>() as u32,
                );
                self.push(entry.build().flags(squeue::Flags::SKIP_SUCCESS).user_data(key));
            }
        }
    }

    /// Asks everything in flight on the socket to end; each operation still completes. Only a failure
    /// of the request itself, such as nothing to cancel, completes with `key`.
    pub fn cancel_all(&mut self, socket: &Handle, key: u64) {
        let what = match socket {
            Handle::Direct(slot) => types::CancelBuilder::fd(types::Fixed(*slot)),
            Handle::Plain(fd) => types::CancelBuilder::fd(types::Fd(fd.as_raw_fd())),
        };
        let entry = opcode::AsyncCancel2::new(what.all()).build();
        self.push(entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(key));
    }

    /// Asks the operations submitted with key `target` (that own no memory) to end; each of them still
    /// completes. Only a failure of the request itself completes, with `key`.
    pub fn cancel(&mut self, target: u64, key: u64) {
        let entry = opcode::AsyncCancel2::new(types::CancelBuilder::user_data(target).all()).build();
        self.push(entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(key));
    }

    /// Reports each time the descriptor becomes readable, until told otherwise.
    pub fn poll_multi(&mut self, fd: RawFd, key: u64) {
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).multi(true).build();
        self.push(entry.user_data(key));
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
        // SAFETY: every pointer in `entry` leads into memory that `in_flight` owns until the
        // completion, is static, or is absent; descriptors are kept open by the kernel once
        // submitted, and a stale one fails with EBADF.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    /// Submits all that was asked for and waits until something completed, or the timeout.
    pub fn enter(&mut self, wait: Option<Duration>) -> io::Result<()> {
        while let Some(entry) = self.overflow.pop_front() {
            if !self.try_push(&entry) {
                self.overflow.push_front(entry);
                self.ring.submit().or_else(passed)?;
            }
        }
        self.door.enter(&mut self.ring, wait).or_else(passed)?;
        Ok(())
    }

    /// The next completion that is there.
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion> {
        let raw = self.ring.completion().next()?;
        Some(Self::completion(&mut self.in_flight, &raw))
    }

    fn completion(in_flight: &mut Slab<InFlight>, raw: &cqueue::Entry) -> Completion {
        let result = match u32::try_from(raw.result()) {
            Ok(n) => Ok(n),
            Err(_) => Err(io::Error::from_raw_os_error(-raw.result())),
        };
        let more = cqueue::more(raw.flags());
        let buffer =
            cqueue::buffer_select(raw.flags()).map(|id| Buffer::new(id, *result.as_ref().unwrap_or(&0)));
        if raw.user_data() & OWNED == 0 {
            return Completion { key: raw.user_data(), result, more, buffer, payload: None };
        }
        let op = in_flight.remove((raw.user_data() & !OWNED) as usize);
        Completion { key: op.key, result, more, buffer, payload: op.payload }
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

fn one_piece(socket: &Handle, bytes: &Bytes, flags: i32) -> squeue::Entry {
    let (pointer, length) = (bytes.as_ptr(), u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    match socket {
        Handle::Direct(slot) => opcode::Send::new(types::Fixed(*slot), pointer, length).flags(flags).build(),
        Handle::Plain(fd) => {
            opcode::Send::new(types::Fd(fd.as_raw_fd()), pointer, length).flags(flags).build()
        }
    }
}

fn many_pieces(socket: &Handle, message: &Message, flags: u32) -> squeue::Entry {
    let header = &raw const message.header;
    match socket {
        Handle::Direct(slot) => opcode::SendMsg::new(types::Fixed(*slot), header).flags(flags).build(),
        Handle::Plain(fd) => opcode::SendMsg::new(types::Fd(fd.as_raw_fd()), header).flags(flags).build(),
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
