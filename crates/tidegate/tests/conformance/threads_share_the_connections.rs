//! The I/O threads of a loop model serve the same number of connections each, however those arrive: in bursts, one
//! after the other, and one for each request; before and after a successor takes the listener over and the first server
//! stops. What threads have served is compared while nobody calls: it then depends on who was to serve, not on when.
//!
//! `TIDEGATE_CONNECTIONS=10000` makes so many of each kind; `--nocapture` shows what each thread was given.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use tidegate::{Consumed, Endpoint, Flow, Model, Outbox, Policy, Running, Server, Session, Stats, system};

use crate::kit::{self, Echo};

on_every_model!(case, alone);

/// Connections that are open at once.
const AT_ONCE: usize = 1_000;
const CALLERS: usize = 8;

/// Those whose threads run a loop over connections of any number.
fn is_loop(model: Model) -> bool {
    matches!(model, Model::Select | Model::Poll | Model::Epoll | Model::Uring)
}

fn connections() -> usize {
    let asked = std::env::var("TIDEGATE_CONNECTIONS").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(if kit::is_fast() { 1_200 } else { 2_000 })
}

fn case(model: Model) {
    if !is_loop(model) {
        return; // its threads belong to connections, or another library or kernel chooses among them
    }
    let needed = 2 * AT_ONCE as u64 + 400;
    assert!(system::raise_descriptor_limit().expect("descriptor limit") >= needed, "raise RLIMIT_NOFILE");
    for threads in [2, 4, 16] {
        let policy = kit::with_threads(model, threads).max_connections(50_000);
        shares("bursts", &policy, model, kit::sessions(Echo::default), bursts);
        shares("slow arrivals", &policy, model, kit::sessions(Echo::default), slow_arrivals);
        shares("a connection for each request", &policy, model, kit::sessions(|| Once), requests);
        if model.shares_listener_with(model) {
            successor(model, &policy);
        }
    }
}

fn shares(
    what: &str,
    policy: &Policy,
    model: Model,
    service: impl tidegate::Service,
    arrive: fn(&Endpoint, usize),
) {
    let server = kit::serve(model, policy.clone(), service);
    let handle = server.handle();
    arrive(server.local_addr(), connections());
    let stats = kit::finish(server);
    assert_eq!(stats.accepted, connections() as u64, "{model}: nobody is lost");
    check(&format!("{model}, {what}"), &accepted(&handle.thread_stats()), ahead(policy));
}

/// How far a thread may be ahead of another by design, however slowly each of them runs: the lead that it keeps
/// (`policy::accept`), and one connection for each thread that chose by what it had seen before the others chose. With
/// few connections for each thread that is more than the ratio allows.
fn ahead(policy: &Policy) -> u64 {
    const LEAD: u64 = 8;
    LEAD + policy.threads.expect("a number of threads").get() as u64
}

fn accepted(each: &[Stats]) -> Vec<u64> {
    each.iter().map(|stats| stats.accepted).collect()
}

/// The busiest thread served at most 1.2 times as many as the one with the least to do, or `ahead` more.
fn check(what: &str, each: &[u64], ahead: u64) {
    let (least, most) = (each.iter().min().expect("a thread"), each.iter().max().expect("a thread"));
    println!("{what}, {} threads: {least} to {most}", each.len());
    assert!(most * 5 <= least * 6 || most - least <= ahead, "{what}: {each:?}");
}

/// Many come at once and stay for a while.
fn bursts(to: &Endpoint, count: usize) {
    let mut left = count;
    while left > 0 {
        let burst = left.min(AT_ONCE);
        kit::progress().step();
        let mut streams: Vec<_> = (0..burst).map(|_| kit::connect(to)).collect();
        streams.iter_mut().for_each(|stream| stream.write_all(b"burst").expect("send"));
        streams.iter_mut().for_each(|stream| assert_eq!(kit::hear(stream, 5), b"burst"));
        streams.into_iter().for_each(leave);
        left -= burst;
    }
}

/// Each comes when the one before it has its answer, so that nobody has anything to do; they stay for a while.
fn slow_arrivals(to: &Endpoint, count: usize) {
    let mut streams: VecDeque<TcpStream> = VecDeque::new();
    let progress = kit::progress();
    for _ in 0..count {
        progress.step();
        let mut stream = kit::connect(to);
        kit::exchange(&mut stream, b"slow");
        streams.push_back(stream);
        if streams.len() > AT_ONCE {
            streams.pop_front().into_iter().for_each(leave);
        }
    }
    streams.into_iter().for_each(leave);
}

/// By a reset: a connection that is closed keeps its caller's port for a minute (TIME-WAIT), and all models together
/// would use up those of the system.
fn leave(stream: TcpStream) {
    kit::reset(stream);
}

/// Several callers make a connection for each request.
fn requests(to: &Endpoint, count: usize) {
    let (begun, progress) = (AtomicUsize::new(0), kit::progress());
    thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                while begun.fetch_add(1, SeqCst) < count {
                    progress.step();
                    call(to);
                }
            });
        }
    });
}

fn call(to: &Endpoint) {
    // after a change of servers only one of the two has the name of the listener
    let mut stream = kit::connect_somehow(to);
    stream.write_all(b"hello").expect("send");
    let mut back = String::new();
    stream.read_to_string(&mut back).expect("an answer");
    assert_eq!(back, "hello", "nobody is lost");
}

/// Answers one message and closes.
struct Once;

impl Session for Once {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input).then(Flow::Close)
    }
}

/// A second server accepts from the same socket, and the first one stops, while callers go on. Meanwhile nobody is
/// lost; who serves how many depends on which threads have started or stopped first.
fn successor(model: Model, policy: &Policy) {
    let make = || Server::new(kit::sessions(|| Once)).model(model).policy(policy.clone());
    let bound = make().bind(kit::somewhere()).expect("bind");
    let (addr, socket) = (bound.local_addr().clone(), bound.share_listener().expect("a second descriptor"));
    let first = bound.start().expect("start");
    let count = connections() / 2;
    requests(&addr, count);
    check(&format!("{model}, before the change of servers"), &accepted(&first.thread_stats()), ahead(policy));

    let (calls, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (first, second) = thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                while !over.load(SeqCst) {
                    call(&addr);
                    calls.fetch_add(1, SeqCst);
                }
            });
        }
        let serves = |server: &Running, calls| server.stats().accepted >= (calls + CALLERS) as u64;
        kit::until("the first serves", || serves(&first, count));
        let second = make().listen_on(socket).expect("adopt").start().expect("start");
        first.stop();
        let first = first.join();
        kit::until("the second serves", || serves(&second, 0));
        over.store(true, SeqCst);
        (first, second)
    });
    let before = accepted(&second.thread_stats());
    requests(&addr, count);
    let after = accepted(&second.thread_stats());
    let since: Vec<_> = after.iter().zip(&before).map(|(now, before)| now - before).collect();
    let second = kit::finish(second);
    kit::check(&first);
    let all = (2 * count + calls.into_inner()) as u64;
    assert_eq!(first.accepted + second.accepted, all, "{model}: nobody is lost");
    // It makes up for what it was behind in the beginning, and may be behind as much at the end.
    check(&format!("{model}, after the change of servers"), &since, 2 * ahead(policy));
}
