//! Receiving into provided buffers.

use std::io;
use std::num::NonZeroU32;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU8;
use std::time::Duration;

use io_uring::{squeue, types};

use super::restrictions::opcode;
use super::{GROUP, Handle, KEY, Ring};

impl Ring {
    /// Receives into provided buffers until cancelled; or, where the kernel can
    /// [count them](super::Features::receive_limit), until `most` bytes or more have come in, by the size of a buffer.
    /// A result of 0 is the end of the stream; `ENOBUFS` ends it when all buffers are out.
    pub fn receive_multi(&mut self, socket: &Handle, most: Option<NonZeroU32>, key: u64) {
        let entry = entry_on!(self, socket, |fd| opcode::RecvMulti::new(fd, GROUP).build());
        let most = most.filter(|_| self.features.receive_limit);
        self.push_on(socket, limited(entry, most).user_data(key & KEY));
    }

    /// Receives once, into a provided buffer. For a connection that has data and may not stay.
    pub fn receive_once(&mut self, socket: &Handle, key: u64) {
        let nowhere = std::ptr::null_mut();
        let entry = entry_on!(self, socket, |fd| opcode::Recv::new(fd, nowhere, 0).buf_group(GROUP).build());
        self.push_on(socket, entry.flags(squeue::Flags::BUFFER_SELECT).user_data(key & KEY));
    }

    /// Completes at once: with the error of the stream, `EAGAIN` if there is nothing to receive, or 0. It takes nothing
    /// but the error. A socket of Multipath TCP always answers 0.
    pub fn look_for_error(&mut self, socket: &Handle, key: u64) {
        let nowhere = std::ptr::null_mut();
        let entry = entry_on!(self, socket, |fd| {
            opcode::Recv::new(fd, nowhere, 0).flags(libc::MSG_PEEK | libc::MSG_DONTWAIT).build()
        });
        self.push_on(socket, entry.user_data(key & KEY));
    }

    /// The same, and a result of 0 is the end of the stream, 1 that there is something to receive.
    pub fn look_for_end(&mut self, socket: &Handle, key: u64) {
        /// Where the kernel puts what is first in the stream, for all rings. Nobody reads it.
        static UNREAD: AtomicU8 = AtomicU8::new(0);
        let entry = entry_on!(self, socket, |fd| {
            opcode::Recv::new(fd, UNREAD.as_ptr(), 1).flags(libc::MSG_PEEK | libc::MSG_DONTWAIT).build()
        });
        self.push_on(socket, entry.user_data(key & KEY));
    }

    /// Completes when there is something to receive, or the end of the stream, and takes nothing.
    pub fn poll_readable(&mut self, socket: &Handle, key: u64) {
        let wanted = libc::POLLIN as u32;
        let entry = entry_on!(self, socket, |fd| opcode::PollAdd::new(fd, wanted).build());
        self.push_on(socket, entry.user_data(key & KEY));
    }

    /// Whether the kernel knows a limit of receives: one that does not refuses it before it looks at the descriptor,
    /// and there is none.
    pub(super) fn can_limit_receives(&mut self) -> io::Result<bool> {
        static KNOWN: OnceLock<bool> = OnceLock::new();
        if let Some(&known) = KNOWN.get() {
            return Ok(known);
        }
        let nowhere = opcode::RecvMulti::new(types::Fd(-1), GROUP).build();
        self.push(limited(nowhere, Some(NonZeroU32::MIN)));
        self.enter(Some(Duration::ZERO))?;
        let outcome = self.ring.completion().next().map(|completion| completion.result());
        Ok(*KNOWN.get_or_init(|| outcome == Some(-libc::EBADF)))
    }
}

/// A multishot receive that ends with the buffer that makes it so many bytes.
fn limited(mut entry: squeue::Entry, most: Option<NonZeroU32>) -> squeue::Entry {
    /// Where `optlen` is in `struct io_uring_sqe` (`linux/io_uring.h`); the crate that builds entries does not set it
    /// for receives.
    const OPTLEN: usize = 44;
    const { assert!(size_of::<squeue::Entry>() == 64, "an entry is a `struct io_uring_sqe`") };
    if let Some(most) = most {
        let field = (&raw mut entry).cast::<u8>().wrapping_add(OPTLEN).cast::<u32>();
        // SAFETY: an entry is that structure (`repr(C)`), 64 bytes of plain numbers aligned to 8, so the field lies
        // within it and is aligned; `entry` is borrowed by nobody else.
        unsafe { field.write(most.get()) };
    }
    entry
}
