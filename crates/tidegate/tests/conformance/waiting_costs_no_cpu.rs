//! Connections that wait for nothing but mail cost no wake-ups: idle ones, half-closed ones, and ones whose peer has
//! gone meanwhile (which `poll` reports whether it was asked to or not). Nor do they cost a spin now and then.

use std::collections::HashSet;
use std::net::Shutdown;
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{CloseReason, Consumed, Flow, Mail, Mailbox, Model, Outbox, Policy, Recipient, Session};

use crate::kit::{self, Witness};

on_every_model!(case);

/// Goes on after the peer's end; closes when it gets mail.
struct Patient {
    witness: Arc<Witness>,
    addresses: Arc<Mutex<Vec<Mailbox<()>>>>,
    threads: Threads,
}

impl Recipient for Patient {
    type Message = ();
}

impl Session for Patient {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.witness.opened();
        self.threads.include_own();
        self.addresses.lock().expect("addresses").push(Self::mailbox(out));
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input)
    }

    fn on_end(&mut self, _out: &mut Outbox<'_>) -> Flow {
        self.threads.include_own();
        self.witness.ends.fetch_add(1, SeqCst);
        Flow::Continue
    }

    fn on_mail(&mut self, _mail: Mail, _out: &mut Outbox<'_>) -> Flow {
        Flow::Close
    }

    fn on_close(&mut self, why: CloseReason) {
        self.witness.closed(why);
    }
}

fn case(model: Model) {
    run(model, kit::policy(model));
    if model == Model::Pool {
        // All but one have no worker.
        run(model, kit::policy(model).threads(NonZeroUsize::new(1)));
    }
}

fn run(model: Model, policy: Policy) {
    let witness = Arc::new(Witness::default());
    let addresses = Arc::new(Mutex::new(Vec::new()));
    let threads = Threads::default();
    let (seen, its, theirs) = (witness.clone(), addresses.clone(), threads.clone());
    let patient = move || Patient { witness: seen.clone(), addresses: its.clone(), threads: theirs.clone() };
    let service = kit::sessions(patient);
    let server = kit::serve(model, policy, service);
    let mut streams: Vec<_> = (0..6).map(|_| kit::connect(server.local_addr())).collect();
    streams.iter_mut().for_each(|stream| kit::exchange(stream, b"hello"));
    nothing_runs(&server, &threads, "idle connections");

    for stream in &mut streams[..4] {
        stream.shutdown(Shutdown::Write).expect("finish");
    }
    kit::until("the ends are noticed", || witness.ends.load(SeqCst) == 4);
    nothing_runs(&server, &threads, "half-closed connections");

    // Two of them reset, two close. Whether the server notices now or once it sends is its own business.
    for stream in streams.drain(..4).skip(2) {
        kit::reset(stream);
    }
    nothing_runs(&server, &threads, "peers that have gone");

    for mailbox in addresses.lock().expect("addresses").iter() {
        let _ = mailbox.send(());
    }
    kit::until("all are closed", || witness.closings().len() == 6);
    let resets = witness.closings().iter().filter(|&&why| why == CloseReason::Reset).count();
    assert!(resets <= 2, "{:?}", witness.closings());
    kit::finish(server);
}

/// The threads that sessions were called on.
#[derive(Clone, Default)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "another system does not tell what a thread used"))]
struct Threads(Arc<Mutex<HashSet<String>>>);

/// What waiting has cost since the server was started.
#[derive(Clone, Copy, Debug)]
struct Cost {
    wake_ups: u64,
    /// Time on a processor of the threads that sessions were called on.
    cpu: Duration,
}

#[cfg(target_os = "linux")]
impl Threads {
    fn include_own(&self) {
        let own = std::fs::read_link("/proc/thread-self").expect("/proc");
        self.0.lock().expect("threads").insert(format!("/proc/{}/schedstat", own.display()));
    }

    /// The first number of `schedstat` is nanoseconds on a processor (Documentation/scheduler/sched-stats.rst). A
    /// thread that is gone costs nothing more.
    fn cpu(&self) -> Duration {
        let threads = self.0.lock().expect("threads");
        let texts = threads.iter().filter_map(|path| std::fs::read_to_string(path).ok());
        let spent = texts.map(|text| text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0));
        Duration::from_nanos(spent.sum())
    }
}

/// Elsewhere wake-ups have to do.
#[cfg(not(target_os = "linux"))]
impl Threads {
    fn include_own(&self) {}

    fn cpu(&self) -> Duration {
        Duration::ZERO
    }
}

/// What it has cost settles, and then a long time costs next to nothing, in all of it: a loop that spins now and then
/// does not pass.
fn nothing_runs(server: &tidegate::Running, threads: &Threads, what: &str) {
    const TIME: Duration = Duration::from_millis(1500);
    /// A busy machine may pause between two of the last events.
    const QUIET: Duration = Duration::from_millis(250);
    // Each of its threads looks every five seconds for established connections in its accepts that send nothing.
    let looks = if server.model() == Model::Overlapped { server.thread_stats().len() as u64 } else { 0 };
    let most = Cost { wake_ups: 15 + looks, cpu: Duration::from_millis(3) };
    let cost = || Cost { wake_ups: server.stats().wake_ups, cpu: threads.cpu() };
    let mut since = cost();
    kit::until(&format!("{what} have settled"), || {
        kit::measure_for(QUIET);
        let before = std::mem::replace(&mut since, cost());
        before.wake_ups == since.wake_ups
    });
    kit::measure_for(TIME);
    let after = cost();
    let used = Cost { wake_ups: after.wake_ups - since.wake_ups, cpu: after.cpu.saturating_sub(since.cpu) };
    println!("{}, {what}: {used:?} in {TIME:?}", server.model());
    assert!(used.wake_ups <= most.wake_ups && used.cpu <= most.cpu, "{what}: {used:?}, at most {most:?} in {TIME:?}");
}
