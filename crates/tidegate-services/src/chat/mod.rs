//! A messenger: rooms, nicknames, history and presence, as lines and over WebSocket on one port.
//!
//! | part | what it is |
//! |---|---|
//! | `limits` | what rooms and members are bounded by |
//! | `command` | a line from a member, taken apart |
//! | `hall` | all rooms |
//! | `room` | one room: who is in it, what was said last, and the order of it |
//! | `pace` | how fast a member may speak |
//! | `member` | what a member does, whatever it speaks |
//! | `lines`, `web` | members that speak lines, and over WebSocket |
//! | `session` | one connection: its first bytes say which of them it is |
//!
//! What happens in a room has a number, one more than what happened before, and every member is told of it in this order. A
//! message is in memory once, as frame and as line; it goes to each I/O thread once ([`Group`](tidegate::Group)), and the members
//! that live there share it. Whoever takes too little is cut off ([`ChatLimits::behind_bytes`]); nobody waits for anybody.
//! docs/chat.md has the protocol.

mod command;
mod counters;
mod hall;
mod limits;
mod lines;
mod member;
mod pace;
mod room;
mod session;
mod web;

use std::sync::Arc;

use tidegate::{Peer, Refusal, Service};

pub use counters::{ChatCounters, ChatStats};
pub use limits::{ChatLimits, ChatLimitsError};
pub use session::ChatSession;

use hall::Hall;
use web::WebMembers;

/// The messenger.
#[derive(Debug)]
pub struct Chat {
    hall: Arc<Hall>,
    web: Arc<WebMembers>,
}

impl Chat {
    /// Without rooms yet, within `limits`.
    #[must_use]
    pub fn new(limits: ChatLimits) -> Self {
        let hall = Arc::new(Hall::new(limits));
        Self { web: Arc::new(WebMembers::new(hall.clone())), hall }
    }

    /// What it counts; stays valid while the service runs.
    #[must_use]
    pub fn counters(&self) -> Arc<ChatCounters> {
        self.hall.counters.clone()
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
        Ok(ChatSession::new(self.hall.clone(), self.web.clone(), *peer))
    }
}
