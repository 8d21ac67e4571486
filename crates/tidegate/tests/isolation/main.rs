//! One connection, one world: connections come and go, end in every way there is, and none sees anything of another.
//!
//! Every byte says whose it is ([`tape`]). A seed and the number of a connection decide what it does ([`script`]). Its
//! session ([`guest`]) and its caller ([`caller`]), a plain socket, know both and judge whatever they get. In rounds
//! with limits of their own ([`limits`]), at the end of each of which the counters have to balance.
//!
//! `TIDEGATE_ISOLATION_OPS=10000000 TIDEGATE_ISOLATION_SEED=17 cargo test -p tidegate --test isolation -- epoll`: so
//! many operations on each model, from this seed. `TIDEGATE_ISOLATION_LOSSY=1` says that the network loses packets
//! (`scenarios/lossy/run`).
#![forbid(unsafe_code)]

#[path = "../harness/any_loopback.rs"]
mod any_loopback;
mod caller;
#[path = "../conformance/kit/deadline.rs"]
mod deadline;
mod guest;
#[macro_use]
#[path = "../harness/mod.rs"]
mod harness;
mod known;
mod limits;
mod random;
mod script;
mod tape;
mod world;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Completion, Failed, Trial};
use tidegate::policy::WhenFull;
use tidegate::{CloseReason, Model, Running, Server, Stats};

use caller::{Ended, Team, Verdict};
use deadline::{Deadline, slow};
use guest::Host;
use random::Random;
use script::Ending;
use tape::a_strangers_bytes_are_named;
use world::World;

/// Operations on each model in an ordinary run.
const OPERATIONS: u64 = 40_000;
const OPERATIONS_OF_A_ROUND: u64 = 8_000;
/// A round has fewer connections than this many bits count.
const ROUND_BITS: u32 = 20;
const TEAMS: u64 = 6;

/// Models with a fault that this finds and that is not mended yet: `--include-ignored` shows it.
const NOT_YET: &[(Model, &str)] = &[];

fn main() -> ExitCode {
    let on = |model: Model| {
        let trial = Trial::ignorable_test(model.name(), move || harness::on(model, || run(model)));
        match NOT_YET.iter().find(|(faulty, _)| *faulty == model) {
            Some((_, fault)) => trial.with_ignored_flag(true).with_kind(*fault),
            None => trial,
        }
    };
    let mut trials: Vec<_> = harness::models().map(on).collect();
    trials.extend(tests![a_strangers_bytes_are_named]);
    // Each model has the machine to itself: its threads and callers are enough for it.
    harness::run_alone(trials)
}

/// A number from the environment.
fn number(name: &str) -> Result<Option<u64>, Failed> {
    let Ok(text) = std::env::var(name) else { return Ok(None) };
    match text.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(format!("{name}={text:?}: not a number").into()),
    }
}

fn run(model: Model) -> Result<Completion, Failed> {
    if cfg!(not(unix)) {
        return Ok(Completion::ignored_with("the callers judge resets as Unix systems report them"));
    }
    let lossy = number("TIDEGATE_ISOLATION_LOSSY")?.is_some_and(|n| n != 0);
    let operations = number("TIDEGATE_ISOLATION_OPS")?.unwrap_or(OPERATIONS);
    let seed = number("TIDEGATE_ISOLATION_SEED")?.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("{model}: TIDEGATE_ISOLATION_SEED={seed}");
    let (start, mut total, mut round) = (Instant::now(), Total::default(), 0);
    while total.operations < operations {
        let _deadline = Deadline::new(format!("isolation::{model}, seed {seed}, round {round}"));
        let most = (operations - total.operations).min(if lossy { 600 } else { OPERATIONS_OF_A_ROUND });
        let done = Round::new(model, seed, round, most, lossy).run();
        total.add(&done);
        if !done.wrong.is_empty() {
            let wrong = done.wrong.join("\n  ");
            let after = format!("after {:?}, {total:?}", start.elapsed());
            return Err(format!(
                "{model}, seed {seed}, round {round}, {after}\n  {wrong}\n  {}",
                done.limits
            )
            .into());
        }
        round += 1;
    }
    println!("{model}: {total:?} in {round} rounds, {:.1} s", start.elapsed().as_secs_f64());
    Ok(Completion::Completed)
}

/// What a run has done.
#[derive(Debug, Default)]
struct Total {
    operations: u64,
    connections: u64,
    as_planned: u64,
    turned_away: u64,
    cut: u64,
    bytes_in: u64,
    bytes_out: u64,
}

/// What a round has done.
struct Done {
    wrong: Vec<String>,
    operations: u64,
    ended: Vec<Ended>,
    stats: Stats,
    limits: String,
}

impl Total {
    fn add(&mut self, done: &Done) {
        let count = |verdict| done.ended.iter().filter(|ended| ended.verdict == verdict).count() as u64;
        self.operations += done.operations;
        self.connections += done.ended.len() as u64;
        self.as_planned += count(Verdict::AsPlanned);
        self.turned_away += count(Verdict::TurnedAway);
        self.cut += count(Verdict::Cut);
        self.bytes_in += done.stats.bytes_in;
        self.bytes_out += done.stats.bytes_out;
    }
}

/// One server and its callers.
struct Round {
    world: Arc<World>,
    server: Running,
    round: u64,
    operations: u64,
    /// So many operations, then the server stops while callers are at work.
    stops_after: Option<u64>,
    teams: u64,
    hand: usize,
    lossy: bool,
}

impl Round {
    fn new(model: Model, seed: u64, round: u64, operations: u64, lossy: bool) -> Self {
        let mut random = Random::new(seed.rotate_left(32) ^ round);
        // A lost packet holds a thread up, not the others.
        let (teams, hand) = if lossy { (4 * TEAMS, 1) } else { (TEAMS, 4) };
        let policy = limits::limits(model, &mut random, teams as usize * hand, lossy);
        let mut world = World::new(seed, round << ROUND_BITS);
        (world.greets, world.refuses) = (random.one_in(4), random.one_in(2));
        world.lossy = lossy;
        world.turns_away = policy.when_full == WhenFull::Refuse;
        let world = Arc::new(world);
        let stops_after = random.one_in(3).then(|| random.below(operations));
        let service = Host { world: world.clone() };
        let server = Server::new(service)
            .model(model)
            .policy(policy)
            .bind("127.0.0.1:0")
            .expect("bind")
            .start()
            .expect("start");
        Self { world, server, round, operations, stops_after, teams, hand, lossy }
    }

    fn run(self) -> Done {
        let to = self.server.local_addr().addr().expect("an address");
        let ended: Vec<Ended> = thread::scope(|scope| {
            let teams: Vec<_> = (0..self.teams)
                .map(|n| {
                    let team = self.team(n, to);
                    scope.spawn(|| team.run())
                })
                .collect();
            if let Some(after) = self.stops_after {
                let work = || teams.iter().any(|team| !team.is_finished());
                until(|| self.world.operations.load(SeqCst) >= after || !work());
                self.world.stops.store(true, SeqCst);
                self.server.stop();
            }
            teams.into_iter().flat_map(|team| team.join().expect("a team")).collect()
        });
        self.finish(ended)
    }

    fn team(&self, n: u64, to: std::net::SocketAddr) -> Team<'_> {
        let first = (self.round << ROUND_BITS) + n;
        Team {
            world: &self.world,
            to,
            first,
            apart: self.teams,
            operations: self.operations / self.teams + 1,
            hand: self.hand,
            timeout: slow(Duration::from_secs(40)),
            random: Random::new(self.world.seed ^ first.rotate_left(40)),
        }
    }

    /// Stops the server, unless it has been, and looks at what is left.
    fn finish(self, ended: Vec<Ended>) -> Done {
        let Self { world, server, lossy, .. } = self;
        let quiet = !world.stops() && !world.is_broken();
        if quiet && !lossy && !until(|| server.stats().open() == 0) {
            world.wrong(format!("connections stay open when all callers have gone: {:?}", server.stats()));
        }
        let limits = format!("{:?}", server.first_policy());
        world.stops.store(true, SeqCst);
        server.stop();
        let stats = server.join();
        if !world.is_broken() {
            balance(&world, &stats, quiet);
        }
        if quiet && !world.is_broken() {
            ended.iter().for_each(|ended| fate(&world, ended));
        }
        let operations = world.operations.load(SeqCst);
        Done { wrong: world.all_wrong(), operations, ended, stats, limits }
    }
}

/// Waits for a condition; `false` if it has not come.
fn until(mut met: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !met() {
        if start.elapsed() > slow(Duration::from_secs(40)) {
            return false;
        }
        thread::park_timeout(Duration::from_millis(1));
    }
    true
}

/// The counters of the server against what sessions and callers saw.
fn balance(world: &World, stats: &Stats, quiet: bool) {
    let all = |n: &AtomicU64| n.load(SeqCst);
    let equal = |what: &str, server: u64, seen: u64| {
        if server != seen {
            world.wrong(format!("{what}: the counters have {server}, and {seen} were seen; {stats:?}"));
        }
    };
    equal("sessions that were closed", stats.closed_total(), stats.accepted);
    equal("sessions that were opened", stats.accepted, all(&world.opened));
    equal("operations left with the kernel", stats.outstanding, 0);
    for &why in CloseReason::ALL {
        equal(why.name(), stats.closed_by(why), world.closed_by(why));
    }
    for why in [CloseReason::Panicked, CloseReason::InputLimit, CloseReason::Error] {
        equal(why.name(), stats.closed_by(why), 0);
    }
    if stats.no_descriptors == 0 {
        equal("attempts", stats.attempted, stats.accepted + stats.refused + stats.dial_failed);
    }
    if !world.turns_away && quiet {
        equal("refused connections", stats.refused, all(&world.refused));
    }
    let at_least = |what: &str, more: u64, less: u64| {
        if more < less {
            world.wrong(format!("{what}: {more} is less than {less}; {stats:?}"));
        }
    };
    at_least("bytes sent by the server and received by callers", stats.bytes_out, all(&world.heard));
    at_least("bytes sent by callers and received by the server", all(&world.sent), stats.bytes_in);
    at_least("bytes received by the server and used by sessions", stats.bytes_in, all(&world.used));
}

/// What became of a session against what its caller saw.
fn fate(world: &World, ended: &Ended) {
    let Ended { number, ending, verdict } = *ended;
    let fate = world.fate(number);
    // The client has gone, and the network lost what would have told the session: a FIN is sent again, a reset is not.
    let unheard = world.lossy && fate == Some(CloseReason::Stopped);
    let reset_unheard = unheard || world.lossy && fate == Some(CloseReason::IdleTimeout);
    let right = match (verdict, ending) {
        (Verdict::Cut, _) => true,
        (Verdict::TurnedAway, _) | (_, Ending::Refused) => !world.has_session(number),
        (_, Ending::Abort) => fate == Some(CloseReason::Aborted),
        (_, Ending::ClientResets { .. } | Ending::ClientVanishes { .. }) => {
            reset_unheard || matches!(fate, None | Some(CloseReason::Reset | CloseReason::Finished))
        }
        (_, Ending::ShutdownAtOnce | Ending::Shutdown { .. } | Ending::Linger { .. }) => {
            unheard || fate == Some(CloseReason::Finished)
        }
        _ => fate == Some(CloseReason::Finished),
    };
    if !right {
        world.wrong(format!(
            "connection {number} ({ending:?}) was {verdict:?} for its caller, and {fate:?} for its session"
        ));
    }
}
