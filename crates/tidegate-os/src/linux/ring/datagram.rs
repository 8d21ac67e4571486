//! Datagrams through a ring: `recvmsg` into provided buffers until cancelled, and `sendmsg` with an address.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use io_uring::types::RecvMsgOut;

use super::restrictions::opcode;
use super::{Buffer, GROUP, KEY, Owns, Payload, Ring, SendMessage};
use crate::datagram::{Arrival, Control, DatagramSocket, Name, address, segment_of};

/// Bytes of a provided buffer in front of the datagram: a header of four integers, the address, and a control message
/// (`io_uring_prep_recvmsg_multishot(3)`).
pub const DATAGRAM_HEAD: usize = 16 + size_of::<Name>() + size_of::<Control>();

/// What a receive reserves in each buffer. The kernel reads it and never writes to it.
struct Template(libc::msghdr);

// SAFETY: nobody writes to it, and its pointers are null.
unsafe impl Sync for Template {}

static TEMPLATE: Template = Template({
    // SAFETY: plain old data, for which all zero bytes are a valid value. With musl it has fields that cannot be named.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_namelen = size_of::<Name>() as libc::socklen_t;
    header.msg_controllen = size_of::<Control>() as _;
    header
});

impl Ring {
    /// Receives datagrams into provided buffers until cancelled; look at them with [`arrival`](Self::arrival).
    /// `ENOBUFS` ends it when all buffers are out.
    pub fn receive_datagrams(&mut self, socket: &Arc<DatagramSocket>, key: u64) {
        let entry = opcode::RecvMsgMulti::new(self.watch(socket), &raw const TEMPLATE.0, GROUP).build();
        self.push(entry.user_data(key & KEY));
    }

    /// Sends one datagram, or with `segment` several of that size, the last of which may be shorter.
    pub fn send_datagrams(
        &mut self,
        socket: &Arc<DatagramSocket>,
        bytes: Bytes,
        to: SocketAddr,
        segment: Option<u16>,
        key: u64,
    ) {
        let mut message = SendMessage::new(std::slice::from_ref(&bytes));
        message.name(to);
        if let Some(segment) = segment {
            let length;
            (message.control, length) = Control::segment(segment);
            message.header.msg_control = (&raw mut message.control).cast();
            message.header.msg_controllen = length as _;
        }
        let header = &raw const message.header;
        let flags = libc::MSG_NOSIGNAL as u32;
        let entry = opcode::SendMsg::new(self.watch(socket), header).flags(flags).build();
        let data = self.own(key, Some(Payload::One(bytes)), Owns::Message(message));
        self.push(entry.user_data(data));
    }

    /// The datagrams in a buffer that [`receive_datagrams`](Self::receive_datagrams) filled; `None` if the kernel wrote
    /// less than its own header.
    #[inline]
    pub fn arrival(&self, buffer: &Buffer) -> Option<Arrival<'_>> {
        let all = self.received(buffer);
        let out = RecvMsgOut::parse(all, &TEMPLATE.0).ok()?;
        let bytes = all.get(DATAGRAM_HEAD..)?.get(..out.payload_data().len())?;
        Some(Arrival {
            from: address(out.name_data()),
            bytes,
            segment: segment_of(out.control_data()).unwrap_or(bytes.len()),
            truncated: out.is_payload_truncated(),
        })
    }
}
