//! Every limit of the policy as a flag.

mod units;

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use anyhow::anyhow;
use clap::ValueEnum;
use tidegate::policy::{FastPath, MinRate, PostedAccepts, ReceiveStyle, Wait, WhenFull};
use tidegate::{Model, Policy, system};
use units::marks;
pub use units::{Optional, size, time, time_or_none, wait};

use crate::Failure;
use crate::serve::Want;

/// The two strategies of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Strategy {
    /// Few connections at once, large buffers, busy ones refused.
    Throughput,
    /// Very many connections, next to nothing pinned for each.
    Connections,
}

/// When max-connections is reached: wait or refuse.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Full {
    /// They wait in the backlog.
    Wait,
    /// They are accepted and closed at once.
    Refuse,
}

/// How a receive waits for data.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Receive {
    /// A buffer is ready when data comes.
    Posted,
    /// The system reports data first; an idle connection must pin no buffer.
    ZeroByte,
}

/// Limits. Sizes are bytes, or `64k`, `16KiB`, `1MiB`; times are `500ms`, `30s`, `5m`, and `none` where there may be none.
/// Unset limits come from --strategy, or are the default.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Limits")]
pub struct Limits {
    /// Preset that the other limits are changed from.
    #[arg(long, value_name = "STRATEGY")]
    strategy: Option<Strategy>,
    /// I/O threads [default: one for each processor; 256 for pool].
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Connections at once [default: 100,000, lowered to what the descriptor limit allows].
    #[arg(long, value_name = "N")]
    max_connections: Option<usize>,
    /// When max-connections is reached: wait or refuse [default: wait].
    #[arg(long, value_name = "WHAT")]
    when_full: Option<Full>,
    /// Connections the kernel holds before they are accepted [default: 4096].
    #[arg(long, value_name = "N")]
    backlog: Option<u32>,
    /// How long the kernel may keep a connection until its first data has come, or none [default: 1s].
    #[arg(long, value_name = "TIME", value_parser = time_or_none)]
    defer_accept: Option<Optional>,
    /// Connections a thread accepts in a row [default: 64].
    #[arg(long, value_name = "N")]
    accept_batch: Option<usize>,
    /// Keep so many accepts posted, at least and at most (uring) [default: one that never ends].
    #[arg(long, value_name = "LOW:HIGH", value_parser = marks)]
    posted_accepts: Option<PostedAccepts>,
    /// Keep so many sockets of ended connections in each thread, to accept with again (iocp) [default: they are closed].
    #[arg(long, value_name = "N")]
    reuse_sockets: Option<NonZeroU32>,
    /// TCP Fast Open for this many waiting connections [default: off].
    #[arg(long, value_name = "N")]
    fast_open: Option<NonZeroU32>,
    /// Close an accepted connection that has sent nothing for this long, or none [default: 30s].
    #[arg(long, value_name = "TIME", value_parser = time_or_none)]
    first_byte_timeout: Option<Optional>,
    /// Close a connection on which nothing moved for this long, or none [default: 75s for http and files, none for the others].
    #[arg(long, value_name = "TIME", value_parser = time_or_none)]
    idle_timeout: Option<Optional>,
    /// Reset a connection whose peer takes nothing for this long, or none [default: 30s].
    #[arg(long, value_name = "TIME", value_parser = time_or_none)]
    send_timeout: Option<Optional>,
    /// Reset a peer that is slower than this in the middle of a message, in bytes a second [default: off].
    #[arg(long, value_name = "BYTES")]
    min_rate: Option<NonZeroU32>,
    /// How long a peer may fall behind --min-rate [default: 5s].
    #[arg(long, value_name = "TIME", value_parser = time, requires = "min_rate")]
    min_rate_grace: Option<Duration>,
    /// How long to wait for the peer to close after a last answer [default: 2s].
    #[arg(long, value_name = "TIME", value_parser = time)]
    linger_timeout: Option<Duration>,
    /// How long a stop lets connections finish [default: 10s].
    #[arg(long, value_name = "TIME", value_parser = time)]
    drain_timeout: Option<Duration>,
    /// Bytes of a receive buffer, a multiple of 4096 [default: 16KiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    buffer_bytes: Option<usize>,
    /// Receive buffers in the pool of each thread of uring [default: 256].
    #[arg(long, value_name = "N")]
    buffers: Option<usize>,
    /// Keep the receive buffers in memory (mlock) [default: off].
    #[arg(long)]
    lock_memory: bool,
    /// How a receive waits for data [default: posted].
    #[arg(long, value_name = "STYLE")]
    receive: Option<Receive>,
    /// Input a connection may leave unconsumed [default: 64KiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    input_bytes: Option<usize>,
    /// Unsent output at which a connection is asked for more again [default: 16KiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    outbox_low: Option<usize>,
    /// Unsent output above which a connection receives nothing more [default: 64KiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    outbox_high: Option<usize>,
    /// Sends of the whole server that the kernel has not finished with [default: no limit].
    #[arg(long, value_name = "N")]
    outstanding_sends: Option<NonZeroU32>,
    /// Connections that may receive at once, first in, first out [default: all].
    #[arg(long, value_name = "N")]
    window: Option<NonZeroUsize>,
    /// How an I/O thread waits: block, spin, or spin:TIME to spin for so long and then block [default: block].
    #[arg(long, value_name = "HOW", value_parser = wait)]
    wait: Option<Wait>,
    /// How long a wait in the kernel polls the queue of the network card before it sleeps; takes CAP_NET_ADMIN [default: off].
    #[arg(long, value_name = "TIME", value_parser = time)]
    busy_poll: Option<Duration>,
    /// Shared memory in place of TCP for connections with a tidegate on this host that has this option too; all others stay
    /// with TCP.
    #[arg(long)]
    fast_path: bool,
    /// Bytes of shared memory for each direction of such a connection, a power of two [default: 256KiB].
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "fast_path")]
    ring_bytes: Option<usize>,
    /// The number of a user, besides one's own, who may be at the other end of such a connection [default: nobody].
    #[arg(long, value_name = "UID", requires = "fast_path")]
    fast_path_user: Option<u32>,
    /// Threads for offloaded jobs, started when needed [default: 4].
    #[arg(long, value_name = "N")]
    offload_threads: Option<usize>,
    /// Jobs that may wait for those threads [default: 1024].
    #[arg(long, value_name = "N")]
    offload_queue: Option<usize>,
    /// Receives and sends of one connection in a row [default: 8].
    #[arg(long, value_name = "N")]
    drain_budget: Option<usize>,
    /// Stack of each thread of blocking and pool [default: 128KiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    thread_stack_bytes: Option<usize>,
    /// Events or completions taken from the kernel at once [default: 256].
    #[arg(long, value_name = "N")]
    events_per_wait: Option<usize>,
    /// Mail that may wait for one thread [default: 1000000].
    #[arg(long, value_name = "N")]
    mail_queue: Option<usize>,
    /// SO_SNDBUF of accepted sockets [default: the system tunes it].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    socket_send_buffer: Option<usize>,
    /// SO_RCVBUF of accepted sockets [default: the system tunes it].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    socket_receive_buffer: Option<usize>,
    /// Descriptors that the service keeps for itself, and no connection has.
    #[arg(skip)]
    pub of_the_service: usize,
}

/// Puts what was given in the place of what is there.
pub fn set<T>(limit: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *limit = given;
    }
}

impl Limits {
    /// The preset with what was given.
    pub fn policy(&self) -> Policy {
        self.policy_with(self.strategy)
    }

    /// The same with another preset, as far as a server that runs under `running` can change to it.
    pub fn changed_to(&self, strategy: Strategy, running: &Policy) -> Policy {
        let preset = self.policy_with(Some(strategy));
        let most = preset.max_connections.min(running.max_connections);
        let mut policy = Policy {
            max_connections: most,            // what descriptors and tables were laid out for
            input_bytes: running.input_bytes, // services rely on it
            ..preset.as_far_as_possible(running)
        };
        if let Some(time) = running.idle_timeout {
            self.let_rest(&mut policy, time); // that of the service
        }
        policy
    }

    fn policy_with(&self, strategy: Option<Strategy>) -> Policy {
        let mut policy = match strategy {
            Some(Strategy::Throughput) => Policy::throughput(),
            Some(Strategy::Connections) => Policy::connections(),
            None => Policy::default(),
        };
        let time = |given: Option<Optional>| given.map(|time| time.0);
        policy.threads = self.threads;
        set(&mut policy.max_connections, self.max_connections);
        set(
            &mut policy.when_full,
            self.when_full.map(|full| match full {
                Full::Wait => WhenFull::Wait,
                Full::Refuse => WhenFull::Refuse,
            }),
        );
        set(&mut policy.accept.backlog, self.backlog);
        set(&mut policy.accept.defer, time(self.defer_accept));
        set(&mut policy.accept.batch, self.accept_batch);
        set(&mut policy.first_byte_timeout, time(self.first_byte_timeout));
        set(&mut policy.idle_timeout, time(self.idle_timeout));
        set(&mut policy.send_timeout, time(self.send_timeout));
        policy.accept.posted = self.posted_accepts;
        policy.accept.reuse = self.reuse_sockets;
        policy.accept.fast_open = self.fast_open;
        policy.min_rate = self.min_rate.map(|bytes_per_s| MinRate {
            bytes_per_s,
            grace: self.min_rate_grace.unwrap_or(Duration::from_secs(5)),
        });
        policy.lock_memory = self.lock_memory;
        set(
            &mut policy.receive,
            self.receive.map(|style| match style {
                Receive::Posted => ReceiveStyle::Posted,
                Receive::ZeroByte => ReceiveStyle::ZeroByte,
            }),
        );
        policy.outstanding_sends = self.outstanding_sends;
        policy.window = self.window;
        set(&mut policy.wait, self.wait);
        policy.busy_poll = self.busy_poll;
        policy.fast_path = self.fast_path.then(|| {
            let mut fast = FastPath { also_user: self.fast_path_user, ..FastPath::default() };
            set(&mut fast.ring_bytes, self.ring_bytes);
            fast
        });
        set(&mut policy.offload.threads, self.offload_threads);
        set(&mut policy.offload.queue, self.offload_queue);
        set(&mut policy.linger_timeout, self.linger_timeout);
        set(&mut policy.drain_timeout, self.drain_timeout);
        set(&mut policy.buffer_bytes, self.buffer_bytes);
        set(&mut policy.buffers, self.buffers);
        set(&mut policy.input_bytes, self.input_bytes);
        set(&mut policy.outbox.low, self.outbox_low);
        set(&mut policy.outbox.high, self.outbox_high);
        set(&mut policy.drain_budget, self.drain_budget);
        set(&mut policy.thread_stack_bytes, self.thread_stack_bytes);
        set(&mut policy.events_per_wait, self.events_per_wait);
        set(&mut policy.mail_queue, self.mail_queue);
        policy.socket_send_buffer = self.socket_send_buffer;
        policy.socket_receive_buffer = self.socket_receive_buffer;
        policy
    }

    /// Raises `input_bytes` to what a layer needs, unless it was asked for.
    pub fn make_room(&self, policy: &mut Policy, bytes: usize) {
        if self.input_bytes.is_none() {
            policy.input_bytes = policy.input_bytes.max(bytes);
        }
    }

    /// Lets a connection rest for so long, unless something else was asked for.
    pub fn let_rest(&self, policy: &mut Policy, time: Duration) {
        if self.idle_timeout.is_none() && policy.idle_timeout.is_none() {
            // Whoever allows more time for a first byte means to wait for it.
            policy.idle_timeout = Some(time.max(policy.first_byte_timeout.unwrap_or_default()));
        }
    }

    /// Lowers the marks of the outbox to what a service can bear, unless they were asked for.
    pub fn bound_outbox(&self, policy: &mut Policy, most: usize) {
        if self.outbox_high.is_none() && policy.outbox.high > most {
            policy.outbox.high = most;
            policy.outbox.low = self.outbox_low.unwrap_or(policy.outbox.low.min(most / 4));
        }
    }

    /// Descriptors for all connections of the policy.
    pub fn want(&self, policy: &Policy, model: Model) -> Want {
        let needed =
            model.descriptors_for(policy.max_connections, threads(policy, model)) + self.of_the_service;
        if self.max_connections.is_some() { Want::Exactly(needed) } else { Want::UpTo(needed) }
    }

    /// Makes `max_connections` fit so many descriptors of this process: what the user set and cannot be had is an error,
    /// a default is lowered. Returns what is to be said about that.
    pub fn fit(&self, policy: &mut Policy, model: Model, share: usize) -> Result<Option<String>, Failure> {
        let all = usize::try_from(system::descriptor_limit().0).unwrap_or(usize::MAX);
        let most =
            model.most_connections_within(share.saturating_sub(self.of_the_service), threads(policy, model));
        let limit =
            if share < all { format!("{all}, of which this server has {share},") } else { all.to_string() };
        let remedy = "raise it with ulimit -n";
        if policy.max_connections <= most {
            return Ok(None);
        }
        if most == 0 {
            let files = match self.of_the_service {
                0 => String::new(),
                files => format!(" beside {files} files that are kept open (lower --open-files)"),
            };
            let e = anyhow!("the descriptor limit is {limit}, too low for any connection{files}; {remedy}");
            return Err(Failure::Usage(e));
        }
        if self.max_connections.is_some() {
            return Err(Failure::Usage(anyhow!(
                "max_connections is {}, but the descriptor limit of {limit} allows {most} with the model {model}: \
                 lower max_connections, or {remedy}",
                policy.max_connections
            )));
        }
        policy.max_connections = most;
        let limit = limit.trim_end_matches(',');
        Ok(Some(format!("max_connections lowered to {most}: the descriptor limit is {limit}; {remedy}")))
    }
}

fn threads(policy: &Policy, model: Model) -> usize {
    policy.threads.map_or(model.default_threads(), usize::from)
}
