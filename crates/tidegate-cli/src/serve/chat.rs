//! The messenger on the command line of `serve`.

use tidegate::Policy;
use tidegate_services::http::access::{Host, WebOrigin};
use tidegate_services::http::{Access, AccessError};
use tidegate_services::{Chat, ChatLimits};

use super::how::{How, ServiceKind, host};
use super::nodes::{NodesArgs, federated};
use super::stage::PlannedServer;
use super::stream::StreamPlan;
use crate::label::Label;
use crate::limits::Given;
use crate::{Failure, usage};

const CHAT: ServiceKind = ServiceKind { schemes: ["http", "https"], path: "/", protocols: &["http/1.1"] };

/// Options of `serve chat`.
#[derive(clap::Args)]
pub(super) struct ChatArgs {
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
    #[command(flatten)]
    limits: Given<ChatLimits>,
}

fn origin(text: &str) -> Result<WebOrigin, String> {
    text.parse().map_err(|e: AccessError| e.to_string())
}

impl ChatArgs {
    pub(super) fn plan(mut self, label: Label) -> Result<Box<dyn PlannedServer>, Failure> {
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

    fn limits(&mut self, policy: &mut Policy) -> Result<ChatLimits, Failure> {
        let mut limits = ChatLimits::default();
        self.limits.apply(&mut limits);
        self.how.limits.make_room(policy, limits.input_bytes());
        // A full outbox must hold a member back before it exceeds the disconnect limit.
        self.how.limits.bound_outbox(policy, limits.behind_bytes / 2);
        limits.check(policy).map_err(usage)?;
        Ok(limits)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tidegate::Model;

    use super::*;
    use crate::limits::Strategy;

    #[derive(Parser)]
    struct TestArgs {
        #[command(flatten)]
        chat: ChatArgs,
    }

    #[test]
    fn a_member_is_held_back_before_it_is_disconnected_under_any_strategy() {
        for (options, expected) in [
            (&[][..], [64 << 10, 128 << 10, 16 << 10]),
            (&["--strategy", "throughput"], [128 << 10, 128 << 10, 16 << 10]),
            (&["--behind-bytes", "1MiB", "--strategy", "throughput"], [256 << 10, 256 << 10, 16 << 10]),
            (&["--outbox-high", "200k"], [200 << 10; 3]),
        ] {
            let args = TestArgs::try_parse_from([&["x"], options].concat());
            let mut chat = args.unwrap_or_else(|e| panic!("{e}")).chat;
            let mut policy = chat.how.limits.policy();
            assert!(chat.limits(&mut policy).is_ok(), "{options:?}");
            let changed = |strategy| {
                let changed = chat.how.limits.changed_to(strategy, &policy, Model::Select);
                changed.check().unwrap();
                changed.outbox.high
            };
            let highs = [policy.outbox.high, changed(Strategy::Throughput), changed(Strategy::Connections)];
            assert_eq!(highs, expected, "{options:?}");
        }
    }
}
