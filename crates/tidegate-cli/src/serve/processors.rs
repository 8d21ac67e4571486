//! CPU affinity: each server runs on its processors, and the rest of the process on those of all servers together.

use anyhow::{Context, anyhow};
use tidegate::system;

use crate::system::PINS_THREADS;
use crate::{Failure, usage};

/// The processors of the process.
pub struct Processors {
    /// The union of all servers' processors.
    all: Vec<usize>,
}

impl Processors {
    /// Pins the process to the servers' processors; to all if one server may run anywhere.
    pub fn of_all<'a>(servers: impl Iterator<Item = &'a [usize]> + Clone) -> Result<Self, Failure> {
        let mut all: Vec<usize> = servers.clone().flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        if all.is_empty() {
            return Ok(Self { all });
        }
        let allowed = system::allowed_cpus();
        if let Some(cpu) = all.iter().find(|cpu| !allowed.contains(cpu)) {
            return Err(usage(anyhow!("no processor {cpu}; this process may use {allowed:?}")));
        }
        let one = servers.clone().all(|cpus| all.iter().all(|cpu| cpus.contains(cpu)));
        if !PINS_THREADS && !one {
            return Err(usage(anyhow!(
                "this system can only pin whole processes: give all servers the same --cpus, or run each in a separate \
             process"
            )));
        }
        if servers.clone().any(<[usize]>::is_empty) {
            return Ok(Self { all: allowed });
        }
        pin(&all)?;
        Ok(Self { all })
    }

    /// Runs a stage of a server on its processors. Threads started there stay there.
    pub fn within<T>(
        &self,
        cpus: &[usize],
        stage: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if cpus.is_empty() || self.all.iter().all(|cpu| cpus.contains(cpu)) {
            return stage();
        }
        pin(cpus)?;
        let outcome = stage();
        pin(&self.all)?;
        outcome
    }
}

fn pin(cpus: &[usize]) -> Result<(), Failure> {
    system::pin_to_cpus(cpus).context("cannot run on the given processors").map_err(usage)
}
