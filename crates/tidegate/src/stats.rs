//! The counters of servers and clients: [`Stats`] and [`DatagramStats`].
//!
//! Engines fill the hidden ones, one set for each I/O thread; fuzz targets and tests of other crates drive connections
//! with such a set.

mod datagram;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::types::CloseReason;
pub(crate) use datagram::DatagramCounters;
pub use datagram::DatagramStats;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one I/O thread, on separate cache lines.
        #[doc(hidden)]
        #[derive(Debug)]
        #[repr(align(128))]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
            /// Largest number of events or completions of one wake-up.
            pub largest_batch: Counter,
            /// Connections that ended, by [`CloseReason`].
            pub closed: [Counter; CloseReason::ALL.len()],
        }

        /// The sum of the counters of all I/O threads, which are read one after the other and go on meanwhile.
        ///
        /// A test makes one of the default: `let mut stats = Stats::default(); stats.accepted = 3;`.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            /// Largest number of events or completions of one wake-up of any I/O thread.
            pub largest_batch: u64,
            /// Connections that ended, by [`CloseReason`]. Not public: its length is the number of reasons.
            pub(crate) closed: [u64; CloseReason::ALL.len()],
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

            /// This many sets, all zero.
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
    /// Connections attempted: accepted or dialled.
    attempted,
    /// Connections that were established and got a session.
    accepted,
    /// Connections closed before they had a session: by the service, or because the server was full.
    refused,
    /// Of the accepted, connections on the fast path ([`Policy::fast_path`](crate::Policy::fast_path)): over shared
    /// memory, or on Windows over the loopback interface with a socket that took the option. Whether the peer took it
    /// too is not reported there.
    fast_paths,
    /// Rejected offers of shared memory: from another user, for a connection that is not the sender's, or too many.
    fast_paths_refused,
    /// Of the attempted, connections accepted with a reused socket ([`Accept::reuse`](crate::policy::Accept::reuse)).
    sockets_reused,
    /// Failed dials; each attempt of a link that waits for a place ([`link::dialling`](crate::link::dialling)) is one.
    dial_failed,
    /// Bytes received.
    bytes_in,
    /// Of them, bytes received into pipes, not copied into user space ([linked](crate::link) connections on `epoll`,
    /// `poll` and `select` of Linux).
    bytes_spliced,
    /// Bytes the kernel took for sending.
    bytes_out,
    /// Receive operations that returned data.
    receives,
    /// Send operations that took data.
    sends,
    /// Operations submitted to the kernel and not completed (completion models).
    outstanding,
    /// Accepts posted and not completed (completion models). A multishot accept (`uring`) is one.
    accepts_posted,
    /// Times the system had no buffer: ENOBUFS, ENOMEM, or an empty pool of provided buffers.
    no_buffers,
    /// Sends and receives of established connections that failed for lack of kernel memory (ENOBUFS, ENOMEM), and are
    /// retried.
    no_memory,
    /// Of those connections, how often one recovered.
    recovered,
    /// Times the process or the system had no descriptor: EMFILE, ENFILE.
    no_descriptors,
    /// Times a thread could not be started.
    no_threads,
    /// Times an I/O thread woke up from waiting.
    wake_ups,
    /// Events or completions of those wake-ups; divided by `wake_ups` it is the mean batch size.
    events,
    /// Pauses in which an I/O thread collected events ([`Policy::coalesce`](crate::Policy::coalesce)).
    pauses,
    /// Total length of those pauses, as requested, in microseconds.
    paused_us,
}

impl Stats {
    /// Connections that ended for this reason.
    #[must_use]
    pub fn closed_by(&self, why: CloseReason) -> u64 {
        self.closed[why as usize]
    }

    /// Connections that ended, for each reason.
    pub fn closed(&self) -> impl Iterator<Item = (CloseReason, u64)> + '_ {
        CloseReason::ALL.iter().copied().zip(self.closed)
    }

    /// Sets how many connections ended for a reason: for tests of what reads counters.
    #[must_use]
    pub fn with_closed(mut self, why: CloseReason, connections: u64) -> Self {
        self.closed[why as usize] = connections;
        self
    }

    /// Connections that ended.
    #[must_use]
    pub fn closed_total(&self) -> u64 {
        self.closed.iter().sum()
    }

    /// Connections that are open. The counters of several threads, and of one that works meanwhile, are read one after
    /// the other: while connections come and go that is no snapshot, and may be a few more or less than ever were open.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.accepted.saturating_sub(self.closed_total())
    }
}

/// How many threads write a [`Counter`].
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// One: a plain load and store is enough and cheaper than an atomic addition.
    One,
    /// Several.
    Many,
}

/// A number written by the threads of an engine and readable from any thread.
#[doc(hidden)]
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

    /// Changes it to `n`, where there is one writer.
    #[inline]
    pub fn set(&self, n: u64) {
        debug_assert!(matches!(self.writers, Writers::One), "what others have added would be lost");
        self.value.store(n, Relaxed);
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

/// Combined counters of several servers, such as those of one service on several addresses.
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
pub(crate) fn each(all: &[Arc<Counters>]) -> Vec<Stats> {
    all.iter().map(|one| one.read()).collect()
}

/// Sums counters of all threads.
#[doc(hidden)]
#[must_use]
pub fn sum<'a>(all: impl IntoIterator<Item = &'a Arc<Counters>>) -> Stats {
    all.into_iter().map(|one| one.read()).sum()
}
