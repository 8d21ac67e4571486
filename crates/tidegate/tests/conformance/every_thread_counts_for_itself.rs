//! The counters of an I/O thread are what this thread did: no two threads write the same ones.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tidegate::{Consumed, Model, Outbox, Session};

use crate::kit;

on_every_model!(case);

const CALLERS: usize = 8;

/// How many bytes each thread was shown.
#[derive(Default)]
struct Work {
    /// How long a thread waits for a second one, once.
    limit: Duration,
    shown: Mutex<HashMap<ThreadId, u64>>,
    changed: Condvar,
    /// A thread has waited for another one in vain.
    is_alone: AtomicBool,
}

/// Echoes, but holds its thread until another one has something to do, too.
struct Guest(Arc<Work>);

impl Session for Guest {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut shown = self.0.shown.lock().expect("shown");
        *shown.entry(thread::current().id()).or_default() += input.len() as u64;
        self.0.changed.notify_all();
        if !self.0.is_alone.load(Ordering::Relaxed) {
            let waited = self.0.changed.wait_timeout_while(shown, self.0.limit, |shown| shown.len() < 2);
            self.0.is_alone.store(waited.expect("shown").1.timed_out(), Ordering::Relaxed);
        }
        out.write(input);
        Consumed::all(input)
    }
}

fn case(model: Model) {
    // Elsewhere the system chooses among the threads, or, on `tokio`, a session that holds one may hold up all.
    let by_design = [Model::Blocking, Model::Pool, Model::Select, Model::Poll, Model::Epoll, Model::Uring];
    let comes = by_design.contains(&model);
    let limit = if comes { kit::timeout() / 2 } else { kit::slow(Duration::from_secs(5)) };
    let work = Arc::new(Work { limit, ..Work::default() });
    let theirs = work.clone();
    let server = kit::serve(model, kit::policy(model), kit::sessions(move || Guest(theirs.clone())));
    let handle = server.handle();
    let mut callers: Vec<_> = (0..CALLERS).map(|_| kit::connect(server.local_addr())).collect();
    for (i, caller) in callers.iter_mut().enumerate() {
        caller.write_all(&vec![b'x'; i + 1]).expect("send");
    }
    for (i, caller) in callers.iter_mut().enumerate() {
        assert_eq!(kit::hear(caller, i + 1), vec![b'x'; i + 1]);
    }
    drop(callers);
    let stats = kit::finish(server);
    let total = (1..=CALLERS as u64).sum::<u64>();
    assert_eq!((stats.accepted, stats.bytes_in, stats.bytes_out), (CALLERS as u64, total, total));

    let mut shown: Vec<u64> = work.shown.lock().expect("shown").values().copied().collect();
    let mut counted: Vec<u64> = handle.thread_stats().iter().map(|one| one.bytes_in).filter(|&n| n > 0).collect();
    shown.sort_unstable();
    counted.sort_unstable();
    assert_eq!(counted, shown, "the bytes that each thread was shown");
    assert!(shown.len() > 1 || !comes, "one thread has done it all");
}
