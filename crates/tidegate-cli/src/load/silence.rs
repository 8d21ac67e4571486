//! Reports a target that is silent, long before its timeout.

use std::time::{Duration, Instant};

use tidegate_load::RunEvent;

/// For how long a target may be silent before it is reported.
const PATIENCE: Duration = Duration::from_secs(1);

/// Watches a run until something has come from the target.
pub struct SilenceWatch {
    target: String,
    begun: Instant,
    is_over: bool,
}

impl SilenceWatch {
    /// Of a run that begins now.
    pub fn new(target: String) -> Self {
        Self { target, begun: Instant::now(), is_over: false }
    }

    /// A line, once, if the target took no connection for a second, or answered nothing in the first second of the
    /// window although requests were sent.
    pub fn hear(&mut self, phase: &RunEvent<'_>) -> Option<String> {
        if self.is_over {
            return None;
        }
        let is_silent = match phase {
            RunEvent::Opening { connected: 0 } => self.begun.elapsed() >= PATIENCE,
            RunEvent::Second { second, .. } => second.requests + second.failed == 0 && second.in_flight > 0,
            _ => false,
        };
        self.is_over = is_silent || matches!(phase, RunEvent::Second { .. });
        is_silent.then(|| format!("note: no answer yet from {}", self.target))
    }
}
