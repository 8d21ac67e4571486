//! What a thread that panics leaves to the others, and what other limits mean to threads that are full.

use std::num::NonZeroUsize;

use super::super::admission::tests::config;
use super::super::growth::{Growth, Start};
use super::super::threads::{STACK_BYTES, Starting};
use super::*;
use crate::engine::CommandQueue;
use crate::engine::worker::balance::ThreadBalance;
use crate::engine::worker::permits::ConnectionPermits;
use crate::proto::Event;
use crate::service::{Consumed, Outbox, Session};

#[test]
fn connections_of_a_thread_that_is_gone_take_no_places() {
    let config = config(Policy { max_connections: 100, ..Policy::default() });
    let queues: Vec<_> = (0..2).map(|_| Arc::new(CommandQueue::new(1, || {}))).collect();
    let balance = Arc::new(ThreadBalance::new(&queues, 2));
    let start = |index: usize| {
        let worker = config.worker(index, queues[index].clone(), &balance, 2);
        LoopState::new(worker, usize::MAX, Instant::now())
    };
    let (alive, mut dead) = (start(0), start(1));
    let total = || alive.worker.total.load(Relaxed);
    let assign = || {
        while alive.places().claim() {
            let Some(to) = alive.assign() else { continue };
            alive.places().release();
            return to;
        }
        panic!("all places are taken");
    };
    for _ in 0..2 {
        assert!(dead.places().claim());
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
    let own = alive.places().open();
    // Two of its own and one that was handed to it; two that it has looked at, one that it has not, one on its way.
    assert_eq!((to, total()), (1, own + 2 + 1 + 2 + 1 + 1));
    drop(dead);
    assert_eq!(total(), own + 1);
    alive.hand_on(to, Accepted::new((), None));
    assert_eq!(total(), own);
}

#[test]
fn a_higher_limit_starts_a_thread_where_all_that_run_are_full() {
    let limit = |max_connections| Arc::new(Policy { max_connections, ..Policy::default() });
    let config = config(Policy::clone(&limit(50)));
    let queues: Vec<_> = (0..5).map(|_| Arc::new(CommandQueue::new(1, || {}))).collect();
    let balance = Arc::new(ThreadBalance::new(&queues, 2));
    let start: Start = Arc::new(|_, _, _| {
        Starting::spawn("tidegate-test".into(), STACK_BYTES, |ready| {
            ready.report(Ok(())).expect("it can serve")
        })
    });
    let growth = Growth::new(start, balance.clone(), (10, 0), 5, limit(20));
    let mut worker = config.worker(0, queues[0].clone(), &balance, 5);
    worker.growth = Some(growth.clone());
    worker.set_policy(limit(20));
    let mut full = LoopState::new(worker, usize::MAX, Instant::now());
    (0..20).for_each(|_| full.keep());
    assert_eq!(growth.started(), 2, "as many as the limit allows");
    growth.set_policy(&limit(50)).unwrap();
    full.set_policy(limit(50));
    assert_eq!(growth.started(), 3, "nobody has room to accept a connection that would start it");
}

#[test]
fn who_is_gone_does_not_stay_in_the_list_of_those_with_permits() {
    let policy = Policy { max_receiving: NonZeroUsize::new(2), ..Policy::default() };
    let queue = Arc::new(CommandQueue::new(1, || {}));
    let balance = Arc::new(ThreadBalance::new(std::slice::from_ref(&queue), 1));
    let worker = config(policy).worker(0, queue, &balance, 1);
    let mut state = LoopState::new(worker, usize::MAX, Instant::now());
    let permits = &mut state.permits;
    let mut come_and_go = |index| {
        let mut own = ConnectionPermits::default();
        assert!(permits.may_receive(Token { index, generation: 0 }, &mut own));
        permits.leave(&mut own);
        permits.need_rotation()
    };
    assert!(!come_and_go(0), "nobody waits, and the list is short");
    assert!((1..1000).any(come_and_go), "nobody waits, and it would grow for ever");
}

/// Sets its timer to so many milliseconds from now as the last byte says; 0 cancels it.
struct WakesAfter;

impl Session for WakesAfter {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        match input.last() {
            Some(&ms) if ms > 0 => out.wake_at(out.now() + Duration::from_millis(ms.into())),
            _ => out.wake_never(),
        }
        Consumed::all(input)
    }
}

#[test]
fn whatever_is_armed_fires_by_the_timer_of_the_session() {
    let limited = Policy { idle_timeout: Some(Duration::from_secs(60)), ..Policy::default() };
    let unlimited = Policy {
        idle_timeout: None,
        send_timeout: None,
        first_byte_timeout: None,
        min_rate: None,
        ..Policy::default()
    };
    for policy in [limited, unlimited] {
        let queue = Arc::new(CommandQueue::new(1, || {}));
        let balance = Arc::new(ThreadBalance::new(std::slice::from_ref(&queue), 1));
        let worker = config(policy).worker(0, queue, &balance, 1);
        let mut state = LoopState::new(worker, usize::MAX, Instant::now());
        state.woke(state.now);
        let token = Token { index: 0, generation: 0 };
        let mut connection = Connection::new(Box::new(WakesAfter), Origin::Accepted, state.now);
        connection.handle(Event::Opened, &state.context(token));
        state.arm(token, &connection);
        let mut armed_by = |ms: u8| {
            connection.handle(Event::Received(&[ms]), &state.context(token));
            state.arm(token, &connection);
            let at = state.now + Duration::from_millis(ms.into());
            state.timers.fires_by(token.index, state.timers.tick_of(at, Resolution::Tick))
        };
        assert!(armed_by(200), "the first");
        assert!(armed_by(10), "an earlier one");
        assert!(armed_by(100), "a later one: it fires too early, and is armed again");
        armed_by(0);
        assert!(armed_by(5), "one after none");
    }
}
