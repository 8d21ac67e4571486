//! Federation of the messenger: options, and the bridge between nodes.

use std::time::Duration;

use anyhow::anyhow;
use tidegate_cluster::rooms::{Bridge, BridgeError, BridgeOptions, Retention, Wake};
use tidegate_services::{Chat, ChatLimits};

use crate::label::Label;
use crate::limits::{at_least_one, count_in, size, time};
use crate::nats::{self, NatsArgs};
use crate::{Failure, usage};

/// Options of federated rooms.
#[derive(clap::Args)]
pub(super) struct NodesArgs {
    /// Share the rooms with other nodes, over the broker at nats://HOST:PORT with JetStream; tls:// to require
    /// encryption.
    #[arg(long, value_name = "URL")]
    nats: Option<String>,
    /// Name of this node for members and in notes [default: HOSTNAME].
    #[arg(long, value_name = "NAME", requires = "nats")]
    node: Option<String>,
    /// Silence after which another node counts as lost, or this one as cut off [default: 5s].
    #[arg(long, value_name = "TIME", value_parser = time, requires = "nats")]
    node_timeout: Option<Duration>,
    /// Messages of a room that the broker keeps; used when the stream is created [default: 1000].
    #[arg(long, value_name = "COUNT", requires = "nats", value_parser = at_least_one::<u32>)]
    kept_messages: Option<u32>,
    /// How long it keeps them [default: 24h].
    #[arg(long, value_name = "TIME", requires = "nats", value_parser = time)]
    kept_time: Option<Duration>,
    /// Bytes that it keeps for all rooms [default: 256MiB].
    #[arg(long, value_name = "SIZE", requires = "nats", value_parser = size)]
    kept_bytes: Option<usize>,
    /// Replicas in a broker cluster [default: 1].
    #[arg(long, value_name = "COUNT", requires = "nats", value_parser = count_in::<u8>(1..=5))]
    kept_replicas: Option<u8>,
    #[command(flatten)]
    access: NatsArgs,
}

impl NodesArgs {
    /// How rooms are shared, if they are.
    pub(super) fn options(&self) -> Result<Option<BridgeOptions>, Failure> {
        let Some(url) = self.access.broker(self.nats.as_deref())? else { return Ok(None) };
        let timeout = self.node_timeout.unwrap_or(Duration::from_secs(5));
        if !(Duration::from_secs(1)..=Duration::from_secs(60)).contains(&timeout) {
            return Err(usage(anyhow!("--node-timeout must be from 1s to 60s")));
        }
        let default = Retention::default();
        let kept = Retention {
            messages: self.kept_messages.unwrap_or(default.messages),
            age: self.kept_time.unwrap_or(default.age),
            bytes: self.kept_bytes.map_or(default.bytes, |bytes| bytes as u64),
            replicas: self.kept_replicas.unwrap_or(default.replicas),
        };
        let name = nats::name_or_host("--node", self.node.as_deref(), "node")?;
        Ok(Some(BridgeOptions { access: self.access.access(url), name, timeout, kept }))
    }
}

/// Starts the bridge of a messenger, after all servers are bound; the state of the rooms is loaded when it returns.
pub(super) type StartBridge = Box<dyn FnOnce() -> Result<Bridge, Failure>>;

/// The federated messenger, and how to start its bridge. The bridge must outlive the threads of the server.
pub(super) fn federated(limits: ChatLimits, options: BridgeOptions, label: &Label) -> (Chat, StartBridge) {
    let wake = Wake::default();
    let waker = wake.clone();
    let (chat, federation) = Chat::federated(limits, move || waker.wake());
    let label = label.clone();
    let report = Box::new(move |event: &str, text: &str| label.note(event, text));
    let start = move || {
        Bridge::start(options, federation, wake, report).map_err(|e| match e {
            BridgeError::Broker(e) => nats::failure(e),
            e => Failure::Run(e.into()),
        })
    };
    (chat, Box::new(start))
}
