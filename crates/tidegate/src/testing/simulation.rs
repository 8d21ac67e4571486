//! Simulates a service on the real event loops, over a simulated kernel, in virtual time.

use std::ops::Range;
use std::sync::Arc;

use tidegate_os::waker::Waker;

use crate::engine::simulated::given::{Exchange, GivenService, SimulatedUpstreams, play};
use crate::policy::Policy;
use crate::service::{Dial, DialError, Service};
use crate::stats::Stats;

/// Runs a service on the real readiness and completion loops over a simulated kernel, in virtual time.
///
/// A seed decides how the kernel behaves (short reads and sends, calls that would block or are interrupted, late or
/// reordered completions, failing accepts, exhausted buffers), how bytes are split in transit, when each client
/// connects, how fast it sends and reads, and which clients disconnect in the middle. It also chooses limits that no
/// session can observe, such as buffer sizes. Runs with the same seed are identical; one takes about a millisecond.
///
/// Each client sends its bytes, finishes sending, and reads to the end. It must receive the expected bytes: all of
/// them, or a prefix if it disconnected. General invariants are checked, too: input is delivered once and in order, no
/// session is leaked or called after its end, timers fire on time, counters balance.
///
/// ```
/// # use tidegate::{Consumed, Outbox, Peer, Refusal, Service, Session};
/// # struct Echo;
/// # impl Service for Echo {
/// #     type Session = Echo;
/// #     fn open(&self, _: &Peer) -> Result<Echo, Refusal> {
/// #         Ok(Echo)
/// #     }
/// # }
/// # impl Session for Echo {
/// #     fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
/// #         out.write(input);
/// #         Consumed::all(input)
/// #     }
/// # }
/// use tidegate::testing::Simulation;
///
/// let long = vec![b'x'; 100_000];
/// let stats = Simulation::new(|| Echo)
///     .client(b"hello", b"hello")
///     .client(&long, &long)
///     .connections(6)
///     .seeds(0..20)
///     .run();
/// assert_eq!(stats.accepted, 20 * 6);
/// ```
///
/// A failing seed is printed, and the environment variable `TIDEGATE_SEED` replays it alone with a trace of all events.
/// That requires a deterministic service: it takes the time from [`Outbox::now`](crate::Outbox::now), randomness from
/// its own seed, and has no threads except [offloaded](crate::Outbox::offload) jobs, which the simulation runs.
///
/// # Sessions that dial
///
/// [`upstream`](Self::upstream) adds a server that sessions may [dial](crate::Outbox::dial). The seed decides how such
/// a server sends and reads, how long a dial takes (less than 200 ms), which dials fail, and which connections break
/// off in the middle ([`upstream_faults`](Self::upstream_faults)). The sessions of dialled connections are checked like
/// all others.
///
/// ```
/// use std::time::Duration;
/// use tidegate::link::{self, Link};
/// use tidegate::testing::Simulation;
/// use tidegate::{Endpoint, Peer, Refusal, Service, ServiceOptions};
///
/// struct Proxy(Endpoint);
///
/// impl Service for Proxy {
///     type Session = Link;
///     fn open(&self, _: &Peer) -> Result<Link, Refusal> {
///         Ok(link::dialling(&self.0, Duration::from_secs(5), 64 << 10)?)
///     }
///     fn options(&self) -> ServiceOptions {
///         ServiceOptions::default().speaks_first(true).dials(1)
///     }
/// }
///
/// let long = vec![b'x'; 30_000];
/// Simulation::new(|| Proxy(([10, 0, 0, 1], 80).into()))
///     .upstream("10.0.0.1:80", b"GET /\n", &long)
///     .upstream("10.0.0.1:80", b"GET /none\n", b"not found\n")
///     .client(b"GET /\n", &long)
///     .client(b"GET /none\n", b"not found\n")
///     .connections(6)
///     .seeds(0..20)
///     .run();
/// ```
///
/// A client for which the seed has broken something may receive a prefix of its answer: its own connection, a dial of
/// its session, or a connection that was dialled by its session or by that of another connection dialled for it. The
/// same holds for what the upstreams of that client receive. Nothing else is excused: not an upstream that is refused
/// because there is no place for it ([`ServiceOptions::dials`](crate::ServiceOptions::dials)), and not a dial to an
/// address without an upstream, which the kernel refuses
/// ([`ConnectionRefused`](std::io::ErrorKind::ConnectionRefused)). A service that shares dialled connections among
/// clients is run without faults of upstreams: who depends on them is known to the service alone.
///
/// Needs the feature `testing`, on Linux.
#[must_use = "nothing runs before `run`"]
pub struct Simulation<F> {
    make: F,
    given: GivenService,
    connections: Option<usize>,
    seeds: Range<u64>,
}

impl<F> std::fmt::Debug for Simulation<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulation")
            .field("policy", &self.given.policy)
            .field("connections", &self.connections)
            .field("seeds", &self.seeds)
            .finish_non_exhaustive()
    }
}

/// Seeds run by default.
const SEEDS: u64 = 200;

/// Faults of upstreams by default: one in eight.
const FAULTS: u8 = 32;

/// The environment variable that selects one seed.
const SEED: &str = "TIDEGATE_SEED";

/// Connections per seed that the simulation's addresses can distinguish, with a margin.
const CONNECTIONS: usize = 10_000;

impl<S: Service, F: Fn() -> S> Simulation<F> {
    /// Creates a simulation; the service is created anew for each seed.
    pub fn new(make: F) -> Self {
        let upstreams = SimulatedUpstreams { faults: FAULTS, ..SimulatedUpstreams::default() };
        let policy = Policy::default();
        let given = GivenService { policy, clients: Vec::new(), upstreams, failure_answers: Vec::new() };
        Self { make, given, connections: None, seeds: 0..SEEDS }
    }

    /// Sets the limits. Default [`Policy::default`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.given.policy = policy;
        self
    }

    /// Adds a client that sends these bytes, finishes sending, and must receive those.
    pub fn client(mut self, sends: impl AsRef<[u8]>, expects: impl AsRef<[u8]>) -> Self {
        let client = Exchange { sends: sends.as_ref().into(), expects: expects.as_ref().into() };
        self.given.clients.push(client);
        self
    }

    /// Adds a server that sessions may dial under this address, which is given as to [`dial`](crate::Outbox::dial).
    ///
    /// It must receive the bytes `hears`. When it has all of them it sends `says`, finishes sending, and reads to the
    /// end. If the stream ends before, it finishes without an answer. With several upstreams at one address a
    /// connection may be for any of them: the one whose `hears` arrives answers. There is an example
    /// [above](Self#sessions-that-dial).
    ///
    /// # Panics
    /// The address is invalid or that of a Unix socket, or an upstream at the same address hears a part of what this
    /// one hears, so that it is not clear who has to answer.
    pub fn upstream(
        mut self,
        to: impl TryInto<Dial, Error: Into<DialError>>,
        hears: impl AsRef<[u8]>,
        says: impl AsRef<[u8]>,
    ) -> Self {
        let to = to.try_into().unwrap_or_else(|e| panic!("invalid address of an upstream: {}", e.into())).to;
        let Some(at) = to.addr() else { panic!("{to}: an upstream has an IP address and a port") };
        let hears = hears.as_ref();
        let upstreams = &mut self.given.upstreams.exchanges;
        let mut others = upstreams.iter().filter(|(other, _)| *other == at).map(|(_, other)| &*other.expects);
        assert!(
            !others.any(|other| other.starts_with(hears) || hears.starts_with(other)),
            "two upstreams at {at}, of which one hears the beginning of what the other hears"
        );
        upstreams.push((at, Exchange { sends: says.as_ref().into(), expects: hears.into() }));
        self
    }

    /// Sets how many of 256 dials to upstreams fail, and how many of 256 connections to upstreams break off, within
    /// 400 ms, if they have not ended before; 0 is none. Default 32.
    ///
    /// A dial fails with [`ConnectionRefused`](std::io::ErrorKind::ConnectionRefused),
    /// [`TimedOut`](std::io::ErrorKind::TimedOut), [`HostUnreachable`](std::io::ErrorKind::HostUnreachable), or because
    /// the process has no descriptors.
    pub fn upstream_faults(mut self, of_256: u8) -> Self {
        self.given.upstreams.faults = of_256;
        self
    }

    /// Adds what a client may receive, behind any part of its answer, if the seed has broken something for it: what the
    /// service says when an upstream fails. May be called several times. Default: nothing.
    pub fn failure_answer(mut self, answer: impl AsRef<[u8]>) -> Self {
        self.given.failure_answers.push(answer.as_ref().into());
        self
    }

    /// Sets the connections per seed; they use the clients in turn. Default: one for each client.
    pub fn connections(self, connections: usize) -> Self {
        Self { connections: Some(connections), ..self }
    }

    /// Sets the seeds to run. Default: 0 to 199.
    pub fn seeds(self, seeds: Range<u64>) -> Self {
        Self { seeds, ..self }
    }

    /// Runs all seeds, or the one of the environment variable `TIDEGATE_SEED`; returns the counters.
    ///
    /// # Panics
    /// An invariant was violated: prints the violation, the seed, and how to replay it. Or there is no client, the
    /// policy is invalid or contradicts the limits of the service, there are more than 10,000 connections, or there are
    /// upstreams and the service does not declare that its sessions dial.
    pub fn run(mut self) -> Stats {
        let clients = &mut self.given.clients;
        assert!(!clients.is_empty(), "no clients: add one with `client(sends, expects)`");
        let count = self.connections.unwrap_or(clients.len());
        assert!(
            count <= CONNECTIONS,
            "{count} connections for each seed, and at most {CONNECTIONS} can be simulated"
        );
        *clients = clients.iter().cycle().take(count).cloned().collect();
        self.check_service();
        let waker = Arc::new(Waker::new().expect("a descriptor for the simulation"));
        let one = std::env::var(SEED).ok().map(|text| {
            text.parse::<u64>().unwrap_or_else(|e| panic!("{SEED}={text} is not a seed number: {e}"))
        });
        let seeds = one.map_or(self.seeds, |seed| seed..seed + 1);
        let play = |seed| {
            play((self.make)(), &self.given, seed, one.is_some(), &waker).unwrap_or_else(|fault| {
                panic!("seed {seed}: {fault}\nreplay it with a trace: {SEED}={seed} cargo test …")
            })
        };
        seeds.map(play).sum()
    }

    /// Checks that the service can run with what is given.
    fn check_service(&self) {
        let GivenService { policy, upstreams, .. } = &self.given;
        let service = (self.make)();
        let dials = service.options().dials;
        assert!(
            dials > 0 || upstreams.exchanges.is_empty(),
            "there are upstreams, and the service has not declared that its sessions dial; set ServiceOptions::dials"
        );
        let checked = policy.check().and_then(|()| policy.check_dials(dials));
        checked.and_then(|()| service.check_limits(policy)).unwrap_or_else(|e| panic!("invalid policy: {e}"));
    }
}
