//! What a session lends to the handles of its connection while it polls their futures: the bytes that have just
//! arrived, and the outbox. On the connection's own thread nothing is then copied into the shared state and out of it
//! again.

use std::cell::{Cell, RefCell};
use std::io::{IoSlice, Write};

use scoped_tls_hkt::scoped_thread_local;
use tidegate::Outbox;

use crate::shared::Shared;

scoped_thread_local!(static LENT: for<'a> &'a (dyn Loan + 'a));

/// Input and outbox of one call, as the thread-local variable names them: without the lifetime of the outbox.
trait Loan {
    /// The connection they are of; compared, never followed.
    fn of(&self) -> *const Shared;
    /// The input that nobody has read.
    fn unread(&self) -> &[u8];
    /// So much of it was read.
    fn advance(&self, n: usize);
    /// The session's own task waits for input: notes that, if nothing else is to be had.
    fn wait(&self) -> bool;
    fn write(&self, pieces: &[IoSlice<'_>]);
}

/// Input and outbox of one call of a session.
pub(crate) struct Lent<'a, 'o> {
    of: *const Shared,
    unread: Cell<&'a [u8]>,
    /// What is not lent has neither input nor an end for a reader.
    is_all: bool,
    /// The session's own task has noted that it waits for input.
    waits: Cell<bool>,
    out: RefCell<&'a mut Outbox<'o>>,
}

impl<'a, 'o> Lent<'a, 'o> {
    /// `is_all`: the shared state has neither input nor an end for a reader.
    pub(crate) fn new(of: &Shared, input: &'a [u8], is_all: bool, out: &'a mut Outbox<'o>) -> Self {
        Self { of, unread: Cell::new(input), is_all, waits: Cell::new(false), out: RefCell::new(out) }
    }

    /// Lends them while `poll` runs.
    pub(crate) fn during(&self, poll: impl FnOnce()) {
        LENT.set(self, poll);
    }

    /// What nobody has read, and whether the session's own task has noted that it waits for more.
    pub(crate) fn into_parts(self) -> (&'a [u8], bool) {
        (self.unread.get(), self.waits.get())
    }
}

impl Loan for Lent<'_, '_> {
    fn of(&self) -> *const Shared {
        self.of
    }

    fn unread(&self) -> &[u8] {
        self.unread.get()
    }

    fn advance(&self, n: usize) {
        self.unread.set(&self.unread.get()[n..]);
    }

    fn wait(&self) -> bool {
        if self.is_all {
            self.waits.set(true);
        }
        self.is_all
    }

    fn write(&self, pieces: &[IoSlice<'_>]) {
        let _ = self.out.borrow_mut().write_vectored(pieces); // an outbox takes all
    }
}

/// Shows `take` at most `most` bytes of the input that is lent to this connection's handles; `Some(0)` if there is
/// none, and a note says that the session's own task waits for more, if it `may_note` that. `None`, and `take` is not
/// called, if the shared state has to be asked.
pub(crate) fn read(
    of: &Shared,
    most: usize,
    may_note: bool,
    take: &mut Option<impl FnOnce(&[u8])>,
) -> Option<usize> {
    with(of, |loan| {
        let n = most.min(loan.unread().len());
        if n == 0 {
            return (may_note && loan.wait()).then_some(0);
        }
        let take = take.take()?;
        take(&loan.unread()[..n]);
        loan.advance(n);
        Some(n)
    })
    .flatten()
}

/// Appends to the outbox, if that is lent to this connection's handles; says whether it is.
pub(crate) fn write(of: &Shared, pieces: &[IoSlice<'_>]) -> bool {
    with(of, |loan| loan.write(pieces)).is_some()
}

/// The loan to this connection's handles, if this thread polls its futures now. Inside of them another connection may
/// be polled, and a handle of another connection be used.
fn with<T>(of: &Shared, use_it: impl FnOnce(&dyn Loan) -> T) -> Option<T> {
    if !LENT.is_set() {
        return None;
    }
    LENT.with(|loan| std::ptr::eq(loan.of(), of).then(|| use_it(loan)))
}
