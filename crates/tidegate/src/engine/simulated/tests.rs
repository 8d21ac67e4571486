//! Many seeds; each decides limits, peers, sessions and the kernel.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use fastrand::Rng;

use super::actor::ScriptService;
use super::observed::Observed;
use super::script::ConnectionScript;
use super::shelf::SimulatedFiles;
use super::*;
use crate::policy::Policy;
use crate::service::CloseReason;

/// Plays a seed; `Err` says what must not have happened.
fn play_seed(seed: u64, trace: bool, waker: &Arc<Waker>) -> Result<Stats, String> {
    let mut rng = Rng::with_seed(seed);
    let completes = rng.bool();
    let script = Script::new(&mut rng, completes);
    script.policy.check().map_err(|e| format!("the script makes no sense: {e}"))?;
    if trace {
        eprintln!("{} {script:#?}", if completes { "completion" } else { "readiness" });
    }
    let world = World::new(rng, SimulatedFiles::new(seed), &script, trace);
    let speaks_first = script.dials || seed.is_multiple_of(3);
    let service = Arc::new(Observed(ScriptService { speaks_first }));
    play(world, service, &script, completes, waker).map(|(stats, _)| stats)
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
        let outcome = play_seed(seed, true, &waker());
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
        match play_seed(seed, false, &waker) {
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

/// What it takes to answer five connections beside others, with two permits to receive: turns of the loop, and virtual
/// time.
fn answer_beside(others: (usize, ConnectionScript), completes: bool, seed: u64) -> (u64, Duration) {
    let mut rng = Rng::with_seed(seed);
    let policy = Policy {
        max_receiving: NonZeroUsize::new(2),
        threads: NonZeroUsize::new(1),
        first_byte_timeout: None,
        idle_timeout: None,
        send_timeout: None,
        ..Policy::default()
    };
    let script = Script::beside(&mut rng, policy, others);
    let world = World::new(rng, SimulatedFiles::new(1), &script, false);
    let service = Arc::new(Observed(ScriptService { speaks_first: false }));
    let waker = Arc::new(Waker::new().expect("a descriptor"));
    let (_, world) = play(world, service, &script, completes, &waker).expect("nothing that must not be");
    let (turns, at) = world.all_heard.expect("all are answered");
    (turns, at - world.start)
}

/// Silent connections cost those that speak neither turns nor time.
#[test]
fn who_speaks_is_answered_as_soon_however_many_rest() {
    for seed in 0..20 {
        let beside = |others| answer_beside((others, ConnectionScript::rests()), seed % 2 == 0, seed);
        let ((few, at), (many, later)) = (beside(4), beside(400));
        let text = format!("seed {seed}: {few} turns and {at:?} beside 4, {many} and {later:?} beside 400");
        assert!(many < 2 * few && later < 2 * at, "{text}");
    }
}

/// Who sends without end and reads nothing gives its permit up after its turn.
#[test]
fn who_floods_keeps_nobody_out() {
    for seed in 0..20 {
        let (_, at) = answer_beside((10, ConnectionScript::floods()), seed % 2 == 0, seed);
        assert!(at < Duration::from_secs(5), "seed {seed}: {at:?}");
    }
}

/// A seed is worth something only if it always means the same.
#[test]
fn a_seed_always_plays_the_same() {
    let waker = Arc::new(Waker::new().expect("a descriptor"));
    for seed in 0..20 {
        let play = || play_seed(seed, false, &waker);
        assert_eq!(play(), play(), "seed {seed}");
    }
}
