//! What can go wrong before there is a result.

use std::path::PathBuf;

use tidegate_load::LoadError;

/// A load could not be carried by agents.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The broker cannot be reached.
    #[error("the broker {url} cannot be used: {why}")]
    Broker {
        /// Where it should be, without secrets.
        url: String,
        /// What the client says, and what to do about it.
        why: String,
    },
    /// What was said about the broker is wrong: where it is, who we are, or whom to trust.
    #[error("the broker {url} cannot be used: {why}")]
    Access {
        /// Where it should be, without secrets.
        url: String,
        /// What the client says, and what to give.
        why: String,
    },
    /// A file of the credentials does not hold what it should.
    #[error("{} holds no {expected}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
    },
    /// A file of the credentials cannot be read.
    #[error("{} cannot be read: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// This system has no timers or sockets for us.
    #[error("the connection to the broker cannot be set up: {0}")]
    Runtime(#[source] std::io::Error),
    /// The plan cannot be carried out by anybody, or not by so many.
    #[error(transparent)]
    Plan(#[from] LoadError),
    /// The plan cannot be sent.
    #[error("{0}")]
    Order(String),
    /// Not enough agents came.
    #[error(
        "{came} of {wanted} agents came within {waited_s:.0} s{busy}; start more with `tidegate agent --nats URL`, lower --agents, or raise --agents-wait"
    )]
    TooFew {
        /// Those that came and were free.
        came: usize,
        /// Those that were asked for.
        wanted: usize,
        /// Seconds waited.
        waited_s: f64,
        /// Those at work for somebody else, in words.
        busy: String,
    },
    /// An agent does not take the plan.
    #[error("agent {agent} refuses: {why}")]
    Refused {
        /// Its name.
        agent: String,
        /// Its reason.
        why: String,
    },
    /// Something went wrong before the load began, and the setting is to stop then.
    #[error("{0}; nothing was begun")]
    NotBegun(String),
    /// No agent brought a result.
    #[error("there is no result: {0}")]
    NoResult(String),
    /// Ended from outside before the load began.
    #[error("interrupted before the load began")]
    Interrupted,
}

impl ClusterError {
    /// Whether something else has to be given, rather than done elsewhere.
    #[must_use]
    pub fn is_about_options(&self) -> bool {
        matches!(self, Self::Access { .. } | Self::Content { .. } | Self::File { .. })
    }
}
