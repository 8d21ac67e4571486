//! What a thread that panics leaves to the others.

use super::super::admission::tests::config;
use super::*;
use crate::engine::CommandQueue;
use crate::engine::worker::balance::Balance;

#[test]
fn connections_of_a_thread_that_is_gone_take_no_places() {
    let config = config(Policy { max_connections: 100, ..Policy::default() });
    let queues: Vec<_> = (0..2).map(|_| Arc::new(CommandQueue::new(1, || {}))).collect();
    let balance = Arc::new(Balance::new(&queues, 2));
    let start = |index: usize| {
        let worker = config.worker(index, queues[index].clone(), &balance, 2);
        LoopState::new(worker, usize::MAX, Instant::now())
    };
    let (alive, mut dead) = (start(0), start(1));
    let total = || alive.worker.total.load(Relaxed);
    let assign = || {
        while alive.claim() {
            let Some(to) = alive.assign() else { continue };
            alive.release();
            return to;
        }
        panic!("all places are taken");
    };
    for _ in 0..2 {
        assert!(dead.claim());
        dead.keep();
    }
    for _ in 0..3 {
        alive.hand_on(assign(), Accepted::new((), None));
    }
    dead.take_commands();
    drop(dead.commands.pop_front());
    dead.arrived();
    alive.hand_on(assign(), Accepted::new((), None));
    let to = assign();
    let own = alive.worker.balance.open(0);
    // Two of its own and one that was handed to it; two that it has looked at, one that it has not, one on its way.
    assert_eq!((to, total()), (1, own + 2 + 1 + 2 + 1 + 1));
    drop(dead);
    assert_eq!(total(), own + 1);
    alive.hand_on(to, Accepted::new((), None));
    assert_eq!(total(), own);
}
