//! `tidegate serve echo`.

use tidegate_services::Echo;
use tidegate_services::http::Access;
use tidegate_services::websocket::{EchoMessages, WebSocket, WebSocketLimits};

use super::how::{How, ServiceKind};
use super::stage::PlannedServer;
use crate::label::Label;
use crate::limits::size;
use crate::{Failure, usage};

const ECHO: ServiceKind = ServiceKind { schemes: ["tcp", "tls"], path: "", protocols: &[] };
const WEBSOCKET: ServiceKind = ServiceKind { schemes: ["ws", "wss"], path: "/", protocols: &["http/1.1"] };

/// Options of `serve echo`.
#[derive(clap::Args)]
pub struct EchoArgs {
    /// Echo WebSocket messages (RFC 6455).
    #[arg(long)]
    websocket: bool,
    /// Largest WebSocket message; a larger one closes the connection [default: 60KiB].
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "websocket")]
    message_bytes: Option<usize>,
    #[command(flatten)]
    pub how: How,
}

impl EchoArgs {
    pub fn plan(self, label: Label) -> Result<Box<dyn PlannedServer>, Failure> {
        let mut policy = self.how.limits.policy();
        if !self.websocket {
            return self.how.plan(label, &ECHO, policy, Echo);
        }
        let default = WebSocketLimits::default();
        let message_bytes = self.message_bytes.unwrap_or(default.message_bytes);
        let limits = WebSocketLimits { message_bytes, ..default };
        self.how.limits.make_room(&mut policy, limits.input_bytes());
        limits.check(&policy).map_err(usage)?;
        // It has no secrets and no side effects.
        let echo = WebSocket::with_access(EchoMessages, limits, Access::any());
        self.how.plan(label, &WEBSOCKET, policy, echo)
    }
}
