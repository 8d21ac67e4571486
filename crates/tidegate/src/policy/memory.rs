//! The most memory that the limits allow, whatever the peers do.

use super::Policy;

/// How a model uses memory; engines fill it in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// I/O threads.
    pub threads: usize,
    /// Receive buffers of each.
    pub buffers: usize,
    /// Whether each has a stack of [`Policy::thread_stack_bytes`]; those of the other models are counted with the
    /// process.
    pub stack: bool,
    /// Receive buffers that each connection has for itself.
    pub own_buffers: usize,
    /// Threads that each connection has for itself.
    pub own_threads: usize,
    /// Receive buffers that may be filled for a connection before it can be paused.
    pub burst: usize,
}

/// The most user memory that a policy allows, in bytes.
///
/// In it are, for each connection: the outbox up to its high watermark and what one call of the session adds beyond it
/// (at most as much as the input it is shown); the input it may leave unconsumed, and what is received before it is
/// paused, twice, because a buffer that grows doubles; the rings of the fast path; threads and buffers of its own; and
/// [`CONNECTION_BYTES`]. For the process: threads, buffer pools, and [`PROCESS_BYTES`].
///
/// Not in it are kernel memory (`net.ipv4.tcp_mem` bounds that of all sockets, the two `socket_*_buffer` limits that of
/// each), and what the application keeps: its own state, bytes it shares, mail and jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBound {
    /// For each connection.
    pub each_connection: u64,
    /// Connections at once.
    pub connections: u64,
    /// For the process, with no connection.
    pub process: u64,
}

/// What a connection takes with nothing to send and nothing received: its state and its session's, places in tables and
/// timers, a task or a mailbox. Idle connections measure at a fraction of this on every model (docs/measurements.md).
pub const CONNECTION_BYTES: u64 = 4096;

/// What a process takes without threads and buffers of the policy: runtime, stacks of a few threads, rings, logging,
/// and what the allocator keeps for itself.
pub const PROCESS_BYTES: u64 = 32 << 20;

impl MemoryBound {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.each_connection.saturating_mul(self.connections).saturating_add(self.process)
    }

    /// Connections for which `bytes` of memory are enough in any case.
    #[must_use]
    pub fn connections_within(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.process) / self.each_connection.max(1)
    }
}

/// The bound of a policy, on a model with this footprint.
#[must_use]
pub fn bound(policy: &Policy, footprint: Footprint) -> MemoryBound {
    let bytes = |n: usize, each: usize| (n as u64).saturating_mul(each as u64);
    let stack = policy.thread_stack_bytes;
    let input = policy.input_bytes as u64 + bytes(footprint.burst, policy.buffer_bytes);
    let outbox = policy.outbox.high as u64 + input;
    let own = bytes(footprint.own_buffers, policy.buffer_bytes) + bytes(footprint.own_threads, stack);
    let rings = policy.fast_path.map_or(0, |fast| 2 * fast.ring_bytes as u64 + 4096);
    let each_thread =
        bytes(footprint.buffers, policy.buffer_bytes) + if footprint.stack { stack as u64 } else { 0 };
    MemoryBound {
        each_connection: outbox + 2 * input + own + rings + CONNECTION_BYTES,
        connections: policy.max_connections as u64,
        process: PROCESS_BYTES + each_thread.saturating_mul(footprint.threads as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::OutboxMarks;

    const LOOP: Footprint =
        Footprint { threads: 2, buffers: 1, stack: false, own_buffers: 0, own_threads: 0, burst: 1 };

    fn policy() -> Policy {
        Policy {
            max_connections: 10,
            buffer_bytes: 4096,
            input_bytes: 1000,
            outbox: OutboxMarks { low: 1, high: 10_000 },
            thread_stack_bytes: 100_000,
            ..Policy::default()
        }
    }

    #[test]
    fn every_part_is_counted_once_for_whom_it_belongs_to() {
        let input = 1000 + 4096;
        let each = 10_000 + input + 2 * input + CONNECTION_BYTES;
        let process = PROCESS_BYTES + 2 * 4096;
        assert_eq!(bound(&policy(), LOOP), MemoryBound { each_connection: each, connections: 10, process });
        assert_eq!(bound(&policy(), LOOP).total(), 10 * each + process);
        let threads = Footprint { own_buffers: 1, own_threads: 2, ..LOOP };
        assert_eq!(bound(&policy(), threads).each_connection, each + 4096 + 200_000);
        let stacks = Footprint { stack: true, ..LOOP };
        assert_eq!(bound(&policy(), stacks).process, process + 200_000);
    }

    #[test]
    fn as_many_fit_as_are_counted() {
        let bound = bound(&policy(), LOOP);
        assert_eq!(bound.connections_within(bound.total()), 10);
        assert_eq!(bound.connections_within(bound.total() - 1), 9);
        assert_eq!(bound.connections_within(0), 0);
    }

    #[test]
    fn a_bound_too_large_for_a_number_is_the_largest_number() {
        let huge = Policy { input_bytes: 1 << 30, max_connections: usize::MAX, ..policy() };
        assert_eq!(bound(&huge, LOOP).total(), u64::MAX);
    }
}
