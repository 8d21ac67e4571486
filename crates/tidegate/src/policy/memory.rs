//! Upper bound on the memory that a policy allows, whatever the peers do.

use super::Policy;

/// Stack of a thread of `blocking` and `pool`, unless the policy sets another or the service needs more.
const STACK_BYTES: usize = 128 * 1024;

impl Policy {
    /// Stack of a thread of `blocking` and `pool` for sessions that need so much.
    pub(crate) fn stack_bytes(&self, needed: usize) -> usize {
        self.thread_stack_bytes.unwrap_or(needed.max(STACK_BYTES))
    }
}

/// How a model uses memory; filled in by engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Footprint {
    /// I/O threads.
    pub threads: usize,
    /// Receive buffers of each.
    pub buffers: usize,
    /// Whether each has a stack of [`Policy::thread_stack_bytes`]; other models' stacks are part of the process.
    pub stack: bool,
    /// Receive buffers of each connection.
    pub own_buffers: usize,
    /// Threads of each connection.
    pub own_threads: usize,
    /// Receive buffers that may be filled for a connection before it can be paused.
    pub burst: usize,
    /// Operations that the kernel may hold for each connection.
    pub operations: usize,
    /// Accepts that each thread may have posted with a socket made beforehand.
    pub accepts: usize,
}

impl Footprint {
    /// Loops with one receive buffer each, and nothing per connection: the footprint of most models.
    #[must_use]
    pub const fn of_loops(threads: usize) -> Self {
        Self {
            threads,
            buffers: 1,
            stack: false,
            own_buffers: 0,
            own_threads: 0,
            burst: 1,
            operations: 0,
            accepts: 0,
        }
    }
}

/// Upper bound on the user memory of a policy, in bytes.
///
/// Counted for each connection: the outbox up to its high watermark and what one call of the session adds beyond it (at
/// most as much as the input it is shown), with a quarter for the room in its buffers and with one buffer of at most
/// 64 KiB of which the peer has taken a part; the input it may leave unconsumed, and what is received before it is
/// paused, twice, because a growing buffer doubles; the rings of the fast path; its threads and buffers; and 4 KiB.
/// Counted for the process: threads, buffer pools, posted accepts, and 32 MiB.
///
/// Kernel memory is counted separately ([`kernel`](Self::kernel)). Not counted is what the application keeps: its own
/// state (with tidegate-async: up to 64 KiB that each connection it has dialled receives ahead of its reader), shared
/// bytes, mail and jobs, and stacks that are larger because the
/// [service needs it](crate::ServiceOptions::stack_bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryBound {
    /// For each connection.
    pub each_connection: u64,
    /// Maximum number of connections.
    pub connections: u64,
    /// For the process without connections.
    pub process: u64,
    /// Kernel memory of each connection: socket, operations, and socket buffers of a fixed size.
    pub kernel_each_connection: u64,
    /// Kernel memory of the process without connections: sockets and operations of posted accepts.
    pub kernel_process: u64,
}

/// Kernel memory of a connected TCP socket, with its descriptor and its entry in a poller: slabs of 3.2 to 4.1 KB for
/// each end, measured on Linux 6.18 (2,368 TCP, 832 inode, 192 each for file and name, 128 in epoll). The book assumes
/// 1.5 to 2 KB.
pub const SOCKET_BYTES: u64 = 4096;

/// Kernel memory of one pending operation (a request of io_uring is 256 bytes; the book assumes 500).
pub const OPERATION_BYTES: u64 = 512;

/// User memory of a posted accept: the operation, and room for the addresses it brings.
pub const ACCEPT_BYTES: u64 = 512;

/// Memory of a connection with nothing to send and nothing received: its state and its session's, entries in tables and
/// timers, a task or a mailbox. Idle connections measure at a fraction of this on every model
/// (benchmarks/connections.md).
pub const CONNECTION_BYTES: u64 = 4096;

/// Memory of a process without the policy's threads and buffers: runtime, stacks of a few threads, rings, logging, and
/// what the allocator retains.
pub const PROCESS_BYTES: u64 = 32 << 20;

/// The largest buffer that an I/O thread keeps when it has sent it, for its next answer; so many small copies are also
/// joined into one piece.
pub const SENT_BUFFER_BYTES: usize = 16 * 1024;

/// The largest buffer that copies of output are in. A longer one is in several, and each is freed when the peer has
/// taken it.
pub const COPY_BYTES: usize = 64 * 1024;

impl MemoryBound {
    /// The total.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.each_connection.saturating_mul(self.connections).saturating_add(self.process)
    }

    /// Total kernel memory of idle connections, of socket buffers of a fixed size, and of posted accepts.
    #[must_use]
    pub fn kernel(&self) -> u64 {
        self.kernel_each_connection.saturating_mul(self.connections).saturating_add(self.kernel_process)
    }

    /// Connections that fit into `bytes` of kernel memory.
    #[must_use]
    pub fn connections_within_kernel(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.kernel_process) / self.kernel_each_connection.max(1)
    }

    /// Connections that fit into `bytes` of memory in the worst case.
    #[must_use]
    pub fn connections_within(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.process) / self.each_connection.max(1)
    }
}

/// The bound of a policy on a model with this footprint.
#[must_use]
pub fn bound(policy: &Policy, footprint: Footprint) -> MemoryBound {
    let bytes = |n: usize, each: usize| (n as u64).saturating_mul(each as u64);
    let stack = policy.stack_bytes(0);
    let input = policy.input_bytes as u64 + bytes(footprint.burst, policy.buffer_bytes);
    let outbox = policy.outbox.high as u64 + input;
    let outbox = outbox + outbox / 4 + outbox.min(COPY_BYTES as u64);
    let own = bytes(footprint.own_buffers, policy.buffer_bytes) + bytes(footprint.own_threads, stack);
    let rings = policy.fast_path.map_or(0, |fast| 2 * fast.ring_bytes as u64 + 4096);
    let fixed = |bytes: Option<usize>| 2 * bytes.unwrap_or(0) as u64; // Linux doubles the requested size (socket(7))
    let buffers = fixed(policy.socket_send_buffer) + fixed(policy.socket_receive_buffer);
    let accepts = footprint.accepts as u64;
    let each_thread = bytes(footprint.buffers, policy.buffer_bytes)
        + SENT_BUFFER_BYTES as u64
        + if footprint.stack { stack as u64 } else { 0 }
        + accepts * ACCEPT_BYTES;
    MemoryBound {
        each_connection: outbox + 2 * input + own + rings + CONNECTION_BYTES,
        connections: policy.max_connections as u64,
        process: PROCESS_BYTES + each_thread.saturating_mul(footprint.threads as u64),
        kernel_each_connection: SOCKET_BYTES + footprint.operations as u64 * OPERATION_BYTES + buffers,
        kernel_process: (SOCKET_BYTES + OPERATION_BYTES) * accepts * footprint.threads as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::OutboxMarks;

    const LOOP: Footprint = Footprint::of_loops(2);

    fn policy() -> Policy {
        Policy {
            max_connections: 10,
            buffer_bytes: 4096,
            input_bytes: 1000,
            outbox: OutboxMarks { low: 1, high: 10_000 },
            thread_stack_bytes: Some(100_000),
            ..Policy::default()
        }
    }

    #[test]
    fn every_part_is_counted_once_for_whom_it_belongs_to() {
        let input = 1000 + 4096;
        let outbox = 10_000 + input;
        let each = outbox + outbox / 4 + outbox + 2 * input + CONNECTION_BYTES;
        let process = PROCESS_BYTES + 2 * (4096 + SENT_BUFFER_BYTES as u64);
        let kernel_each_connection = SOCKET_BYTES;
        let expected = MemoryBound {
            each_connection: each,
            connections: 10,
            process,
            kernel_each_connection,
            kernel_process: 0,
        };
        assert_eq!(bound(&policy(), LOOP), expected);
        assert_eq!(bound(&policy(), LOOP).total(), 10 * each + process);
        let threads = Footprint { own_buffers: 1, own_threads: 2, ..LOOP };
        assert_eq!(bound(&policy(), threads).each_connection, each + 4096 + 200_000);
        let stacks = Footprint { stack: true, ..LOOP };
        assert_eq!(bound(&policy(), stacks).process, process + 200_000);
    }

    #[test]
    fn of_a_long_outbox_one_buffer_may_be_partly_sent() {
        let of =
            |high| bound(&Policy { outbox: OutboxMarks { low: 1, high }, ..policy() }, LOOP).each_connection;
        assert_eq!(of(2_000_000) - of(1_000_000), 1_250_000);
    }

    #[test]
    fn as_many_fit_as_are_counted() {
        let bound = bound(&policy(), LOOP);
        assert_eq!(bound.connections_within(bound.total()), 10);
        assert_eq!(bound.connections_within(bound.total() - 1), 9);
        assert_eq!(bound.connections_within(0), 0);
    }

    #[test]
    fn the_kernel_has_a_socket_its_operations_and_buffers_of_a_fixed_size() {
        let fixed =
            Policy { socket_send_buffer: Some(10_000), socket_receive_buffer: Some(1_000), ..policy() };
        let bound = bound(&fixed, Footprint { operations: 3, ..LOOP });
        assert_eq!(bound.kernel_each_connection, 4096 + 3 * 512 + 22_000);
        assert_eq!(bound.connections_within_kernel(bound.kernel()), 10);
        assert_eq!(bound.connections_within_kernel(bound.kernel() - 1), 9);
    }

    #[test]
    fn posted_accepts_have_memory_beside_that_of_connections() {
        let (without, with) = (bound(&policy(), LOOP), bound(&policy(), Footprint { accepts: 100, ..LOOP }));
        let each = with.process - without.process;
        assert_eq!((each, with.kernel_process), (2 * 100 * 512, 2 * 100 * (4096 + 512)));
        assert_eq!(with.kernel(), without.kernel() + with.kernel_process);
        assert_eq!(with.connections_within_kernel(with.kernel()), 10);
        assert_eq!(with.connections_within_kernel(with.kernel_process), 0);
    }

    #[test]
    fn a_bound_too_large_for_a_number_is_the_largest_number() {
        let huge = Policy { input_bytes: 1 << 30, max_connections: usize::MAX, ..policy() };
        assert_eq!(bound(&huge, LOOP).total(), u64::MAX);
    }
}
