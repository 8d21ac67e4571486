//! Limits on the command line. What there is, and how it is written, is in the library's table.

mod given;
mod naming;
mod units;

use std::time::Duration;

use anyhow::anyhow;
use clap::ValueEnum;
use given::Given;
pub use naming::in_users_words;
pub use tidegate::policy::setting::{size, time, wait};
use tidegate::policy::{Idle, Limited};
use tidegate::{Model, Policy, system};
pub use units::{Optional, time_or_none};

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

/// Limits. Sizes are bytes, or `64k`, `16KiB`, `1MiB`; times are `500ms`, `30s`, `5m`, and `none` where there may be
/// none. Unset limits come from --strategy, or are the default.
#[derive(clap::Args)]
#[command(next_help_heading = "Limits")]
pub struct Limits {
    /// Preset that the other limits are changed from.
    #[arg(long, value_name = "STRATEGY")]
    strategy: Option<Strategy>,
    #[command(flatten)]
    given: Given<Policy>,
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
        self.given.apply(&mut policy);
        policy
    }

    /// Raises `input_bytes` to what a layer needs, unless it was asked for.
    pub fn make_room(&self, policy: &mut Policy, bytes: usize) {
        if !self.given.has("input_bytes") {
            policy.input_bytes = policy.input_bytes.max(bytes);
        }
    }

    /// Lets a connection rest for so long, unless something else was asked for.
    pub fn let_rest(&self, policy: &mut Policy, time: Duration) {
        if !self.given.has("idle_timeout") && policy.idle_timeout.is_none() {
            // Whoever allows more time for a first byte means to wait for it.
            policy.idle_timeout = Some(time.max(policy.first_byte_timeout.unwrap_or_default()));
        }
    }

    /// Lowers the marks of the outbox to what a service can bear, unless they were asked for.
    pub fn bound_outbox(&self, policy: &mut Policy, most: usize) {
        if !self.given.has("outbox.high") && policy.outbox.high > most {
            policy.outbox.high = most;
            if !self.given.has("outbox.low") {
                policy.outbox.low = policy.outbox.low.min(most / 4);
            }
        }
    }

    /// What is to be said of limits that were given and change nothing on this model.
    pub fn without_effect(policy: &Policy, model: Model) -> Vec<String> {
        let say = |idle: Idle| {
            let option = Policy::limit(idle.name).and_then(|limit| limit.option).unwrap_or(idle.name);
            in_users_words(&format!("{option} has no effect on {model}: {}", idle.why), false)
        };
        model.without_effect(policy).into_iter().map(say).collect()
    }

    /// Descriptors for all connections of the policy.
    pub fn want(&self, policy: &Policy, model: Model) -> Want {
        let needed =
            model.descriptors_for(policy.max_connections, threads(policy, model)) + self.of_the_service;
        if self.given.has("max_connections") { Want::Exactly(needed) } else { Want::UpTo(needed) }
    }

    /// Makes `max_connections` fit so many descriptors of this process: what the user set and cannot be had is an
    /// error, a default is lowered. Returns what is to be said about that.
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
        if self.given.has("max_connections") {
            return Err(Failure::Usage(anyhow!(
                "`max_connections` is {}, but the descriptor limit of {limit} allows {most} with the model {model}: \
                 lower `max_connections`, or {remedy}",
                policy.max_connections
            )));
        }
        policy.max_connections = most;
        let limit = limit.trim_end_matches(',');
        Ok(Some(format!("max-connections lowered to {most}: the descriptor limit is {limit}; {remedy}")))
    }
}

fn threads(policy: &Policy, model: Model) -> usize {
    policy.threads.map_or(model.default_threads(), usize::from)
}
