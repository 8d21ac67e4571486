//! Seeded faults in virtual time, over the real core, policy and event loops.
//!
//! A seed decides everything: the limits, what peers and sessions do, and what the kernel does of what it may do. The
//! loops of `readiness` and `completion` run over it one turn at a time, and are held against what must never happen.
//! `docs/simulation.md` says how to run many seeds and how to replay one.
//!
//! | part | what it is |
//! |---|---|
//! | [`script`] | what a seed decides beforehand |
//! | [`world`] | virtual time, and what happens in it |
//! | [`socket`] | one connection: the kernel's socket, and what has to come out |
//! | [`exchange`] | what the peers of somebody's own service say and must receive |
//! | [`peer`] | what the peers do |
//! | [`upstreams`] | what sessions dial |
//! | [`shortage`] | the kernel has no memory for what the loop asks for |
//! | [`shelf`] | the file whose parts sessions send |
//! | [`observed`] | around any service: what its sessions are shown and say, and what follows for the loop |
//! | [`actor`] | the service that scripts of the library's own tests are for |
//! | [`given`] | somebody's own service, and what its test gives: `testing::Simulation` |
//! | [`readiness`], [`completion`] | a poller and a port of this world |

#[cfg(test)]
mod actor;
mod completion;
mod exchange;
#[cfg(feature = "testing")]
pub(crate) mod given;
mod observed;
mod peer;
mod readiness;
mod script;
mod shelf;
mod shortage;
mod socket;
#[cfg(test)]
mod tests;
mod upstreams;
mod world;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tidegate_os::waker::Waker;

use self::observed::TICK;
use self::script::Script;
use self::socket::{SimulatedSocket, SocketState};
use self::world::{World, enter, with};
use super::worker::balance::ThreadBalance;
use super::worker::loop_driver::LoopDriver;
use super::worker::transport::Transport;
use super::{WorkerContext, completion as completes, readiness as readies};
use crate::proto::erased::ErasedService;
use crate::stats::{Counters, Stats, Writers, sum};

/// A real loop over this world.
trait Stepped: LoopDriver {
    /// What has to hold after each turn.
    fn inspect(&mut self, counters: &Counters);
    /// What has to hold when it is over.
    fn check_empty(&mut self);
    /// Whether the counters say exactly what happened; else what came too late for the loop is missing.
    const EXACT: bool;
}

impl Stepped for readies::ReadinessLoop<readiness::SimPoller> {
    const EXACT: bool = true;

    fn inspect(&mut self, _: &Counters) {
        self.inspect(|socket, view| {
            let Some(id) = socket.borrowed() else { return };
            with(|world| world.check_ready_view(id, &view));
        });
    }

    fn check_empty(&mut self) {}
}

impl Stepped for completes::CompletionLoop<completion::SimPort> {
    const EXACT: bool = false;

    fn inspect(&mut self, counters: &Counters) {
        self.inspect(|socket, view| with(|world| world.check_flying_view(socket, &view)));
        with(|world| self.port().check_pinning(world, counters));
    }

    fn check_empty(&mut self) {
        completion::check_empty(self.port());
    }
}

/// Plays a script against a service; gives back what was counted and the world, or says what must not have happened.
fn play(
    mut world: World,
    service: Arc<dyn ErasedService>,
    script: &Script,
    completes: bool,
    waker: &Arc<Waker>,
) -> Result<(Stats, World), String> {
    world.upstreams.each = service.options().dials;
    let (share, dials) = world.places();
    let counters = Arc::new(Counters::new(Writers::One));
    let worker = WorkerContext {
        transports: Arc::default(),
        index: 0,
        service,
        policy: world.policy.clone(),
        listens: !script.dials,
        command_queue: world.command_queue.clone(),
        counters: counters.clone(),
        peak: Arc::default(),
        blocking_pool: world.blocking_pool.clone(),
        total: Arc::default(),
        balance: Arc::new(ThreadBalance::new(std::slice::from_ref(&world.command_queue), 1)),
        growth: None,
        share: share as usize,
        dials: dials as usize,
        holds: usize::MAX,
        threads: 1,
    };
    enter(Some(world));
    let played = catch_unwind(AssertUnwindSafe(|| match completes {
        true => {
            let acceptor = (!script.dials).then(|| Arc::new(completion::SimAcceptQueue));
            run(
                completes::CompletionLoop::<completion::SimPort>::new(worker, waker.clone(), acceptor),
                &counters,
            );
        }
        false => {
            let acceptor = (!script.dials).then(|| Arc::new(readiness::SimListener));
            run(
                readies::ReadinessLoop::<readiness::SimPoller>::new(worker, waker.clone(), acceptor),
                &counters,
            );
        }
    }));
    let mut world = enter(None).ok_or("the world is gone")?;
    match (played, world.fault.take()) {
        (_, Some(fault)) => Err(fault),
        (Err(panic), None) => Err(format!("panicked: {}", text_of(&*panic))),
        (Ok(()), None) => Ok((sum(&[counters]), world)),
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into())).unwrap_or_default()
}

/// Longest that what is cancelled may take to come back, beside what the loop is allowed itself.
const COMING_BACK: Duration = Duration::from_millis(100);

fn run<L: Stepped>(event_loop: io::Result<L>, counters: &Arc<Counters>) {
    let mut event_loop = event_loop.expect("a loop over a simulated kernel");
    let is_faulty = || with(|world| world.fault.is_some());
    while !event_loop.is_over() && !is_faulty() {
        // An error of the wait is what a loop goes on after.
        let _ = event_loop.turn();
        event_loop.inspect(counters);
        with(World::check_turn);
        with(World::check_drain);
    }
    if !is_faulty() {
        event_loop.check_empty();
        event_loop.shut();
        drop(event_loop);
        with(|world| world.check_over(&sum(std::slice::from_ref(counters)), L::EXACT));
    }
}

impl World {
    /// A loop that was asked to stop does so in time.
    fn check_drain(&mut self) {
        // Another policy may have had longer.
        let longest = if self.switched { Duration::from_secs(1) } else { self.policy.drain_timeout };
        let limit = longest + TICK + COMING_BACK;
        if self.drained_at.is_some_and(|at| self.now > at + limit + self.slack) {
            self.fail(|| "the loop was asked to stop, and has not".into());
        }
    }

    /// Nothing is left, and the counters balance.
    fn check_over(&mut self, stats: &Stats, exact: bool) {
        let expected = &self.expected;
        let closed = stats.closed_total();
        let mut sums = vec![
            ("closed and accepted", closed, stats.accepted),
            ("sessions and accepted", expected.sessions, stats.accepted),
            ("open and none", expected.live + expected.live_dialled, 0),
            ("outstanding and none", stats.outstanding, 0),
        ];
        if self.upstreams.each == 0 {
            sums.push(("dial failures reported and counted", expected.dial_failures, stats.dial_failed));
        }
        let outcomes = stats.accepted + stats.refused + stats.dial_failed;
        let seen = expected.accept_errors - expected.accept_errors_unseen;
        sums.push(("attempted and their outcomes", stats.attempted, outcomes + seen));
        if exact {
            sums.push(("bytes in and received", stats.bytes_in, expected.received));
            sums.push(("bytes out and sent", stats.bytes_out, expected.taken));
            sums.push(("no descriptors", stats.no_descriptors, expected.no_descriptors));
            sums.push(("no buffers", stats.no_buffers, expected.no_buffers));
            sums.push(("no memory", stats.no_memory, expected.no_memory));
        }
        let late = stats.bytes_in < expected.received || stats.bytes_out < expected.taken;
        let wrong = sums.into_iter().find(|(_, a, b)| a != b);
        let open = self
            .sockets
            .iter()
            .position(|socket| !matches!(socket.server, SocketState::Away | SocketState::Closed));
        let has_session = |socket: &SimulatedSocket| socket.log.opened.is_some() || socket.asker.is_some();
        let kept = self.sockets.iter().position(|socket| has_session(socket) && !socket.log.dropped);
        if let Some((what, a, b)) = wrong {
            self.fail(|| format!("{what}: {a} and {b}; {stats:?}"));
        } else if let Some(id) = open.or(kept) {
            self.fail(|| format!("socket {id} is left open, or its session"));
        } else if late {
            self.fail(|| format!("bytes are not counted: {stats:?}"));
        }
    }
}
