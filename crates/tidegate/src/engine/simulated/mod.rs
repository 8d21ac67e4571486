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
//! | [`line`] | one connection: the kernel's socket, and what has to come out |
//! | [`peer`] | what the peers do |
//! | [`shelf`] | the file whose parts sessions send |
//! | [`actor`] | the service and its sessions, and what they make sure of |
//! | [`readiness`], [`completion`] | a poller and a port of this world |

mod actor;
mod completion;
mod peer;
mod readiness;
mod script;
mod shelf;
mod socket;
pub(super) mod view;
mod world;

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use fastrand::Rng;
use tidegate_os::waker::Waker;

use self::actor::{Stage, TICK};
use self::script::Script;
use self::shelf::Shelf;
use self::socket::Server;
use self::world::{World, enter, with};
use super::readiness::Transport;
use super::worker::balance::Balance;
use super::worker::blocking_pool::BlockingPool;
use super::{WorkerContext, completion as completes, readiness as readies};
use crate::service::CloseReason;
use crate::stats::{Counters, Stats, Writers, sum};

/// A real loop over this world.
trait Stepped {
    fn turn(&mut self) -> io::Result<()>;
    fn is_over(&self) -> bool;
    fn shut(&mut self);
    /// What has to hold after each turn.
    fn inspect(&mut self);
    /// What has to hold when it is over.
    fn check_empty(&mut self);
    /// Whether the counters say exactly what happened; else what came too late for the loop is missing.
    const EXACT: bool;
}

impl Stepped for readies::Loop<readiness::SimPoller> {
    const EXACT: bool = true;

    fn turn(&mut self) -> io::Result<()> {
        self.turn()
    }

    fn is_over(&self) -> bool {
        self.is_over()
    }

    fn shut(&mut self) {
        self.shut();
    }

    fn inspect(&mut self) {
        self.inspect(|socket, view| {
            let Some(id) = socket.borrowed() else { return };
            with(|world| world.check_ready_view(id, &view));
        });
    }

    fn check_empty(&mut self) {}
}

impl Stepped for completes::Loop<completion::SimPort> {
    const EXACT: bool = false;

    fn turn(&mut self) -> io::Result<()> {
        self.turn()
    }

    fn is_over(&self) -> bool {
        self.is_over()
    }

    fn shut(&mut self) {
        self.shut();
    }

    fn inspect(&mut self) {
        self.inspect(|socket, view| with(|world| world.check_flying_view(socket, &view)));
    }

    fn check_empty(&mut self) {
        completion::check_empty(self.port());
    }
}

/// Plays a seed; `Err` says what must not have happened.
fn play(seed: u64, trace: bool, waker: &Arc<Waker>) -> Result<Stats, String> {
    let mut rng = Rng::with_seed(seed);
    let completes = rng.bool();
    let script = Script::new(&mut rng, completes);
    script.policy.check().map_err(|e| format!("the script makes no sense: {e}"))?;
    if trace {
        eprintln!("{} {script:#?}", if completes { "completion" } else { "readiness" });
    }
    let world = World::new(rng, Shelf::new(seed), &script, trace);
    let counters = Arc::new(Counters::new(Writers::One));
    let speaks_first = script.dials || seed.is_multiple_of(3);
    let worker = WorkerContext {
        ways: Arc::default(),
        index: 0,
        service: Arc::new(Stage { speaks_first }),
        policy: world.policy.clone(),
        listens: !script.dials,
        command_queue: world.command_queue.clone(),
        counters: counters.clone(),
        peak: Arc::default(),
        blocking_pool: Arc::new(BlockingPool::new(script.policy.offload)),
        total: Arc::default(),
        balance: Arc::new(Balance::new(std::slice::from_ref(&world.command_queue))),
        share: script.policy.max_connections,
        dials: 0,
        holds: usize::MAX,
        threads: 1,
    };
    enter(Some(world));
    let played = catch_unwind(AssertUnwindSafe(|| match completes {
        true => {
            let door = (!script.dials).then(|| Arc::new(completion::Acceptor));
            run(completes::Loop::<completion::SimPort>::new(worker, waker.clone(), door), &counters);
        }
        false => {
            let door = (!script.dials).then(|| Arc::new(readiness::Acceptor));
            run(readies::Loop::<readiness::SimPoller>::new(worker, waker.clone(), door), &counters);
        }
    }));
    let fault = enter(None).and_then(|world| world.fault);
    match (played, fault) {
        (_, Some(fault)) => Err(fault),
        (Err(panic), None) => Err(format!("panicked: {}", text_of(&*panic))),
        (Ok(()), None) => Ok(sum(&[counters])),
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
        event_loop.inspect();
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
    /// A loop that was told to stop does so in time.
    fn check_drain(&mut self) {
        // Another policy may have had longer.
        let longest = if self.switched { Duration::from_secs(1) } else { self.policy.drain_timeout };
        let limit = longest + TICK + COMING_BACK;
        if self.drained_at.is_some_and(|at| self.now > at + limit + self.slack) {
            self.fail(|| "the loop was told to stop, and has not".into());
        }
    }

    /// Nothing is left, and the counters balance.
    fn check_over(&mut self, stats: &Stats, exact: bool) {
        let tally = &self.tally;
        let closed = stats.closed_total();
        let mut sums = vec![
            ("closed and accepted", closed, stats.accepted),
            ("sessions and accepted", tally.sessions, stats.accepted),
            ("open and none", tally.live, 0),
            ("outstanding and none", stats.outstanding, 0),
            ("dial failures told and counted", tally.dial_failures, stats.dial_failed),
        ];
        let outcomes = stats.accepted + stats.refused + stats.dial_failed;
        let seen = tally.accept_errors - tally.accept_errors_unseen;
        sums.push(("attempted and their outcomes", stats.attempted, outcomes + seen));
        if exact {
            sums.push(("bytes in and received", stats.bytes_in, tally.received));
            sums.push(("bytes out and sent", stats.bytes_out, tally.taken));
            sums.push(("no descriptors", stats.no_descriptors, tally.no_descriptors));
            sums.push(("no buffers", stats.no_buffers, tally.no_buffers));
        }
        let late = stats.bytes_in < tally.received || stats.bytes_out < tally.taken;
        let wrong = sums.into_iter().find(|(_, a, b)| a != b);
        let open = self.lines.iter().position(|line| !matches!(line.server, Server::Away | Server::Closed));
        let kept = self.lines.iter().position(|line| line.log.opened.is_some() && !line.log.dropped);
        if let Some((what, a, b)) = wrong {
            self.fail(|| format!("{what}: {a} and {b}; {stats:?}"));
        } else if let Some(id) = open.or(kept) {
            self.fail(|| format!("socket {id} is left open, or its session"));
        } else if late {
            self.fail(|| format!("bytes are not counted: {stats:?}"));
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Seeds of an ordinary test run.
const SEEDS: u64 = 4_000;

fn replay(seed: u64) -> String {
    format!("replay it with: TIDEGATE_SEED={seed} cargo test -p tidegate --lib simulated -- --nocapture")
}

/// `TIDEGATE_SEED=n` plays one seed and tells what happens; `TIDEGATE_SEEDS=n` plays so many, from `TIDEGATE_FROM` on.
#[test]
fn nothing_that_must_not_happen_happens_for_any_seed() {
    let waker = || Arc::new(Waker::new().expect("a descriptor"));
    if let Some(seed) = number("TIDEGATE_SEED") {
        let outcome = play(seed, true, &waker());
        eprintln!("seed {seed}: {outcome:?}");
        return assert!(outcome.is_ok());
    }
    let (from, count) = (number("TIDEGATE_FROM").unwrap_or(0), number("TIDEGATE_SEEDS").unwrap_or(SEEDS));
    let (next, begun) = (AtomicU64::new(from), Instant::now());
    let threads = std::thread::available_parallelism().map_or(1, Into::into);
    let totals = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| play_some(&next, from + count))).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker")).collect::<Vec<_>>()
    });
    let failures: Vec<_> = totals.iter().flat_map(|(_, failures)| failures).collect();
    let mut sums = BTreeMap::<&str, u64>::new();
    for (name, n) in totals.iter().flat_map(|(sums, _)| sums) {
        *sums.entry(name).or_default() += n;
    }
    for (seed, fault) in failures.iter().take(10) {
        eprintln!("seed {seed}: {fault}\n{}", replay(*seed));
    }
    println!("{count} seeds from {from} in {:?}: {sums:?}", begun.elapsed());
    assert!(failures.is_empty(), "{} of {count} seeds failed", failures.len());
}

/// Failures after which a worker stops: they are shown, and one is enough.
const ENOUGH: usize = 5;

/// Plays seeds until there are no more: the sums of all counters, and what failed.
fn play_some(next: &AtomicU64, end: u64) -> (BTreeMap<&'static str, u64>, Vec<(u64, String)>) {
    let waker = Arc::new(Waker::new().expect("a descriptor"));
    let (mut sums, mut failures) = (BTreeMap::new(), Vec::new());
    while failures.len() < ENOUGH {
        let seed = next.fetch_add(1, SeqCst);
        if seed >= end {
            break;
        }
        match play(seed, false, &waker) {
            Ok(stats) => {
                let closed = CloseReason::ALL.map(|why| (why.name(), stats.closed_by(why)));
                for (name, n) in stats.named().into_iter().chain(closed) {
                    *sums.entry(name).or_default() += n;
                }
            }
            Err(fault) => failures.push((seed, fault)),
        }
    }
    (sums, failures)
}

/// A seed is worth something only if it always means the same.
#[test]
fn a_seed_always_plays_the_same() {
    let waker = Arc::new(Waker::new().expect("a descriptor"));
    for seed in 0..20 {
        assert_eq!(play(seed, false, &waker), play(seed, false, &waker), "seed {seed}");
    }
}
