//! Limits on the command line; the library's table defines them.

mod given;
mod naming;
mod share;
mod units;

use std::time::Duration;

use anyhow::anyhow;
use clap::ValueEnum;
pub use given::Given;
pub use naming::{OptionSource, in_users_words};
pub use share::{Want, shares};
pub use tidegate::policy::setting::{count, rate, size, time, wait};
use tidegate::policy::{Idle, Limited};
use tidegate::{Model, Policy, system};
pub use units::{at_least_one, count_in, each_model, models, signed_seconds};

use crate::Failure;

/// The two strategies of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Strategy {
    /// Few connections, large buffers; refuse above the limit.
    Throughput,
    /// Very many connections, with almost no pinned memory each.
    Connections,
}

/// Limits. Sizes are bytes, or `64k`, `16KiB`, `1MiB`; times are seconds, or `500ms`, `30s`, `5m`; counts may end in
/// `k` or `M`; `none` where allowed. Unset limits come from --strategy, or are the default.
#[derive(clap::Args)]
#[command(next_help_heading = "Limits")]
pub struct Limits {
    /// Preset that the other limits modify.
    #[arg(long, value_name = "STRATEGY")]
    strategy: Option<Strategy>,
    #[command(flatten)]
    given: Given<Policy>,
    /// Descriptors reserved for the service.
    #[arg(skip)]
    pub of_the_service: usize,
    /// Connections that each of its sessions dials.
    #[arg(skip)]
    pub dials: usize,
    /// What the service needs the high watermark of outboxes to be at most.
    #[arg(skip)]
    most_queued: Option<usize>,
}

/// Applies the given limits to a policy.
pub fn set<T>(limit: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *limit = given;
    }
}

/// Notes about given limits without effect on this model.
pub fn without_effect<P: Limited>(policy: &P, model: Model) -> Vec<String> {
    let say = |idle: Idle| {
        let option = P::limit(idle.name).map_or(idle.name, |limit| limit.option);
        in_users_words(&format!("{option} has no effect on {model}: {}", idle.why), OptionSource::CommandLine)
    };
    model.without_effect(policy).into_iter().map(say).collect()
}

impl Limits {
    /// The preset with the given limits.
    pub fn policy(&self) -> Policy {
        self.policy_with(self.strategy)
    }

    /// Leaves out what the preset has and the model cannot keep; a given limit stays, and is refused.
    pub fn keep(&self, policy: Policy, model: Model) -> Policy {
        let mut policy = model.kept_limits(policy);
        self.given.apply(&mut policy);
        policy
    }

    /// The same with another preset, as far as a server running under `running` can change to it.
    pub fn changed_to(&self, strategy: Strategy, running: &Policy, model: Model) -> Policy {
        let preset = self.keep(self.policy_with(Some(strategy)), model);
        let most = preset.max_connections.min(running.max_connections);
        let mut policy = preset
            .as_far_as_possible(running)
            // what descriptors and tables were laid out for
            .max_connections(most)
            // services rely on them
            .input_bytes(running.input_bytes)
            .drain_budget(running.drain_budget);
        self.keep_outbox_bound(&mut policy);
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
        self.given.apply(&mut policy);
        policy
    }

    /// Raises `input_bytes` to what a layer needs, unless it was asked for.
    pub fn make_room(&self, policy: &mut Policy, bytes: usize) {
        if !self.given.has("input_bytes") {
            policy.input_bytes = policy.input_bytes.max(bytes);
        }
    }

    /// Sets the idle timeout, unless it was given.
    pub fn let_rest(&self, policy: &mut Policy, time: Duration) {
        if !self.given.has("idle_timeout") && policy.idle_timeout.is_none() {
            // A longer first-byte timeout implies a longer wait.
            policy.idle_timeout = Some(time.max(policy.first_byte_timeout.unwrap_or_default()));
        }
    }

    /// Enlarges the receive buffers for a service that passes on large pieces, in a pool of the same memory and with as
    /// many bytes in a row; unless they or a strategy were given.
    pub fn widen_buffers(&self, policy: &mut Policy, bytes: usize) {
        if self.strategy.is_some() || self.given.has("buffer_bytes") || policy.buffer_bytes >= bytes {
            return;
        }
        let factor = bytes / policy.buffer_bytes;
        policy.buffer_bytes *= factor;
        if !self.given.has("buffers") {
            policy.buffers = (policy.buffers / factor).max(1);
        }
        if !self.given.has("drain_budget") {
            policy.drain_budget = (policy.drain_budget / factor).max(1);
        }
    }

    /// Lowers the outbox watermarks to what a service needs, unless they were given; for other strategies, too.
    pub fn bound_outbox(&mut self, policy: &mut Policy, most: usize) {
        self.most_queued = Some(most);
        self.keep_outbox_bound(policy);
    }

    fn keep_outbox_bound(&self, policy: &mut Policy) {
        let Some(most) = self.most_queued else { return };
        if !self.given.has("outbox.high") && policy.outbox.high > most {
            policy.outbox.high = most;
            if !self.given.has("outbox.low") {
                policy.outbox.low = policy.outbox.low.min(most / 4);
            }
        }
    }

    /// Descriptors for all connections of the policy.
    pub fn want(&self, policy: &Policy, model: Model) -> Want {
        let needed = model.descriptors_for(policy.max_connections, model.threads(policy), self.dials)
            + self.of_the_service;
        if self.given.has("max_connections") { Want::Exactly(needed) } else { Want::UpTo(needed) }
    }

    /// Lowers a default `max_connections` to what `kernel_memory` allows; a given one is checked later.
    fn fit_kernel(&self, policy: &mut Policy, model: Model) -> Result<Option<String>, Failure> {
        let Some(budget) = policy.kernel_memory.filter(|_| !self.given.has("max_connections")) else {
            return Ok(None);
        };
        let bound = model.memory_bound(policy);
        let most = usize::try_from(bound.connections_within_kernel(budget as u64)).unwrap_or(usize::MAX);
        if most == 0 {
            let least = bound.kernel_process + bound.kernel_each_connection;
            let e = anyhow!("`kernel_memory` is {budget}, but one connection needs {least} bytes; raise it");
            return Err(Failure::Usage(e));
        }
        if most >= policy.max_connections {
            return Ok(None);
        }
        policy.max_connections = most;
        Ok(Some(format!("max-connections lowered to {most}: kernel-memory is {budget}")))
    }

    /// A number of threads that would leave room for connections, if the threads are what takes all descriptors.
    fn fewer_threads(&self, policy: &Policy, model: Model, share: usize) -> String {
        let share = share.saturating_sub(self.of_the_service);
        let now = model.threads(policy);
        let mut halves = std::iter::successors(Some(now / 2), |n| Some(n / 2)).take_while(|n| *n > 0);
        let fewer = halves.find(|&n| model.most_connections_within(share, n, self.dials) >= n);
        fewer.map_or(String::new(), |n| format!("{now} threads take all: lower `threads` to {n}, or "))
    }

    /// Makes `max_connections` fit the descriptors of this process: a given value that does not fit is an error, a
    /// default is lowered. Returns a note about that.
    pub fn fit(&self, policy: &mut Policy, model: Model, share: usize) -> Result<Option<String>, Failure> {
        let all = usize::try_from(system::descriptor_limit().0).unwrap_or(usize::MAX);
        let of_connections = share.saturating_sub(self.of_the_service);
        let most = model.most_connections_within(of_connections, model.threads(policy), self.dials);
        let of_kernel = self.fit_kernel(policy, model)?;
        let limit =
            if share < all { format!("{all}, of which this server has {share},") } else { all.to_string() };
        let remedy = "raise it with ulimit -n";
        if policy.max_connections <= most {
            return Ok(of_kernel);
        }
        if most == 0 {
            let files = match self.of_the_service {
                0 => String::new(),
                files => format!(" in addition to {files} open files (lower --open-files)"),
            };
            let fewer = self.fewer_threads(policy, model, share);
            let limit = limit.trim_end_matches(',');
            let e = anyhow!(
                "the descriptor limit is {limit}, too low for any connection{files}; {fewer}{remedy}"
            );
            return Err(Failure::Usage(e));
        }
        if self.given.has("max_connections") {
            return Err(Failure::Usage(anyhow!(
                "`max_connections` is {}, but the descriptor limit of {limit} allows {most} with the model {model}: \
                 lower `max_connections`, or {remedy}",
                policy.max_connections
            )));
        }
        policy.max_connections = most;
        let limit = limit.trim_end_matches(',');
        // Why that is more than the limit.
        let tables = if model == Model::Uring { ", also for the table of each ring" } else { "" };
        Ok(Some(format!(
            "max-connections lowered to {most}: the descriptor limit is {limit}{tables}; {remedy}"
        )))
    }
}
