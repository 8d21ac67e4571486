//! With fewer descriptors than clients a server neither ends nor spins, and serves all of them in the end.
//!
//! The limit belongs to a process, so the server runs in one of its own: this test binary once more, told by the
//! environment to be the server. It lowers its limit, says its address, answers each line it reads with its counters,
//! and stops at the end of its input.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Read, Seek, Write};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::process::{Resource, Rlimit, setrlimit};
use tidegate::policy::accept::{ACCEPTS_NEAR_LIMIT, EXHAUSTION_PAUSE};
use tidegate::{Model, Policy, Stats};

use crate::harness;
use crate::kit::{self, Echo};

/// One test for each model; and in the other process the server.
pub(crate) fn trials() -> Vec<Trial> {
    if std::env::var_os(ROLE).is_some() {
        return tests![the_server];
    }
    kit::on_every_model(module_path!(), kit::run_alone, case)
}

const ROLE: &str = "TIDEGATE_CONFORMANCE_SERVER";
pub(crate) const DESCRIPTORS: u64 = 64;
const CLIENTS: usize = 300;
/// Threads that accept, at most.
const IO_THREADS: usize = 2;

fn case(model: Model) {
    let mut server = OtherProcess::start(model);
    // An offer of the fast path takes a descriptor for a moment: a client that connects without one stays with TCP.
    let mut streams: Vec<_> = (0..CLIENTS).map(|_| kit::connect_somehow(server.addr)).collect();
    for (i, stream) in streams.iter_mut().enumerate() {
        stream.write_all(format!("client {i:4}").as_bytes()).expect("send");
    }
    // A model may also know beforehand how many it can hold, and stop without running into an error (uring).
    let (mut held, mut since) = (0, Instant::now());
    kit::until("descriptors have run out", || {
        let now = server.ask();
        if now.accepted != held {
            (held, since) = (now.accepted, Instant::now());
        }
        held > 0 && (now.no_descriptors > 0 || since.elapsed() > Duration::from_millis(300))
    });

    // While it is full it has next to nothing to do, whatever waits in the kernel's queue.
    let (before, start) = (server.ask(), Instant::now());
    kit::measure_for(Duration::from_millis(800));
    let (after, elapsed) = (server.ask(), start.elapsed());
    let used = Duration::from_millis(after.cpu_ms - before.cpu_ms);
    assert!(used < elapsed / 2, "{used:?} of CPU in {elapsed:?}: it spins");
    // On a busy machine a thread that spins gets little CPU, but tries far more often than the pause allows. All
    // accepts that it has posted may fail before one.
    let pauses = elapsed.as_millis() / EXHAUSTION_PAUSE.as_millis() + 2;
    let tried = u128::from(after.no_descriptors - before.no_descriptors);
    let most = (IO_THREADS * ACCEPTS_NEAR_LIMIT) as u128 * pauses;
    assert!(tried <= most, "{tried} failed accepts in {elapsed:?}: it does not pause");
    assert!(after.accepted < CLIENTS as u64, "the limit was never met: {}", after.accepted);

    thread::scope(|scope| {
        for (i, mut stream) in streams.into_iter().enumerate() {
            scope.spawn(move || assert_eq!(kit::hear(&mut stream, 11), format!("client {i:4}").as_bytes()));
        }
    });
    let last = server.stop();
    assert_eq!(last.accepted, CLIENTS as u64);
}

/// What the server says of itself.
pub(crate) struct Now {
    pub(crate) accepted: u64,
    no_descriptors: u64,
    cpu_ms: u64,
}

/// A server of [`Echo`] that has [`DESCRIPTORS`].
pub(crate) struct OtherProcess {
    pub(crate) child: Child,
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
    pub(crate) addr: SocketAddr,
}

impl OtherProcess {
    pub(crate) fn start(model: Model) -> Self {
        let server = harness::name(module_path!(), "the_server");
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", &server, "--nocapture", "--test-threads=1"])
            .env(ROLE, model.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the server");
        let orders = child.stdin.take();
        let mut answers = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let addr = said(&mut answers, "listening on ").parse().expect("an address");
        Self { child, orders, answers, addr }
    }

    fn ask(&mut self) -> Now {
        self.orders.as_mut().expect("a pipe").write_all(b"now\n").expect("the server is there");
        self.heard()
    }

    /// Ends its input; returns its last counters.
    pub(crate) fn stop(mut self) -> Now {
        self.orders = None;
        let last = self.heard();
        // What the test harness of the other process still has to say.
        self.answers.by_ref().for_each(drop);
        assert!(self.child.wait().expect("wait").success(), "the server failed");
        last
    }

    fn heard(&mut self) -> Now {
        let line = said(&mut self.answers, "counters ");
        let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().expect("a number")).collect();
        let [accepted, no_descriptors, cpu_ms] = numbers[..] else { panic!("three numbers, not {line}") };
        Now { accepted, no_descriptors, cpu_ms }
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        // Only of use if the case has failed: the server would wait for orders for ever.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rest of the next line that contains `what`; the test harness writes lines of its own, and parts of lines.
fn said(lines: &mut Lines<BufReader<ChildStdout>>, what: &str) -> String {
    loop {
        let line = lines.next().expect("the server has ended").expect("read");
        if let Some((_, rest)) = line.split_once(what) {
            return rest.to_string();
        }
    }
}

/// Not a case: the other process.
fn the_server() {
    let name = std::env::var(ROLE).expect("the parent process sets it");
    let model: Model = name.parse().expect("a model");
    let limit = Some(DESCRIPTORS);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).expect("lower the limit");
    let stat = File::open("/proc/self/stat").expect("/proc");
    let (service, _) = Echo::service();
    // Each worker of the pool has a descriptor of its own: its default number of them would take all there are.
    let threads = NonZeroUsize::new(if model == Model::Pool { 16 } else { IO_THREADS });
    let threads = threads.filter(|_| model != Model::Blocking);
    let fast_path = kit::policy(model).fast_path;
    let policy =
        Policy::default().drain_timeout(Duration::from_secs(20)).threads(threads).fast_path(fast_path);
    let server = kit::serve(model, policy, service);
    println!("listening on {}", server.local_addr());
    for _ in std::io::stdin().lines() {
        write_stats(&server.stats(), &stat);
    }
    write_stats(&kit::finish(server), &stat);
}

fn write_stats(stats: &Stats, stat: &File) {
    println!("counters {} {} {}", stats.accepted, stats.no_descriptors, cpu_ms(stat));
}

/// CPU time of this process, from its `/proc/self/stat`, which was opened while there was a descriptor for it.
/// `proc_pid_stat(5)`: fields 14 and 15, in clock ticks; field 2 may contain spaces.
fn cpu_ms(mut stat: &File) -> u64 {
    let mut text = String::new();
    stat.rewind().expect("rewind");
    stat.read_to_string(&mut text).expect("read");
    let fields = text.rsplit_once(')').expect("a name").1.split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).map(|n| n.parse::<u64>().expect("a number")).sum();
    ticks * 1000 / tidegate_os::process::clock_ticks_per_s()
}
