//! A messenger: rooms, nicknames, history and presence, over lines and WebSocket on one port.
//!
//! | part | contents |
//! |---|---|
//! | `limits` | limits of rooms and members |
//! | `command` | parses a line from a member |
//! | `registry` | all rooms |
//! | `room` | one room: members, history, and the order of events |
//! | `outside` | validates messages of other nodes |
//! | `federation`, `remote` | federated rooms: the bridge's interface, and a room's remote state |
//! | `pace` | rate limit of members |
//! | `member` | a member, independent of its protocol |
//! | `lines`, `web` | members over lines and over WebSocket |
//! | `session` | one connection: detects the protocol from its first bytes |
//!
//! The events of a room are numbered consecutively, and every member receives them in this order. A message is in
//! memory once, as frame and as line; it is sent to each I/O thread once ([`Group`](tidegate::Group)), and the members
//! on that thread share it. A member that reads too slowly is disconnected ([`ChatLimits::behind_bytes`]); members
//! never wait for each other. docs/chat-protocol.md has the protocol.

mod command;
mod counters;
mod federation;
mod limits;
mod lines;
mod member;
mod outside;
mod pace;
mod registry;
mod remote;
mod room;
mod session;
mod web;

use std::sync::Arc;

use tidegate::{Peer, Policy, PolicyError, Refusal, Service};

pub use counters::{ChatCounters, ChatStats, FederationCounts};
pub use federation::{Batch, Batched, Federation, Received};
pub use limits::ChatLimits;
pub use outside::{Implausible, MOST_NUMBER, is_name};
pub use remote::{Happened, Residents};
pub use session::ChatSession;

use crate::http::Access;
use crate::websocket::WebSocketShared;
use federation::BridgeLink;
use registry::RoomRegistry;
use web::WebMembers;

/// The messenger.
#[derive(Debug)]
pub struct Chat {
    registry: Arc<RoomRegistry>,
    web: Arc<WebSocketShared<WebMembers>>,
}

impl Chat {
    /// Creates a messenger without rooms, with these limits.
    #[must_use]
    pub fn new(limits: ChatLimits) -> Self {
        Self::of(Arc::new(RoomRegistry::new(limits, None)))
    }

    /// Creates a messenger with federated rooms, and the interface for the bridge to other nodes. `wake` is called,
    /// from any thread and under the lock of a room, when the bridge has work; it must not block, and must not call
    /// back into this.
    #[must_use]
    pub fn federated(limits: ChatLimits, wake: impl Fn() + Send + Sync + 'static) -> (Self, Federation) {
        let link = Arc::new(BridgeLink::new(Box::new(wake)));
        let registry = Arc::new(RoomRegistry::new(limits, Some(link.clone())));
        (Self::of(registry.clone()), Federation::new(registry, link))
    }

    fn of(registry: Arc<RoomRegistry>) -> Self {
        let (limits, access) = (registry.limits.websocket(), Access::default());
        Self {
            web: Arc::new(WebSocketShared { service: WebMembers::new(registry.clone()), limits, access }),
            registry,
        }
    }

    /// Sets the host names that browsers may use, and the origins whose pages may join. Default: addresses and
    /// `localhost`, and pages of the same origin.
    #[must_use]
    pub fn with_access(self, access: Access) -> Self {
        let (service, limits) = (WebMembers::new(self.registry.clone()), self.registry.limits.websocket());
        Self { web: Arc::new(WebSocketShared { service, limits, access }), ..self }
    }

    /// Its counters; valid while the service runs.
    #[must_use]
    pub fn counters(&self) -> Arc<ChatCounters> {
        self.registry.counters.clone()
    }
}

impl Default for Chat {
    fn default() -> Self {
        Self::new(ChatLimits::default())
    }
}

impl Service for Chat {
    type Session = ChatSession;

    fn open(&self, peer: &Peer) -> Result<ChatSession, Refusal> {
        Ok(ChatSession::new(self.registry.clone(), self.web.clone(), peer.clone()))
    }

    fn check_limits(&self, policy: &Policy) -> Result<(), PolicyError> {
        self.registry.limits.check(policy)
    }
}
