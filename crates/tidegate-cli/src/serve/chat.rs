//! The messenger on the command line of `serve`.

use std::num::NonZeroU32;

use tidegate::Policy;
use tidegate_services::http::access::{Host, WebOrigin};
use tidegate_services::http::{Access, AccessError};
use tidegate_services::{Chat, ChatLimits};

use super::how::{How, ServiceKind, host};
use super::nodes::{NodesArgs, federated};
use super::stage::PlannedServer;
use super::stream::StreamPlan;
use crate::label::Label;
use crate::limits::{at_least_one, count, size};
use crate::{Failure, usage};

fn burst(text: &str) -> Result<NonZeroU32, String> {
    at_least_one(text).map(|n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN))
}

const CHAT: ServiceKind = ServiceKind { schemes: ["http", "https"], path: "/", protocols: &["http/1.1"] };

/// Options of `serve chat`.
#[derive(clap::Args)]
pub(super) struct ChatArgs {
    /// Maximum rooms; an empty one keeps its history until its slot is needed [default: 1000].
    #[arg(long, value_name = "COUNT", value_parser = count::<usize>)]
    rooms: Option<usize>,
    /// Maximum members of a room [default: 100,000].
    #[arg(long, value_name = "COUNT", value_parser = count::<usize>)]
    members: Option<usize>,
    /// Longest line or message from a member; a longer one ends the connection [default: 1KiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    line_bytes: Option<usize>,
    /// Lines per second that a member may send, or 0 for unlimited [default: 10].
    #[arg(long, value_name = "COUNT", value_parser = count::<u32>)]
    lines_per_s: Option<u32>,
    /// Burst of lines that a member may send after a pause [default: 20].
    #[arg(long, value_name = "COUNT", value_parser = burst)]
    burst: Option<NonZeroU32>,
    /// Messages of a room shown to a new member [default: 50].
    #[arg(long, value_name = "COUNT", value_parser = count::<usize>)]
    history: Option<usize>,
    /// Bytes of that history, stored for each room [default: 64KiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    history_bytes: Option<usize>,
    /// Unsent output above which a member is disconnected [default: 256KiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    behind_bytes: Option<usize>,
    /// Largest room whose members are notified of joins and leaves, and most members listed [default: 200].
    #[arg(long, value_name = "COUNT", value_parser = count::<usize>)]
    announced: Option<usize>,
    /// Bytes queued per room for the broker; more is refused [default: 64KiB].
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "nats")]
    waiting_bytes: Option<usize>,
    /// A host name, besides localhost and addresses, that browsers may use for the page and the WebSocket (the Host
    /// field), or * for any; may be given several times.
    #[arg(long, value_name = "NAME", value_parser = host)]
    allow_host: Vec<Host>,
    /// An origin, such as `https://www.example`, whose pages may join besides the server's own, or * for any; may be
    /// given several times.
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    allow_origin: Vec<WebOrigin>,
    #[command(flatten)]
    nodes: NodesArgs,
    #[command(flatten)]
    pub(super) how: How,
}

fn origin(text: &str) -> Result<WebOrigin, String> {
    text.parse().map_err(|e: AccessError| e.to_string())
}

impl ChatArgs {
    pub(super) fn plan(self, label: Label) -> Result<Box<dyn PlannedServer>, Failure> {
        let mut policy = self.how.limits.policy();
        let limits = self.limits(&mut policy)?;
        let (chat, bridge) = match self.nodes.options()? {
            None => (Chat::new(limits), None),
            Some(options) => {
                let (chat, start) = federated(limits, options, &label);
                (chat, Some(start))
            }
        };
        let chat = chat.with_access(Access::of(self.allow_host, self.allow_origin));
        let counters = chat.counters();
        let mut plan = self.how.stream_plan(label, &CHAT, policy, chat)?;
        plan.server.chat = Some(counters);
        Ok(Box::new(StreamPlan { bridge, ..plan }))
    }

    fn limits(&self, policy: &mut Policy) -> Result<ChatLimits, Failure> {
        let default = ChatLimits::default();
        let limits = ChatLimits {
            rooms: self.rooms.unwrap_or(default.rooms),
            members: self.members.unwrap_or(default.members),
            line_bytes: self.line_bytes.unwrap_or(default.line_bytes),
            lines_per_s: self.lines_per_s.map_or(default.lines_per_s, NonZeroU32::new),
            burst: self.burst.unwrap_or(default.burst),
            history: self.history.unwrap_or(default.history),
            history_bytes: self.history_bytes.unwrap_or(default.history_bytes),
            behind_bytes: self.behind_bytes.unwrap_or(default.behind_bytes),
            announced: self.announced.unwrap_or(default.announced),
            waiting_bytes: self.waiting_bytes.unwrap_or(default.waiting_bytes),
        };
        self.how.limits.make_room(policy, limits.input_bytes());
        // A full outbox must hold a member back before it exceeds the disconnect limit.
        self.how.limits.bound_outbox(policy, limits.behind_bytes / 2);
        limits.check(policy).map_err(usage)?;
        Ok(limits)
    }
}
