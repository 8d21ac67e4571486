//! What the cases share: running one on a model, starting and finishing servers, waiting for conditions.

#[path = "../../harness/any_loopback.rs"]
mod any_loopback;
mod callers;
#[path = "../../harness/closed_port.rs"]
mod closed_port;
mod deadline;
#[cfg(target_os = "linux")]
mod relay;
mod sessions;
#[path = "../../harness/streams.rs"]
mod streams;
mod tape;

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use libtest_mimic::{Completion, Trial};
use tempfile::TempDir;
use tidegate::policy::{FastPath, OutboxMarks, whole_pages};
use tidegate::{Endpoint, Model, Policy, PolicyError, Running, Server, Service, StartError, Stats};

use crate::harness;

pub use any_loopback::any_loopback;
pub use callers::{
    EchoPeer, Ending, caller, connect, connect_from_anywhere, connect_narrow, connect_somehow, exchange,
    hear, hear_all, hear_some, reset,
};
pub use closed_port::ClosedPort;
pub use deadline::{Deadline, Progress, slow};
pub use sessions::{Echo, HoldableEcho, Producer, Sessions, Witness, sessions};
pub use streams::{receive, send_all};
pub use tape::{Random, Tape};

/// How long a condition, a read or a write may take before the case fails. Below the [`Deadline`], so
/// that what fails says what it waited for.
pub fn timeout() -> Duration {
    slow(Duration::from_secs(50))
}

/// Panics with this, as a case wants it: nothing is printed, so that whatever is printed is of interest.
pub fn fall(with: impl Send + 'static) -> ! {
    std::panic::resume_unwind(Box::new(with))
}

/// Makes one test of a case for each model: `half_close::epoll` and so on.
///
/// `on_every_model!(case, alone)` lets no other such case run beside it: for those that need very many descriptors.
/// `on_every_model!(case, and over Unix sockets)` makes the same tests once more, over a Unix socket, which has no fast
/// path.
macro_rules! on_every_model {
    ($case:ident) => { on_every_model!(@tests run $case, false); };
    ($case:ident, alone) => { on_every_model!(@tests run_alone $case, false); };
    ($case:ident, and over Unix sockets) => { on_every_model!(@tests run $case, cfg!(unix)); };
    ($case:ident, alone, and over Unix sockets) => { on_every_model!(@tests run_alone $case, cfg!(unix)); };
    (@tests $run:ident $case:ident, $over_unix:expr) => {
        /// One test for each model.
        pub(crate) fn trials() -> Vec<::libtest_mimic::Trial> {
            use crate::kit;
            let mut all = kit::on_every_model(module_path!(), kit::$run, $case);
            if $over_unix && !kit::is_fast() {
                let module = concat!(module_path!(), "::over_unix");
                all.extend(kit::on_every_model(module, kit::run_over_unix, $case));
            }
            all
        }
    };
}

/// The tests of a case: one for each model that this system has and that can take part.
pub fn on_every_model(module: &'static str, run: fn(&str, Model, fn(Model)), case: fn(Model)) -> Vec<Trial> {
    let takes_part = |model: &Model| !is_fast() || FAST.contains(model);
    let trial = |model: Model| {
        let name = harness::name(module, &model.name().replace('-', "_"));
        let complete = move || {
            run(module, model, case);
            Ok(Completion::Completed)
        };
        Trial::ignorable_test(name, move || harness::on(model, complete))
    };
    harness::models().filter(takes_part).map(trial).collect()
}

/// The models that have the fast path.
pub const FAST: [Model; 6] =
    [Model::Select, Model::Poll, Model::Epoll, Model::Uring, Model::Pool, Model::Tokio];

/// Whether this is the suite over the fast path: servers have it, and the callers' connections go through shared
/// memory.
pub fn is_fast() -> bool {
    module_path!().starts_with("fast_path")
}

/// Runs a case on a model under a [`Deadline`].
pub fn run(module: &str, model: Model, case: fn(Model)) {
    let deadline = Deadline::new(format!("{module}::{model}"));
    PROGRESS.set(Some(deadline.progress()));
    case(model);
    PROGRESS.set(None);
}

thread_local! {
    /// That of the case that runs on this thread.
    static PROGRESS: RefCell<Option<Progress>> = const { RefCell::new(None) };
}

/// For a long case of many steps: its time begins anew with each of them.
pub fn progress() -> Progress {
    PROGRESS.with_borrow(|progress| progress.clone().expect("a case runs on this thread"))
}

/// The same, but no two cases at a time.
pub fn run_alone(module: &str, model: Model, case: fn(Model)) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    run(module, model, case);
}

thread_local! {
    /// The folder of the Unix socket that a case of this thread runs over, if it does.
    static FOLDER: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

/// The same, alone, with servers that listen on a Unix socket.
pub fn run_over_unix(module: &str, model: Model, case: fn(Model)) {
    FOLDER.set(Some(tempfile::tempdir().expect("a folder")));
    run_alone(module, model, case);
    let folder = FOLDER.take().expect("the folder");
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("read the folder").collect();
    assert!(left.is_empty(), "a server that has stopped leaves no file behind: {left:?}");
}

/// Where the servers of a case listen: on a port of the system's choice, or on a Unix socket.
pub fn somewhere() -> Endpoint {
    FOLDER.with_borrow(|folder| match folder {
        Some(folder) => Endpoint::unix(folder.path().join("socket")),
        None => "127.0.0.1:0".parse().expect("an address"),
    })
}

/// The default limits; two I/O threads where the model has a fixed number, so that what crosses
/// threads is exercised on every machine.
pub fn policy(model: Model) -> Policy {
    with_threads(model, 2)
}

/// The default limits and this many I/O threads, except where threads belong to connections.
pub fn with_threads(model: Model, threads: usize) -> Policy {
    let of_connections =
        matches!(model, Model::Blocking | Model::Pool | Model::EventSelect | Model::Overlapped);
    let threads = if of_connections { None } else { NonZeroUsize::new(threads) };
    let fast_path = is_fast().then(|| FastPath::default().handshake_timeout(timeout()));
    let default = Policy::default();
    default
        .clone()
        .threads(threads)
        .fast_path(fast_path)
        // A crowded machine is no silent peer.
        .first_byte_timeout(Some(timeout()))
        .send_timeout(Some(timeout()))
        .drain_timeout(slow(default.drain_timeout))
}

/// The least of everything, so that every bound is met all the time.
pub fn tight(model: Model) -> Policy {
    let mut policy = policy(model);
    policy.accept.batch = 1;
    policy
        .clone()
        .fast_path(policy.fast_path.map(|fast| fast.ring_bytes(4096)))
        .buffer_bytes(whole_pages(4096))
        .buffers(2)
        .outbox(OutboxMarks::default().low(1).high(4096))
        .drain_budget(1)
        .events_per_wait(1)
        .socket_send_buffer(Some(8 * 1024))
        .socket_receive_buffer(Some(8 * 1024))
        .posted_sends(3)
        .posted_receives(2)
}

/// The policy, if the model can keep it; else makes sure that it is refused, by the name of the limit.
pub fn kept_by(model: Model, policy: Policy, limit: &str) -> Option<Policy> {
    match Server::new(sessions(Echo::default)).model(model).policy(policy.clone()).bind("127.0.0.1:0") {
        Ok(_) => Some(policy),
        Err(StartError::Policy(PolicyError::NotOnModel { name, .. })) => {
            assert_eq!(name, limit);
            let elsewhere = limit == "accept.posted" || limit == "coalesce" && cfg!(windows);
            assert!(matches!(model, Model::Blocking | Model::Pool | Model::Tokio) || elsewhere);
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// Starts a server [somewhere].
pub fn serve(model: Model, policy: Policy, service: impl Service) -> Running {
    serve_at(somewhere(), model, policy, service)
}

/// Starts a server there.
pub fn serve_at(at: Endpoint, model: Model, mut policy: Policy, service: impl Service) -> Running {
    if at.is_unix() {
        (policy.socket_send_buffer, policy.socket_receive_buffer) = (None, None); // refused there
    }
    let server = Server::new(service).model(model).policy(policy).bind(at).expect("bind");
    assert_eq!(server.model(), model, "a model asked for by name is never replaced");
    server.start().expect("start")
}

/// Stops a server, waits for it and checks what has to hold for every one.
pub fn finish(server: Running) -> Stats {
    server.stop();
    let stats = server.join();
    check(&stats);
    stats
}

/// What holds for the counters of every server and client that has stopped.
pub fn check(stats: &Stats) {
    assert_eq!(stats.accepted, stats.closed_total(), "every session ended once: {stats:?}");
    assert_eq!(stats.open(), 0);
    assert_eq!(stats.outstanding, 0, "no operation is left with the kernel: {stats:?}");
    if stats.no_descriptors == 0 {
        // A failed accept counts as attempted; all others have an outcome.
        let outcomes = stats.accepted + stats.refused + stats.dial_failed;
        assert_eq!(stats.attempted, outcomes, "every attempt has one outcome: {stats:?}");
    }
}

/// Waits for a condition.
#[track_caller]
pub fn until(what: &str, mut met: impl FnMut() -> bool) {
    wait_for(what, || met().then_some(()));
}

/// Waits until there is something, and returns it.
#[track_caller]
pub fn wait_for<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(start.elapsed() < timeout(), "waited in vain until {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Lets time pass in order to measure what happens in it. Never to wait for something: that is [`until`].
pub fn measure_for(time: Duration) {
    let start = Instant::now();
    while let Some(left) = time.checked_sub(start.elapsed()) {
        std::thread::park_timeout(left);
    }
}
