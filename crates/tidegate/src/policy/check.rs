//! Relating the limits to one another.

use std::time::Duration;

use super::{Policy, Wait};

/// A policy that cannot work, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A limit outside of what makes sense.
    #[error("{name} is {value}; it must be {must}")]
    Range {
        /// Name of the limit.
        name: &'static str,
        /// What it was set to.
        value: String,
        /// What it has to be.
        must: String,
    },
    /// Two limits that contradict each other.
    #[error("{name} ({value}) contradicts {other} ({other_value}): {remedy}")]
    Conflict {
        /// Name of the limit.
        name: &'static str,
        /// What it was set to.
        value: String,
        /// Name of the other limit.
        other: &'static str,
        /// What that is.
        other_value: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A limit that means nothing on the model that was asked for.
    #[error("{name} cannot be enforced on the model {model}: {remedy}")]
    NotOnModel {
        /// Name of the limit.
        name: &'static str,
        /// Name of the model.
        model: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A limit that means nothing on the kind of socket that was asked for.
    #[error("{name} cannot be enforced on {socket}: {remedy}")]
    NotOnSocket {
        /// Name of the limit.
        name: &'static str,
        /// The kind of socket.
        socket: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A limit that cannot be changed while a server runs.
    #[error("{0} is fixed while a server runs: keep it as it is, or restart with the other one")]
    Fixed(&'static str),
}

/// No time limit is longer: a century.
pub(crate) const LONGEST: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

impl Policy {
    /// Checks every limit against its range and its neighbours.
    ///
    /// # Errors
    /// The first contradiction found, with what to do about it.
    pub fn check(&self) -> Result<(), PolicyError> {
        self.check_ranges()?;
        self.check_neighbours()
    }

    /// Whether there is a place for at least one connection and the `dials` that its session may make.
    pub(crate) fn check_dials(&self, dials: usize) -> Result<(), PolicyError> {
        if super::accept::admitted(self.max_connections, dials) > 0 {
            return Ok(());
        }
        let must =
            format!("at least {}: each connection of this service may dial {dials}", dials.saturating_add(1));
        Err(PolicyError::Range { name: "max_connections", value: self.max_connections.to_string(), must })
    }

    fn check_ranges(&self) -> Result<(), PolicyError> {
        within("max_connections", self.max_connections, 1, 16_000_000)?;
        within("accept.backlog", self.accept.backlog as usize, 1, i32::MAX as usize)?;
        if let Some(reuse) = self.accept.reuse {
            within("accept.reuse", reuse.get() as usize, 1, 65_536)?;
        }
        within("accept.batch", self.accept.batch, 1, 65_536)?;
        within("buffers", self.buffers, 1, 32_768)?;
        within("buffer_bytes", self.buffer_bytes, 4096, 16 << 20)?;
        within("input_bytes", self.input_bytes, 1, 1 << 30)?;
        within("drain_budget", self.drain_budget, 1, 65_536)?;
        within("events_per_wait", self.events_per_wait, 1, 65_536)?;
        within("mail_queue", self.mail_queue, 1, 1 << 30)?;
        within("thread_stack_bytes", self.thread_stack_bytes, 64 * 1024, 64 << 20)?;
        if let Some(threads) = self.threads {
            within("threads", threads.get(), 1, 65_536)?;
        }
        if let Some(time) = self.busy_poll {
            let micros = usize::try_from(time.as_micros()).unwrap_or(usize::MAX);
            within("busy_poll in microseconds", micros, 1, 1_000_000)?;
        }
        self.check_fast_path()?;
        within("offload.threads", self.offload.threads, 1, 65_536)?;
        within("offload.queue", self.offload.queue, 1, 1 << 30)?;
        self.check_times()?;
        if !self.buffer_bytes.is_multiple_of(4096) {
            let must = "a multiple of the page size (4096): a page is the least the system pins".into();
            return Err(PolicyError::Range {
                name: "buffer_bytes",
                value: self.buffer_bytes.to_string(),
                must,
            });
        }
        Ok(())
    }

    fn check_fast_path(&self) -> Result<(), PolicyError> {
        let Some(bytes) = self.fast_path.map(|fast| fast.ring_bytes) else { return Ok(()) };
        within("fast_path.ring_bytes", bytes, 4096, 1 << 30)?;
        if bytes.is_power_of_two() {
            return Ok(());
        }
        let must = "a power of two: positions in the ring wrap around".into();
        Err(PolicyError::Range { name: "fast_path.ring_bytes", value: bytes.to_string(), must })
    }

    fn check_times(&self) -> Result<(), PolicyError> {
        let spin = match self.wait {
            Wait::SpinThenBlock(time) => Some(time),
            Wait::Block | Wait::Spin => None,
        };
        for (name, timeout) in [
            ("first_byte_timeout", self.first_byte_timeout),
            ("idle_timeout", self.idle_timeout),
            ("send_timeout", self.send_timeout),
            ("min_rate.grace", self.min_rate.map(|rate| rate.grace)),
            ("linger_timeout", Some(self.linger_timeout)),
            ("drain_timeout", Some(self.drain_timeout)),
            ("fast_path.patience", self.fast_path.map(|fast| fast.patience)),
            ("wait = SpinThenBlock", spin),
        ] {
            let may_be_zero = matches!(name, "linger_timeout" | "drain_timeout");
            if timeout.is_some_and(|t| (t.is_zero() && !may_be_zero) || t > LONGEST) {
                let must = "longer than zero and at most a century, or none at all".into();
                return Err(PolicyError::Range {
                    name,
                    value: format!("{:?}", timeout.unwrap_or_default()),
                    must,
                });
            }
        }
        Ok(())
    }

    fn check_neighbours(&self) -> Result<(), PolicyError> {
        let conflict = |name, value: String, other, other_value: String, remedy| {
            Err(PolicyError::Conflict { name, value, other, other_value, remedy })
        };
        if self.outbox.low >= self.outbox.high {
            return conflict(
                "outbox.low",
                self.outbox.low.to_string(),
                "outbox.high",
                self.outbox.high.to_string(),
                "the low watermark must lie below the high one",
            );
        }
        if let (Some(first), Some(idle)) = (self.first_byte_timeout, self.idle_timeout)
            && first > idle
        {
            return conflict(
                "first_byte_timeout",
                format!("{first:?}"),
                "idle_timeout",
                format!("{idle:?}"),
                "a silent connection would be closed as idle first; make first_byte_timeout the shorter one",
            );
        }
        if let Some(posted) = self.accept.posted
            && posted.low > posted.high
        {
            return conflict(
                "accept.posted.low",
                posted.low.to_string(),
                "accept.posted.high",
                posted.high.to_string(),
                "the low watermark must not lie above the high one",
            );
        }
        if let Some(threads) = self.threads
            && threads.get() > self.max_connections
        {
            return conflict(
                "threads",
                threads.to_string(),
                "max_connections",
                self.max_connections.to_string(),
                "a thread without a connection has nothing to do; use at most one thread per connection",
            );
        }
        Ok(())
    }
}

pub(super) fn within(name: &'static str, value: usize, low: usize, high: usize) -> Result<(), PolicyError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(PolicyError::Range { name, value: value.to_string(), must: format!("between {low} and {high}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::OutboxMarks;
    use std::num::NonZeroUsize;
    use std::time::Duration;

    #[test]
    fn the_default_and_the_presets_hold() {
        for policy in [Policy::default(), Policy::throughput(), Policy::connections()] {
            assert_eq!(policy.check(), Ok(()));
        }
    }

    #[test]
    fn a_time_that_can_not_be_reckoned_with_is_refused() {
        let policy = Policy { linger_timeout: Duration::MAX, ..Policy::default() };
        assert!(policy.check().unwrap_err().to_string().contains("linger_timeout"));
        let policy = Policy { idle_timeout: Some(Duration::ZERO), ..Policy::default() };
        assert!(policy.check().unwrap_err().to_string().contains("idle_timeout"));
    }

    #[test]
    fn limits_that_contradict_each_other_are_both_named() {
        let marks = Policy { outbox: OutboxMarks { low: 10, high: 10 }, ..Policy::default() };
        let text = marks.check().unwrap_err().to_string();
        assert!(text.contains("outbox.low") && text.contains("outbox.high"), "{text}");
        let threads = Policy { max_connections: 2, threads: NonZeroUsize::new(3), ..Policy::default() };
        assert!(threads.check().unwrap_err().to_string().contains("max_connections"));
        let stale = Policy { idle_timeout: Some(Duration::from_secs(1)), ..Policy::default() };
        assert!(stale.check().unwrap_err().to_string().contains("first_byte_timeout"));
    }

    #[test]
    fn a_limit_out_of_range_says_the_range() {
        let policy = Policy { buffer_bytes: 5000, ..Policy::default() };
        assert!(policy.check().unwrap_err().to_string().contains("multiple of the page size"));
        let policy = Policy { drain_budget: 0, ..Policy::default() };
        assert!(policy.check().unwrap_err().to_string().contains("between 1 and"));
    }
}
