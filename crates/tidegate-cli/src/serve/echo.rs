//! `tidegate serve echo`.

use tidegate_services::Echo;
use tidegate_services::http::Access;
use tidegate_services::websocket::{EchoMessages, WebSocket, WebSocketLimits};

use super::how::{How, ServiceKind};
use super::stage::PlannedServer;
use crate::label::Label;
use crate::limits::Given;
use crate::{Failure, usage};

const ECHO: ServiceKind = ServiceKind { schemes: ["tcp", "tls"], path: "", protocols: &[] };
const WEBSOCKET: ServiceKind = ServiceKind { schemes: ["ws", "wss"], path: "/", protocols: &["http/1.1"] };

/// Options of `serve echo`.
#[derive(clap::Args)]
pub struct EchoArgs {
    /// Echo WebSocket messages (RFC 6455).
    #[arg(long)]
    websocket: bool,
    #[command(flatten)]
    pub how: How,
    #[command(flatten)]
    limits: Given<WebSocketLimits>,
}

impl EchoArgs {
    pub fn plan(self, label: Label) -> Result<Box<dyn PlannedServer>, Failure> {
        let mut policy = self.how.limits.policy();
        if !self.websocket {
            return self.how.plan(label, &ECHO, policy, Echo);
        }
        let mut limits = WebSocketLimits::default();
        self.limits.apply(&mut limits);
        self.how.limits.make_room(&mut policy, limits.input_bytes());
        limits.check(&policy).map_err(usage)?;
        // It has no secrets and no side effects.
        let echo = WebSocket::with_access(EchoMessages, limits, Access::any());
        self.how.plan(label, &WEBSOCKET, policy, echo)
    }
}
