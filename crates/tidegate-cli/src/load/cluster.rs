//! A load that agents carry: its options, and handing it out.

use std::sync::atomic::AtomicBool;

use clap::ValueEnum;
use tidegate_cluster::lead::{self, LeadOptions, OnLost};
use tidegate_cluster::{ClusterError, TlsOrder};
use tidegate_load::{Phase, Plan, Report};

use super::args::seconds;
use crate::Failure;
use crate::nats::{self, NatsArgs};

/// Options of a load that agents carry.
#[derive(clap::Args)]
pub struct ClusterArgs {
    /// Let agents carry the load (`tidegate agent --nats URL` on other hosts), over the broker at nats://HOST:PORT.
    #[arg(long, value_name = "URL", requires = "agents", conflicts_with_all = ["cpus", "server_pid"])]
    nats: Option<String>,
    /// Agents that share connections, requests and rate.
    #[arg(long, value_name = "N", requires = "nats", value_parser = clap::value_parser!(u16).range(1..))]
    agents: Option<u16>,
    /// Seconds to wait until so many agents are there.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    agents_wait: f64,
    /// What is done when an agent is lost, or its clock is wrong: end the load, go on with the others, or go on and let
    /// the others take over what the lost one would still have done. The exit code is 1 in any case.
    #[arg(long, value_name = "WHAT", default_value = "stop")]
    on_lost: Lost,
    /// Seconds of silence after which an agent is lost; without a lead for so long it ends its load by itself.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    agent_timeout: f64,
    /// Seconds that the wall clock of an agent may be off, and that it may begin late.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    clock_bound: f64,
    #[command(flatten)]
    access: NatsArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Lost {
    Stop,
    Continue,
    Redistribute,
}

/// Loads that agents do not carry: asked for, they say so.
#[derive(clap::Args)]
pub struct NoAgents {
    #[arg(long, hide = true, value_parser = refused)]
    nats: Option<String>,
    #[arg(long, hide = true, value_parser = refused)]
    agents: Option<String>,
}

fn refused(_: &str) -> Result<String, String> {
    Err("agents carry `load http` and `load echo` only; start this load on each host by itself".into())
}

impl ClusterArgs {
    /// How the load is handed out, if it is; whether connections are held after it.
    pub fn options(&self, hold: bool) -> Result<Option<LeadOptions>, Failure> {
        let url = self.access.broker(self.nats.as_deref())?;
        let (Some(url), Some(agents)) = (url, self.agents) else { return Ok(None) };
        let patience = seconds("--agent-timeout", self.agent_timeout.clamp(1.0, 60.0))?;
        Ok(Some(LeadOptions {
            access: self.access.access(url),
            agents: agents.into(),
            wait: seconds("--agents-wait", self.agents_wait)?,
            on_lost: match self.on_lost {
                Lost::Stop => OnLost::Stop,
                Lost::Continue => OnLost::Continue,
                Lost::Redistribute => OnLost::Redistribute,
            },
            patience,
            clock_bound: seconds("--clock-bound", self.clock_bound)?,
            hold,
        }))
    }
}

/// Has agents carry the plan out.
pub fn carry_out(
    options: &LeadOptions,
    plan: &Plan,
    tls: Option<TlsOrder>,
    interrupted: &AtomicBool,
    observer: &mut dyn FnMut(Phase<'_>),
) -> Result<Report, Failure> {
    lead::carry_out(options, plan, tls, interrupted, observer).map_err(|e| match e {
        ClusterError::Plan(e) => super::failure(e),
        e => nats::failure(e),
    })
}
