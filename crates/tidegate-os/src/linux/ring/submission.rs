//! Handing over to the kernel what a ring is asked for.

use std::io;
use std::time::Duration;

use io_uring::{IoUring, squeue};

use super::Ring;
use super::enter::Enter;

impl Ring {
    #[inline]
    pub(super) fn push(&mut self, entry: squeue::Entry) {
        self.push_chain([entry]);
    }

    /// Pushes two entries that belong together: a chain may not be cut by handing over its first half alone.
    pub(super) fn push_pair(&mut self, first: squeue::Entry, second: squeue::Entry) {
        self.push_chain([first, second]);
    }

    #[inline]
    fn push_chain<const N: usize>(&mut self, chain: [squeue::Entry; N]) {
        if !self.overflow.is_empty() || !self.try_push(&chain) {
            self.push_to_full(chain.into());
        }
    }

    /// Hands over what is there and tries once more, unless others wait already: the order is kept. An error shows
    /// again in `enter`.
    #[cold]
    fn push_to_full(&mut self, chain: Box<[squeue::Entry]>) {
        let tries = self.overflow.is_empty() && self.ring.submit().is_ok();
        if !tries || !self.try_push(&chain) {
            self.overflow.push_back(chain);
        }
    }

    /// Pushes all of a chain, or nothing of it.
    #[inline]
    fn try_push(&mut self, chain: &[squeue::Entry]) -> bool {
        // SAFETY: every pointer in an entry leads into memory that `in_flight` owns until the completion, is static,
        // or is absent; the kernel keeps descriptors open once they are handed over, and `held` does until then.
        unsafe { self.ring.submission().push_multiple(chain) }.is_ok()
    }

    /// Whether something was asked for that was not handed over yet.
    #[inline]
    pub fn has_requests(&mut self) -> bool {
        !self.overflow.is_empty() || !self.late.is_empty() || !self.ring.submission().is_empty()
    }

    /// Submits all that was asked for and waits until something completed, or the timeout.
    pub fn enter(&mut self, wait: Option<Duration>) -> io::Result<()> {
        self.enter_by(|way, ring| way.enter(ring, wait))
    }

    /// The same, but what completes within `pause` does not end the wait, unless it is as much as the submission queue
    /// holds. The kernel does the waiting: if nothing has completed by then, the thread does not even wake up.
    /// Only with [`Features::min_wait`](super::Features::min_wait).
    pub fn enter_later(&mut self, pause: Duration, wait: Option<Duration>) -> io::Result<()> {
        self.enter_by(|way, ring| way.enter_later(ring, pause, wait))
    }

    /// Submits all that was asked for. What completes at once can be [taken](Self::next_completion); what comes from
    /// outside waits for [`enter`](Self::enter), if the ring has
    /// [`defer_taskrun`](super::Features::defer_taskrun).
    pub fn submit(&mut self) -> io::Result<()> {
        self.enter_by(|way, ring| way.submit(ring))
    }

    fn enter_by(&mut self, enter: impl FnOnce(&Enter, &mut IoUring) -> io::Result<usize>) -> io::Result<()> {
        if !self.late.is_empty() {
            self.hand_over()?;
            self.ring.submit().or_else(passed)?;
            self.let_go();
        }
        self.hand_over()?;
        match self.overflow.is_empty() {
            true => enter(&self.enter, &mut self.ring),
            // What completes may be what was not handed over.
            false => self.enter.enter(&mut self.ring, Some(Duration::ZERO)),
        }
        .or_else(passed)?;
        self.let_go();
        Ok(())
    }

    /// Moves what did not fit into the queue, as far as the kernel takes it now.
    fn hand_over(&mut self) -> io::Result<()> {
        while let Some(chain) = self.overflow.pop_front() {
            if !self.try_push(&chain) {
                self.overflow.push_front(chain);
                if self.ring.submit().or_else(passed)? == 0 {
                    break;
                }
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
}

/// Waits that end by timeout or signal, and a full completion queue, are answers and no errors.
fn passed(e: io::Error) -> io::Result<usize> {
    match e.raw_os_error() {
        Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(0),
        _ => Err(e),
    }
}

#[cfg(test)]
mod tests;
