//! Sockets that are used again on Windows: disconnected (`DisconnectEx` with `TF_REUSE_SOCKET`), and then accepted with
//! once more.
//!
//! Such a socket is ready only when the connection is gone for good, which may take minutes where this end closed first
//! (TIME_WAIT). So those that are still leaving count for the bound as those that are ready do. The function is handed
//! in: the tests have one of their own.

use std::io;

use crate::transmit::RawOverlapped;

/// `DisconnectEx`: socket, operation, flags, nothing.
pub type Disconnect = unsafe extern "system" fn(usize, *mut RawOverlapped, u32, u32) -> i32;

/// The socket can be used again (`mswsock.h`).
const TF_REUSE_SOCKET: u32 = 2;

/// Asks for a connected socket to be made one that can be accepted with. As it is with overlapped operations, the error
/// may say that it is pending.
///
/// # Errors
/// What the function said, as `last_error` has it.
///
/// # Safety
/// The socket is open, and what `overlapped` points to stays until the operation has ended.
pub unsafe fn disconnect(
    function: Disconnect,
    last_error: fn() -> io::Error,
    socket: usize,
    overlapped: *mut RawOverlapped,
) -> io::Result<()> {
    // SAFETY: the caller's promise.
    match unsafe { function(socket, overlapped, TF_REUSE_SOCKET, 0) } {
        0 => Err(last_error()),
        _ => Ok(()),
    }
}

/// The sockets of a thread that are kept to be used again.
#[derive(Debug)]
pub struct Shelf<S> {
    ready: Vec<S>,
    /// Sockets that are being disconnected.
    leaving: usize,
    most: usize,
    /// Sockets that were accepted with once more, since this was asked last.
    used: u64,
    /// Why one could not be used again: none is kept from then on.
    refused: Option<io::Error>,
}

impl<S> Shelf<S> {
    /// Keeps at most so many.
    pub fn new(most: usize) -> Self {
        Self { ready: Vec::new(), leaving: 0, most, used: 0, refused: None }
    }

    /// Whether one more may be disconnected to be kept.
    pub fn has_room(&self) -> bool {
        self.ready.len() + self.leaving < self.most
    }

    /// One is being disconnected; [`arrive`](Self::arrive) follows.
    pub fn leave(&mut self) {
        self.leaving += 1;
    }

    /// One was disconnected, and is ready; or it was not, and is gone.
    pub fn arrive(&mut self, socket: Option<S>) {
        self.leaving -= 1;
        if self.most > 0 {
            self.ready.extend(socket);
        }
    }

    /// One that is ready; what was kept last comes first.
    pub fn take(&mut self) -> Option<S> {
        self.ready.pop()
    }

    /// One that was taken has a connection again.
    pub fn note_used(&mut self) {
        self.used += 1;
    }

    /// How many had one since this was asked last.
    pub fn take_used(&mut self) -> u64 {
        std::mem::take(&mut self.used)
    }

    /// One that was taken could not be used: this system cannot, and nothing is kept any more.
    pub fn give_up(&mut self, why: io::Error) {
        self.ready.clear();
        if std::mem::take(&mut self.most) > 0 {
            self.refused = Some(why);
        }
    }

    /// Why it has given up; reported once.
    pub fn take_refusal(&mut self) -> Option<io::Error> {
        self.refused.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    thread_local! {
        static ASKED: Cell<Option<(usize, u32, u32)>> = const { Cell::new(None) };
        static ANSWER: Cell<i32> = const { Cell::new(1) };
    }

    unsafe extern "system" fn fake(socket: usize, _: *mut RawOverlapped, flags: u32, reserved: u32) -> i32 {
        ASKED.set(Some((socket, flags, reserved)));
        ANSWER.get()
    }

    fn ask() -> io::Result<()> {
        let why = || io::Error::from_raw_os_error(10057); // WSAENOTCONN
        // SAFETY: a number to the function, which looks at no operation.
        unsafe { disconnect(fake, why, 5, std::ptr::null_mut()) }
    }

    #[test]
    fn a_socket_is_disconnected_to_be_used_again() {
        assert!(ask().is_ok());
        assert_eq!(ASKED.get(), Some((5, 0x02, 0)), "TF_REUSE_SOCKET, and nothing reserved");
        ANSWER.set(0);
        assert_eq!(ask().unwrap_err().raw_os_error(), Some(10057));
    }

    /// A socket that shows whether it is open.
    fn socket() -> (Rc<()>, Rc<()>) {
        let socket = Rc::new(());
        (socket.clone(), socket)
    }

    #[test]
    fn no_more_are_kept_than_allowed_those_that_leave_among_them() {
        let mut shelf = Shelf::new(2);
        shelf.leave();
        assert!(shelf.has_room());
        shelf.leave();
        assert!(!shelf.has_room());
        shelf.arrive(Some(1));
        assert!(!shelf.has_room(), "one is ready, one on its way");
        shelf.arrive(None);
        assert!(shelf.has_room(), "that one is gone");
        assert_eq!((shelf.take(), shelf.take()), (Some(1), None));
        assert!(!Shelf::<u8>::new(0).has_room());
    }

    #[test]
    fn what_is_used_again_is_counted_once() {
        let mut shelf = Shelf::new(1);
        shelf.leave();
        shelf.arrive(Some(1));
        assert!(shelf.take().is_some());
        shelf.note_used();
        assert_eq!((shelf.take_used(), shelf.take_used()), (1, 0));
    }

    #[test]
    fn a_system_that_cannot_is_asked_no_more_and_nothing_stays_open() {
        let mut shelf = Shelf::new(4);
        let (kept, seen) = socket();
        let (late, late_seen) = socket();
        (0..2).for_each(|_| shelf.leave());
        shelf.arrive(Some(kept));
        shelf.give_up(io::ErrorKind::InvalidInput.into());
        shelf.arrive(Some(late));
        assert_eq!((Rc::strong_count(&seen), Rc::strong_count(&late_seen)), (1, 1), "both are closed");
        assert!(!shelf.has_room() && shelf.take().is_none());
        assert_eq!(shelf.take_refusal().map(|e| e.kind()), Some(io::ErrorKind::InvalidInput));
        shelf.give_up(io::ErrorKind::InvalidInput.into());
        assert!(shelf.take_refusal().is_none(), "it is said once");
    }
}
