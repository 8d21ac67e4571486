//! The only place that calls a datagram service, and counts the outcome.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tidegate_os::datagram::Arrival;
use tidegate_os::socket::is_out_of_memory;

use super::DatagramWorker;
use crate::policy::DatagramPolicy;
use crate::policy::datagram::receives_after_stop;
use crate::proto::datagram::{Replies, ReplyRun};
use crate::proto::panics::contain;
use crate::service::{DatagramService, Joined};
use crate::stats::DatagramCounters;

/// A service with its replies and counters.
pub(super) struct DatagramState {
    service: Box<dyn DatagramService>,
    pub(super) policy: Arc<DatagramPolicy>,
    pub(super) replies: Replies,
    pub(super) counters: Arc<DatagramCounters>,
}

impl DatagramState {
    pub(super) fn new(service: Box<dyn DatagramService>, worker: &DatagramWorker) -> Self {
        Self {
            service,
            policy: worker.policy.clone(),
            replies: Replies::new(worker.policy.reply_limits(worker.path)),
            counters: worker.counters.clone(),
        }
    }

    /// Shows the service what has arrived.
    pub(super) fn show(&mut self, from: SocketAddr, arrival: &Arrival<'_>) {
        let Arrival { bytes, segment, truncated, .. } = *arrival;
        let joined = segment > 0 && bytes.len() > segment;
        let datagrams = if joined { bytes.len().div_ceil(segment) as u64 } else { 1 };
        if truncated || !self.policy.takes(segment) {
            // The kernel joins those of one size and a shorter one behind them, which may not be too long.
            let last = if joined && !truncated { bytes.len() % segment } else { 0 };
            if last == 0 || !self.policy.takes(last) {
                return self.counters.truncated.add(datagrams);
            }
            self.counters.truncated.add(datagrams - 1);
            let bytes = &bytes[bytes.len() - last..];
            return self.show(from, &Arrival { bytes, segment: last, ..*arrival });
        }
        self.counters.datagrams_in.add(datagrams);
        self.counters.bytes_in.add(bytes.len() as u64);
        let (service, replies) = (&mut self.service, &mut self.replies);
        // What a panic leaves behind in the service is the service's business, as its documentation says.
        let outcome = contain(|| match joined {
            true => service.on_datagrams(&Joined { from, bytes, segment }, replies),
            false => service.on_datagram(from, bytes, replies),
        });
        if outcome.is_none() {
            self.counters.panics.add(1);
        }
        let lost = self.replies.take_lost();
        self.counters.replies_dropped.add(lost.full);
        self.counters.replies_too_long.add(lost.too_long);
    }

    /// The kernel took these replies.
    pub(super) fn sent(&self, run: &ReplyRun) {
        self.counters.datagrams_out.add(run.datagrams as u64);
        self.counters.bytes_out.add(run.length as u64);
    }

    /// The kernel refused these replies; they are lost, as datagrams may be.
    pub(super) fn refused(&self, run: &ReplyRun, error: &std::io::Error) {
        let counter = match is_out_of_memory(error) {
            true => &self.counters.no_buffers,
            false => &self.counters.send_errors,
        };
        counter.add(run.datagrams as u64);
        tracing::debug!(to = %run.to, datagrams = run.datagrams, "the kernel refused a reply: {error}");
    }

    /// What waits will not be sent any more.
    pub(super) fn abandon(&mut self) {
        let left = self.replies.len() as u64;
        self.replies.take();
        self.counters.abandoned.add(left);
    }
}

/// What is still done after the order to stop.
pub(super) struct Drain {
    pub(super) deadline: Instant,
    /// Arrivals that are still served.
    left: usize,
}

impl Drain {
    pub(super) fn begin(policy: &DatagramPolicy, queued: usize, now: Instant) -> Self {
        Self { deadline: now + policy.drain_timeout, left: receives_after_stop(queued) }
    }

    /// So much more has arrived.
    pub(super) fn count(&mut self, arrivals: usize) {
        self.left = self.left.saturating_sub(arrivals);
    }

    /// Whether what arrives now is too late.
    pub(super) fn is_over(&self) -> bool {
        self.left == 0
    }
}

#[cfg(all(test, target_os = "linux", not(tidegate_loom)))]
mod tests {
    use rustix::io::Errno;

    use super::super::kit::{Deaf, worker};
    use super::*;

    #[test]
    fn what_the_kernel_had_no_memory_for_is_counted_apart() {
        let to = SocketAddr::from(([127, 0, 0, 1], 0));
        let worker = worker(DatagramPolicy::default());
        let counters = worker.counters.clone();
        let mut state = DatagramState::new(Box::new(Deaf), &worker);
        for errno in [Errno::NOBUFS, Errno::NOMEM, Errno::HOSTUNREACH, Errno::MSGSIZE] {
            assert!(state.replies.send(to, b"x"));
            let run = state.replies.pop().unwrap();
            state.refused(&run, &errno.into());
        }
        assert_eq!((counters.no_buffers.get(), counters.send_errors.get()), (2, 2));
    }
}
