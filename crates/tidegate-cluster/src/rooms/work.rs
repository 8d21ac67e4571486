//! The bridge at work, on its own thread.
//!
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

use super::{BridgeError, BridgeOptions, EventReporter, Retention, Wake};
use crate::error::ClusterError;
use state::BridgeState;

/// What the fuzzer does with bytes of a broker: every message is understood or refused, and what is understood is
/// within its bounds.
#[doc(hidden)]
pub fn understand(bytes: &[u8]) {
    let limits = tidegate_services::ChatLimits::default();
    let (_, federation) = tidegate_services::Chat::federated(limits, || {});
    if let Ok(said) = wire::Said::read(bytes, federation.batch_bytes()) {
        let known = intake::Known { next: Some(11), last: 20, taken: 20 };
        let follows = intake::follows(&said, 25, intake::SenderNode::Other, known);
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
    match wire::NodeMessage::read(bytes) {
        Ok(wire::NodeMessage::Beat { name, .. }) => assert!(crate::text::is_name(&name)),
        Ok(wire::NodeMessage::Here { node, room, members, nicks }) => {
            let nicks = nicks.into_iter().map(Arc::from).collect();
            let residents = tidegate_services::chat::Residents { members, nicks };
            assert_eq!(federation.set_residents(node, &room, residents), Ok(()));
        }
        _ => {}
    }
}

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
        report: EventReporter,
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
                match BridgeState::open(options, federation, woken, report).await {
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
