//! Reports a target that is silent, long before its timeout.

use std::time::{Duration, Instant};

use tidegate_load::{RunEvent, Silence};

/// For how long a target may be silent before it is reported.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The line about it.
pub fn note(target: &str, silence: Silence) -> String {
    format!("note: no answer yet from {target}: {silence}")
}

/// Watches a run until something has come from the target.
pub struct SilenceWatch {
    target: String,
    /// What it means that no connection is counted.
    none_connected: Silence,
    begun: Instant,
    is_over: bool,
}

impl SilenceWatch {
    /// Of a run that begins now.
    pub fn new(target: String) -> Self {
        Self { target, none_connected: Silence::NotConnected, begun: Instant::now(), is_over: false }
    }

    /// Of members of a messenger, which are counted when they have joined.
    pub fn of_members(target: String) -> Self {
        Self { none_connected: Silence::NotJoined, ..Self::new(target) }
    }

    /// A line, once, if the target took no connection for a second, or answered nothing in the first second of the
    /// window although requests were sent.
    pub fn hear(&mut self, phase: &RunEvent<'_>) -> Option<String> {
        if self.is_over {
            return None;
        }
        let silence = match phase {
            RunEvent::Opening { connected: 0 } if self.begun.elapsed() >= TIMEOUT => {
                Some(self.none_connected)
            }
            RunEvent::Second { second, .. }
                if second.requests + second.failed == 0 && second.in_flight > 0 =>
            {
                Some(Silence::NotAnswering)
            }
            _ => None,
        };
        self.is_over = silence.is_some() || matches!(phase, RunEvent::Second { .. });
        silence.map(|silence| note(&self.target, silence))
    }
}
