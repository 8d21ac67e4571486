//! Where a load is generated: on this machine, or by agents on other hosts, led by a process of this machine.
//! Experiments do not depend on it.

use std::net::{IpAddr, Ipv4Addr};

use tidegate::Model;

use super::sizing::LoadSource;
use super::{ServerProcess, TIMEOUT};
use crate::process::{Process, cpus};
use crate::{Bench, LabError};

/// Loads from other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agents {
    /// Agents per load.
    pub count: usize,
    /// Options of `load` with the broker's address and credentials.
    pub options: Vec<String>,
    /// The address of this machine as seen by the agents.
    pub server: IpAddr,
}

/// Generates the loads of an experiment.
#[derive(Clone, Copy)]
pub(crate) struct Generator<'a> {
    pub(crate) bench: &'a Bench,
    /// None is this machine.
    agents: Option<&'a Agents>,
}

impl<'a> Generator<'a> {
    pub(crate) fn new(bench: &'a Bench, agents: Option<&'a Agents>) -> Self {
        Self { bench, agents }
    }

    /// Of this machine.
    pub(crate) fn here(bench: &'a Bench) -> Self {
        Self::new(bench, None)
    }

    /// The server's address as seen by the load.
    pub(super) fn server(
        &self,
        service: &str,
        model: Model,
        extra: &[&str],
    ) -> Result<ServerProcess, LabError> {
        let ip = self.agents.map_or(Ipv4Addr::LOCALHOST.into(), |agents| agents.server);
        ServerProcess::start_at(self.bench, service, model, ip, extra)
    }

    /// Options of a load that say who carries it. `of_this_machine` are those that agents see to themselves.
    pub(super) fn options(&self, of_this_machine: &[&str]) -> Vec<String> {
        let Some(agents) = self.agents else {
            let own = of_this_machine.iter().map(ToString::to_string);
            return own.chain(cpus(&self.bench.load_cpus)).collect();
        };
        let count = ["--agents".into(), agents.count.to_string()];
        count.into_iter().chain(agents.options.iter().cloned()).collect()
    }

    /// Ends a load that holds its connections. One of this machine is killed, which is faster than closing them one by
    /// one; agents receive a command, and are free then.
    pub(super) fn end(&self, load: Process) -> Result<(), LabError> {
        if self.agents.is_some() {
            return load.finish(TIMEOUT);
        }
        drop(load);
        Ok(())
    }

    /// Whose descriptors, ports and memory the load takes.
    pub(super) fn source(&self) -> LoadSource {
        match (self.agents, self.is_here()) {
            (None, _) => LoadSource::Here(Model::best().model),
            (Some(_), true) => LoadSource::Beside,
            (Some(_), false) => LoadSource::Elsewhere,
        }
    }

    /// Whether agents of other hosts carry the loads.
    pub(super) fn is_led(&self) -> bool {
        self.agents.is_some()
    }

    /// Whether the memory of the load's side is that of this machine.
    pub(super) fn is_here(&self) -> bool {
        self.agents.is_none_or(|agents| agents.server.is_loopback())
    }

    /// What a reader has to know of figures that agents had a part in.
    pub(super) fn remark(&self) -> Option<String> {
        let agents = self.agents?;
        Some(format!("{} agents carried the connections", agents.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_receive_nothing_of_this_machine() {
        let bench =
            Bench { program: "tidegate".into(), server_cpus: vec![0], load_cpus: vec![1], group: None };
        let here = Generator::here(&bench);
        assert_eq!(here.options(&["--threads", "3"]), ["--threads", "3", "--cpus", "1"]);
        assert!(here.is_here() && here.remark().is_none());
        let server: IpAddr = "192.0.2.1".parse().unwrap();
        let agents = Agents { count: 2, options: vec!["--nats".into(), "nats://a".into()], server };
        let there = Generator::new(&bench, Some(&agents));
        assert_eq!(there.options(&["--threads", "3"]), ["--agents", "2", "--nats", "nats://a"]);
        assert!(!there.is_here() && there.remark().is_some_and(|remark| remark.contains("2 agents")));
    }
}
