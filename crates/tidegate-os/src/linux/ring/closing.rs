//! Ending what a ring does with a socket, and the socket: shutdown, cancel, close.

use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::Arc;

use io_uring::{squeue, types};

use super::restrictions::opcode;
use super::{Handle, KEY, OWNED, Owns, Ring, Slot, Slots, Tells, accept_data};

impl Ring {
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

    /// Closes a slot. If the ring allocates the slots, the close always completes.
    pub(super) fn close_entry(&mut self, slot: &Slot, key: u64, tells: Tells) -> squeue::Entry {
        let entry = opcode::Close::new(self.fixed(slot)).build();
        if self.slots == Slots::Accepted {
            return entry.flags(tells.flags()).user_data(key & KEY);
        }
        entry.user_data(self.own(key, None, Owns::Frees(slot.index, tells)))
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
}
