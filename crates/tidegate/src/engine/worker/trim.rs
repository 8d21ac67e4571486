//! Gives the memory of a crowd back to the system when the crowd has left.
//!
//! Allocators keep what is freed, and give back only what lies at the end of a heap. The buffers of a crowd grow side
//! by side, so one small thing that stays keeps all that was freed before it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tidegate_os::{process, thread};

/// Fewer connections are no crowd.
const CROWD: usize = 16;
/// One that shrinks to this part of it has left.
const LEFT: usize = 4;
/// From then on others of it may leave, before memory is given back; so it is given back once in this time at most.
const DELAY: Duration = Duration::from_secs(1);
const STACK_BYTES: usize = 64 * 1024;

/// The most connections that a server or client had open since its memory was last given back.
#[derive(Debug, Default)]
pub(crate) struct Peak(AtomicUsize);

impl Peak {
    /// A connection was closed, and so many are still open.
    #[inline]
    pub(crate) fn closed(&self, open: usize) {
        if self.is_over(open) {
            trim_soon();
        }
    }

    /// Whether a crowd has just left. Who raises or resets it at the same time is as right.
    #[inline]
    fn is_over(&self, open: usize) -> bool {
        let peak = self.0.load(Relaxed);
        if open >= peak {
            self.0.store(open + 1, Relaxed);
            return false;
        }
        let is_over = peak >= CROWD && open <= peak / LEFT;
        if is_over {
            self.0.store(open, Relaxed);
        }
        is_over
    }
}

/// Trims the heap after a while, on a separate thread: that takes milliseconds for each hundred megabytes.
fn trim_soon() {
    static IS_DUE: AtomicBool = AtomicBool::new(false);
    if IS_DUE.swap(true, Relaxed) {
        return;
    }
    let started = thread::start("tidegate-trim", STACK_BYTES, || {
        std::thread::sleep(DELAY);
        IS_DUE.store(false, Relaxed);
        process::trim_heap();
    });
    if started.is_err() {
        IS_DUE.store(false, Relaxed); // the next crowd will do
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_over_once_when_three_of_four_have_left() {
        let peak = Peak::default();
        let over: Vec<_> = (0..100).rev().filter(|&open| peak.is_over(open)).collect();
        assert_eq!(over, [25, 6]);
    }

    #[test]
    fn few_connections_that_come_and_go_are_no_crowd() {
        let peak = Peak::default();
        assert!((0..1000).all(|_| (0..CROWD - 1).rev().all(|open| !peak.is_over(open))));
    }
}
