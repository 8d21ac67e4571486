//! The table of accept errors, and that acceptors keep to it.

use std::io;
use std::sync::Arc;
use std::task::{Context as TaskContext, Waker};
use std::time::Instant;

use rustix::io::Errno;

use super::AcceptPause;
use crate::engine::EngineConfig;
use crate::engine::worker::registry::{AcceptStep, ConnectionRegistry, Order, RegistrySlot};
use crate::policy::Policy;
use crate::policy::accept::{Admission, EXHAUSTION_PAUSE};
use crate::proto::erased::erase;
use crate::stats::{Counters, Stats, Writers, sum};
use crate::{Consumed, Outbox, Peer, Refusal, Service, Session};

/// Serves nobody: the connections of these tests are errors and numbers.
struct Deaf;

impl Service for Deaf {
    type Session = Self;

    fn open(&self, _: &Peer) -> Result<Self, Refusal> {
        Ok(Self)
    }
}

impl Session for Deaf {
    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }
}

/// What the engine of such a server is given.
pub(in crate::engine) fn config(policy: Policy) -> EngineConfig {
    EngineConfig::new(erase(Deaf), policy, None)
}

/// The registry of a server, as `blocking`, `pool` and `tokio` have it.
pub(in crate::engine) fn registry(policy: Policy) -> Arc<ConnectionRegistry> {
    ConnectionRegistry::new(config(policy), Counters::sets(1, Writers::One))
}

fn counted(registry: &ConnectionRegistry) -> Stats {
    sum(std::slice::from_ref(&registry.counters))
}

fn turn(registry: &ConnectionRegistry) -> AcceptStep {
    registry.poll_turn(&TaskContext::from_waker(Waker::noop()))
}

/// Accepts this; returns the place of what came, if it was let in, and whether there was anything.
fn accept(registry: &Arc<ConnectionRegistry>, what: io::Result<()>) -> (Option<RegistrySlot>, bool) {
    let mut place = None;
    let AcceptStep::Accept(admission) = turn(registry) else { panic!("accepting pauses") };
    let came = registry.accept_next(admission, || what, |(), slot| place = slot);
    (place, came)
}

#[test]
fn each_accept_error_is_counted_and_pauses_as_the_table_says() {
    for (errno, pauses, no_descriptors, no_buffers) in [
        (Errno::CONNABORTED, false, 0, 0),
        (Errno::PROTO, false, 0, 0),
        (Errno::INTR, false, 0, 0),
        (Errno::NETDOWN, false, 0, 0),
        (Errno::MFILE, true, 1, 0),
        (Errno::NFILE, true, 1, 0),
        (Errno::NOBUFS, true, 0, 1),
        (Errno::NOMEM, true, 0, 1),
        (Errno::BADF, true, 0, 0),
        (Errno::INVAL, true, 0, 0),
    ] {
        let (mut pause, counters, now) =
            (AcceptPause::default(), Arc::new(Counters::new(Writers::One)), Instant::now());
        pause.accept_failed(&errno.into(), &counters, now);
        assert_eq!(pause.until(now), pauses.then_some(now + EXHAUSTION_PAUSE), "{errno:?}");
        assert_eq!(pause.until(now + EXHAUSTION_PAUSE), None, "{errno:?}: it ends by itself");
        let stats = sum(&[counters]);
        let expected = Stats { attempted: 1, no_descriptors, no_buffers, ..Stats::default() };
        assert_eq!(stats, expected, "{errno:?}");
        pause.end();
        assert_eq!(pause.until(now), None, "{errno:?}: a connection has closed");
    }
}

#[test]
fn after_a_lost_connection_the_next_one_is_accepted_at_once_and_a_shortage_lasts_until_a_connection_closes() {
    let registry = registry(Policy::default());
    let (first, came) = accept(&registry, Ok(()));
    assert!(came && first.is_some());
    assert!(accept(&registry, Err(Errno::CONNABORTED.into())).1);
    assert_eq!(turn(&registry), AcceptStep::Accept(Admission::Admit), "that was about one connection");
    assert!(!accept(&registry, Err(io::ErrorKind::WouldBlock.into())).1);

    assert!(accept(&registry, Err(Errno::MFILE.into())).1);
    assert!(matches!(turn(&registry), AcceptStep::Wait(Some(_))), "the next one would fail, too");
    drop(first);
    assert_eq!(turn(&registry), AcceptStep::Accept(Admission::Admit), "there is a descriptor again");
    let expected = Stats { attempted: 3, no_descriptors: 1, ..Stats::default() };
    assert_eq!(counted(&registry), expected);
}

#[test]
fn a_stop_sweeps_the_backlog_until_it_is_empty_the_server_full_or_accepting_pauses() {
    let swept = |max_connections, errors: &[Errno], last: Errno| {
        let registry = registry(Policy { max_connections, ..Policy::default() });
        registry.order_all(Order::Drain);
        assert_eq!(turn(&registry), AcceptStep::Over);
        let mut coming =
            errors.iter().map(|&errno| Err(errno.into())).chain((0..3).map(Ok)).collect::<Vec<_>>();
        coming.push(Err(last.into()));
        let (mut coming, mut places) = (coming.into_iter(), Vec::new());
        registry.sweep(|| coming.next().expect("nobody asks again"), |_: u8, slot| places.extend(slot));
        places.len()
    };
    assert_eq!(swept(10, &[], Errno::WOULDBLOCK), 3);
    assert_eq!(swept(10, &[Errno::CONNABORTED], Errno::WOULDBLOCK), 3);
    assert_eq!(swept(2, &[], Errno::WOULDBLOCK), 2);
    assert_eq!(swept(10, &[Errno::MFILE], Errno::WOULDBLOCK), 0);
}
