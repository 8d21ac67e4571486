//! What loops that lack memory close together.

use std::time::{Duration, Instant};

use super::super::admission::tests::config;
use super::*;
use crate::engine::CommandQueue;
use crate::engine::worker::balance::ThreadBalance;

/// A loop without a kernel below it, which notes how many connections are to close.
struct TestLoop {
    loop_state: LoopState,
    table: Table<TestEntry>,
    shed: usize,
}

struct TestEntry(Phase, ConnectionPermits);

impl LoopEntry for TestEntry {
    fn phase(&mut self) -> &mut Phase {
        &mut self.0
    }

    fn permits(&mut self) -> &mut ConnectionPermits {
        &mut self.1
    }
}

impl LoopDriver for TestLoop {
    type Entry = TestEntry;
    const WAITS_FOR: &str = "nothing";

    fn is_over(&self) -> bool {
        self.loop_state.stop_at.is_some()
    }

    fn turn(&mut self) -> io::Result<()> {
        self.look_at_commands();
        Ok(())
    }

    fn parts(&mut self) -> (&mut LoopState, &mut Table<TestEntry>) {
        (&mut self.loop_state, &mut self.table)
    }

    fn dispatch(&mut self, _: Token, event: Event<'_>) {
        assert!(matches!(event, Event::Shed));
        self.shed += 1;
    }

    fn take(&mut self, _: Token) -> Option<Phase> {
        None
    }

    fn resume(&mut self, _: Token) {}
    fn step_back(&mut self, _: Token) {}
    fn begin_to_stop(&mut self) {}

    fn begin_dial(&mut self, request: DialRequest) -> Result<(), (DialRequest, io::Error)> {
        Err((request, io::ErrorKind::Unsupported.into()))
    }

    fn take_in(&mut self, _: Accepted) {}
}

#[test]
fn loops_that_lack_memory_together_close_one_batch_in_each_interval() {
    let policy = Policy { shed_after: Some(Duration::from_secs(5)), ..Policy::default() };
    let (config, start) = (config(policy), Instant::now());
    let queues: Vec<_> = (0..2).map(|_| Arc::new(CommandQueue::new(1, || {}))).collect();
    let balance = Arc::new(ThreadBalance::new(&queues, 2));
    let make = |index: usize| {
        let worker = config.worker(index, queues[index].clone(), &balance, 2);
        let mut one = TestLoop {
            loop_state: LoopState::new(worker, usize::MAX, start),
            table: Table::default(),
            shed: 0,
        };
        for _ in 0..16 {
            let connection = one.loop_state.admit(None, || None).expect("the service takes it");
            one.table.insert(TestEntry(Phase::Open(connection), ConnectionPermits::default()));
        }
        one
    };
    let mut loops = [make(0), make(1)];
    // One runs short half a second after the other, and both stay so.
    let mut shed_at = |tenths: u64| {
        for (one, since) in loops.iter_mut().zip([0, 5]) {
            one.loop_state.now = start + Duration::from_millis(100 * tenths);
            one.loop_state.worker.counters.no_memory.add(u64::from(tenths >= since));
            one.relieve();
        }
        for one in &mut loops {
            one.turn().expect("it waits for nothing");
        }
        loops.each_mut().map(|one| std::mem::take(&mut one.shed))
    };
    for tenths in 0..80 {
        let batch = usize::from(tenths >= 50 && tenths % 10 == 0);
        assert_eq!(shed_at(tenths), [batch; 2], "after {tenths} tenths of a second");
    }
}
