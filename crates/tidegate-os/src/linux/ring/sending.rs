//! Sending through a ring: it owns what is sent until the kernel is done with it.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use bytes::Bytes;
use io_uring::{squeue, types};
use socket2::SockAddr;

use super::restrictions::opcode;
use super::{Handle, Owns, Payload, Ring, Slot, Tells};
use crate::datagram::Control;
use crate::socket::More;

/// What `sendmsg` is asked for.
pub(super) struct SendMessage {
    pub(super) header: libc::msghdr,
    slices: Vec<libc::iovec>,
    pub(super) control: Control,
    to: Option<SockAddr>,
}

impl SendMessage {
    pub(super) fn new(pieces: &[Bytes]) -> Box<Self> {
        let slices = pieces
            .iter()
            .map(|p| libc::iovec { iov_base: p.as_ptr().cast_mut().cast(), iov_len: p.len() })
            .collect::<Vec<_>>();
        // SAFETY: msghdr is plain old data, for which all zero bytes are a valid value.
        let header = unsafe { std::mem::zeroed::<libc::msghdr>() };
        let mut message = Box::new(Self { header, slices, control: Control::EMPTY, to: None });
        message.header.msg_iov = message.slices.as_mut_ptr();
        message.header.msg_iovlen = message.slices.len() as _;
        message
    }

    /// Whom it goes to.
    pub(super) fn name(self: &mut Box<Self>, to: SocketAddr) {
        let to = self.to.insert(to.into());
        (self.header.msg_name, self.header.msg_namelen) = (to.as_ptr().cast_mut().cast(), to.len());
    }
}

impl Ring {
    /// Most bytes that the kernel sends until all of them are, in as many steps as that takes (`MSG_WAITALL`); of more
    /// it sends what it can at once: what a slow peer has read is known only when a send ends, and the time limits of a
    /// connection look at that. (A send that takes 128 steps goes to a worker thread and keeps it until the peer has
    /// read enough, `APOLL_MAX_RETRY` in the kernel's `io_uring/poll.c`; a step is a third of a send buffer, and at
    /// least a segment.)
    pub const MOST_AT_ONCE: usize = 16 * 1024;

    /// Whether so much of a payload was taken by a send that goes on until all bytes are sent, and ended before.
    pub fn is_cut(taken: usize, unsent: &Payload) -> bool {
        let left = bytes_in(unsent); // what is left of a file, and not read, was not handed over
        left > 0 && taken + left <= Self::MOST_AT_ONCE
    }

    /// Sends `payload` in order: all of it, or if it is [more than that](Self::MOST_AT_ONCE) as much as the socket
    /// takes. Of a file it sends what was read.
    #[inline]
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

    #[inline]
    fn send_entry(&mut self, socket: &Handle, payload: Payload, flags: i32, key: u64) -> squeue::Entry {
        let flags = flags | libc::MSG_NOSIGNAL;
        let (entry, owns) = match payload.pieces() {
            [bytes] => {
                let (pointer, length) = (bytes.as_ptr(), u32::try_from(bytes.len()).unwrap_or(u32::MAX));
                (
                    entry_on!(self, socket, |fd| opcode::Send::new(fd, pointer, length).flags(flags).build()),
                    Owns::Nothing,
                )
            }
            pieces => {
                let message = SendMessage::new(pieces);
                let (header, flags) = (&raw const message.header, flags as u32);
                let entry =
                    entry_on!(self, socket, |fd| opcode::SendMsg::new(fd, header).flags(flags).build());
                (entry, Owns::Message(message))
            }
        };
        entry.user_data(self.own(key, Some(payload), owns))
    }

    /// Completes when the socket can take more, and gives the payload back: what is to be sent by other means than the
    /// ring.
    pub fn poll_writable(&mut self, socket: &Handle, payload: Payload, key: u64) {
        let wanted = libc::POLLOUT as u32;
        let entry = entry_on!(self, socket, |fd| opcode::PollAdd::new(fd, wanted).build());
        let data = self.own(key, Some(payload), Owns::Nothing);
        self.push_on(socket, entry.user_data(data));
    }

    /// [Makes](super::Completion::made) an ordinary descriptor of the socket in a slot, besides it, and gives the
    /// payload back. `EINVAL` before Linux 6.8.
    pub fn install(&mut self, slot: &Slot, payload: Payload, key: u64) {
        let entry = opcode::FixedFdInstall::new(self.fixed(slot), 0).build();
        let data = self.own(key, Some(payload), Owns::Made);
        self.push(entry.user_data(data));
    }
}

#[inline]
fn bytes_in(payload: &Payload) -> usize {
    payload.pieces().iter().map(Bytes::len).sum()
}
