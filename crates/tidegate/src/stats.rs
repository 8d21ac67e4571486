//! The counters every engine fills.

mod datagram;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::service::CloseReason;
pub use datagram::{DatagramCounters, DatagramStats};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one I/O thread, on cache lines of their own.
        #[derive(Debug)]
        #[repr(align(128))]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
            /// The most events or completions one wake-up brought.
            pub largest_batch: Counter,
            /// Connections that ended, by [`CloseReason`].
            pub closed: [Counter; CloseReason::ALL.len()],
        }

        /// The sum of the counters of all I/O threads at one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            /// The most events or completions one wake-up of any I/O thread brought.
            pub largest_batch: u64,
            /// Connections that ended, by [`CloseReason`].
            pub closed: [u64; CloseReason::ALL.len()],
        }

        impl Counters {
            /// All zero, for this many writers.
            #[must_use]
            pub fn new(writers: Writers) -> Self {
                Self {
                    $($name: Counter::new(writers),)*
                    largest_batch: Counter::new(writers),
                    closed: std::array::from_fn(|_| Counter::new(writers)),
                }
            }

            /// So many sets, all zero.
            pub(crate) fn sets(count: usize, writers: Writers) -> Vec<Arc<Self>> {
                (0..count).map(|_| Arc::new(Self::new(writers))).collect()
            }

            fn read(&self) -> Stats {
                Stats {
                    $($name: self.$name.get(),)*
                    largest_batch: self.largest_batch.get(),
                    closed: std::array::from_fn(|why| self.closed[why].get()),
                }
            }
        }

        impl Stats {
            /// Names and values of all counters but `closed`, in a stable order.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            fn include(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
                self.largest_batch = self.largest_batch.max(other.largest_batch);
                for (sum, one) in self.closed.iter_mut().zip(&other.closed) {
                    *sum += one;
                }
            }
        }
    };
}

counters! {
    /// Connections that were tried: accepted or dialled.
    attempted,
    /// Connections that stood and have or had a session.
    accepted,
    /// Connections that were closed before they had a session: by the service, or because the server was full.
    refused,
    /// Of the accepted, connections that go through shared memory ([`Policy::fast_path`](crate::Policy::fast_path)).
    fast_paths,
    /// Offers of shared memory that were turned down: by another user, for a connection that is not the offerer's, or
    /// too many.
    fast_paths_refused,
    /// Of the attempted, connections that came in on a socket that had one before
    /// ([`Accept::reuse`](crate::policy::Accept::reuse)).
    sockets_reused,
    /// Dialled connections that could not be made.
    dial_failed,
    /// Bytes received.
    bytes_in,
    /// Bytes the kernel took for sending.
    bytes_out,
    /// Receive operations that returned data.
    receives,
    /// Send operations that took data.
    sends,
    /// Operations handed to the kernel whose completion has not come back (completion models).
    outstanding,
    /// Times the system had no buffer: ENOBUFS, ENOMEM, or an empty pool of provided buffers.
    no_buffers,
    /// Times the process or the system had no descriptor: EMFILE, ENFILE.
    no_descriptors,
    /// Times a thread could not be started.
    no_threads,
    /// Times an I/O thread woke up from waiting.
    wake_ups,
    /// Events or completions that those wake-ups brought; divided by `wake_ups` it is the mean batch.
    events,
}

impl Stats {
    /// Connections that ended for this reason.
    #[must_use]
    pub fn closed_by(&self, why: CloseReason) -> u64 {
        self.closed[why as usize]
    }

    /// Connections that ended.
    #[must_use]
    pub fn closed_total(&self) -> u64 {
        self.closed.iter().sum()
    }

    /// Connections that are open.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.accepted.saturating_sub(self.closed_total())
    }
}

/// How many threads write a [`Counter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// One: a plain load and store does; an atomic addition costs more.
    One,
    /// Several.
    Many,
}

/// A number that the threads of an engine write and everybody may read.
#[derive(Debug)]
pub struct Counter {
    value: AtomicU64,
    writers: Writers,
}

impl Counter {
    fn new(writers: Writers) -> Self {
        Self { value: AtomicU64::new(0), writers }
    }

    /// Adds.
    #[inline]
    pub fn add(&self, n: u64) {
        match self.writers {
            Writers::One => self.value.store(self.get().wrapping_add(n), Relaxed),
            Writers::Many => _ = self.value.fetch_add(n, Relaxed),
        }
    }

    /// Subtracts.
    #[inline]
    pub fn sub(&self, n: u64) {
        self.add(n.wrapping_neg());
    }

    /// Raises it to at least `n`.
    #[inline]
    pub fn at_least(&self, n: u64) {
        if self.get() < n {
            self.value.fetch_max(n, Relaxed);
        }
    }

    /// Its value.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.value.load(Relaxed)
    }
}

/// The counters of several servers together, such as those of one service on several addresses.
impl std::iter::Sum for Stats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, one| {
            sum.include(&one);
            sum
        })
    }
}

/// The counters of each thread.
#[must_use]
pub fn each(all: &[Arc<Counters>]) -> Vec<Stats> {
    all.iter().map(|one| one.read()).collect()
}

/// Sums counters of all threads.
#[must_use]
pub fn sum(all: &[Arc<Counters>]) -> Stats {
    all.iter().map(|one| one.read()).sum()
}
