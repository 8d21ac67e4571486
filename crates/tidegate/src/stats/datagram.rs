//! The counters of datagram servers.

use std::sync::Arc;

use super::{Counter, Writers};

macro_rules! datagram_counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one I/O thread, on separate cache lines.
        #[derive(Debug)]
        #[repr(align(128))]
        pub(crate) struct DatagramCounters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        /// The sum of the counters of all I/O threads at one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct DatagramStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl DatagramCounters {
            /// All zero. Only the owning thread writes them.
            #[must_use]
            pub(crate) fn new() -> Self {
                Self { $($name: Counter::new(Writers::One),)* }
            }
        }

        impl DatagramStats {
            /// Names and values of all counters, in a stable order.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            /// The sum over all threads.
            #[must_use]
            pub(crate) fn sum(all: &[Arc<DatagramCounters>]) -> Self {
                let mut stats = Self::default();
                for counters in all {
                    $(stats.$name += counters.$name.get();)*
                }
                stats
            }
        }
    };
}

datagram_counters! {
    /// Datagrams shown to the service.
    datagrams_in,
    /// Datagrams the kernel took for sending.
    datagrams_out,
    /// Bytes of the datagrams shown to the service.
    bytes_in,
    /// Bytes of the datagrams the kernel took.
    bytes_out,
    /// Receive calls or completions that returned datagrams.
    receives,
    /// Send calls or operations that sent something.
    sends,
    /// Datagrams longer than the limit, dropped.
    truncated,
    /// Replies dropped because too many were queued.
    replies_dropped,
    /// Replies dropped because they exceed the largest datagram.
    replies_too_long,
    /// Replies dropped because the system had no buffer (`ENOBUFS`, `ENOMEM`).
    no_buffers,
    /// Replies that the kernel rejected for another reason, such as an address without a route.
    send_errors,
    /// Failed receives, such as reports of a closed port at a peer.
    receive_errors,
    /// Replies dropped because a stop ended before the kernel took them.
    abandoned,
    /// Times the service panicked.
    panics,
    /// Times an I/O thread woke up from waiting.
    wake_ups,
}

impl Default for DatagramCounters {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_threads_count_on_one_cache_line() {
        let line = std::mem::align_of::<crate::stats::Counters>();
        assert!(line >= 128 && std::mem::align_of::<DatagramCounters>() == line, "{line}");
    }
}
