//! Checks the limits against one another.

use std::fmt;
use std::time::Duration;

use super::{Limited, Policy, Unit};

/// An invalid policy, and how to correct it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// A limit outside of its range.
    Range {
        /// Name of the limit.
        name: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        must: String,
    },
    /// Two limits that contradict each other.
    Conflict {
        /// Name of the limit.
        name: &'static str,
        /// Its value.
        value: String,
        /// Name of the other limit.
        other: &'static str,
        /// Its value.
        other_value: String,
        /// How to correct it.
        remedy: &'static str,
    },
    /// A limit that the selected model cannot enforce.
    NotOnModel {
        /// Name of the limit.
        name: &'static str,
        /// Name of the model.
        model: &'static str,
        /// How to correct it.
        remedy: &'static str,
    },
    /// A limit that has no meaning for the kind of socket.
    NotOnSocket {
        /// Name of the limit.
        name: &'static str,
        /// The kind of socket.
        socket: &'static str,
        /// How to correct it.
        remedy: &'static str,
    },
    /// A limit that cannot be changed while a server runs.
    Fixed(&'static str),
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range { name, value, must } => write!(f, "`{name}` is {value}; it must be {must}"),
            Self::Conflict { name, value, other, other_value, remedy } => {
                write!(f, "`{name}` ({value}) contradicts `{other}` ({other_value}): {remedy}")
            }
            Self::NotOnModel { name, model, remedy } => {
                write!(f, "`{name}` cannot be enforced on the model {model}: {remedy}")
            }
            Self::NotOnSocket { name, socket, remedy } => {
                write!(f, "`{name}` cannot be enforced on {socket}: {remedy}")
            }
            Self::Fixed(name) => write!(
                f,
                "`{name}` is fixed while a server runs: keep its value, or restart the server to change it"
            ),
        }
    }
}

impl std::error::Error for PolicyError {}

/// The longest time limit: a century.
pub(crate) const LONGEST: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

impl Policy {
    /// Checks every limit against its range and the limits it relates to.
    ///
    /// # Errors
    /// The first contradiction found, with its remedy.
    pub fn check(&self) -> Result<(), PolicyError> {
        self.check_under(self)
    }

    /// Checks that there is room for at least one connection and the `dials` that its session may make.
    pub(crate) fn check_dials(&self, dials: usize) -> Result<(), PolicyError> {
        if super::accept::admitted(self.max_connections, dials) > 0 {
            return Ok(());
        }
        let must =
            format!("at least {}: each connection of this service may dial {dials}", dials.saturating_add(1));
        Err(PolicyError::Range { name: "max_connections", value: self.max_connections.to_string(), must })
    }

    /// Checks that threads with the stack of this policy can run sessions that need so much.
    pub(crate) fn check_stack(&self, needed: usize) -> Result<(), PolicyError> {
        match self.thread_stack_bytes {
            Some(bytes) if bytes < needed => {
                let must = format!(
                    "at least {}, which this service needs, or left out",
                    Unit::Bytes.show(needed as u128)
                );
                let value = Unit::Bytes.show(bytes as u128);
                Err(PolicyError::Range { name: "thread_stack_bytes", value, must })
            }
            _ => Ok(()),
        }
    }

    /// Checks that each of so many running I/O threads has a permit of every kind that is bounded.
    pub(crate) fn check_permits(&self, threads: usize) -> Result<(), PolicyError> {
        match self.fewest_permits() {
            Some((name, permits)) if permits < threads => {
                let must = format!("at least {threads}, the number of I/O threads: each needs one");
                Err(PolicyError::Range { name, value: permits.to_string(), must })
            }
            _ => Ok(()),
        }
    }

    /// The lowest bound on permits that I/O threads share.
    pub(super) fn fewest_permits(&self) -> Option<(&'static str, usize)> {
        let sends = self.outstanding_sends.map(|n| ("outstanding_sends", n.get() as usize));
        let receives = self.max_receiving.map(|n| ("max_receiving", n.get()));
        [sends, receives].into_iter().flatten().min_by_key(|&(_, permits)| permits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{OutboxMarks, PostedAccepts, Wait};
    use std::num::NonZeroUsize;
    use std::time::Duration;

    #[test]
    fn the_default_and_the_presets_hold() {
        for policy in [Policy::default(), Policy::throughput(), Policy::connections()] {
            assert_eq!(policy.check(), Ok(()));
        }
    }

    #[test]
    fn a_time_that_cannot_be_reckoned_with_is_refused() {
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
        let coalesce = Duration::from_micros(200);
        for wait in [Wait::Spin, Wait::SpinThenBlock(Duration::from_millis(1))] {
            let text = Policy { wait, coalesce, ..Policy::default() }.check().unwrap_err().to_string();
            assert!(text.contains("`coalesce` (200us)") && text.contains("`wait` (spin"), "{text}");
            assert_eq!(Policy { wait, ..Policy::default() }.check(), Ok(()));
        }
        assert_eq!(Policy { coalesce, ..Policy::default() }.check(), Ok(()));
        let number = |n| std::num::NonZeroU32::new(n).unwrap();
        let mut posted = Policy::default();
        posted.accept.posted = Some(PostedAccepts { low: number(3), high: number(2) });
        let text = posted.check().unwrap_err().to_string();
        assert!(
            text.contains("accept.posted") && text.contains("3:2") && text.contains("low watermark"),
            "{text}"
        );
    }

    #[test]
    fn a_limit_out_of_range_says_the_range() {
        let policy = Policy { buffer_bytes: 5000, ..Policy::default() };
        assert!(policy.check().unwrap_err().to_string().contains("a multiple of 4096"));
        let policy = Policy { drain_budget: 0, ..Policy::default() };
        assert!(policy.check().unwrap_err().to_string().contains("between 1 and"));
    }
}
