//! Federated chat rooms: a bridge between one node's [`Federation`](tidegate_services::chat::Federation) and a NATS
//! broker with JetStream.
//!
//! The stream orders the events of each room and keeps the last ones; docs/chat.md explains what that means for
//! members. One thread does all the work; rooms never wait for it, and their queues to it are bounded
//! ([`Federation::waiting_bytes`](tidegate_services::chat::Federation::waiting_bytes)).

#[cfg(not(feature = "nats"))]
mod absent;
#[cfg(feature = "nats")]
mod work;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::access::BrokerAccess;
use crate::error::ClusterError;
#[cfg(not(feature = "nats"))]
pub use absent::Bridge;
#[cfg(feature = "nats")]
pub use work::{Bridge, understand};

/// What the stream keeps. Used when it is made; one that is there stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Messages of a room; one may hold several things that were said.
    pub messages: u32,
    /// For so long.
    pub age: Duration,
    /// Bytes of all rooms, on the broker's disk.
    pub bytes: u64,
    /// Brokers of a cluster that keep a copy each.
    pub replicas: u8,
}

impl Default for Retention {
    /// 1,000 messages of a room for a day, 256 MiB in all, at one broker.
    fn default() -> Self {
        Self { messages: 1_000, age: Duration::from_secs(24 * 3600), bytes: 256 << 20, replicas: 1 }
    }
}

/// How a node federates with others.
#[derive(Clone, Debug)]
pub struct BridgeOptions {
    /// The broker.
    pub access: BrokerAccess,
    /// What this node is called, for people.
    pub name: String,
    /// After so long a silence a node is lost, or this one is cut off.
    pub timeout: Duration,
    /// What the stream keeps.
    pub kept: Retention,
}

/// Why a node cannot federate with others.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BridgeError {
    /// The broker cannot be reached.
    #[error(transparent)]
    Broker(#[from] ClusterError),
    /// It keeps no messages.
    #[error(
        "the broker {url} cannot keep the order of rooms: {why}; it needs JetStream (nats-server -js -sd FOLDER), \
         room for the stream, and a user who may use it"
    )]
    Stream {
        /// Where it is, without secrets.
        url: String,
        /// What it says.
        why: String,
    },
    /// Its messages are too small.
    #[error(
        "the broker takes messages of {takes} bytes, and what may wait in a room can need {needs}; raise its \
         max_payload or lower --waiting-bytes"
    )]
    Payload {
        /// Its `max_payload`.
        takes: usize,
        /// What we need.
        needs: usize,
    },
}

/// Wakes the bridge: half of it goes into [`Chat::federated`](tidegate_services::Chat::federated).
#[derive(Clone, Debug, Default)]
pub struct Wake(Arc<Notify>);

impl Wake {
    /// There is something to do. Does not wait.
    pub fn wake(&self) {
        self.0.notify_one();
    }
}

/// Hears of what happens: a short stable name, and words.
pub type EventReporter = Box<dyn FnMut(&str, &str) + Send>;
