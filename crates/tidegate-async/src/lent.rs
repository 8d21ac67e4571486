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
    fn write(&self, pieces: &[IoSlice<'_>]);
}

/// Input and outbox of one call of a session.
pub(crate) struct Lent<'a, 'o> {
    of: *const Shared,
    unread: Cell<&'a [u8]>,
    out: RefCell<&'a mut Outbox<'o>>,
}

impl<'a, 'o> Lent<'a, 'o> {
    pub(crate) fn new(of: &Shared, input: &'a [u8], out: &'a mut Outbox<'o>) -> Self {
        Self { of, unread: Cell::new(input), out: RefCell::new(out) }
    }

    /// Lends them while `poll` runs.
    pub(crate) fn during(&self, poll: impl FnOnce()) {
        LENT.set(self, poll);
    }

    /// What nobody has read.
    pub(crate) fn into_unread(self) -> &'a [u8] {
        self.unread.get()
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

    fn write(&self, pieces: &[IoSlice<'_>]) {
        let _ = self.out.borrow_mut().write_vectored(pieces); // an outbox takes all
    }
}

/// Shows `take` at most `most` bytes of the input that is lent to this connection's handles; 0 if there is none.
pub(crate) fn read(of: &Shared, most: usize, take: impl FnOnce(&[u8])) -> usize {
    with(of, |loan| {
        let n = most.min(loan.unread().len());
        if n > 0 {
            take(&loan.unread()[..n]);
            loan.advance(n);
        }
        n
    })
    .unwrap_or(0)
}

/// Whether there is input that is lent to this connection's handles.
pub(crate) fn has_input(of: &Shared) -> bool {
    with(of, |loan| !loan.unread().is_empty()).unwrap_or(false)
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
