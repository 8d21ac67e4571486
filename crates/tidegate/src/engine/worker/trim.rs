//! What is kept of freed memory: that of a batch, for the next one. That of a crowd is given back to the system when
//! the crowd has left.
//!
//! Allocators keep what is freed, and give back only what lies at the end of a heap. The buffers of a crowd grow side
//! by side, so one small thing that stays keeps all that was freed before it.

use std::sync::Once;
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

/// Half of what is kept at the end of a heap. A batch of 100 answers of 16 KiB takes 1.6 MiB.
const HALF_A_BATCH: usize = 2 << 20;

/// Has glibc keep what is free at the end of a heap, up to twice [`HALF_A_BATCH`]. Of more than 128 KiB it would give
/// all back, and a loop that frees at the end of each batch would have to fault the same pages in for the next.
///
/// glibc raises that threshold to twice the size of a block that it had mapped by itself, when that is freed
/// (`mallopt(3)`, `M_MMAP_THRESHOLD`); unless somebody has set a threshold, who is right then. Other allocators do not
/// mind.
pub(super) fn keep_a_batch() {
    static IS_DONE: Once = Once::new();
    IS_DONE.call_once(|| {
        let mut block = Vec::<u8>::new();
        if block.try_reserve_exact(HALF_A_BATCH).is_ok() {
            std::hint::black_box(&mut block); // else it is not allocated at all
        }
    });
}

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

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn what_a_batch_has_freed_is_there_for_the_next() {
        const PIECES: usize = 100;
        const PIECE_BYTES: usize = 16 << 10;
        let page_faults = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let after_name = stat.rsplit_once(')').unwrap().1;
            after_name.split_whitespace().nth(7).unwrap().parse::<usize>().unwrap()
        };
        let batch =
            || drop((0..PIECES).map(|_| std::hint::black_box(vec![7_u8; PIECE_BYTES])).collect::<Vec<_>>());
        keep_a_batch();
        let faults = std::thread::spawn(move || {
            batch();
            let before = page_faults();
            (0..10).for_each(|_| batch());
            page_faults() - before
        });
        let faults = faults.join().unwrap();
        assert!(
            faults < PIECES * PIECE_BYTES / 4096,
            "{faults} page faults, which is once for all ten batches"
        );
    }

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
