//! The threads that run what sessions offload: started when they are needed, never more than the policy allows.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tidegate_os::thread;

use super::threads::STACK_BYTES;
use crate::policy::Offload;
use crate::proto::mail::{Job, OffloadError, Workers};

/// A bounded queue of jobs and its threads. They end, without being waited for, when the blocking_pool is dropped.
pub(crate) struct BlockingPool {
    limits: Offload,
    shared: Arc<JobQueue>,
}

struct JobQueue {
    state: Mutex<JobQueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct JobQueueState {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
    closed: bool,
}

impl BlockingPool {
    pub(crate) fn new(limits: Offload) -> Self {
        Self { limits, shared: Arc::new(JobQueue { state: Mutex::default(), changed: Condvar::new() }) }
    }
}

#[cfg(all(any(test, feature = "testing"), target_os = "linux", not(tidegate_loom)))]
impl BlockingPool {
    /// The next job that waits; for a simulation, whose pool has no threads.
    pub(in crate::engine) fn take(&self) -> Option<Job> {
        self.shared.lock().jobs.pop_front()
    }
}

impl Workers for BlockingPool {
    fn run(&self, job: Job) -> Result<(), OffloadError> {
        let mut state = self.shared.lock();
        if state.jobs.len() >= self.limits.queue {
            return Err(OffloadError::Full);
        }
        if state.idle <= state.jobs.len() && state.threads < self.limits.threads {
            let shared = self.shared.clone();
            let spawned = thread::start("tidegate-job", STACK_BYTES, move || shared.work());
            match spawned {
                Ok(()) => state.threads += 1,
                Err(_) if state.threads == 0 => return Err(OffloadError::NoThread),
                Err(e) => tracing::warn!(error = %e, threads = state.threads, "no further thread for jobs"),
            }
        }
        // Each waiting thread was woken for one of the jobs before, if there are as many: a wake-up is a system call.
        let is_one_more_waiting = state.jobs.len() < state.idle;
        state.jobs.push_back(job);
        drop(state);
        if is_one_more_waiting {
            self.shared.changed.notify_one();
        }
        Ok(())
    }
}

impl Drop for BlockingPool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

impl JobQueue {
    fn lock(&self) -> MutexGuard<'_, JobQueueState> {
        // No code that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            job(); // does not panic: it catches what the application's part does
        }
    }

    /// The next job; `None` once the blocking_pool is gone and the queue is empty.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        state.idle += 1;
        let waited = self.changed.wait_while(state, |state| state.jobs.is_empty() && !state.closed);
        state = waited.unwrap_or_else(PoisonError::into_inner);
        state.idle -= 1;
        state.jobs.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn the_queue_is_bounded_and_every_accepted_job_runs() {
        let blocking_pool = BlockingPool::new(Offload { threads: 1, queue: 2 });
        let (go, command_queue) = mpsc::channel::<()>();
        let (done, results) = mpsc::channel();
        let (started, running) = mpsc::channel();
        let first = done.clone();
        blocking_pool
            .run(Box::new(move || {
                started.send(()).unwrap();
                command_queue.recv().unwrap();
                first.send(0).unwrap();
            }))
            .unwrap();
        running.recv().unwrap(); // the one thread is busy from here on
        let job = |n| {
            let done = done.clone();
            Box::new(move || done.send(n).unwrap()) as Job
        };
        assert_eq!(blocking_pool.run(job(1)), Ok(()));
        assert_eq!(blocking_pool.run(job(2)), Ok(()));
        assert_eq!(blocking_pool.run(job(3)), Err(OffloadError::Full));
        go.send(()).unwrap();
        assert_eq!(results.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(blocking_pool.shared.lock().threads, 1);
    }

    #[test]
    fn a_thread_is_woken_for_each_job_that_comes_while_others_are_on_their_way() {
        const THREADS: usize = 4;
        let blocking_pool = BlockingPool::new(Offload { threads: THREADS, queue: THREADS });
        for _ in 0..1000 {
            // Jobs that wait for each other end only if each has a thread.
            let meeting = Arc::new(std::sync::Barrier::new(THREADS + 1));
            for _ in 0..THREADS {
                let meeting = meeting.clone();
                blocking_pool.run(Box::new(move || _ = meeting.wait())).unwrap();
            }
            meeting.wait();
        }
    }
}
