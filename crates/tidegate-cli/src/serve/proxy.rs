//! `tidegate serve proxy`.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::anyhow;
use tidegate::Endpoint;
use tidegate_services::proxy::{Balance, HeaderVersion, ProxyOptionsError, Upstreams};
use tidegate_services::{Proxy, ProxyOptions, UpstreamLimits};

use super::how::{How, ServiceKind, endpoint};
use super::stage::PlannedServer;
use crate::label::Label;
use crate::limits::Given;
use crate::{Failure, usage};

/// A receive buffer: what other sizes cost is in benchmarks/async.md.
const BUFFER_BYTES: usize = 64 * 1024;

const PROXY: ServiceKind = ServiceKind { schemes: ["tcp", "tls"], path: "", protocols: &[] };

/// Options of `serve proxy`.
#[derive(clap::Args)]
pub struct ProxyArgs {
    /// Upstream servers: ADDR:PORT, unix:PATH or unix:@NAME, separated by commas.
    #[arg(long, value_name = "ADDR[,ADDR]", value_parser = endpoint, value_delimiter = ',', required = true)]
    to: Vec<Endpoint>,
    /// How the upstream for a client is selected.
    #[arg(long, value_name = "WAY", value_enum, default_value = "round-robin")]
    balance: BalanceMethod,
    /// Send a PROXY protocol header of this version, with the client's address, to the upstream.
    #[arg(long, value_name = "VERSION", value_enum)]
    send_proxy: Option<Version>,
    #[command(flatten)]
    pub how: How,
    #[command(flatten)]
    limits: Given<UpstreamLimits>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum BalanceMethod {
    /// In turn.
    RoundRobin,
    /// The one with the fewest connections.
    LeastConnections,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Version {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

impl ProxyArgs {
    pub fn plan(mut self, label: Label) -> Result<Box<dyn PlannedServer>, Failure> {
        let mut policy = self.how.limits.policy();
        self.how.limits.widen_buffers(&mut policy, BUFFER_BYTES);
        self.how.limits.dials = 1;
        let mut limits = UpstreamLimits::default();
        self.limits.apply(&mut limits);
        let options = ProxyOptions {
            balance: match self.balance {
                BalanceMethod::RoundRobin => Balance::RoundRobin,
                BalanceMethod::LeastConnections => Balance::LeastConnections,
            },
            limits,
            header: self.send_proxy.map(|version| match version {
                Version::V1 => HeaderVersion::V1,
                Version::V2 => HeaderVersion::V2,
            }),
        };
        let upstreams = self.to.iter().filter_map(Endpoint::addr);
        if let Some(own) = self.how.first_address_among(upstreams) {
            return Err(usage(anyhow!(
                "--to {own} is where this server listens (--listen): it would dial itself"
            )));
        }
        let proxy = Proxy::new(self.to, options).map_err(blame)?;
        let upstreams = proxy.upstreams();
        let mut plan = self.how.stream_plan(label, &PROXY, policy, proxy)?;
        plan.server.proxy = Some(upstreams);
        Ok(Box::new(plan))
    }
}

/// Names the option that is to blame.
fn blame(e: ProxyOptionsError) -> Failure {
    match e {
        ProxyOptionsError::Limits(e) => usage(e),
        upstream => usage(anyhow!("--to: {upstream}")),
    }
}

impl How {
    /// One of these addresses that is where to listen, too.
    fn first_address_among(&self, mut addresses: impl Iterator<Item = SocketAddr>) -> Option<SocketAddr> {
        let listens = |at: SocketAddr| self.listen().iter().any(|own| own.addr() == Some(at));
        addresses.find(|&at| at.port() != 0 && listens(at))
    }
}

/// Counters of upstreams, for `--stats`.
pub fn to_json(upstreams: &Arc<Upstreams>) -> serde_json::Value {
    let of = |upstream: tidegate_services::proxy::UpstreamStats| {
        serde_json::json!({
            "to": upstream.at.to_string(),
            "open": upstream.open,
            "connected": upstream.connected,
            "failed": upstream.failed,
            "left_out": upstream.is_left_out,
        })
    };
    let all: Vec<_> = upstreams.stats().into_iter().map(of).collect();
    serde_json::json!({ "unserved": upstreams.unserved(), "upstreams": all })
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
        proxy: ProxyArgs,
    }

    #[test]
    fn receive_buffers_are_large_unless_given() {
        for (options, expected) in [
            (&[][..], (64 * 1024, 64, 2)),
            (&["--buffers", "128"], (64 * 1024, 128, 2)),
            (&["--drain-budget", "8"], (64 * 1024, 64, 8)),
            (&["--buffer-bytes", "16k"], (16 * 1024, 256, 8)),
            (&["--buffer-bytes", "128k"], (128 * 1024, 256, 8)),
            (&["--strategy", "connections"], (4 * 1024, 256, 8)),
        ] {
            let args = TestArgs::try_parse_from([&["x", "--to", "127.0.0.1:9"], options].concat());
            let limits = args.unwrap_or_else(|e| panic!("{e}")).proxy.how.limits;
            let mut policy = limits.policy();
            limits.widen_buffers(&mut policy, BUFFER_BYTES);
            let got = (policy.buffer_bytes, policy.buffers, policy.drain_budget);
            assert_eq!(got, expected, "{options:?}");
            policy.check().unwrap();
            let changed = limits.changed_to(Strategy::Throughput, &policy, Model::Select);
            assert_eq!(
                (changed.buffer_bytes, changed.drain_budget),
                (policy.buffer_bytes, policy.drain_budget),
                "{options:?}, with another strategy"
            );
        }
    }
}
