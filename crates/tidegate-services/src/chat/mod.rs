//! A messenger: rooms, nicknames, history and presence, as lines and over WebSocket on one port.
//!
//! | part | what it is |
//! |---|---|
//! | `limits` | what rooms and members are bounded by |
//! | `command` | a line from a member, taken apart |
//! | `hall` | all rooms |
//! | `room` | one room: who is in it, what was said last, and the order of it |
//! | `outside` | what other nodes say, checked as what members say is |
//! | `span`, `far` | rooms that span nodes: the end a bridge holds, and what a room has beyond this node |
//! | `pace` | how fast a member may speak |
//! | `member` | what a member does, whatever it speaks |
//! | `lines`, `web` | members that speak lines, and over WebSocket |
//! | `session` | one connection: its first bytes say which of them it is |
//!
//! What happens in a room has a number, one more than what happened before, and every member is told of it in this
//! order. A message is in memory once, as frame and as line; it goes to each I/O thread once
//! ([`Group`](tidegate::Group)), and the members that live there share it. Whoever takes too little is cut off
//! ([`ChatLimits::behind_bytes`]); nobody waits for anybody. docs/chat.md has the protocol.

mod command;
mod counters;
mod far;
mod hall;
mod limits;
mod lines;
mod member;
mod outside;
mod pace;
mod room;
mod session;
mod span;
mod web;

use std::sync::Arc;

use tidegate::{Peer, Refusal, Service};

pub use counters::{ChatCounters, ChatStats, SpanCounts};
pub use far::{Happened, Residents};
pub use limits::{ChatLimits, ChatLimitsError};
pub use outside::{Implausible, MOST_NUMBER, is_name};
pub use session::ChatSession;
pub use span::{Batch, Batched, Received, Span};

use crate::http::Access;
use crate::websocket::Front;
use hall::Hall;
use span::Link;
use web::WebMembers;

/// The messenger.
#[derive(Debug)]
pub struct Chat {
    hall: Arc<Hall>,
    web: Arc<Front<WebMembers>>,
}

impl Chat {
    /// Without rooms yet, within `limits`.
    #[must_use]
    pub fn new(limits: ChatLimits) -> Self {
        Self::of(Arc::new(Hall::new(limits, None)))
    }

    /// One whose rooms span nodes, within `limits`, and the end that the bridge to the others holds. `wake` is called,
    /// from any thread, when there is something to do for the bridge; it must not wait.
    #[must_use]
    pub fn spanning(limits: ChatLimits, wake: impl Fn() + Send + Sync + 'static) -> (Self, Span) {
        let link = Arc::new(Link::new(Box::new(wake)));
        let hall = Arc::new(Hall::new(limits, Some(link.clone())));
        (Self::of(hall.clone()), Span::new(hall, link))
    }

    fn of(hall: Arc<Hall>) -> Self {
        let (limits, access) = (hall.limits.websocket(), Access::default());
        Self { web: Arc::new(Front { service: WebMembers::new(hall.clone()), limits, access }), hall }
    }

    /// The names by which browsers may ask, and the origins whose pages may join. Without it: addresses and
    /// `localhost`, and pages that came from here.
    #[must_use]
    pub fn with_access(self, access: Access) -> Self {
        let (service, limits) = (WebMembers::new(self.hall.clone()), self.hall.limits.websocket());
        Self { web: Arc::new(Front { service, limits, access }), ..self }
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
