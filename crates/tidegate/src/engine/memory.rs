//! How each model uses memory, for the bound that a policy sets on it.

use super::Model;
use super::worker::capacity::EVENT_CONNECTIONS;
use crate::policy::Policy;
use crate::policy::accept::ACCEPTS_POSTED;
use crate::policy::memory::{Footprint, MemoryBound, bound};

/// Buffers the kernel fills for one connection in one go before its thread can pause it (`MULTISHOT_MAX_RETRY` in
/// Linux' `io_uring/net.c`).
const RING_BURST: usize = 32;

impl Model {
    /// The most user memory that `policy` allows on this model, whatever the peers do.
    #[must_use]
    pub fn memory_bound(self, policy: &Policy) -> MemoryBound {
        bound(policy, self.footprint(policy))
    }

    fn footprint(self, policy: &Policy) -> Footprint {
        let threads = self.threads(policy);
        let of_loop = Footprint::of_loops(threads);
        // As many as at first, and up to the backlog while the server is behind. On `overlapped` they take the places
        // of connections, and those are counted.
        let accepts = ACCEPTS_POSTED.max(policy.accept.backlog as usize);
        match self {
            // A receive and a send thread, and the buffer of the former.
            Self::Blocking => Footprint { threads: 0, own_buffers: 1, own_threads: 2, ..of_loop },
            Self::Pool => Footprint { stack: true, ..of_loop },
            Self::Uring => {
                let buffers = policy.buffers.next_power_of_two();
                let burst = RING_BURST.min(buffers);
                // One more for what comes through shared memory.
                let buffers = buffers + usize::from(policy.fast_path.is_some());
                // A receive, a send, and the end of sending.
                Footprint { buffers, burst, operations: 3, ..of_loop }
            }
            Self::Iocp => {
                let operations = policy.posted_receives + policy.posted_sends;
                let burst = policy.posted_receives.min(policy.buffers);
                Footprint { buffers: policy.buffers, burst, operations, accepts, ..of_loop }
            }
            Self::Overlapped => {
                let buffers = policy.buffers.min(EVENT_CONNECTIONS + 1);
                Footprint { buffers, operations: 1 + policy.posted_sends, ..of_loop }
            }
            // Registered ones, and those of first data, which cannot go into registered ones: as many as there are
            // accepts at first. Those that are posted later have none when these are used up.
            Self::Rio => {
                Footprint { buffers: policy.buffers + ACCEPTS_POSTED, operations: 2, accepts, ..of_loop }
            }
            _ => of_loop,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::memory::{ACCEPT_BYTES, OPERATION_BYTES, SOCKET_BYTES};

    #[test]
    fn every_model_with_a_pool_is_counted_with_it() {
        let process = |model: Model, buffers| {
            model
                .memory_bound(&Policy {
                    buffers,
                    threads: std::num::NonZeroUsize::new(1),
                    ..Policy::default()
                })
                .process
        };
        for model in [Model::Uring, Model::Iocp, Model::Overlapped, Model::Rio] {
            let more = process(model, 32) - process(model, 16);
            assert_eq!(more, 16 * Policy::default().buffer_bytes as u64, "{model}");
        }
        let of_64_events = Model::Overlapped;
        assert_eq!(process(of_64_events, 512), process(of_64_events, 63), "a thread has no more");
    }

    #[test]
    fn accepts_that_are_posted_up_to_the_backlog_are_counted() {
        let with = |model: Model, backlog| {
            let mut policy = Policy { threads: std::num::NonZeroUsize::new(2), ..Policy::default() };
            policy.accept.backlog = backlog;
            model.memory_bound(&policy)
        };
        for model in [Model::Iocp, Model::Rio] {
            let (few, many) = (with(model, 1), with(model, 1_000));
            let more = 2 * (1_000 - ACCEPTS_POSTED as u64);
            assert_eq!(many.process - few.process, more * ACCEPT_BYTES, "{model}: and no buffers for them");
            assert_eq!(many.kernel() - few.kernel(), more * (SOCKET_BYTES + OPERATION_BYTES), "{model}");
        }
        assert_eq!(with(Model::Epoll, 1), with(Model::Epoll, 1_000), "it posts none");
    }

    #[test]
    fn what_a_model_has_for_each_connection_shows_in_the_bound() {
        let policy = Policy::default();
        let each = |model: Model| model.memory_bound(&policy).each_connection;
        assert_eq!(each(Model::Epoll), each(Model::Select));
        let stacks = 2 * policy.stack_bytes(0) as u64 + policy.buffer_bytes as u64;
        assert_eq!(each(Model::Blocking), each(Model::Epoll) + stacks);
        assert!(each(Model::Uring) > each(Model::Epoll));
        // Several receives may be complete before their connection is paused, as far as there are buffers.
        let on_iocp = |posted_receives, buffers| {
            let policy = Policy { posted_receives, buffers, ..policy.clone() };
            Model::Iocp.memory_bound(&policy).each_connection
        };
        let burst = on_iocp(2, 256) - on_iocp(1, 256);
        assert!(burst >= policy.buffer_bytes as u64, "{burst}");
        assert_eq!(on_iocp(8, 256) - on_iocp(1, 256), 7 * burst);
        assert_eq!(on_iocp(8, 2), on_iocp(2, 256));
        // With few buffers a burst cannot be long.
        let few = Policy { buffers: 1, ..policy.clone() };
        assert_eq!(Model::Uring.memory_bound(&few).each_connection, each(Model::Epoll));
    }
}
