//! Clients that ask again and again while servers come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::kit::DEADLINE;

/// Threads that send requests until they are stopped. An ask that fails panics, and fails the test.
pub struct Clients {
    over: Arc<AtomicBool>,
    answers: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    /// So many, each with what `client` makes for it, which asks once each time it is called; at most `most` times.
    pub fn asking<C: FnMut() + Send + 'static>(threads: usize, most: usize, client: impl Fn() -> C) -> Self {
        let (over, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let thread = |_| {
            let (over, answers, mut ask) = (over.clone(), answers.clone(), client());
            std::thread::spawn(move || {
                for _ in 0..most {
                    ask();
                    answers.fetch_add(1, Relaxed);
                    if over.load(Relaxed) {
                        return;
                    }
                }
            })
        };
        let threads = (0..threads).map(thread).collect();
        Self { over, answers, threads }
    }

    /// Waits for so many more answers.
    pub fn hears(&self, more: usize) {
        let (start, goal) = (Instant::now(), self.answers.load(Relaxed) + more);
        while self.answers.load(Relaxed) < goal {
            assert!(start.elapsed() < DEADLINE && self.threads.iter().all(|thread| !thread.is_finished()));
            std::thread::yield_now();
        }
    }

    /// Ends them, and says how many answers there were.
    pub fn end(self) -> usize {
        self.over.store(true, Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("no ask failed"));
        self.answers.load(Relaxed)
    }
}
