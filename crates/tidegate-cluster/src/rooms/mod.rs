//! Federated chat rooms: a bridge between one node's [`Federation`] and a NATS broker with JetStream.
//! | part | contents |
//! |---|---|
//! | `wire` | the messages and their subjects |
//! | `order` | how the waiting events of a room are ordered |
//! | `log` | the stream: opened, and read from the current position |
//! | `intake` | validates messages of the stream, and delivers them to members |
//! | `peers` | the other nodes, and the time since their last message |
//! | `state` | the state of the bridge: receiving from and publishing to the stream |
//! | `standing` | whether this node is cut off, and its return |
//! | `nodes` | members by node |
//!
//! The stream orders the events of each room and keeps the last ones; docs/chat.md explains what that means for
//! members. One thread does all the work; rooms never wait for it, and their queues to it are bounded
//! ([`Federation::waiting_bytes`]).

mod intake;
mod log;
mod nodes;
mod order;
mod peers;
mod standing;
mod state;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_services::chat::Federation;
use tokio::sync::Notify;

use crate::access::Access;
use crate::error::ClusterError;
use state::BridgeState;

/// What the stream keeps. Used when it is made; one that is there stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Messages of a room; one may hold several things that were said.
    pub messages: u32,
    /// For so long.
    pub age: Duration,
    /// Bytes of all rooms, on the broker's disk.
    pub bytes: u64,
    /// Brokers of a cluster that keep a copy each.
    pub replicas: u8,
}

impl Default for Kept {
    /// 1,000 messages of a room for a day, 256 MiB in all, at one broker.
    fn default() -> Self {
        Self { messages: 1_000, age: Duration::from_secs(24 * 3600), bytes: 256 << 20, replicas: 1 }
    }
}

/// How a node federates with others.
#[derive(Clone, Debug)]
pub struct BridgeOptions {
    /// The broker.
    pub access: Access,
    /// What this node is called, for people.
    pub name: String,
    /// After so long a silence a node is lost, or this one is cut off.
    pub timeout: Duration,
    /// What the stream keeps.
    pub kept: Kept,
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

/// What the fuzzer does with bytes of a broker: every message is understood or refused, and what is understood is
/// within its bounds.
#[doc(hidden)]
pub fn understand(bytes: &[u8]) {
    let limits = tidegate_services::ChatLimits::default();
    let (_, federation) = tidegate_services::Chat::federated(limits, || {});
    if let Ok(said) = wire::Said::read(bytes, federation.batch_bytes()) {
        let known = intake::Known { next: Some(11), last: 20, taken: 20 };
        let follows = intake::follows(&said, 25, false, known);
        let first = said.first;
        assert!(follows.is_err() || first < 1 << 20, "{first} after 10");
        let batch = said.batch();
        if federation.check(&batch).is_ok() {
            assert!(
                batch
                    .all
                    .iter()
                    .all(|happened| !happened.text.contains(|c: char| c.is_control() && c != '\t'))
            );
            let _ = federation.receive("tide", &batch, tidegate_services::chat::Batched::Elsewhere, 0);
        }
    }
    match wire::Tell::read(bytes) {
        Ok(wire::Tell::Beat { name, .. }) => assert!(crate::text::is_name(&name)),
        Ok(wire::Tell::Here { node, room, members, nicks }) => {
            let nicks = nicks.into_iter().map(Arc::from).collect();
            let residents = tidegate_services::chat::Residents { members, nicks };
            assert_eq!(federation.house(node, &room, residents), Ok(()));
        }
        _ => {}
    }
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
pub type Tell = Box<dyn FnMut(&str, &str) + Send>;

/// Longest time that the end waits until what was said last has its place.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A bridge at work, on a separate thread. Dropping it waits at most for two seconds until what was said last is with
/// the others.
#[derive(Debug)]
pub struct Bridge {
    stop: Arc<AtomicBool>,
    wake: Wake,
    thread: Option<JoinHandle<()>>,
}

impl Bridge {
    /// Connects, reads what was said last in all rooms, and goes on by itself.
    ///
    /// # Errors
    /// The broker cannot be used. Later the bridge waits until it can be again.
    pub fn start(
        options: BridgeOptions,
        federation: Federation,
        wake: Wake,
        tell: Tell,
    ) -> Result<Self, BridgeError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = mpsc::channel();
        let (stopped, woken) = (stop.clone(), wake.clone());
        // If nobody waits for what is ready, the process ends just now.
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime.map_err(ClusterError::Runtime) {
                Ok(runtime) => runtime,
                Err(e) => return drop(ready.send(Err(e.into()))),
            };
            runtime.block_on(async {
                match BridgeState::open(options, federation, woken, tell).await {
                    Ok(state) => {
                        let _ = ready.send(Ok(()));
                        state.work(&stopped).await;
                    }
                    Err(e) => drop(ready.send(Err(e))),
                }
            });
        };
        let builder = std::thread::Builder::new().name("tidegate-bridge".into());
        let thread = builder.spawn(work).map_err(ClusterError::Runtime)?;
        let bridge = Self { stop, wake, thread: Some(thread) };
        let gone = || ClusterError::Runtime(std::io::Error::other("the thread of the bridge has ended"));
        is_ready.recv().map_err(|_| gone())??;
        Ok(bridge)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.wake.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic of the bridge has been said on stderr
        }
    }
}
