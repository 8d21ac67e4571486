//! Errors before there is a result.

use std::path::PathBuf;

use tidegate_load::LoadError;

/// Why a load could not be run by agents.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The feature `nats` of this crate was not enabled.
    #[error(
        "this build has no NATS: several hosts need it; build with `--features cluster`, or take a package, which has it"
    )]
    BuiltWithoutNats,
    /// The broker cannot be reached.
    #[error("cannot use the broker {url}: {why}")]
    Broker {
        /// Its URL without secrets.
        url: String,
        /// The client's error, and the remedy.
        why: String,
    },
    /// Invalid broker settings: address, credentials, or trust.
    #[error("cannot use the broker {url}: {why}")]
    Access {
        /// Its URL without secrets.
        url: String,
        /// The client's error, and the remedy.
        why: String,
    },
    /// A credentials file with unexpected content.
    #[error("{} holds no {expected}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The expected content.
        expected: &'static str,
    },
    /// A credentials file that cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The system has no timers or sockets left.
    #[error("cannot set up the connection to the broker: {0}")]
    Runtime(#[source] std::io::Error),
    /// The plan is invalid, or cannot be divided among so many agents.
    #[error(transparent)]
    Plan(#[from] LoadError),
    /// The plan cannot be serialized.
    #[error("{0}")]
    Order(String),
    /// Not enough agents registered.
    #[error(
        "{came} of {wanted} agents came within {waited_s:.0} s{busy}; start more with `tidegate agent --nats URL`, lower \
         --agents, or raise --agents-wait"
    )]
    TooFew {
        /// Agents that registered and were free.
        came: usize,
        /// Agents requested.
        wanted: usize,
        /// Time waited in seconds.
        waited_s: f64,
        /// Agents that run another load, as text.
        busy: String,
    },
    /// An agent refused the plan.
    #[error("agent {agent} refuses: {why}")]
    Refused {
        /// Its name.
        agent: String,
        /// The reason.
        why: String,
    },
    /// An error before the load began, and the setting is to stop then.
    #[error("{0}; the load was not started")]
    NotBegun(String),
    /// No agent returned a result.
    #[error("there is no result: {0}")]
    NoResult(String),
    /// Interrupted before the load began.
    #[error("interrupted before the load began")]
    Interrupted,
}

impl ClusterError {
    /// Whether it is a usage error.
    #[must_use]
    pub fn is_about_options(&self) -> bool {
        matches!(
            self,
            Self::BuiltWithoutNats | Self::Access { .. } | Self::Content { .. } | Self::File { .. }
        )
    }
}
