//! `io_uring(7)`: one ring with its provided buffers, its table of direct descriptors and the
//! memory the kernel may still read.
//!
//! The safety of the whole module rests on one rule: **what the kernel may touch is owned here
//! until the completion came back**. Bytes to send are moved into the ring and returned with the
//! completion; received bytes lie in buffers that the ring owns and are lent out by reference.

mod buffers;
mod setup;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use bytes::{Buf, Bytes};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use slab::Slab;
use socket2::SockAddr;

pub use buffers::Buffer;
use buffers::Buffers;
pub use setup::{Features, RingSetup};

/// A socket as the ring knows it.
#[derive(Debug)]
pub enum Handle {
    /// A slot of the ring's own table; costs no descriptor of the process.
    Direct(u32),
    /// An ordinary descriptor.
    Plain(OwnedFd),
}

/// Bytes to send, owned by the ring until their completion.
#[derive(Debug)]
pub enum Payload {
    /// One piece.
    One(Bytes),
    /// Several pieces, sent as if they were one. At most [`Payload::MAX_PIECES`].
    Many(Vec<Bytes>),
}

impl Payload {
    /// Most pieces in one send (`UIO_MAXIOV` is 1,024; more than this gains nothing).
    pub const MAX_PIECES: usize = 64;

    /// Takes `n` bytes from the front; returns what is left, if anything.
    pub fn advance(self, mut n: usize) -> Option<Self> {
        match self {
            Self::One(mut bytes) => {
                bytes.advance(n.min(bytes.len()));
                (!bytes.is_empty()).then_some(Self::One(bytes))
            }
            Self::Many(mut pieces) => {
                let mut gone = 0;
                for piece in &mut pieces {
                    let step = n.min(piece.len());
                    piece.advance(step);
                    n -= step;
                    if !piece.is_empty() {
                        break;
                    }
                    gone += 1;
                }
                pieces.drain(..gone);
                (!pieces.is_empty()).then_some(Self::Many(pieces))
            }
        }
    }
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
}

struct Message {
    header: libc::msghdr,
    slices: Vec<libc::iovec>,
}

/// One io_uring instance. It belongs to the thread that made it.
pub struct Ring {
    // Dropped first: the kernel's side ends before the memory below is freed (see `Drop`).
    ring: IoUring,
    buffers: Buffers,
    in_flight: Slab<InFlight>,
    features: Features,
    /// Submissions that did not fit when they were made.
    overflow: std::collections::VecDeque<squeue::Entry>,
}

/// Group number of the one buffer ring each ring has.
const GROUP: u16 = 0;

impl Ring {
    /// Makes a ring for the calling thread. Features this kernel lacks are left out one by one;
    /// [`features`](Self::features) says which are in use.
    ///
    /// # Errors
    /// `EPERM` or `ENOSYS` where io_uring is forbidden or missing, `ENOMEM` under a small
    /// RLIMIT_MEMLOCK on old kernels, `EINVAL` where the kernel has no provided buffer rings (before 5.19).
    pub fn new(setup: &RingSetup) -> io::Result<Self> {
        let (ring, mut features) = setup::build(setup)?;
        features.direct = setup.table > 0 && ring.submitter().register_files_sparse(setup.table).is_ok();
        let buffers = Buffers::register(&ring, setup.buffers, setup.buffer_bytes, GROUP)?;
        Ok(Self { ring, buffers, in_flight: Slab::new(), features, overflow: Default::default() })
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

    /// The socket behind the result of an accept.
    pub fn adopt(result: u32, direct: bool) -> Handle {
        if direct {
            Handle::Direct(result)
        } else {
            // SAFETY: the kernel made this descriptor for the accept whose result it is, and the
            // result is handed out once.
            Handle::Plain(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(result as RawFd) })
        }
    }

    /// Puts a socket into the table if there is one with room, so that it costs no descriptor.
    pub fn register(&mut self, socket: OwnedFd, slot: Option<u32>) -> Handle {
        if let Some(slot) = slot {
            let registered = self.ring.submitter().register_files_update(slot, &[socket.as_raw_fd()]);
            if matches!(registered, Ok(1)) {
                return Handle::Direct(slot); // the table keeps the socket open
            }
        }
        Handle::Plain(socket)
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

    /// Connects; the result is 0 when the connection stands.
    pub fn connect(&mut self, socket: &Handle, to: SocketAddr, key: u64) {
        let address = Box::new(SockAddr::from(to));
        let (pointer, length) = (address.as_ptr().cast::<libc::sockaddr>(), address.len());
        let entry = match socket {
            Handle::Direct(slot) => opcode::Connect::new(types::Fixed(*slot), pointer, length).build(),
            Handle::Plain(fd) => opcode::Connect::new(types::Fd(fd.as_raw_fd()), pointer, length).build(),
        };
        let at =
            self.in_flight.insert(InFlight { key, payload: None, _address: Some(address), _message: None });
        self.push(entry.user_data(OWNED | at as u64));
    }

    /// Sends all of `payload` in order; the kernel retries short sends itself (`MSG_WAITALL`).
    pub fn send(&mut self, socket: &Handle, payload: Payload, key: u64) {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let slot = self.in_flight.vacant_entry();
        let at = slot.key() as u64;
        let (entry, message) = match &payload {
            Payload::One(bytes) => {
                let (pointer, length) = (bytes.as_ptr(), u32::try_from(bytes.len()).unwrap_or(u32::MAX));
                let entry = match socket {
                    Handle::Direct(slot) => {
                        opcode::Send::new(types::Fixed(*slot), pointer, length).flags(flags).build()
                    }
                    Handle::Plain(fd) => {
                        opcode::Send::new(types::Fd(fd.as_raw_fd()), pointer, length).flags(flags).build()
                    }
                };
                (entry, None)
            }
            Payload::Many(pieces) => {
                let message = Message::new(pieces);
                let header = &raw const message.header;
                let flags = flags as u32;
                let entry = match socket {
                    Handle::Direct(slot) => {
                        opcode::SendMsg::new(types::Fixed(*slot), header).flags(flags).build()
                    }
                    Handle::Plain(fd) => {
                        opcode::SendMsg::new(types::Fd(fd.as_raw_fd()), header).flags(flags).build()
                    }
                };
                (entry, Some(message))
            }
        };
        slot.insert(InFlight { key, payload: Some(payload), _address: None, _message: message });
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

    /// Closes; no operation may be in flight on the socket any more, or it stays open until that ends.
    pub fn close(&mut self, socket: Handle, key: u64) {
        let entry = match socket {
            Handle::Direct(slot) => opcode::Close::new(types::Fixed(slot)).build(),
            Handle::Plain(fd) => {
                // SAFETY (ownership): the descriptor is closed by the kernel through this entry.
                opcode::Close::new(types::Fd(std::os::fd::IntoRawFd::into_raw_fd(fd))).build()
            }
        };
        self.push(entry.user_data(key));
    }

    /// Makes the coming close of the socket send a reset (`SO_LINGER` 0).
    /// On a direct descriptor this needs Linux 6.7; before that the close is an ordinary one.
    pub fn reset_on_close(&mut self, socket: &Handle, key: u64) {
        match socket {
            Handle::Plain(fd) => {
                let _ = crate::socket::reset_on_close(fd);
                self.push(opcode::Nop::new().build().user_data(key));
            }
            Handle::Direct(slot) => {
                static NOW: libc::linger = libc::linger { l_onoff: 1, l_linger: 0 };
                let entry = opcode::SetSockOpt::new(
                    types::Fixed(*slot),
                    libc::SOL_SOCKET as u32,
                    libc::SO_LINGER as u32,
                    (&raw const NOW).cast(),
                    size_of::<libc::linger>() as u32,
                );
                self.push(entry.build().user_data(key));
            }
        }
    }

    /// Asks an operation submitted with key `target` (one that owns no memory) to end.
    pub fn cancel(&mut self, target: u64, key: u64) {
        self.push(opcode::AsyncCancel::new(target).build().user_data(key));
    }

    /// Reports each time the descriptor becomes readable, until told otherwise.
    pub fn poll_multi(&mut self, fd: RawFd, key: u64) {
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).multi(true).build();
        self.push(entry.user_data(key));
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: every pointer in `entry` leads into memory that `in_flight` owns until the
        // completion, is static, or is absent; descriptors are kept open by the kernel once
        // submitted, and a stale one fails with EBADF.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            self.overflow.push_back(entry);
        }
    }

    /// Submits all that was asked for and waits until something completed, or the timeout.
    pub fn enter(&mut self, wait: Option<Duration>) -> io::Result<()> {
        while !self.overflow.is_empty() {
            self.ring.submit().or_else(passed)?;
            while let Some(entry) = self.overflow.front() {
                // SAFETY: as in `push`.
                if unsafe { self.ring.submission().push(entry) }.is_err() {
                    break;
                }
                self.overflow.pop_front();
            }
        }
        let entered = match wait {
            Some(limit) if limit.is_zero() => {
                // Asking for zero completions still runs deferred work (GETEVENTS).
                let now = types::Timespec::new();
                self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&now))
            }
            Some(limit) => {
                let limit = types::Timespec::from(limit);
                self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&limit))
            }
            None => self.ring.submit_and_wait(1),
        };
        entered.or_else(passed)?;
        Ok(())
    }

    /// Moves all completions that are there to the end of `into`.
    pub fn reap(&mut self, into: &mut Vec<Completion>) {
        for raw in self.ring.completion() {
            into.push(Self::completion(&mut self.in_flight, &raw));
        }
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

    /// Operations whose memory the kernel may still read.
    pub fn payloads_in_flight(&self) -> usize {
        self.in_flight.len()
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
        let mut message = Box::new(Self { header, slices });
        message.header.msg_iov = message.slices.as_mut_ptr();
        message.header.msg_iovlen = message.slices.len() as _;
        message
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Shut the ring down before its memory is freed: cancel what is armed and wait for it.
        // Whatever does not come back in time is leaked rather than freed under the kernel's pen.
        let any = types::CancelBuilder::any();
        let limit = types::Timespec::new().sec(1);
        let quiet = match self.ring.submitter().register_sync_cancel(Some(limit), any) {
            Ok(()) => true,
            Err(e) => e.raw_os_error() == Some(libc::ENOENT),
        };
        let mut last = Vec::new();
        for _ in 0..100 {
            let _ = self.enter(Some(Duration::ZERO));
            self.reap(&mut last);
            if self.in_flight.is_empty() {
                break;
            }
        }
        if !quiet || !self.in_flight.is_empty() {
            std::mem::forget(std::mem::take(&mut self.in_flight));
            self.buffers.leak();
        }
    }
}
