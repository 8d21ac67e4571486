//! When a connection counts as dead.

use std::time::{Duration, Instant};

use super::Policy;
use crate::service::CloseReason;

/// What is known of a connection's past, for the question when it has to end.
#[derive(Clone, Copy, Debug)]
pub struct Past {
    /// Accepted, and nothing was received yet.
    pub silent: bool,
    /// When something last moved in either direction, or the connection was made.
    pub moved: Instant,
    /// When the peer last took something; `None` while there is nothing to send.
    pub taken: Option<Instant>,
}

/// No time limit that begins to count now can be over earlier than this.
#[must_use]
pub fn soonest(policy: &Policy) -> Duration {
    let limits = [policy.send_timeout, policy.first_byte_timeout, policy.idle_timeout];
    limits.into_iter().flatten().chain([policy.linger_timeout]).min().unwrap_or_default()
}

/// The earliest time limit that applies, and why it closes the connection.
#[must_use]
pub fn limit(policy: &Policy, past: Past) -> Option<(Instant, CloseReason)> {
    let due = |since: Instant, after: Option<Duration>, why| {
        after.and_then(|a| since.checked_add(a)).map(|at| (at, why))
    };
    let send = past.taken.and_then(|taken| due(taken, policy.send_timeout, CloseReason::SendTimeout));
    let first = if past.silent {
        due(past.moved, policy.first_byte_timeout, CloseReason::FirstByteTimeout)
    } else {
        None
    };
    let idle = due(past.moved, policy.idle_timeout, CloseReason::IdleTimeout);
    [send, first, idle].into_iter().flatten().min_by_key(|&(at, _)| at)
}
