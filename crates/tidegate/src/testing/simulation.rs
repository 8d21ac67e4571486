//! Simulates a service on the real event loops, over a simulated kernel, in virtual time.

use std::ops::Range;
use std::sync::Arc;

use tidegate_os::waker::Waker;

use crate::engine::simulated::given::{Exchange, play};
use crate::policy::Policy;
use crate::service::Service;
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
/// Sessions that dial cannot be simulated.
///
/// Needs the feature `testing`, on Linux.
#[must_use = "nothing runs before `run`"]
pub struct Simulation<F> {
    make: F,
    policy: Policy,
    clients: Vec<Exchange>,
    connections: Option<usize>,
    seeds: Range<u64>,
}

impl<F> std::fmt::Debug for Simulation<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulation")
            .field("policy", &self.policy)
            .field("connections", &self.connections)
            .field("seeds", &self.seeds)
            .finish_non_exhaustive()
    }
}

/// Seeds run by default.
const SEEDS: u64 = 200;

/// The environment variable that selects one seed.
const SEED: &str = "TIDEGATE_SEED";

/// Connections per seed that the simulation's addresses can distinguish, with a margin.
const CONNECTIONS: usize = 10_000;

impl<S: Service, F: Fn() -> S> Simulation<F> {
    /// Creates a simulation; the service is created anew for each seed.
    pub fn new(make: F) -> Self {
        Self { make, policy: Policy::default(), clients: Vec::new(), connections: None, seeds: 0..SEEDS }
    }

    /// Sets the limits. Default [`Policy::default`].
    pub fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// Adds a client that sends these bytes, finishes sending, and must receive those.
    pub fn client(mut self, sends: impl AsRef<[u8]>, expects: impl AsRef<[u8]>) -> Self {
        self.clients.push(Exchange { sends: sends.as_ref().into(), expects: expects.as_ref().into() });
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
    /// policy is invalid or contradicts the limits of the service, there are more than 10,000 connections, or the
    /// service's sessions dial.
    pub fn run(self) -> Stats {
        assert!(!self.clients.is_empty(), "no clients: add one with `client(sends, expects)`");
        let service = (self.make)();
        assert_eq!(
            service.options().dials,
            0,
            "sessions that dial cannot be simulated: test them with TestConnection"
        );
        let checked = self.policy.check().and_then(|()| service.check_limits(&self.policy));
        checked.unwrap_or_else(|e| panic!("invalid policy: {e}"));
        drop(service);
        let count = self.connections.unwrap_or(self.clients.len());
        assert!(
            count <= CONNECTIONS,
            "{count} connections for each seed, and at most {CONNECTIONS} can be simulated"
        );
        let exchanges: Vec<_> = self.clients.iter().cycle().take(count).cloned().collect();
        let waker = Arc::new(Waker::new().expect("a descriptor for the simulation"));
        let one = std::env::var(SEED).ok().map(|text| {
            text.parse::<u64>().unwrap_or_else(|e| panic!("{SEED}={text} is not a seed number: {e}"))
        });
        let seeds = one.map_or(self.seeds, |seed| seed..seed + 1);
        let play = |seed| {
            play((self.make)(), &self.policy, &exchanges, seed, one.is_some(), &waker).unwrap_or_else(
                |fault| panic!("seed {seed}: {fault}\nreplay it with a trace: {SEED}={seed} cargo test …"),
            )
        };
        seeds.map(play).sum()
    }
}
