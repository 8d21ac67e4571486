//! Where a load waits for its start.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How soon a load that waits sees that it was ended.
const LOOK: Duration = Duration::from_millis(20);

/// A signal that fires at a moment set later.
#[derive(Default)]
pub(super) struct StartSignal {
    opens: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl StartSignal {
    /// It opens then. The first word counts.
    pub(super) fn open_at(&self, at: Instant) {
        let mut opens = self.opens.lock().unwrap_or_else(PoisonError::into_inner);
        opens.get_or_insert(at);
        self.changed.notify_all();
    }

    /// Waits until it opens, or `interrupted` is true.
    pub(super) fn wait(&self, interrupted: &AtomicBool) {
        let mut opens = self.opens.lock().unwrap_or_else(PoisonError::into_inner);
        let at = loop {
            if interrupted.load(Relaxed) {
                return;
            }
            if let Some(at) = *opens {
                break at;
            }
            opens = self.changed.wait_timeout(opens, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(opens);
        while !interrupted.load(Relaxed) {
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(LOOK));
        }
    }
}
