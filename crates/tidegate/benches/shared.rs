//! What the I/O threads of a server share, one part at a time: `cargo bench -p tidegate --bench shared`.
//!
//! Prints nanoseconds, the median of rounds and the least and most of them. docs/scaling.md says what follows from
//! them for many processors. The model is the best one of the system; the sender is the main thread.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use tidegate::policy::Offload;
use tidegate::{
    Consumed, Flow, Group, Mail, Mailbox, Outbox, Peer, Policy, Recipient, Refusal, Running, Server, Service,
    ServiceOptions, Session,
};

const ROUNDS: usize = 9;
/// What is sent in a row, so that the receiving thread is awake for nearly all of it.
const BURST: u64 = 10_000;
/// Long enough for an idle thread to sleep.
const REST: Duration = Duration::from_millis(2);
const DEADLINE: Duration = Duration::from_secs(20);

/// A session that counts what it is sent, and offloads jobs when asked to.
#[derive(Clone)]
struct Counter {
    seen: Arc<AtomicU64>,
    opened: Sender<Mailbox<Jobs>>,
    offloaded: Sender<Duration>,
}

/// A number of jobs that do nothing.
struct Jobs(u64);

impl Recipient for Counter {
    type Message = Jobs;
}

impl Service for Counter {
    type Session = Self;

    fn open(&self, _: &Peer) -> Result<Self, Refusal> {
        Ok(self.clone())
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().speaks_first(true)
    }
}

impl Session for Counter {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.opened.send(Self::mailbox(out)).expect("the bench waits for it");
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        if let Mail::Message(message) = mail {
            let Jobs(count) = Self::unpack(message);
            let begun = Instant::now();
            for _ in 0..count {
                out.offload(|| ()).expect("the queue has room for them");
            }
            self.offloaded.send(begun.elapsed()).expect("the bench waits for it");
        }
        self.seen.fetch_add(1, Ordering::Relaxed);
        Flow::Continue
    }
}

/// A server with one connection on each of its I/O threads.
struct Bench {
    server: Running,
    seen: Arc<AtomicU64>,
    offloaded: Receiver<Duration>,
    members: Vec<Mailbox<Jobs>>,
    _clients: Vec<std::net::TcpStream>,
}

impl Bench {
    fn start(threads: usize, job_threads: usize) -> Self {
        let (opened, openings) = channel();
        let (offloaded, offloads) = channel();
        let seen = Arc::new(AtomicU64::new(0));
        let offload = Offload::default().threads(job_threads).queue(BURST as usize);
        let policy = Policy::default().threads(NonZeroUsize::new(threads)).offload(offload);
        let service = Counter { seen: seen.clone(), opened, offloaded };
        let server = Server::new(service).policy(policy).bind("127.0.0.1:0").and_then(|bound| bound.start());
        let server = server.expect("a server starts");
        let addr = server.local_addr().addr().expect("it listens on TCP");
        let connect = |_| std::net::TcpStream::connect(addr).expect("it accepts");
        let clients: Vec<_> = (0..threads).map(connect).collect();
        let members = clients.iter().map(|_| openings.recv_timeout(DEADLINE).expect("it is open")).collect();
        let open = server.thread_stats();
        assert!(open.iter().all(|stats| stats.open() == 1), "each thread has one connection");
        Self { server, seen, offloaded: offloads, members, _clients: clients }
    }

    /// Waits until so many pieces of mail more than before have been read.
    fn wait_for(&self, before: u64, pieces: u64) {
        let begun = Instant::now();
        while self.seen.load(Ordering::Relaxed) < before + pieces {
            assert!(begun.elapsed() < DEADLINE, "mail is not delivered");
            std::thread::yield_now();
        }
    }

    /// What `send`, called so often in a row, takes each time until it returns.
    fn each(&self, calls: u64, pieces_a_call: u64, send: impl Fn()) -> Samples {
        Samples::of(|| {
            std::thread::sleep(REST);
            let before = self.seen.load(Ordering::Relaxed);
            let begun = Instant::now();
            for _ in 0..calls {
                send();
            }
            let taken = begun.elapsed();
            self.wait_for(before, calls * pieces_a_call);
            nanoseconds(taken, calls)
        })
    }

    fn end(self) {
        self.server.stop();
        self.server.join();
    }
}

fn nanoseconds(taken: Duration, calls: u64) -> f64 {
    taken.as_nanos() as f64 / calls as f64
}

/// Nanoseconds of each round, in order of size.
struct Samples(Vec<f64>);

impl Samples {
    fn of(round: impl FnMut() -> f64) -> Self {
        let mut all: Vec<f64> = std::iter::repeat_with(round).take(ROUNDS).collect();
        all.sort_by(f64::total_cmp);
        Self(all)
    }

    fn print(&self, what: &str) {
        println!("{what:<64} {:>9.0} ({:.0}-{:.0})", self.0[ROUNDS / 2], self.0[0], self.0[ROUNDS - 1]);
    }
}

/// A line of cache that two threads write in turn: what one hand-over of it takes.
fn line() {
    const TURNS: u64 = 1_000_000;
    let rounds = Samples::of(|| {
        let line = AtomicU64::new(0);
        let play = |mine: u64| {
            for turn in 0..TURNS {
                while line.load(Ordering::Acquire) != 2 * turn + mine {
                    std::hint::spin_loop();
                }
                line.store(2 * turn + mine + 1, Ordering::Release);
            }
        };
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| play(0));
            play(1);
        });
        nanoseconds(begun.elapsed(), 2 * TURNS)
    });
    rounds.print("a line of cache, from one processor to the other");
}

fn groups() {
    for threads in [1, 2, 4, 16, 64] {
        let bench = Bench::start(threads, 1);
        let mut group = Group::default();
        for member in &bench.members {
            group.join(member);
        }
        let message = Arc::new(());
        let send = || group.send(message.clone()).expect("the queues have room");
        let pieces = threads as u64;
        bench.each(BURST, pieces, send).print(&format!("a message to a group on {threads} threads, awake"));
        bench.each(1, pieces, send).print(&format!("a message to a group on {threads} threads, asleep"));
        bench.end();
    }
}

fn offload() {
    for threads in [1, 4, 16] {
        let bench = Bench::start(1, threads);
        let (mut calls, mut whole) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            std::thread::sleep(REST);
            let before = bench.seen.load(Ordering::Relaxed);
            let begun = Instant::now();
            bench.members[0].send(Jobs(BURST)).expect("the queue has room");
            let taken = bench.offloaded.recv_timeout(DEADLINE).expect("jobs are taken");
            bench.wait_for(before, BURST + 1);
            whole.push(nanoseconds(begun.elapsed(), BURST));
            calls.push(nanoseconds(taken, BURST));
        }
        for (what, mut all) in [("the call", calls), ("until it is done", whole)] {
            all.sort_by(f64::total_cmp);
            Samples(all).print(&format!("a job for {threads} threads, {what}"));
        }
        bench.end();
    }
}

fn main() {
    println!("{:<64} {:>9} (least-most)", "nanoseconds", "median");
    line();
    groups();
    offload();
}
