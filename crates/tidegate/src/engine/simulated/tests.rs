//! Many seeds; each decides limits, peers, sessions and the kernel.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use fastrand::Rng;

use super::actor::ScriptService;
use super::observed::observe;
use super::script::{Acts, Afterwards, ConnectionScript};
use super::shelf::SimulatedFiles;
use super::*;
use crate::policy::Policy;
use crate::policy::sends::EVENT_QUANTUM;
use crate::service::{
    CloseReason, Consumed, Flow, Mail, Mailbox, Outbox, Peer, Recipient, Refusal, Service, ServiceOptions,
    Session,
};

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
    let service = observe(ScriptService { speaks_first });
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
                let closed = CloseReason::ALL.iter().map(|&why| (why.name(), stats.closed_by(why)));
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
    let service = observe(ScriptService { speaks_first: false });
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

/// What a session of [`Pairs`] was called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Bytes,
    Mail,
}

/// Sessions in pairs: for bytes, each sends its partner so many pieces of mail, and mail for mail if it plays ball.
struct Pairs {
    pieces: usize,
    /// Mail that those may still return.
    returns: Arc<AtomicU64>,
    mailboxes: Arc<Mutex<Vec<Mailbox<()>>>>,
    /// All calls, and in which turn of the loop they were made.
    calls: Arc<Mutex<Vec<(u64, Call)>>>,
}

struct Partner {
    number: usize,
    of: Pairs,
}

impl Partner {
    fn send(&self, pieces: usize) {
        let mailbox = self.of.mailboxes.lock().unwrap().get(self.number ^ 1).cloned();
        for mailbox in mailbox.iter().cycle().take(pieces) {
            mailbox.send(()).expect("there is room");
        }
    }

    fn note(&self, call: Call) {
        self.of.calls.lock().unwrap().push((with(|world| world.turns), call));
    }
}

impl Service for Pairs {
    type Session = Partner;

    fn open(&self, _: &Peer) -> Result<Partner, Refusal> {
        let Self { pieces, returns, mailboxes, calls } = self;
        let of = Self {
            pieces: *pieces,
            returns: returns.clone(),
            mailboxes: mailboxes.clone(),
            calls: calls.clone(),
        };
        Ok(Partner { number: usize::MAX, of })
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().speaks_first(true)
    }
}

impl Recipient for Partner {
    type Message = ();
}

impl Session for Partner {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        let mut mailboxes = self.of.mailboxes.lock().unwrap();
        self.number = mailboxes.len();
        mailboxes.push(Self::mailbox(out));
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        if self.of.mailboxes.lock().unwrap().len() == PARTNERS {
            self.note(Call::Bytes);
            self.send(self.of.pieces);
        }
        Consumed::all(input)
    }

    fn on_mail(&mut self, _: Mail, _: &mut Outbox<'_>) -> Flow {
        self.note(Call::Mail);
        let less = |left: u64| left.checked_sub(1);
        if self.of.returns.fetch_update(SeqCst, SeqCst, less).is_ok() {
            self.send(1);
        }
        Flow::Continue
    }
}

/// Connections of [`Pairs`], which all have something to receive at the same times.
const PARTNERS: usize = 16;

/// The calls of [`Pairs`] in each batch that brought something for several connections, from the first bytes to the
/// last.
fn calls_of_batches(pieces: usize, returns: u64, completes: bool) -> Vec<Vec<Call>> {
    let mut rng = Rng::with_seed(1);
    let policy = Policy {
        threads: NonZeroUsize::new(1),
        first_byte_timeout: None,
        idle_timeout: None,
        send_timeout: None,
        ..Policy::default()
    };
    let part = ConnectionScript {
        says: 5,
        chunk: 1,
        pause_ms: 20,
        then: Afterwards::Finishes,
        acts: Acts::Foreign,
        ..ConnectionScript::floods()
    };
    let script = Script::calm(&mut rng, policy, vec![part; PARTNERS]);
    let world = World::new(rng, SimulatedFiles::new(1), &script, false);
    let calls = Arc::new(Mutex::new(Vec::new()));
    let returns = Arc::new(AtomicU64::new(returns));
    let service = Pairs { pieces, returns, mailboxes: Arc::default(), calls: calls.clone() };
    let waker = Arc::new(Waker::new().expect("a descriptor"));
    play(world, observe(service), &script, completes, &waker).expect("nothing that must not be");
    let calls = std::mem::take(&mut *calls.lock().unwrap());
    let is_bytes = |(_, call): &(u64, Call)| *call == Call::Bytes;
    let batches = calls.chunk_by(|(a, _), (b, _)| a == b).filter_map(|batch| {
        let (first, last) = (batch.iter().position(is_bytes)?, batch.iter().rposition(is_bytes)?);
        Some(batch[first..=last].iter().map(|(_, call)| *call).collect::<Vec<_>>())
    });
    batches.filter(|batch| batch.iter().filter(|&&call| call == Call::Bytes).count() > 3).collect()
}

/// What is passed on by mail is not held until all others of the batch have received.
#[test]
fn mail_that_an_event_causes_is_delivered_before_the_next_event() {
    for completes in [false, true] {
        let batches = calls_of_batches(1, 0, completes);
        assert!(batches.len() >= 3, "{batches:?}");
        for batch in batches {
            let in_turns = batch.chunks(2).all(|calls| [Call::Bytes, Call::Mail].starts_with(calls));
            assert!(in_turns, "completes: {completes}, {batch:?}");
        }
    }
}

/// Sessions that send each other mail for mail have their turns between the events of others, and no more.
#[test]
fn mail_for_mail_holds_up_no_event() {
    for completes in [false, true] {
        let batches = calls_of_batches(20, 50_000, completes);
        assert!(batches.len() >= 3, "{batches:?}");
        for batch in batches {
            let runs = batch.split(|&call| call == Call::Bytes).map(<[Call]>::len);
            assert_eq!(runs.max(), Some(EVENT_QUANTUM), "completes: {completes}, {batch:?}");
        }
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
