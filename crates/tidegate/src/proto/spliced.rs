//! Bytes between two connections that stay in the kernel, in pipes that the connections of an I/O thread share.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tidegate_os::splice::SplicePipe;

use crate::policy::sends::SPLICE_QUANTUM;

/// Empty pipes that one thread keeps for the next bytes.
const MOST_SPARE: usize = 8;

/// So many receives copy after the system had no pipe.
const SKIP_AFTER_FAILURE: usize = 256;

/// The pipes of one I/O thread: each has bytes of one connection, or is spare.
#[derive(Debug, Default)]
pub(crate) struct PipePool {
    /// Pipes it may have at once.
    most: AtomicUsize,
    /// Requests to leave unanswered before the next attempt to make one, because the last has failed.
    skip: AtomicUsize,
    /// Pipes it has.
    pipes: AtomicUsize,
    spare: Mutex<Vec<SplicePipe>>,
}

impl PipePool {
    /// Makes one that has at most so many pipes at once.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: AtomicUsize::new(most), ..Self::default() })
    }

    /// Changes how many it may have; what is above that is closed when it comes back.
    pub(crate) fn set_most(&self, most: usize) {
        self.most.store(most, Relaxed);
    }

    /// Takes an empty pipe; none if all have bytes, or the system has none.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Spliced> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let pipe = spare.or_else(|| self.make())?;
        Some(Spliced { pipe: Some(pipe), unsent: 0, pool: self.clone() })
    }

    /// Only the thread that receives makes pipes; others bring theirs back.
    #[cold]
    fn make(&self) -> Option<SplicePipe> {
        if self.pipes.load(Relaxed) >= self.most.load(Relaxed) {
            return None;
        }
        let skip = self.skip.load(Relaxed);
        if skip > 0 {
            self.skip.store(skip - 1, Relaxed);
            return None;
        }
        // EMFILE, or too many pages in pipes: copying needs neither.
        let Ok(pipe) = SplicePipe::new(SPLICE_QUANTUM) else {
            self.skip.store(SKIP_AFTER_FAILURE, Relaxed);
            return None;
        };
        self.pipes.fetch_add(1, Relaxed);
        Some(pipe)
    }

    /// Takes a pipe back, or closes it: with its bytes, if there are any.
    fn give_back(&self, pipe: SplicePipe) {
        if !self.keeps(pipe) {
            self.pipes.fetch_sub(1, Relaxed);
        }
    }

    /// Whether it is kept as a spare one; it is closed otherwise.
    fn keeps(&self, pipe: SplicePipe) -> bool {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let keeps = pipe.is_empty()
            && self.pipes.load(Relaxed) <= self.most.load(Relaxed)
            && spare.len() < MOST_SPARE;
        if keeps {
            spare.push(pipe);
        }
        keeps
    }
}

/// Received bytes that lie in a pipe of the kernel, on their way to another connection.
///
/// Dropping it drops the bytes. See [`Session::on_spliced`](crate::Session::on_spliced).
#[derive(Debug)]
pub struct Spliced {
    /// Always there, until it is dropped.
    pipe: Option<SplicePipe>,
    /// Of its bytes, those not yet counted as sent.
    unsent: usize,
    pool: Arc<PipePool>,
}

impl Spliced {
    /// Their number.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.unsent
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.unsent == 0
    }

    /// Lets `receive` fill the pipe; returns the number of bytes.
    pub(crate) fn fill(
        &mut self,
        receive: impl FnOnce(&mut SplicePipe) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let n = receive(self.pipe()?)?;
        self.unsent += n;
        Ok(n)
    }

    /// The pipe, to send from; [`advance`](Self::advance) follows.
    #[inline]
    pub(crate) fn pipe(&mut self) -> io::Result<&mut SplicePipe> {
        self.pipe.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Counts `n` bytes from the front as sent.
    #[inline]
    pub(crate) fn advance(&mut self, n: usize) {
        self.unsent = self.unsent.saturating_sub(n);
    }

    /// Reads the bytes into memory.
    ///
    /// # Errors
    /// What the system says of the pipe.
    pub(crate) fn read(mut self) -> io::Result<Bytes> {
        self.pipe()?.read_all().map(Bytes::from)
    }
}

impl Drop for Spliced {
    fn drop(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            self.pool.give_back(pipe);
        }
    }
}

#[cfg(all(test, target_os = "linux", not(tidegate_loom)))]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn filled(pool: &Arc<PipePool>, bytes: &[u8]) -> Option<Spliced> {
        let (mut from, socket) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        from.write_all(bytes).unwrap();
        let mut spliced = pool.take()?;
        assert_eq!(spliced.fill(|pipe| pipe.fill_from(&socket, 100)).unwrap(), bytes.len());
        Some(spliced)
    }

    #[test]
    fn there_are_no_more_pipes_than_allowed_and_each_is_used_again() {
        let pool = PipePool::new(2);
        let (one, two) = (filled(&pool, b"one").unwrap(), filled(&pool, b"two").unwrap());
        assert!(pool.take().is_none());
        assert_eq!(one.read().unwrap(), "one");
        let three = filled(&pool, b"three").unwrap();
        assert_eq!((two.len(), three.read().unwrap()), (3, Bytes::from("three")));
        assert_eq!(pool.pipes.load(Relaxed), 2);
    }

    #[test]
    fn a_pipe_that_is_dropped_with_bytes_is_closed_with_them() {
        let pool = PipePool::new(1);
        drop(filled(&pool, b"dropped"));
        assert_eq!(pool.pipes.load(Relaxed), 0);
        assert_eq!(filled(&pool, b"next").unwrap().read().unwrap(), "next");
    }

    #[test]
    fn pipes_above_a_lower_limit_are_closed_when_they_come_back() {
        let pool = PipePool::new(3);
        let all: Vec<_> = (0..3).map(|_| pool.take().unwrap()).collect();
        pool.set_most(1);
        assert!(pool.take().is_none());
        drop(all);
        assert_eq!(pool.pipes.load(Relaxed), 1);
    }

    #[test]
    fn after_a_failure_some_receives_do_without() {
        let pool = PipePool::new(1);
        pool.skip.store(2, Relaxed);
        assert_eq!([(); 3].map(|()| pool.take().is_some()), [false, false, true]);
    }

    #[test]
    fn few_empty_pipes_are_kept() {
        let pool = PipePool::new(3 * MOST_SPARE);
        let all: Vec<_> = (0..2 * MOST_SPARE).map(|_| pool.take().unwrap()).collect();
        drop(all);
        assert_eq!(pool.pipes.load(Relaxed), MOST_SPARE);
        assert!(PipePool::new(0).take().is_none());
    }
}
